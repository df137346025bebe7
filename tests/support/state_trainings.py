"""Trainings whose optimizer keeps its state in 16 or 8 bits, or on a host: a script.

``state_trainings.py BASE KEEPER,KEEPER`` trains four steps with each. Stage: tests; runs in a recorded
process. The host is NumPy's memory, which torch does not allocate.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

STEPS: Final = 4
BLOCK: Final = 256
SMALL: Final = 4096
KEEPERS: Final = {
    "bf16": "state16", "bf16 careless": "state16", "bf16 fused": "state16", "blockwise": "state8",
    "blockwise careless": "state8", "codebook": "state8", "blockwise fused": "state8", "host": "offload",
    "fetched": "offload", "fetched careless": "offload",
}  # fmt: skip
"""By name what keeps the state, and the remedy that it is. careless: each result is a tensor of its own."""
CODES: Final = torch.linspace(-1, 1, 255)


class Net(nn.Module):
    """An embedding, which is the largest parameter, layers, and a head that is small."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1200, 128)
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(12))
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x)
        for layer in self.layers:
            h = h + layer(h).relu()
        found: torch.Tensor = self.head(h.mean(1))
        return found


class Kept(torch.optim.Optimizer):
    """Adam, or momentum with one state, that keeps its state in some way."""

    def __init__(self, parameters: Iterable[nn.Parameter], keeper: str, states: int) -> None:
        super().__init__(parameters, {})
        self.how, _, self.manner = keeper.partition(" ")
        self.states = states

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """A step, from parameter to parameter."""
        for weight in (each for group in self.param_groups for each in group["params"]):
            kept = self.state[weight]
            if not kept:
                kept["all"] = [self._first(weight) for _ in range(self.states)]
            if self.manner == "fused" or self.how == "host":
                self._on_host(weight)  # how much is made, not what comes of it, is what is looked at
                continue
            whole = [self._unpacked(each, weight) for each in kept["all"]]
            whole = (self._careless if self.manner == "careless" else self._in_place)(weight, whole)
            kept["all"] = [self._packed(each) for each in whole]

    def _first(self, weight: torch.Tensor) -> Any:
        if self.how in ("host", "fetched"):
            return np.zeros(tuple(weight.shape), np.float32)
        return self._packed(torch.zeros_like(weight))

    @staticmethod
    def _on_host(weight: torch.Tensor) -> None:
        values = weight.numpy()
        values -= 1e-3 * np.sign(weight.grad.numpy())  # type: ignore[union-attr]

    def _packed(self, whole: torch.Tensor) -> Any:
        if self.how == "bf16":
            return whole.bfloat16()
        if self.how == "fetched":
            return whole.numpy().copy()
        if whole.numel() < SMALL:
            return whole
        blocks = functional.pad(whole.flatten(), (0, -whole.numel() % BLOCK)).view(-1, BLOCK)
        scales = blocks.abs().amax(1, keepdim=True) + 1e-12
        if self.how == "codebook":
            return torch.bucketize(blocks / scales, CODES).to(torch.uint8), scales
        if self.manner == "careless":
            return torch.round(torch.clamp(blocks / scales * 127, -127, 127)).to(torch.int8), scales
        return (blocks / scales).mul_(127).to(torch.int8), scales

    def _unpacked(self, kept: Any, like: torch.Tensor) -> torch.Tensor:
        if self.how == "fetched":
            return torch.from_numpy(kept).clone()
        if isinstance(kept, torch.Tensor):
            return kept.float()
        codes, scales = kept
        values = CODES[codes.int()] if self.how == "codebook" else codes.float().mul_(1 / 127)
        return values.mul_(scales).flatten()[: like.numel()].view_as(like)

    def _in_place(self, weight: torch.Tensor, whole: list[torch.Tensor]) -> list[torch.Tensor]:
        gradient = weight.grad
        assert gradient is not None
        if len(whole) == 1:
            weight.add_(whole[0].mul_(0.9).add_(gradient), alpha=-1e-3)
            return whole
        whole[0].lerp_(gradient, 0.1)
        whole[1].mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        weight.addcdiv_(whole[0], whole[1].sqrt().add_(1e-8), value=-1e-3)
        return whole

    def _careless(self, weight: torch.Tensor, whole: list[torch.Tensor]) -> list[torch.Tensor]:
        gradient = weight.grad
        assert gradient is not None
        if len(whole) == 1:
            whole[0] = whole[0] * 0.9 + gradient
            weight.copy_(weight - 1e-3 * whole[0])
            return whole
        whole[0] = whole[0] * 0.9 + 0.1 * gradient
        whole[1] = whole[1] * 0.99 + 0.01 * gradient * gradient
        first, second = whole[0] / 0.1, whole[1] / 0.01
        weight.copy_(weight - 1e-3 * first / (torch.sqrt(second) + 1e-8))
        return whole


def optimizer_of(base: str, keeper: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """torch's own for the keeper ``torch``."""
    if keeper != "torch":
        return Kept(parameters, keeper, 1 if base == "momentum" else 2)
    if base == "momentum":
        return torch.optim.SGD(parameters, 1e-3, momentum=0.9)
    return torch.optim.AdamW(parameters, 1e-3, foreach=base == "at once")


def train(base: str, keeper: str) -> None:
    """Trains, and leaves nothing behind."""
    torch.manual_seed(0)
    net = Net()
    optimizer = optimizer_of(base, keeper, net.parameters())
    for _ in range(STEPS):
        loss = functional.cross_entropy(net(torch.randint(1200, (4, 8))), torch.zeros(4, dtype=torch.long))
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[2].split(","):
        train(sys.argv[1], each)
        gc.collect()
