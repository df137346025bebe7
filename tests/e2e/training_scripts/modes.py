"""Modes of the user's own that see every function and every operator of a training; prints them."""

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from witness import bits, declare

seen: list[str] = []


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen.append(f"function {getattr(function, '__name__', function)}")
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        seen.append(f"operator {function}")
        return function(*args, **(kwargs or {}))


torch.manual_seed(19)
with Functions(), Operators():
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Embedding(3, 3, sparse=True))[:2]
    model.register_buffer("mask", torch.ones(12))
    table = nn.Embedding(30, 12, sparse=True)
    optimizers = [torch.optim.AdamW(model.parameters()), torch.optim.SGD(table.parameters(), lr=0.1)]
    for _ in range(2):
        (model(torch.randn(2, 8)) * model.mask + table(torch.tensor([1, 2]))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
with FlopCounterMode(display=False) as counter:
    model(torch.randn(2, 8))
print("\n".join(seen), counter.get_total_flops(), sorted(counter.get_flop_counts()))
bits("weights", [*model.parameters(), *table.parameters()])
declare(model=model)
