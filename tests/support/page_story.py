"""A training of many ranks in which two behave oddly: one keeps a tensor of every step, one loses its memory.

Stage: tests. In: a path. Out: a database with every event. Each rank trains in steps of a second:
activations come up in the forward and go in the backward pass. Ranks are pp x tp x dp; a pipeline stage has
its own size, and each rank is off by up to a hundredth. A further rank has a gap in its log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, Row, empty_database, store_logs, store_rows

MIB: Final = 1 << 20
STEPS: Final = 24
LEAK_BYTES: Final = 96 * MIB
"""What the leaking rank keeps of each step."""
LAYERS: Final = 4


GAP_RANK: Final = 5


def story_logs(pp: int = 4, tp: int = 4, dp: int = 4) -> tuple[list[RankLog], int, int]:
    """The logs, the rank that leaks and the one that loses its memory."""
    num_ranks = pp * tp * dp
    leaks, loses = num_ranks * 417 // 1024, num_ranks * 300 // 1024
    random = np.random.default_rng(5)
    logs = []
    for rank in range(num_ranks):
        stage = rank // (tp * dp)
        log = RankLog(
            rank=rank,
            host_uid=f"gpu-node-{rank // 8:03}",
            ended=STEPS * SECOND_NS,
            coordinates={"pp": stage, "tp": rank % tp, "dp": rank // tp % dp},
        )
        size = 1 - stage / (4 * pp) + float(random.normal(0, 0.003))
        _train(log, size, int(random.integers(0, 3_000_000)), leaks=rank == leaks, loses=rank == loses)
        logs.append(log)
    return logs, leaks, loses


def write_story(path: Path, pp: int = 4, tp: int = 4, dp: int = 4) -> tuple[int, int]:
    """Writes the database; returns the rank that leaks and the one that loses its memory."""
    logs, leaks, loses = story_logs(pp, tp, dp)
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
        store_rows(connection, "gap", [_gap()])
    return leaks, loses


def _train(log: RankLog, size: float, late_ns: int, *, leaks: bool, loses: bool) -> None:
    device = f"cuda:{log.rank % 8}"
    log.alloc("parameters", int(size * (6 << 30)), at=late_ns, device=device, category="parameter")
    log.alloc("optimizer", int(size * (12 << 30)), at=late_ns, device=device, category="optimizer_state")
    for step in range(STEPS):
        begin = step * SECOND_NS + 50_000_000 + late_ns
        made = {"device": device, "category": "activation", "step": step}
        for layer in range(LAYERS):
            log.alloc(f"{step}.{layer}", int(size * (2 << 30)), at=begin + layer * 90_000_000, **made)
        for layer in reversed(range(LAYERS)):
            log.free(f"{step}.{layer}", at=begin + (2 * LAYERS - layer) * 90_000_000)
        if leaks:
            log.alloc(f"kept {step}", LEAK_BYTES, at=begin + 800_000_000, device=device, step=step)
        if loses and step == STEPS // 2:
            log.free("optimizer", at=begin + 800_000_000)
        if log.rank == GAP_RANK and step == STEPS // 3:
            log.skip(9)
        log.step_ends(step, at=begin + 850_000_000)


def _gap() -> Row:
    """Of the records that :data:`GAP_RANK` skipped."""
    first = 2 + (STEPS // 3 + 1) * 2 * LAYERS + STEPS // 3
    return {
        "session_id": SESSION,
        "attempt": 0,
        "rank": GAP_RANK,
        "sequence_first": first,
        "sequence_last": first + 8,
        "records": 9,
        "why": "spool_full",
        "noticed_ns": BASE_NS + STEPS * SECOND_NS // 3,
    }
