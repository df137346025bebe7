"""A database with what a lake must keep: restarts, losses, clocks that differ, devices, stacks with hashes.

Stage: tests. In: a path; out: a file of two sessions. :data:`STORY` has 2 attempts of 4 ranks on 2 hosts over
10 s: node-1's clock is 2.4 s ahead, a rank of each attempt ends early, another vanishes, one lost records,
one has two devices; blocks live over many seconds, some are older than the recording, some told later to be
freed. The other is the job of ``page_job``, which has something for every view.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import duckdb

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, store_logs, store_rows
from page_job import store_job

STORY: Final = "0SESSION0STY"
JOB: Final = SESSION
AHEAD_NS: Final = 2_400_000_000
SECONDS: Final = 10


def lake_story(path: Path) -> Path:
    """Writes the file."""
    store_job(path)
    with duckdb.connect(path) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        store_logs(connection, [story_rank(attempt, rank) for attempt in range(2) for rank in range(4)])
        of_rank = {"session_id": STORY, "attempt": 0, "rank": 1}
        hole = {
            "sequence_first": 20,
            "sequence_last": 24,
            "records": 5,
            "why": "spool_full",
            "noticed_ns": BASE_NS,
        }
        store_rows(connection, "gap", [of_rank | hole])
        offsets = [
            {
                "host_uid": host,
                "time_ns": BASE_NS + s * SECOND_NS,
                "offset_ns": offset + s,
                "error_ns": 50 + s,
            }
            for host, offset in (("node-0", 0), ("node-1", -AHEAD_NS))
            for s in range(0, 30, 5)
        ]
        store_rows(connection, "clock_offset", offsets)
        connection.execute(
            "INSERT INTO stack_hash SELECT DISTINCT stack_id::INTEGER, "
            "(hash(stack_id)::HUGEINT - (1::HUGEINT << 63))::BIGINT FROM stack_frame"
        )
    return path


def story_rank(attempt: int, rank: int) -> RankLog:
    """The log of a rank, which is the same at each call."""
    chance = random.Random(f"{attempt}/{rank}")
    begin = attempt * (SECONDS + 3) * SECOND_NS + (AHEAD_NS if rank >= 2 else 0)
    vanishes, ends_early = (attempt, rank) == (0, 3), (attempt, rank) in ((0, 2), (1, 0))
    seconds = SECONDS // 2 if ends_early else SECONDS
    log = RankLog(
        session_id=STORY,
        attempt=attempt,
        rank=rank,
        host_uid=f"node-{rank // 2}",
        started=begin,
        ended=None if vanishes else begin + seconds * SECOND_NS,
        complete=(attempt, rank) != (0, 1),
        coordinates={"dp": rank % 2, "pp": rank // 2},
    )
    log.preexisting("older", 1000, device="cuda:0", category="parameter")
    alive: list[str] = []
    times = sorted(chance.randrange(seconds * SECOND_NS) for _ in range(120))
    for n, at in enumerate(begin + time for time in times):
        if (attempt, rank, n) == (0, 1, 30):
            log.skip(5)
        if alive and chance.random() < 0.45:
            log.free(alive.pop(chance.randrange(len(alive))), at=at, told_later=chance.random() < 0.3)
            continue
        device = "cpu" if rank == 1 and chance.random() < 0.3 else "cuda:0"
        log.alloc(
            f"b{n}",
            chance.randrange(1, 9) * 512,
            at=at,
            device=device,
            operator=chance.choice(("aten::mm", "aten::add")),
            category="activation",
            phase="forward",
            stack_id=chance.randrange(1, 12),
        )
        alive.append(f"b{n}")
        if n % 7 == 0:
            log.means(f"b{n}", "gradient", at=at)
        if n % 20 == 19:
            log.step_ends(n // 20, at=at)
    return log
