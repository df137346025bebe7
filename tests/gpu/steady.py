"""Stage ``steady``: what the blocks of a step show, held against steps before, on the device.

Each block is fully observed as well. What the block of an earlier step would have said of it, which the tap
found to be like it, is held against what was seen. CUDA's allocator calls the tap under its lock, and
autograd's threads of a device run the backward: neither is so on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gpu.checks import Check, Found, Place, equal, figure

STEPS: Final = 30
TRAININGS: Final = (
    "gpt", "gpt_checkpoint", "cnn", "lstm", "unet", "accumulation", "evaluated", "lengths", "by_module",
    "by_function", "summed_gradients", "freed_early", "layer_drop",
)  # fmt: skip


def _shadowed(training: str) -> Callable[[Place], Iterator[Found]]:
    def look(place: Place) -> Iterator[Found]:
        from shadowed import report, shadowed

        found = shadowed(training, place.folder, STEPS, place.device)
        yield equal("operators, modules, phases, lines that differ", sum(found.wrong.values()), 0)
        yield equal("categories that differ, of equal lives", sum(found.wrong_category.values()), 0)
        yield Found(what="blocks compared", ok=found.num_alike > 0, measured=found.num_alike, expected="> 0")
        yield figure("all of it", report(training, found))

    return look


CHECKS: Final = tuple(Check(name=name, look=_shadowed(name), limit_s=100) for name in TRAININGS)
