"""Exceptions from within forward, backward, a step's hook and the engine; tracebacks are printed in full."""

import traceback

import torch
from torch import nn


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no gradient today")


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise LookupError("nothing here")


model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for what in (
    lambda: model(torch.ones(1, 4)),
    lambda: nn.Sequential(model, Broken())(torch.ones(1, 3)),
    lambda: Refuses.apply(model(torch.ones(1, 3))).sum().backward(),
    lambda: model(torch.ones(1, 3)).backward(),
    lambda: optimizer.step(lambda: 1 / 0),
    lambda: torch.cuda.nvtx.range_push("no library"),
    lambda: model.add_module("a.b", model),
):
    try:
        what()
    except Exception:  # noqa: BLE001  printed
        traceback.print_exc()
Refuses.apply(model(torch.ones(1, 3))).sum().backward()
