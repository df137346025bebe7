"""Trains, says so, and can be interrupted from the moment that the agent's last work begins."""

import atexit
import logging  # noqa: F401  its own work at exit comes after ours
import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
for _ in range(20):  # signal.signal() itself raises an interrupt that has come, and then changes nothing
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)

import torch  # noqa: E402  callbacks run in reverse: those of torch and the agent between the two

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
atexit.register(signal.signal, signal.SIGINT, signal.default_int_handler)
print("ready", flush=True)
