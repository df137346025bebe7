"""Fake tensors, the meta device, to_empty: a model is built and run without memory, then made real."""

import warnings

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from witness import bits, declare

warnings.simplefilter("error")
with FakeTensorMode() as mode:
    imagined = nn.Sequential(nn.Linear(1 << 20, 1 << 20), nn.ReLU())
    y = imagined(torch.randn(4, 1 << 20))
    y.sum().backward()
    torch.optim.AdamW(imagined.parameters()).step()
print(y, y.shape, imagined[0].weight.grad.shape)
with torch.device("meta"):
    model = nn.Sequential(nn.Linear(21, 39), nn.BatchNorm1d(39), nn.Linear(39, 2))
print(model(torch.ones(3, 21, device="meta")).shape, next(model.parameters()).device)
model.to_empty(device="cpu")
torch.manual_seed(21)
for module in model:
    module.reset_parameters()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(5, 21)).square().sum().backward()
    optimizer.step()
bits("weights", model.parameters())
del y, imagined, mode
declare(model=model)
