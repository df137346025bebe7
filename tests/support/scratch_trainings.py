"""Trainings whose peak is the optimizer's scratch: tensor by tensor and all at once, with and without a decay
that copies gradients.

Stage: tests; runs in a recorded process, three steps of each of OPTIMIZERS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import torch
from torch import nn

STEPS: Final = 3
Parameters = Iterable[nn.Parameter]
OPTIMIZERS: Final[dict[str, Callable[[Parameters], torch.optim.Optimizer]]] = {
    "adamw alone": partial(torch.optim.AdamW, foreach=False),
    "adamw at once": partial(torch.optim.AdamW, foreach=True),
    "adam alone": partial(torch.optim.Adam, weight_decay=0.1, foreach=False),
    "adam at once": partial(torch.optim.Adam, weight_decay=0.1, foreach=True),
}


def train(make: Callable[[Parameters], torch.optim.Optimizer]) -> None:
    """Trains a wide model on few samples."""
    net = nn.Sequential(*(nn.Linear(300, 300) for _ in range(6)), nn.Linear(300, 600))
    optimizer = make(net.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        net(torch.randn(2, 300)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    for each in OPTIMIZERS.values():
        train(each)
