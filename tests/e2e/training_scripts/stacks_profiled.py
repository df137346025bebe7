"""torch.profiler with stacks around a training; prints the Python functions and operators that it saw."""

from collections import Counter

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step() -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


step()
options = {"with_stack": True, "profile_memory": True, "record_shapes": True, "with_modules": True}
names: Counter[str] | None = None
while names is None:
    with profile(activities=[ProfilerActivity.CPU], **options) as prof:
        step()
    try:
        names = Counter(event.name().rsplit("/", 1)[-1] for event in prof.profiler.kineto_results.events())
    except UnicodeDecodeError:  # torch's own, also without an agent: see profiled.py
        continue
for name, count in sorted(names.items()):
    print(count, name.split(" at 0x")[0])
