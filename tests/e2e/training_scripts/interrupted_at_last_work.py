"""Trains; Ctrl-C comes at the first instruction of the agent's last work."""

import _thread
import atexit
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)

import torch  # noqa: E402  with it the agent: what is registered next is called just before its last work

atexit.register(_thread.interrupt_main)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
