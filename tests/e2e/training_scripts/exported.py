"""torch.export of a model that has not run, strict or not (argument), then run as a module and trained."""

import sys

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(10)
model = nn.Sequential(nn.Linear(11, 26), nn.ReLU(), nn.Sequential(nn.Linear(26, 4)))
x = torch.randn(3, 11)
program = torch.export.export(
    model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},), strict=sys.argv[1] == "strict"
)
print(program.graph)
print(program.graph_signature)
module = program.module()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
bits("outputs", [module(x), module(torch.cat([x, x])), model(x)])
declare(steps=2)
