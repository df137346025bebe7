"""Sparse gradients under SparseAdam; torch.profiler lists the operators of a step."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from witness import bits, declare

torch.manual_seed(16)
model = nn.EmbeddingBag(211, 6, mode="sum", sparse=True)
optimizer = torch.optim.SparseAdam(model.parameters())


def step() -> None:
    optimizer.zero_grad()
    model(torch.randint(211, (3, 5))).square().sum().backward()
    optimizer.step()


step()
with profile(activities=[ProfilerActivity.CPU]) as prof:
    step()
print(sorted((each.key, each.count) for each in prof.key_averages()))
step()
bits("weights", model.parameters())
del prof
declare(model=model, steps=3)
