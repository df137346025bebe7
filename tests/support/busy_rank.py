"""A database with one rank that allocates and frees at random, in every way that a log knows.

Stage: tests. Older blocks, frees that came in a later batch, blocks that came to mean something else, pauses
of seconds and events at one nanosecond, samples of the process, steps.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

from constructed import BASE_NS, RankLog, Row, empty_database, store_logs, store_rows

DEVICE: Final = "cuda:0"
CATEGORIES: Final = ("activation", "gradient", "temporary", "parameter")


def busy_log(rank: int, events: int, seed: int, *, offset_ns: int = 0) -> RankLog:
    """The log; times go from 0 to some seconds, its process lives a little longer."""
    rng = random.Random(seed)
    log = RankLog(rank=rank, offset_ns=offset_ns, host_uid=f"host-{rank}")
    for i in range(3):
        log.preexisting(f"older{i}", 1000 * (i + 1), device=DEVICE, category="parameter" if i else None)
    reserved = 10**6
    at, alive, made = 0, [f"older{i}" for i in range(3)], 0
    for i in range(events):
        at += rng.choice((0, 1, 50, 1000, 200_000, 3_000_000)) if i % 997 else 1_300_000_000
        if alive and rng.random() < 0.45 + 0.1 * (i // 700 % 2):
            name = alive.pop(rng.randrange(len(alive)))
            log.free(name, at=at, told_later=rng.random() < 0.3)
        else:
            name = f"b{made}"
            made += 1
            _allocate(log, rng, name, at)
            alive.append(name)
        log.events[-1]["allocation_id"] = log.allocations[name]["allocation_id"]
        if alive and rng.random() < 0.05:
            log.means(rng.choice(alive), rng.choice(CATEGORIES), at=at, since_alloc=rng.random() < 0.2)
        if i % 50 == 49:
            log.step_ends(i // 50, at=at)
        if i % 300 == 150:
            log.sample(rng.randrange(10**9), at=at, device=DEVICE)
        log.skip(rng.randrange(3))
        reserved = rng.randrange(1, 9) * 10**6 if rng.random() < 0.2 else reserved
        log.events[-1]["reserved_bytes"] = reserved
    log.ended = at + 1_000_000
    return log


def _allocate(log: RankLog, rng: random.Random, name: str, at: int) -> None:
    """A block with a random meaning; sometimes without an operator or a category."""
    log.alloc(
        name,
        rng.randrange(1, 100_000),
        at=at,
        device=DEVICE,
        category=rng.choice((*CATEGORIES, None)),
        operator=rng.choice([*(f"aten::op{k}" for k in range(20)), None]),
        module=rng.choice(("a", "a.b", None)),
        phase=rng.choice(("forward", "backward")),
        stream=rng.randrange(3),
        step=rng.randrange(4),
        stack_id=rng.choice((1, 2, 3, None)),
        annotation=rng.choice(("x", None)),
    )


STACKS: Final[list[Row]] = [
    {
        "stack_id": n,
        "ordering": k,
        "file_path": f"train{n % 2}.py",
        "line_number": 10 + n // 2,
        "function": "f",
    }
    for n in (1, 2, 3)
    for k in (0, 1)
]


def busy_database(path: Path, *, events: int = 4000, seed: int = 7) -> RankLog:
    """Stores such a rank, and a second one beside it; returns the first's log."""
    log = busy_log(1, events, seed, offset_ns=12_345)
    with empty_database(str(path)) as connection:
        store_logs(connection, [busy_log(0, 200, seed + 1), log])
        store_rows(connection, "stack_frame", STACKS)
        store_rows(connection, "marker", _markers())
    return log


def _markers() -> list[Row]:
    row: dict[str, Any] = {"session_id": "0SESSION0001", "attempt": 0, "rank": 1, "kind": "user_scope"}
    return [
        row
        | {
            "marker_id": n,
            "name": f"part {n}",
            "depth": n % 2,
            "started_ns": BASE_NS + n * 400_000_000,
            "ended_ns": BASE_NS + n * 400_000_000 + (300_000_000 if n % 3 else 10),
        }
        for n in range(8)
    ]
