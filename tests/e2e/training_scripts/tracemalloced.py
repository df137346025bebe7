"""tracemalloc around a training; prints which files hold memory, none of which is another's."""

import tracemalloc

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())


def step() -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


for _ in range(5):
    step()
tracemalloc.start(5)
before = tracemalloc.take_snapshot()
for _ in range(50):
    step()
grown = tracemalloc.take_snapshot().compare_to(before, "filename")
tracemalloc.stop()
# What we keep while others look must not grow with the steps.
print(sorted(each.traceback[0].filename.rsplit("/", 1)[-1] for each in grown if each.size_diff > 4096))
