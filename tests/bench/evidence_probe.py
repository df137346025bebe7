"""Nanoseconds that a block's evidence adds in a stack of so many frames; a script of event_cost.

``python evidence_probe.py FRAMES FOLDER ROUNDS``: a tight loop of ``torch.empty`` at that depth, recorded
with and without evidence in turn, each block like one before; and storages, which no operator makes, with and
without their native stack. Prints the differences within each round as JSON. By the thread's processor time:
the machine may have other work.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from rankmem_agent.hooks.module_frames import follow
from rankmem_agent.tap.build import build_tap
from rankmem_agent.tap.library import Stat, Tap, What

TURNS: Final = 500
STEPS: Final = 5
"""Of which the quickest counts."""
STORAGES: Final = 100
SPOOL_BYTES: Final = 4 * 2**30
LOOP_BYTES: Final = 4096
MODULES: Final = 10
MODULE_FRAMES: Final = 3
"""Of each: _wrapped_call_impl, _call_impl, forward."""


class Within(nn.Module):
    """Calls ``then`` within so many calls of modules."""

    def __init__(self, num_modules: int) -> None:
        super().__init__()
        self.inner = Within(num_modules - 1) if num_modules > 1 else None

    def forward(self, then: Callable[[], float]) -> float:
        """As above."""
        return then() if self.inner is None else self.inner(then)  # type: ignore[no-any-return]


def deeper(frames: int, then: Callable[[], float]) -> float:
    """Calls it so many frames deeper, itself included."""
    return then() if frames == 1 else deeper(frames - 1, then)


def depth() -> int:
    """Frames of the caller."""
    frame: Any = sys._getframe(1)
    count = 0
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return count


def main(frames: int, folder: Path, rounds: int) -> dict[str, list[float]]:
    """The samples by what was added."""
    torch.set_num_threads(1)
    tap = Tap(build_tap(with_evidence=True))
    tap.open(folder, SPOOL_BYTES)
    tap.attach_cpu()
    tap.attach_calls()
    model = Within(MODULES)
    if not follow(tap, lambda *modules: None):
        raise SystemExit("modules cannot be read from frames here")

    def blocks() -> float:
        began = time.thread_time_ns()
        for _ in range(TURNS):
            torch.empty(LOOP_BYTES, dtype=torch.uint8)
        return (time.thread_time_ns() - began) / TURNS

    def storages() -> float:
        began = time.thread_time_ns()
        for _ in range(STORAGES):
            torch.UntypedStorage(LOOP_BYTES)
        return (time.thread_time_ns() - began) / STORAGES

    def at_depth(loop: Callable[[], float], what: What) -> float:
        tap.enable(what)
        model_depth = depth() + MODULES * MODULE_FRAMES  # of the innermost forward
        loops_ns = []
        for step in range(1 + STEPS):  # the blocks of all are like those of the first
            tap.set_step(step)
            loops_ns.append(float(model(lambda: deeper(max(frames - model_depth - 2, 1), loop))))
        tap.enable(what, on=False)
        return min(loops_ns[1:])

    events, calls = What.CPU_EVENTS, What.CPU_EVENTS | What.CALLS
    at_depth(lambda: float(_checked(depth(), frames)), events)
    added: dict[str, list[float]] = {"block": [], "native_operator": []}
    for _ in range(rounds):
        before, after = at_depth(blocks, events), at_depth(blocks, events | What.EVIDENCE)
        added["block"].append(after - before)
        before, after = at_depth(storages, calls), at_depth(storages, calls | What.EVIDENCE)
        added["native_operator"].append(after - before)
    if tap.stat(Stat.DROPPED):
        raise SystemExit("records were dropped")
    tap.close()
    return added


def _checked(found: int, wanted: int) -> int:
    if found != wanted:
        raise SystemExit(f"the loop has {found} frames, not {wanted}")
    return found


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
