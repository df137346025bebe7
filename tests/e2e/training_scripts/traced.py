"""torch.jit.trace. Arguments: ``before`` or ``after`` the model's first call, ``check`` or ``uncheck``."""

import sys

import torch
from torch import nn
from witness import bits, declare


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(17, 29), nn.Linear(29, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu().view(x.shape[0], -1))


torch.manual_seed(8)
model, x = Net(), torch.randn(3, 17)
if sys.argv[1] == "after":
    model(x)
traced = torch.jit.trace(model, x, check_trace=sys.argv[2] == "check")
print(traced.inlined_graph)
print(traced.code)
optimizer = torch.optim.SGD(traced.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    traced(x).square().sum().backward()
    optimizer.step()
bits("weights", model.parameters())
bits("eager", [model(x)])
declare(model=model, steps=3)
