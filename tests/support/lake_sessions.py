"""Sessions with all that cuts a lake apart: hosts, clocks, restarts, losses; and every question to them."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from constructed import BASE_NS, SECOND_NS, RankLog, empty_database, store_logs, store_rows
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.sql import (
    Scatter,
    head_of,
    mindstudio_names,
    mindstudio_text,
    query_names,
    query_text,
    scatter_of,
    view_names,
    view_text,
)

RESTARTED, STEADY = "0LAKESESSION1", "0LAKESESSION2"
SECONDS: Final = 8
_CATEGORIES: Final = ("parameter", "activation", "gradient", "unknown")


def lake_sessions(path: Path) -> Path:
    """Two sessions of some seconds.

    The first has three hosts whose clocks differ, a restart after which a rank is on another host, a host
    that vanishes, records that are lost, a rank that never reports.
    """
    dice = random.Random(16)
    logs = []
    offsets = {"host-0": 0, "host-1": 300_000_000, "host-2": -1_700_000_123}
    for attempt, rank in itertools.product(range(2), range(6)):
        host = f"host-{rank // 2}" if attempt == 0 or rank > 1 else f"host-{rank}"
        log = RankLog(
            session_id=RESTARTED, attempt=attempt, rank=rank, host_uid=host, offset_ns=offsets[host],
            started=attempt * 3 * SECOND_NS, coordinates={"tp": rank % 2, "dp": rank // 2, "world_size": 7},
            complete=rank != 3,
        )  # fmt: skip
        _lived(log, dice, (3 if attempt == 0 else SECONDS) * SECOND_NS)
        log.ended = None if (attempt, rank) in ((0, 4), (0, 5), (1, 2)) else log.ended
        if (attempt, rank) == (1, 3):  # by its clock over before its last events
            log.ended = 5 * SECOND_NS
        logs.append(log)
    for rank in range(4):
        log = RankLog(session_id=STEADY, rank=rank, host_uid=f"host-{rank}")
        _lived(log, dice, 4 * SECOND_NS)
        logs.append(log)
    older = logs[1]
    older.preexisting("older", 5_000, device="cuda:0", address=4096)
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
        place = {"session_id": RESTARTED, "attempt": 0}
        gap = {
            "sequence_first": 10,
            "sequence_last": 12,
            "records": 3,
            "noticed_ns": BASE_NS + SECOND_NS,
            "why": "torn",
        }
        store_rows(connection, "gap", [place | {"rank": 3} | gap])
        # What a device held before its first event, of which no event tells.
        whose = place | {"rank": 5, "device": "cuda:1"}
        block = {"allocation_id": -1, "size_bytes": 7_000_000, "preexisting": True}
        store_rows(connection, "allocation_record", [whose | block])
        figures = {"peak_bytes": 7_000_000, "peak_ns": BASE_NS + 5, "peak_seq": 0, "last_bytes": 7_000_000}
        bucket = {f"requested_{name}": value for name, value in figures.items()}
        times = {"bucket_ns": BASE_NS, "first_ns": BASE_NS + 5, "last_ns": BASE_NS + 5}
        store_rows(
            connection,
            "memory_bucket",
            [whose | bucket | times | {"seq_first": 0, "seq_last": 0, "events": 0}],
        )
        frames = [
            {"stack_id": n, "ordering": 0, "file_path": "/job/train.py", "line_number": n, "function": "f"}
            for n in range(1, 4)
        ]
        store_rows(connection, "stack_frame", frames)
        for log in logs:
            of_rank = {"session_id": log.session_id, "attempt": log.attempt, "rank": log.rank}
            store_rows(connection, "module", [of_rank | {"module": "GPT.h", "class": "Block"}])
            weight = {
                "name": "h.weight",
                "size_bytes": 10 * log.rank,
                "dtype": "float",
                "shape": "[1]",
                "stack_id": 1,
            }
            store_rows(connection, "weight", [of_rank | weight])
            device = {"device": "cuda:0", "name": "H", "total_bytes": 1 << 30, "source": "tap"}
            store_rows(connection, "device_info", [of_rank | device])
            _of_other_tables(connection, log)
    return path


def _of_other_tables(connection: duckdb.DuckDBPyConnection, log: RankLog) -> None:
    """What else a rank tells of: its batches, what it held before, what others held, what it was told."""
    of_rank = {"session_id": log.session_id, "attempt": log.attempt, "rank": log.rank}
    of_device = of_rank | {"device": "cuda:0"}
    inputs = [
        {
            "step": row["step"], "seq": row["seq"], "time_ns": row["ended_ns"], "with_grad": True,
            "argument": "0", "shape": f"[{4 + number % 3}, 8]", "call_bytes": 128, "num_left_out": 0,
        }
        for number, row in enumerate(log.steps)
    ]  # fmt: skip
    store_rows(connection, "step_input", [of_rank | row for row in inputs])
    older = {"seq": 0, "address": 4096, "size_bytes": 2 << 20, "stream": 0}
    store_rows(connection, "older_segment", [of_device | older])
    sampled = {"time_ns": BASE_NS + log.started + 5, "component": "HCCL", "reserved_bytes": 3 << 20}
    store_rows(connection, "component_sample", [of_device | sampled])
    order = {"order_id": 1, "what": "summary", "step_first": 1, "asked_ns": BASE_NS}
    store_rows(connection, "control_order", [of_rank | order])
    change = {"order_id": 1, "outcome": "applied", "detail": "summary", "step": 1, "seq": 9}
    store_rows(connection, "control_change", [of_rank | change | {"time_ns": BASE_NS + log.started + 9}])


def _lived(log: RankLog, dice: random.Random, until: int) -> None:
    """A log of a process to an instant: some blocks a second on two devices, steps, failures, samples."""
    now, names, alive = log.started, itertools.count(), list[str]()
    log.ended = until - dice.randrange(SECOND_NS // 2)
    # A device of which nothing is heard again: what it holds later is known from before alone.
    log.alloc("weights", (40 + log.rank) << 20, at=now + 1, device="cuda:2", category="parameter")
    while True:
        now += dice.choice([0, 1, 1_000_000, 60_000_000, 333_333_333])
        if now >= log.ended:
            return
        if alive and dice.random() < 0.45:
            log.free(alive.pop(dice.randrange(len(alive))), at=now, told_later=dice.random() < 0.2)
        else:
            name = f"block {next(names)}"
            log.alloc(
                name, dice.choice([1, 512, 4096, 1 << 20]) * dice.randrange(1, 9), at=now,
                device=dice.choice(["cuda:0", "cuda:0", "cuda:1", "cpu"]), stream=dice.randrange(2),
                operator=dice.choice(["aten::mm", "aten::empty", None]), module=dice.choice(["GPT.h", None]),
                phase="forward", step=next(names) // 8, stack_id=dice.randrange(1, 4), category="unknown",
            )  # fmt: skip
            alive.append(name)
        if alive and dice.random() < 0.1:
            log.means(dice.choice(alive), dice.choice(_CATEGORIES), at=now)
        if dice.random() < 0.1:
            log.step_ends(len(log.steps), at=now)
        if dice.random() < 0.03 and "cuda:0" in log._totals:
            log.oom(1 << 40, at=now, operator="aten::mm")
        if dice.random() < 0.05:
            log.sample(1 << 30, at=now, device="cuda:0")


BLOCK_GROUPS: Final = ("category", "operator", "stream", "component", "line")
RANK_GROUPS: Final = ("job", "host", "tp")
_OF_RANKS: Final = ("group_peak", "peak_by_ranks", "rank_group", "curve_by_ranks")
_POINTS: Final = (
    "(SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq}) FROM peak_by_rank "
    "WHERE session_id = $session)"
)


def view_questions(
    queries: Queries, session: str, at_ns: int, groups_most: int | None = None
) -> Iterator[tuple[str, Scatter, str, dict[str, Value]]]:
    """For each view and table macro: name, how it is answered, a statement about the session, parameters."""
    texts = {name: view_text(name) for name in view_names()}
    texts |= {f"mindstudio.{name}": mindstudio_text(name) for name in mindstudio_names()}
    for name, text in texts.items():
        macro = re.search(rf"MACRO {re.escape(name)}\s*\((.*?)\)\s*AS TABLE", text, re.DOTALL)
        if macro is None:
            if "OR REPLACE VIEW" in text:
                yield name, scatter_of(text), *_of_session(queries, name, session)
            continue
        needed = [p.strip() for p in macro[1].split(",") if p.strip() and ":=" not in p]
        groups = [""]
        if "of_group" in macro[1]:
            groups = list(RANK_GROUPS if name in _OF_RANKS else BLOCK_GROUPS)[:groups_most]
            groups = ["layer"] if name == "kernel_total" else groups
        for group in groups:
            values = {
                "of_session": "$session", "of_group": f"'{group}'", "of_rank": "1", "of_attempt": "0",
                "of_device": "'cuda:0'", "of_device_type": "'cuda'", "at_ns": str(at_ns), "at_seq": "20",
                "of_points": _POINTS, "of_offset_ns": "0", "of_width_s": "1024", "of_graph": "'0'",
            }  # fmt: skip
            call = f"{name}({', '.join(values[parameter] for parameter in needed)})"
            given = {"session": session} if "$session" in call else {}
            yield f"{name} {group}", scatter_of(text), f"SELECT * FROM {call}", given


def _of_session(queries: Queries, name: str, session: str) -> tuple[str, dict[str, Value]]:
    """The statement that reads a view for a session, if it has sessions."""
    columns = queries.sql(f"SELECT * FROM {name} LIMIT 0").column_names
    for column in ("session_id", "sessionId"):
        if column in columns:
            return f"SELECT * FROM {name} WHERE {column} = $session", {"session": session}
    return f"SELECT * FROM {name}", {}


def named_questions(
    session: str, at_ns: int, groups_most: int | None = None
) -> Iterator[tuple[str, str, dict[str, Value]]]:
    """For each named query: a label, its text, its parameters.

    A parameter that may be NULL is NULL where nothing else is said; of the others each has a value, so that
    the answer has rows.
    """
    always: dict[str, Value] = {"time_ns": at_ns, "now_ns": at_ns}
    one: dict[str, Value] = {
        "session": session, "attempt": 0, "rank": 1, "device": "cuda:0", "device_type": "cuda", "step": 1,
        "seq": 20, "from_seq": 5, "to_seq": 60, "stack_id": 1, "order_id": 1, "at_most": 1000, "first_ns": 0,
        "num_instants": 3, "figure": "requested", "order": "peak", "of_group": "category", "shares": "[]",
        "by_second": False, "per_rank": False, "coarse": False,
        "instants": json.dumps([{"at_ns": at_ns, "seq": 20}]),
        "points": json.dumps([{"attempt": 0, "rank": 1, "device": "cuda:0", "seq": 20}]),
    }  # fmt: skip
    for name in query_names():
        text = query_text(name)
        groups: list[str | None] = [None]
        given: dict[str, Value] = {}
        for line in head_of(text).parameters:
            parameter = line.split()[0]
            given[parameter] = always.get(parameter, None if "NULL" in line else one.get(parameter))
        if "by" in given:
            groups = list(RANK_GROUPS if name in ("peak_by_ranks", "curve_by_ranks") else BLOCK_GROUPS)
            if name in ("peak_by_allocator", "curve_by_allocator"):
                groups = ["stream", "component"]
        for group in groups:
            yield f"{name} {group or ''}", text, given | ({"by": group} if group else {})


def rows_of(table: pa.Table, *, without_stacks: bool = False) -> tuple[list[str], list[str]]:
    """Types of the columns, and the rows as text, ordered."""
    if without_stacks:
        table = table.drop_columns([name for name in table.column_names if name.endswith("stack_id")])
    rows: list[dict[str, Any]] = table.to_pylist()
    return [str(field) for field in table.schema], sorted(map(repr, rows))
