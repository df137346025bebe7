"""Trainings that leak or do not, each a process: ``leak_trainings.py MODEL KIND VARIES STEPS SEED``.

Stage: tests; recorded. What is kept, and how, is the name of the function: those of :data:`EARLIER_LEAKS` and
:data:`EARLIER_CLEAN` are of the kinds that the rule was tuned on, the others are not.
"""

from __future__ import annotations

import collections
import copy
import functools
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

BATCH: Final = 8
LENGTH: Final = 32


@dataclass(slots=True)
class Scene:
    """What a kind of keeping sees after backward of each step."""

    model: Model
    optimizer: torch.optim.Optimizer
    step: int = 0
    batch: Batch = (torch.empty(0), torch.empty(0))
    loss: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    out: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    kept: list[Any] = field(default_factory=list)
    cache: dict[Any, Any] = field(default_factory=dict)


Kind = Callable[[Scene], None]


def loss_with_graph(s: Scene) -> None:
    s.kept.append(s.model.loss(s.model.net(s.batch[0]), s.batch))


def loss_alone(s: Scene) -> None:
    s.kept.append(s.loss)


def growing_cat(s: Scene) -> None:
    s.cache["k"] = torch.cat([s.cache.get("k", torch.zeros(0, 4096)), torch.randn(1, 4096)])


def closures(s: Scene) -> None:
    def hold(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: tensor

    s.kept.append(hold(torch.randn(64, 128)))


def activations_by_hook(s: Scene) -> None:
    if s.step == 0:
        s.model.net.register_forward_hook(lambda m, i, o: s.kept.append(o.detach().clone()))


def each_fifth(s: Scene) -> None:
    if s.step % 5 == 0:
        s.kept.append(torch.zeros(20_000))


def each_seventh(s: Scene) -> None:
    if s.step % 7 == 0:
        s.kept.append(torch.zeros(40_000))


def late(s: Scene) -> None:
    if s.step >= 12:
        s.kept.append(torch.zeros(30_000))


def random_sizes(s: Scene) -> None:
    s.kept.append(torch.zeros(random.randint(1000, 50_000)))


def one_of_two(s: Scene) -> None:
    s.kept += [torch.zeros(12_000), torch.zeros(12_000)]
    s.kept.pop(random.randrange(len(s.kept)))


def kibibyte(s: Scene) -> None:
    s.kept.append(torch.zeros(256))


def metrics(s: Scene) -> None:
    s.kept.append(torch.stack([s.loss.detach()] * 1000))


def nothing(s: Scene) -> None:
    pass


def ring_of_12(s: Scene) -> None:
    s.kept.append(torch.zeros(32_768))
    del s.kept[:-12]


def ring_of_20(s: Scene) -> None:
    s.kept.append(torch.zeros(20_000))
    del s.kept[:-20]


def lazy_caches(s: Scene) -> None:
    if s.step in (3, 7, 11):
        s.cache[s.step] = torch.zeros(500_000)


def cache_of_lengths(s: Scene) -> None:
    length = s.batch[0].shape[-1]
    if length not in s.cache:
        s.cache[length] = torch.zeros(length * 1000)


def replay_buffer(s: Scene) -> None:
    s.kept.append(torch.zeros(9000))
    while len(s.kept) > 6 + random.randint(0, 3):
        s.kept.pop(0)


def moving_average(s: Scene) -> None:
    if not s.cache:
        s.cache["e"] = [p.detach().clone() for p in s.model.net.parameters()]
    for mean, now in zip(s.cache["e"], s.model.net.parameters(), strict=True):
        mean.mul_(0.9).add_(now.detach(), alpha=0.1)


def evaluation(s: Scene) -> None:
    if s.step % 4 == 3:
        with torch.no_grad():
            s.cache["m"] = s.model.net(s.model.batch(2 * BATCH, LENGTH)[0])


def alternating(s: Scene) -> None:
    s.cache["a"] = torch.zeros(random.randint(10_000, 60_000)) if s.step % 2 else None


# New kinds, which the rule was not tuned on. Those that leak:


def summed_validation(s: Scene) -> None:
    s.cache["sum"] = s.cache.get("sum", 0) + s.model.loss(s.model.net(s.batch[0]), s.batch)


def outputs_by_step(s: Scene) -> None:
    s.cache[s.step] = s.out.detach()


def snapshots(s: Scene) -> None:
    if s.step % 6 == 2:
        s.kept.append(copy.deepcopy(s.model.net.state_dict()))


def hooks_added(s: Scene) -> None:
    scale = torch.rand(8192)
    s.model.net.register_forward_hook(lambda m, i, o: o * scale[0])


@functools.cache
def _positions(step: int) -> torch.Tensor:
    return torch.arange(step, step + 5000)


def cached_by_step(s: Scene) -> None:
    _positions(s.step)


def new_parameters(s: Scene) -> None:
    s.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3000))]})


def kept_tracebacks(s: Scene) -> None:
    def fail() -> None:
        scratch = torch.ones(7000)
        raise ValueError(f"{scratch.shape}")

    if s.step % 2:
        try:
            fail()
        except ValueError as exc:
            s.kept.append(exc)


class _Node:
    def __init__(self) -> None:
        self.me, self.bytes = self, torch.zeros(10_000)


def cycles_without_collector(s: Scene) -> None:
    gc.disable()
    _Node()


def queue_that_outgrows(s: Scene) -> None:
    s.kept += [s.model.batch(BATCH, LENGTH), s.model.batch(BATCH, LENGTH)]
    s.kept.pop(0)


def gradients_each_third(s: Scene) -> None:
    if s.step % 3 == 0:
        s.kept.append([p.grad.clone() for p in list(s.model.net.parameters())[:2] if p.grad is not None])


def predictions_never_reset(s: Scene) -> None:
    s.kept.append(s.out.detach().argmax(1))


def at_random(s: Scene) -> None:
    if random.random() < 0.4:
        s.kept.append(torch.zeros(25_000))


# Those that do not:


@functools.lru_cache(maxsize=8)
def _table(key: int) -> torch.Tensor:
    return torch.zeros(15_000 + key)


def bounded_cache(s: Scene) -> None:
    _table(random.randrange(100))


def metrics_reset(s: Scene) -> None:
    s.kept.append(s.out.detach().clone())
    if s.step % 8 == 7:
        s.kept.clear()


def average_from_ten(s: Scene) -> None:
    if s.step >= 10:
        moving_average(s)


def gradients_of_four(s: Scene) -> None:
    s.kept.append([p.grad.clone() for p in s.model.net.parameters() if p.grad is not None])
    if len(s.kept) == 4:
        s.kept.clear()


def queue_of_random_length(s: Scene) -> None:
    s.kept += [s.model.batch(BATCH, LENGTH) for _ in range(random.randint(0, 3))]
    del s.kept[: -random.randint(1, 4)]


def half_unfrozen(s: Scene) -> None:
    for parameter in list(s.model.net.parameters())[::2]:
        parameter.requires_grad_(s.step >= 9)


def best_state(s: Scene) -> None:
    if s.loss.item() < s.cache.get("best", 1e9):
        s.cache |= {"best": s.loss.item(), "state": copy.deepcopy(s.model.net.state_dict())}


def longer_and_longer(s: Scene) -> None:
    torch.zeros(20_000 * (s.step + 1)).add_(1)


def recent_of_random_size(s: Scene) -> None:
    s.cache.setdefault("q", collections.deque(maxlen=5)).append(torch.zeros(random.randint(1000, 90_000)))


def six_keys(s: Scene) -> None:
    s.cache.setdefault(random.randrange(6), torch.zeros(30_000))


def optimizer_changed(s: Scene) -> None:
    if s.step == 14:
        s.cache["second"] = torch.optim.SGD(s.model.net.parameters(), 1e-3, momentum=0.9)
    if "second" in s.cache:
        s.cache["second"].step()


EARLIER_LEAKS: Final = (
    loss_with_graph, loss_alone, growing_cat, closures, activations_by_hook, each_fifth, each_seventh, late,
    random_sizes, one_of_two, kibibyte, metrics,
)  # fmt: skip
EARLIER_CLEAN: Final = (
    nothing, ring_of_12, ring_of_20, lazy_caches, cache_of_lengths, replay_buffer, moving_average, evaluation,
    alternating,
)  # fmt: skip
NEW_LEAKS: Final = (
    summed_validation, outputs_by_step, snapshots, hooks_added, cached_by_step, new_parameters,
    kept_tracebacks, cycles_without_collector, queue_that_outgrows, gradients_each_third,
    predictions_never_reset, at_random,
)  # fmt: skip
NEW_CLEAN: Final = (
    nothing, bounded_cache, metrics_reset, average_from_ten, gradients_of_four, queue_of_random_length,
    half_unfrozen, best_state, longer_and_longer, recent_of_random_size, six_keys, optimizer_changed,
)  # fmt: skip
KINDS: Final = {
    kind.__name__: kind for kind in (*EARLIER_LEAKS, *EARLIER_CLEAN, *NEW_LEAKS, *NEW_CLEAN)
}  # fmt: skip
MENDED: Final = "_mended"
"""After the name of a kind: the same work, of which the last result alone is kept, without its graph."""


def _keep_the_last(s: Scene) -> None:
    del s.kept[:-1]
    for key in list(s.cache)[:-1]:
        del s.cache[key]
    for key, value in s.cache.items():
        s.cache[key] = value.detach()
    _positions.cache_clear()


def main(model_name: str, kind: str, varies: str, steps: int, seed: int) -> None:
    """Trains."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    random.seed(seed)
    model = MODELS[model_name]()
    optimizer = torch.optim.AdamW(model.net.parameters(), 1e-3)
    scene = Scene(model, optimizer)
    for scene.step in range(steps):
        size = random.randint(BATCH // 2, BATCH) if varies == "batch" else BATCH
        length = random.randint(LENGTH // 2, LENGTH) if varies == "length" else LENGTH
        scene.batch = model.batch(size, length)
        scene.out = model.net(scene.batch[0])
        scene.loss = model.loss(scene.out, scene.batch)
        scene.loss.backward()
        KINDS[kind.removesuffix(MENDED)](scene)
        if kind.endswith(MENDED):
            _keep_the_last(scene)
        optimizer.step()
        optimizer.zero_grad()
        nothing_left = torch.empty(0)
        scene.loss, scene.out, scene.batch = nothing_left, nothing_left, (nothing_left, nothing_left)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
