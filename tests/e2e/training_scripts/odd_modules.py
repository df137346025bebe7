"""Modules with methods of their own where torch has some: unhashable, raising, hiding, endless."""

import dataclasses

import torch
from torch import nn
from witness import bits, declare


@dataclasses.dataclass
class Data(nn.Module):
    """A dataclass: compared by its fields, and so unhashable."""

    size: int

    def __post_init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(self.size, self.size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Raises(nn.Module):
    """Raises wherever it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(7))
        self.inner = nn.Linear(7, 7)

    def __getattr__(self, name: str) -> object:
        if "inner" in self.__dict__.get("_modules", {}):
            raise RuntimeError("do not ask")
        raise AttributeError(name)

    def refuse(self, *args, **kwargs):
        raise RuntimeError("do not ask")

    named_children = named_parameters = named_modules = named_buffers = children = modules = refuse
    __repr__ = __eq__ = __bool__ = __len__ = __iter__ = __contains__ = __dir__ = refuse
    __hash__ = None
    loss = property(refuse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.__dict__["_modules"]["inner"](x) + 1


class Ring(nn.Module):
    """A part of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(7, 7)
        self.inner.up = self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


torch.manual_seed(33)
parts = [Data(7), Raises(), Ring()]
inner = [part.__dict__["_modules"]["inner"] for part in parts]
optimizer = torch.optim.SGD([each for part in inner for each in part._parameters.values()], lr=0.1)
for _ in range(3):
    x = torch.randn(2, 7)
    for part in parts:
        x = part(x)
    x.sum().backward()
    optimizer.step()
bits("weights", [each for part in inner for each in part._parameters.values()])
declare(steps=3)
