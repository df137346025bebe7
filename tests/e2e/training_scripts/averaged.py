"""An exponential moving average by deepcopy, AveragedModel and update_bn."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from witness import bits, declare

torch.manual_seed(24)
model = nn.Sequential(nn.Linear(15, 35), nn.BatchNorm1d(35), nn.Linear(35, 5))
kept, average = copy.deepcopy(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(7, 15)).square().sum().backward()
    optimizer.step()
    average.update_parameters(model)
    for slow, fast in zip(kept.parameters(), model.parameters(), strict=True):
        slow.data.lerp_(fast.data, 0.1)
update_bn([torch.randn(7, 15) for _ in range(2)], average)
bits("weights", [*model.parameters(), *kept.parameters(), *average.parameters(), *average.buffers()])
declare(model=model, steps=3)
