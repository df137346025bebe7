"""Stage ``steady``: what the blocks of a step show, held against steps before, on the device.

Each block is fully observed as well. What the block of an earlier step would have said of it, which the tap
found to be like it, is held against what was seen. CUDA's allocator calls the tap under its lock, and
autograd's threads of a device run the backward: neither is so on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gpu.checks import Check, Found, Place, equal, figure
from gpu.exact import exact_found, groups_found
from gpu.recorded import record

STEPS: Final = 30
AUDITS_EVERY: Final = 10
KNOWN: Final = "SELECT * EXCLUDE (session_id, attempt, rank) FROM rank_steady"
BY_TEMPLATE: Final = ("template_blocks", "prefix_blocks")
"""Where backward runs on another thread, as on a device, blocks are known by the step's beginning."""
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


def _unwatched(workload: str, *arguments: str) -> Callable[[Place], Iterator[Found]]:
    """``RANKMEM_STEADY`` with a number: calls are not observed in steps that are known."""

    def look(place: Place) -> Iterator[Found]:
        given = (*arguments, "--history")
        recording = record(place, workload, workload, *given, env={"RANKMEM_STEADY": str(AUDITS_EVERY)})
        yield from exact_found(recording, place)
        yield from groups_found(recording)
        with recording.queries() as queries:
            (known,) = queries.sql(KNOWN).to_pylist() or [{}]
        yield figure("how steps and blocks are known", known)
        if place.on_gpu:
            yield equal("audits that differ", known.get("audit_differences"), 0)
            for what, names in (("steps", ("steady_steps",)), ("blocks", BY_TEMPLATE)):
                count = sum(known.get(name) or 0 for name in names)
                yield Found(what=f"{what} not observed", ok=count > 0, measured=count, expected="> 0")

    return look


CHECKS: Final = (
    *(Check(name=name, look=_shadowed(name), limit_s=100) for name in TRAININGS),
    Check(name="unwatched_gpt", look=_unwatched("gpt", "--batch", "4", "--steps", "60"), limit_s=100),
    Check(name="unwatched_chain", look=_unwatched("chain", "--steps", "150"), limit_s=100),
)
