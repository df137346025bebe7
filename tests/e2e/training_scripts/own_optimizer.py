"""An optimizer that is no torch.optim.Optimizer, beside one that is and cannot be compared or hashed."""

import torch
from torch import nn
from witness import bits, declare


class Momentum:
    def __init__(self, parameters) -> None:
        self.pairs = [(each, torch.zeros_like(each)) for each in parameters]

    def step(self) -> None:
        with torch.no_grad():
            for parameter, momentum in self.pairs:
                momentum.mul_(0.9).add_(parameter.grad)
                parameter.sub_(0.1 * momentum)
                parameter.grad = None


class Odd(torch.optim.SGD):
    """Equal to nothing, hashed by nobody, with groups that are made anew each time."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    def __repr__(self) -> str:
        raise ValueError("not to be shown")


torch.manual_seed(31)
model = nn.Sequential(nn.Linear(17, 31), nn.ReLU(), nn.Linear(31, 1))
own, odd = Momentum(model[0].parameters()), Odd(model[2].parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(3, 17)).square().sum().backward()
    own.step()
    odd.step()
    odd.zero_grad()
bits("weights", model.parameters())
declare(model=model)
