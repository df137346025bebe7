"""Lazy modules: parameters without a shape until the first call, moved and printed before it."""

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(22)
model = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(6))
model.double().float()
print(model, [type(each).__name__ for each in model.parameters()])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 5, 9))
print(model)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(2, 5, 9)).square().sum().backward()
    optimizer.step()
bits("weights", model.parameters())
declare(model=model, steps=3)
