"""torch.profiler with stacks around a training; prints the operators, modules and functions that it saw.

Of functions those of the script, and torch's of modules and optimizers: the rest has the agent's own and what
they call.
"""

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
        names = Counter(event.name() for event in prof.profiler.kineto_results.events())
    except UnicodeDecodeError:  # torch's own, also without an agent: see profiled.py
        continue
SHOWN = ("aten::", "autograd::", "torch::autograd", "nn.Module: ", "Optimizer.", "torch/nn/", "torch/optim/")
for name, count in sorted(names.items()):
    if name.startswith(SHOWN) or "stacks_profiled.py" in name:
        print(count, name.rsplit("/", 1)[-1])
