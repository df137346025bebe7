"""Times the steps of a workload with one thing or another switched on in turn, in one process.

Stage: the user's script under ``rankmem run``; it takes the tap that the agent has loaded and turns its
recording off and on, then torch's memory history, then torch.profiler, each beside steps with nothing.
``turns.py WORKLOAD --device cuda --out FILE``: seconds a step of each block of steps, by pair and variant.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("", "bench")]

import torch  # noqa: E402
from harness import alternate  # noqa: E402
from torch import profiler  # noqa: E402
from train_gpt import TAP_ALL, loaded_tap  # noqa: E402

from gpu.workloads import WORKLOADS, Options, Step  # noqa: E402

WARM_STEPS = 10
ENTRIES = 1_000_000


def main() -> None:
    """Times all, and writes it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    parser.add_argument("--rounds", type=int, default=40, help="of recording on and off")
    parser.add_argument("--other-rounds", type=int, default=8, help="of each other tool")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    step = WORKLOADS[arguments.workload](Options(device=arguments.device, batch=arguments.batch))
    for _ in range(WARM_STEPS):
        step()
    turns = Turns(step, arguments.steps, arguments.device)
    found = {"recorded": alternate({"off": turns.plain, "on": turns.recorded}, arguments.rounds)}
    if arguments.device == "cuda":
        found["history"] = alternate({"off": turns.plain, "on": turns.with_history}, arguments.other_rounds)
    found["profiler"] = alternate({"off": turns.plain, "on": turns.profiled}, arguments.other_rounds)
    arguments.out.write_text(json.dumps(found))


class Turns:
    """Blocks of steps under each variant; the seconds of a step."""

    def __init__(self, step: Step, steps: int, device: str) -> None:
        self._step = step
        self._steps = steps
        self._device = device
        self._tap = loaded_tap()

    def plain(self) -> float:
        """With nothing switched on."""
        self._tap.rkm_enable(TAP_ALL, 0)
        return self._block()

    def recorded(self) -> float:
        """With rankmem's recording."""
        self._tap.rkm_enable(TAP_ALL, 1)
        taken = self._block()
        self._tap.rkm_enable(TAP_ALL, 0)
        return taken

    def with_history(self) -> float:
        """With torch's own history, with Python stacks, as its documentation has it."""
        self._tap.rkm_enable(TAP_ALL, 0)
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=ENTRIES)
        taken = self._block()
        torch.cuda.memory._record_memory_history(enabled=None)
        return taken

    def profiled(self) -> float:
        """Under torch.profiler with memory and stacks; making the trace is not in it."""
        self._tap.rkm_enable(TAP_ALL, 0)
        activities = [profiler.ProfilerActivity.CPU]
        if self._device == "cuda":
            activities.append(profiler.ProfilerActivity.CUDA)
        with profiler.profile(activities=activities, profile_memory=True, with_stack=True):
            return self._block()

    def _block(self) -> float:
        self._step()  # not timed: the first after a turn
        wait = self._wait()
        began = time.perf_counter()
        for _ in range(self._steps):
            self._step()
        wait()
        return (time.perf_counter() - began) / self._steps

    def _wait(self) -> Callable[[], None]:
        wait: Callable[[], None] = torch.cuda.synchronize if self._device == "cuda" else int
        wait()
        return wait


if __name__ == "__main__":
    main()
