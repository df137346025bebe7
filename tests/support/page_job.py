"""A small job with something for every view of the page, under names that are given: plain ones, or hostile.

Stage: tests. Three ranks on two hosts with blocks, stacks, modules, weights, steps, markers, gaps, failed
allocations, segments, static blocks, process samples. Its texts come from a function of the column's name,
so that every text column can hold what a hostile recording would put there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, empty_database, store_logs, store_rows

MIB: Final = 1 << 20
DEVICE: Final = "cuda:0"
Names = Callable[[str], str]

HOSTILE: Final = (
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    '"><svg onload=window.hacked=1>',
    "' onmouseover='window.hacked=1",
    "javascript:window.hacked=1",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "\u202egnp.exe\u2066 \u200b\ufeff",
    "=cmd|' /C calc'!A0",
    "a\x01b\x1b[2J\x7f\ud7ff",
    "x" * 4000,
    "${window.hacked=1}{{7*7}}%0d%0a",
)
"""What a name of a recording may be."""


def plain(column: str) -> str:
    """A name as trainings have them."""
    return f"some {column}"


def hostile() -> Names:
    """One after the other; each call another."""
    turn: Iterator[str] = itertools.cycle(HOSTILE)
    return lambda column: f"{next(turn)}"


def store_job(path: Path, names: Names = plain) -> None:
    """Writes the database."""
    logs = [_rank(rank, names) for rank in range(3)]
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
        for table, rows in _more(names).items():
            store_rows(connection, table, rows)
        for column in ("name", "command", "torch_version", "python_version"):
            connection.execute(f"UPDATE session SET {column} = $1", [names(column)])
        for column in ("host_name", "address", "os", "gpu_driver"):
            connection.execute(f"UPDATE host_info SET {column} = $1", [names(column)])
        for column in ("detail", "exception"):
            connection.execute(f"UPDATE rank_info SET {column} = $1 WHERE rank = 1", [names(column)])


def _rank(rank: int, names: Names) -> RankLog:
    log = RankLog(
        rank=rank,
        ended=10 * SECOND_NS,
        host_uid=f"host-{rank // 2}",
        coordinates={"dp": rank, "tp": 0, "pp": 0},
        complete=rank != 1,
    )
    log.preexisting("older", 3 * MIB, device=DEVICE, category="parameter")
    log.segment("segment_alloc", 1 << 30, 256 * MIB, at=1, device=DEVICE)
    texts = ("operator", "module", "phase", "annotation", "category", "pool")
    for i in range(40):
        columns: dict[str, Any] = {column: names(column) for column in texts}
        if i % 4:
            columns["category"] = "activation"
            columns["phase"] = "forward"
        columns |= {
            "step": i // 10,
            "stack_id": 1 + i % 11,
            "address": (1 << 30) + i * 4 * MIB,
            "stream": i % 2,
        }
        log.alloc(f"b{i}", (1 + i % 3 + rank) * MIB, at=i * SECOND_NS // 5, device=DEVICE, **columns)
        log.events[-1]["address"] = columns["address"]
        if i % 10 == 9:
            log.step_ends(i // 10, at=i * SECOND_NS // 5 + 1, optimizer=names("optimizer"))
        if i % 3 == 2:
            log.free(f"b{i - 1}", at=i * SECOND_NS // 5 + 2)
            log.events[-1]["address"] = log.allocations[f"b{i - 1}"]["address"]
    log.oom(1 << 34, at=8 * SECOND_NS, device=DEVICE, device_free_bytes=MIB, operator=names("operator"))
    log.sample(600 * MIB, at=9 * SECOND_NS, device=DEVICE)
    log.alloc("host", MIB, at=9 * SECOND_NS + 1, device="cpu", operator=names("operator"))
    return log


def _more(names: Names) -> dict[str, list[dict[str, Any]]]:
    of_rank = {"session_id": SESSION, "attempt": 0, "rank": 0}
    of_device = {**of_rank, "device": DEVICE}
    frames = [
        {
            "stack_id": stack,
            "ordering": depth,
            "line_number": 10 + depth,
            "file_path": names("file_path"),
            "function": names("function"),
        }
        for stack in range(1, 12)
        for depth in range(3)
    ]
    return {
        "stack_frame": frames,
        "weight": [
            {
                **of_rank,
                "name": names("name"),
                "size_bytes": MIB,
                "grad_size_bytes": MIB,
                "dtype": names("dtype"),
                "shape": names("shape"),
                "stack_id": 1,
            }
            for _ in range(11)
        ],
        "module": [{**of_rank, "module": names("module"), "class": names("class")} for _ in range(11)],
        "marker": [
            {
                **of_rank,
                "marker_id": i,
                "name": names("name"),
                "kind": names("kind"),
                "depth": 0,
                "thread": 1,
                "started_ns": BASE_NS + i * SECOND_NS // 2,
                "ended_ns": BASE_NS + (i + 1) * SECOND_NS // 2,
            }
            for i in range(11)
        ],
        "device_info": [
            {
                **of_device,
                "name": names("device name"),
                "uuid": names("uuid"),
                "total_bytes": 1 << 30,
                "allocator": names("allocator"),
                "settings": names("settings"),
                "source": names("source"),
            }
        ],
        "static_block": [
            {
                **of_device,
                "graph_id": names("graph_id"),
                "model": names("model"),
                "operator": names("operator"),
                "node_first": i,
                "node_last": i + 3,
                "size_bytes": MIB,
            }
            for i in range(11)
        ],
        "component_sample": [
            {
                **of_device,
                "time_ns": BASE_NS + i * SECOND_NS,
                "component": names("component"),
                "reserved_bytes": i * MIB,
                "active_bytes": i * MIB,
                "seq": i,
            }
            for i in range(11)
        ],
        "gap": [
            {
                "session_id": SESSION,
                "attempt": 0,
                "rank": 1,
                "sequence_first": 20,
                "sequence_last": 21,
                "records": 2,
                "why": names("why"),
                "what": "records",
                "detail": names("detail"),
                "noticed_ns": BASE_NS + SECOND_NS,
                "to_end": False,
            }
        ],
    }
