"""The user's own cProfile around a training; prints the functions that ran, with their counts."""

import cProfile
import pstats

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step() -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


step()
profile = cProfile.Profile()
profile.runcall(step)
for (file, line, name), (_, count, *_) in sorted(pstats.Stats(profile).stats.items()):
    print(file.rsplit("/", 1)[-1], line, name, count)
