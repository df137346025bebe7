"""The user's own torch.profiler, with memory, around a step; prints what it saw of one known allocation."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
    ) as prof:
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
    averages = {each.key: each for each in prof.key_averages()}
    print(averages["aten::addmm"].count, averages["aten::addmm"].self_cpu_memory_usage)
