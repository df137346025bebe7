"""The user's own torch.profiler, with memory, around a step; prints what it saw of one known allocation.

torch 2.13 loses the text of a Python function's name now and then, with or without an agent (2 of 40 runs
without): key_averages() then raises UnicodeDecodeError. Such a profile is taken again.
"""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = 0
while seen < 2:
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
    ) as prof:
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
    try:
        averages = {each.key: each for each in prof.key_averages()}
    except UnicodeDecodeError:
        continue
    print(averages["aten::addmm"].count, averages["aten::addmm"].self_cpu_memory_usage)
    seen += 1
