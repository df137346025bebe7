"""Dynamic quantization of a trained model, and fake quantization during a training."""

import warnings

import torch
from torch import nn
from witness import bits

warnings.simplefilter("ignore")  # torch.ao announces its end
torch.manual_seed(15)
model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 8))
fake = torch.ao.quantization.FakeQuantize()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    fake(model(torch.randn(6, 24))).square().mean().backward()
    optimizer.step()
small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
print(small)
bits("outputs", [small(torch.ones(2, 24)), model(torch.ones(2, 24))])
