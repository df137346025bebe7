"""The user's own cProfile around a training; prints which functions ran, with their counts.

Those of the script, and torch's of modules and optimizers: the rest has the agent's own and what they call.
"""

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
    if file == __file__ or "/torch/nn/" in file or "/torch/optim/" in file or "_engine_run_backward" in name:
        print(file.rsplit("/", 1)[-1], line, name, count)
