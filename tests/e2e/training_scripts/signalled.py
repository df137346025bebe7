"""Handlers of the user's own for signals that arrive in a training; they stay and are called once."""

import os
import signal

import torch
from torch import nn
from witness import bits, declare

got: list[str] = []
SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGTERM, signal.SIGINT)
for number in (*SIGNALS, signal.SIGCHLD):
    signal.signal(number, lambda number, frame: got.append(signal.Signals(number).name))
torch.manual_seed(27)
model = nn.Linear(32, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(3, 32)).sum().backward()
    optimizer.step()
    os.kill(os.getpid(), SIGNALS[step])
print(got, [signal.getsignal(each) is not signal.SIG_DFL for each in (signal.SIGTERM, signal.SIGINT)])
print(signal.getitimer(signal.ITIMER_REAL), signal.pthread_sigmask(signal.SIG_BLOCK, []))
bits("weights", model.parameters())
declare(model=model, steps=5)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGTERM)
