"""The small job that docs/sql.md asks about, and the real output of each of its examples.

Stage: tests and documentation. Comes in: the guide; goes out: the same with the block ``text`` after each
block ``sql`` replaced by what that SQL answers. ``python tests/tools/guide.py`` (``make docs``) rewrites the
page, a test compares. The job: four ranks on two hosts, tensor parallel 2, data parallel 2, three steps of
a model of two layers; rank 2 keeps a tensor from each step and fails in the last one.
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb

from constructed import SESSION, RankLog, empty_database, store_logs, store_rows

PAGE: Final = Path(__file__).parents[2] / "docs" / "sql.md"
EXAMPLE: Final = re.compile(r"```sql\n(.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)
MIB: Final = 1 << 20
MS: Final = 1_000_000
STEPS: Final = 3
RESERVED_BYTES: Final = 576 * MIB
LAYERS: Final = ("GPT.h.0.fc", "GPT.h.1.fc")
FRAMES: Final = {
    1: ("model.py", 12, "GPT.__init__"),
    2: ("model.py", 40, "MLP.forward"),
    3: ("train.py", 9, "main"),
    4: ("train.py", 31, "log_loss"),
}


def a_rank(rank: int) -> RankLog:
    """One rank: weights, then steps of forward, backward and optimizer."""
    log = RankLog(
        rank=rank,
        host_uid=f"host-{rank // 2}",
        offset_ns=rank // 2 * 250_000,
        coordinates={"tp": rank % 2, "dp": rank // 2},
        ended=900 * MS,
    )
    device, now = f"cuda:{rank % 2}", 10 * MS + rank * 100_000 + rank // 2 * 9 * MS
    log.segment("segment_alloc", 1 << 40, RESERVED_BYTES, at=now, device=device)
    place: dict[str, Any] = {"device": device, "stream": 0}
    for layer in LAYERS:
        made = {"operator": "aten::empty", "stack_id": 1, "phase": "other"}
        log.alloc(f"weight {layer}", 64 * MIB, at=now, category="parameter", **made, **place)
    for step in range(STEPS):
        now = _one_step(log, step, now + 20 * MS, place)
        log.step_ends(step, at=now, optimizer="AdamW")
    log.sample(760 * MIB, at=now + MS, device=device)
    for event in log.events:
        event["reserved_bytes"], event["stream"] = RESERVED_BYTES, 0
    for failed in log.ooms:
        failed["reserved_bytes"] = RESERVED_BYTES
    _give_addresses(list(log.allocations.values()))
    return log


def _give_addresses(blocks: list[dict[str, Any]]) -> None:
    """The lowest place that is free for as long as the block lives."""
    for number, block in enumerate(blocks):
        alive = [b for b in blocks[:number] if b.get("freed_seq", 1 << 62) > block["allocation_id"]]
        place = 1 << 40
        for other in sorted(alive, key=lambda b: b["address"]):
            if place + block["size_bytes"] <= other["address"]:
                break
            place = max(place, other["address"] + other["size_bytes"])
        block["address"] = place


def _one_step(log: RankLog, step: int, now: int, place: dict[str, Any]) -> int:
    of_step: dict[str, Any] = {"step": step, **place}
    for number, layer in enumerate(LAYERS):
        forward = {"operator": "aten::mm", "module": layer, "stack_id": 2, "phase": "forward", **of_step}
        now += 5 * MS
        log.alloc(
            f"act {step} {layer}", (48 + 16 * (log.rank % 2)) * MIB, at=now, category="activation", **forward
        )
        log.alloc(f"tmp {step} {number}", 8 * MIB, at=now + MS, category="temporary", **forward)
        log.free(f"tmp {step} {number}", at=now + 2 * MS)
    if log.rank == 2:
        kept = {"operator": "aten::clone", "stack_id": 4, "phase": "forward", **of_step}
        log.alloc(f"kept {step}", 24 * MIB, at=now + 3 * MS, category="unknown", **kept)
        if step == STEPS - 1:
            log.oom(
                96 * MIB,
                at=now + 4 * MS,
                device=place["device"],
                device_free_bytes=16 * MIB,
                operator="aten::mm",
            )
    for layer in reversed(LAYERS):
        now += 6 * MS
        backward = {
            "operator": "aten::mm",
            "module": layer,
            "stack_id": 3,
            "forward_stack_id": 2,
            "phase": "backward",
        }
        log.alloc(f"grad {step} {layer}", 64 * MIB, at=now, category="autograd_detail", **backward, **of_step)
        log.means(f"grad {step} {layer}", "gradient", at=now)
        log.free(f"act {step} {layer}", at=now + MS)
    if step == 0:
        state = {"operator": "aten::zeros_like", "stack_id": 3, "phase": "optimizer", **of_step}
        log.alloc("state", 128 * MIB, at=now + 8 * MS, category="optimizer_state", **state)
    for layer in LAYERS:
        log.free(f"grad {step} {layer}", at=now + 10 * MS)
    return now + 11 * MS


def guide_database(path: str | None = None) -> duckdb.DuckDBPyConnection:
    """The job, stored."""
    connection = empty_database(path)
    logs = [a_rank(rank) for rank in range(4)]
    store_logs(connection, logs)
    frames = [
        {"stack_id": n, "ordering": 0, "file_path": path, "line_number": line, "function": function}
        for n, (path, line, function) in FRAMES.items()
    ]
    store_rows(connection, "stack_frame", frames)
    for log in logs:
        whose = {"session_id": SESSION, "attempt": 0, "rank": log.rank}
        store_rows(connection, "module", [whose | {"module": layer, "class": "Linear"} for layer in LAYERS])
        weights = [
            whose
            | {
                "name": f"{layer.removeprefix('GPT.')}.weight",
                "size_bytes": 64 * MIB,
                "grad_size_bytes": 64 * MIB,
                "dtype": "torch.float32",
                "shape": "[4096, 4096]",
                "stack_id": 1,
            }
            for layer in LAYERS
        ]
        store_rows(connection, "weight", weights)
    return connection


def with_outputs(page: str, connection: duckdb.DuckDBPyConnection) -> str:
    """The page, each example followed by what it answers."""

    def answered(match: re.Match[str]) -> str:
        return f"```sql\n{match[1]}```\n\n```text\n{shown(connection, match[1])}```\n"

    return EXAMPLE.sub(answered, page)


def shown(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The answer as a table in plain text: numbers to the right, one row a line."""
    table = connection.sql(sql).to_arrow_table()
    columns = [[name, *(_text(value) for value in table[name].to_pylist())] for name in table.column_names]
    to_right = [
        all(isinstance(v, int | float | Decimal | None) for v in table[name].to_pylist())
        for name in table.column_names
    ]
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in zip(*columns, strict=True):
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, to_right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    if isinstance(value, datetime.datetime):
        return value.strftime("%H:%M:%S.%f")
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return "NULL" if value is None else str(value)


if __name__ == "__main__":
    with guide_database() as opened:
        PAGE.write_text(with_outputs(PAGE.read_text(encoding="utf-8"), opened), encoding="utf-8")
