"""Fourteen steps of a small model; a block of 8 MiB in one of them, as in an evaluation."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for number in range(14):
    loss = model(torch.randn(512, 256)).square().mean()
    if number == 9:
        torch.ones(2 << 20)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
