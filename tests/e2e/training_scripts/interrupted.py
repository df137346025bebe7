"""KeyboardInterrupt within a forward; caught once and trained on, then not caught."""

import signal

import torch
from torch import nn
from witness import bits, declare


class Interrupts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if interrupts:
            signal.raise_signal(signal.SIGINT)
        return x


torch.manual_seed(28)
model = nn.Sequential(nn.Linear(18, 36), Interrupts(), nn.Linear(36, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for interrupts in (False, True, False):  # noqa: B007  forward reads it
    try:
        optimizer.zero_grad()
        model(torch.randn(2, 18)).sum().backward()
        optimizer.step()
    except KeyboardInterrupt:
        print("caught")
bits("weights", model.parameters())
declare(model=model, steps=2)
interrupts = True
model(torch.randn(2, 18))
