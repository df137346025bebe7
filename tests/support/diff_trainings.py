"""Trainings before and after a change, one after another: a MODEL,VARIES,STEPS,SEED,CHANGE for each.

Stage: tests and benchmarks; recorded. What changes is the name of a class or function of :data:`CHANGES`;
``nothing`` changes nothing.
"""

from __future__ import annotations

import copy
import gc
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

sys.path.insert(0, str(Path(__file__).parent))

from leak_models import MODELS, Batch, Model

BATCH: Final = 12
LENGTH: Final = 40


@dataclass(slots=True)
class Training:
    """What a change may touch."""

    model: Model
    optimizer: torch.optim.Optimizer
    set_to_none: bool = True
    loss: Callable[[torch.Tensor, Batch], torch.Tensor] = field(init=False)
    kept: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loss = self.model.loss


def nothing(training: Training) -> None:
    """The training before the change."""


def adam(training: Training) -> None:
    """Two states of each parameter instead of one."""
    training.optimizer = torch.optim.AdamW(training.model.net.parameters(), lr=1e-3)


def average(training: Training) -> None:
    """A copy of the model, as for an exponential moving average."""
    training.kept.append(copy.deepcopy(training.model.net))


def gradients_stay(training: Training) -> None:
    """They are zeroed instead of freed."""
    training.set_to_none = False


def twice(training: Training) -> None:
    """A second forward whose loss is added, as for a consistency loss: its graph lives, too."""
    own = training.loss
    net = training.model.net
    training.loss = lambda out, batch: own(out, batch) + own(net(batch[0]), batch)


def doubled(training: Training) -> None:
    """The loss is computed in float64."""
    own = training.loss

    def loss(out: torch.Tensor, batch: Batch) -> torch.Tensor:
        target = batch[1].double() if batch[1].is_floating_point() else batch[1]
        return own(out.double(), (batch[0].double() if batch[0].is_floating_point() else batch[0], target))

    training.loss = loss


def clones(training: Training) -> None:
    """Every parameter's gradient is copied in backward."""
    kept = training.kept  # not the training: its parameters would keep it alive, unseen by the collector
    for parameter in training.model.net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: kept.append(each.grad.clone()))
    training.optimizer.register_step_post_hook(lambda *_: kept.clear())


def features(training: Training) -> None:
    """The outputs of all leaves are copied for logging, until the step's end."""
    for module in training.model.net.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda *call: training.kept.append(_copied(call[2])))
    training.optimizer.register_step_post_hook(lambda *_: training.kept.clear())


def _copied(output: Any) -> Any:
    return output.detach().clone() if isinstance(output, torch.Tensor) else output[0].detach().clone()


def buffer(training: Training) -> None:
    """A buffer of 3 % of the parameters, 512 KiB at least."""
    size = sum(each.numel() for each in training.model.net.parameters())
    training.model.net.register_buffer("mask", torch.zeros(max(size * 3 // 100, 128 << 10)))


CHANGES: Final = (adam, average, gradients_stay, twice, doubled, clones, features, buffer)


def train(model_name: str, varies: str, steps: int, seed: int, change: str) -> None:
    """Trains; nothing of it is left afterwards."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = MODELS[model_name]()
    optimizer = torch.optim.SGD(model.net.parameters(), lr=1e-3, momentum=0.9)
    training = Training(model, optimizer)
    {each.__name__: each for each in (nothing, *CHANGES)}[change](training)
    for _ in range(steps):
        batch_size = rng.randint(BATCH // 2, BATCH) if varies in ("batch", "both") else BATCH
        length = rng.randint(LENGTH // 2, LENGTH) if varies in ("length", "both") else LENGTH
        batch = model.batch(batch_size, length)
        training.loss(model.net(batch[0]), batch).backward()
        training.optimizer.step()
        training.optimizer.zero_grad(set_to_none=training.set_to_none)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:]:
        model_name, varies, steps, seed, change = case.split(",")
        train(model_name, varies, int(steps), int(seed), change)
        gc.collect()
