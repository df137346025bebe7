"""A training of many ranks in which two behave oddly: one keeps a tensor of every step, one loses its memory.

Stage: tests. In: a path. Out: a database with every event. Each rank trains in steps of a second:
activations come up in the forward and go in the backward pass. Ranks are pp x tp x dp; a pipeline stage has
its own size, and each rank is off by up to a hundredth. A further rank has a gap in its log.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def mixed_logs(seed: int = 1) -> list[RankLog]:
    """A session with everything that a heat map has to mind.

    Two starts of four ranks; hosts whose clocks differ; a rank with two devices; blocks older than the
    recording; ranks that begin late, end early, or still run; the allocator's own figures and samples of
    the devices.
    """
    random = np.random.default_rng(seed)
    logs = []
    for attempt in (0, 1):
        for rank in range(4):
            log = RankLog(
                rank=rank,
                attempt=attempt,
                host_uid=f"host-{rank // 2}",
                offset_ns=(rank // 2) * 700_000_000,
                started=attempt * 12 * SECOND_NS + rank * SECOND_NS // 4,
                ended=None if attempt and rank == 3 else (attempt * 14 + 10 - rank) * SECOND_NS,
                coordinates={"tp": rank % 2, "pp": rank // 2},
            )
            _wander(log, random)
            logs.append(log)
    return logs


def _wander(log: RankLog, random: np.random.Generator) -> None:
    devices = ("cuda:0", "cuda:1") if log.rank == 1 else ("cuda:0",)
    log.preexisting("older", int(random.integers(50, 400)) * MIB, device="cuda:0")
    last_ns = 24 * SECOND_NS if log.ended is None else log.ended
    first_ns = log.started + SECOND_NS
    alive: list[str] = []
    for number, at in enumerate(np.sort(random.integers(first_ns, last_ns, 150)).tolist()):
        if alive and random.random() < 0.45:
            log.free(alive.pop(int(random.integers(len(alive)))), at=at)
        else:
            device = devices[int(random.integers(len(devices)))]
            log.alloc(f"b{number}", int(random.integers(1, 300)) * MIB, at=at, device=device)
            alive.append(f"b{number}")
        event = log.events[-1]
        event["active_bytes"] = event["requested_bytes"] + MIB
        event["reserved_bytes"] = event["requested_bytes"] + 2 * MIB * (1 + number % 3)
        if number % 20 == 0:
            log.sample(None, at=at, device=event["device"])
            log.samples[-1] |= {
                "device_total_bytes": 80 << 30,
                "device_free_bytes": (80 << 30) - event["reserved_bytes"] - 100 * MIB,
            }


def write_logs(path: Path, logs: list[RankLog], *, cuts: Sequence[int] = ()) -> None:
    """Writes a database of these logs; ``cuts``: where buckets end besides."""
    with empty_database(str(path)) as connection:
        store_logs(connection, logs, cuts=cuts)


def write_many(path: Path, num_ranks: int, high_rank: int, high_second: int, seconds: int = 20) -> None:
    """Writes a session of very many ranks; one is high for a second, and of it alone there are events."""
    rank = np.repeat(np.arange(num_ranks), seconds)
    second = np.tile(np.arange(seconds), num_ranks)
    high = (rank == high_rank) & (second == high_second)
    rows = [
        {
            "session_id": SESSION,
            "attempt": 0,
            "rank": r,
            "device": "cuda:0",
            "bucket_ns": BASE_NS + s * SECOND_NS,
            "seq_first": s * 1000,
            "seq_last": s * 1000 + 999,
            "first_ns": BASE_NS + s * SECOND_NS,
            "last_ns": BASE_NS + s * SECOND_NS + 900_000_000,
            "events": 1000,
            "requested_peak_bytes": (60 if h else 20) << 30,
            "requested_peak_ns": BASE_NS + s * SECOND_NS + 400_000_000,
            "requested_peak_seq": s * 1000 + 300,
            "requested_last_bytes": 18 << 30,
        }
        for r, s, h in zip(rank.tolist(), second.tolist(), high.tolist(), strict=True)
    ]
    events = [
        {
            "session_id": SESSION,
            "attempt": 0,
            "rank": high_rank,
            "device": "cuda:0",
            "seq": row["seq_first"] + seq,
            "time_ns": row["bucket_ns"] + at_ns,
            "action": "alloc",
            "size_bytes": 0,
            "component": "pytorch",
            "requested_bytes": row[f"requested_{name}_bytes"],
        }
        for row in rows[high_rank * seconds : (high_rank + 1) * seconds]
        for seq, at_ns, name in ((300, 400_000_000, "peak"), (999, 900_000_000, "last"))
    ]
    infos = [
        RankLog(
            rank=each,
            host_uid=f"node-{each // 8:04}",
            ended=seconds * SECOND_NS,
            coordinates={"pp": each % 8, "tp": each // 8 % 8},
        ).rank_row()
        for each in range(num_ranks)
    ]
    hosts = [{"host_uid": f"node-{n:04}", "host_name": f"gpu-node-{n:04}"} for n in range(-(-num_ranks // 8))]
    with empty_database(str(path)) as connection:
        store_rows(
            connection,
            "session",
            [{"session_id": SESSION, "name": "many", "source": "live", "started_at_ns": BASE_NS}],
        )
        store_rows(connection, "host_info", hosts)
        store_rows(connection, "rank_info", infos)
        store_rows(connection, "memory_event", events)
        store_rows(connection, "memory_bucket", rows)
