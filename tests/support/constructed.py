"""Small databases made by hand: logs of ranks, with the rows that a reader would make.

Stage: tests. In: calls such as ``log.alloc("weights", 100, at=10)``. Out: the rows that a shipper would have
sent for that log, stored in a DuckDB connection with rankmem's tables and views. It computes nothing that
a view computes: totals are running sums, buckets are plain loops over seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from rankmem_aggregator.sql import install_views
from rankmem_aggregator.store import schema, templates
from rankmem_protos.summary_tables import SUMMARY_TABLES
from rankmem_protos.tables import TABLES

SESSION: Final = "0SESSION0001"
SECOND_NS: Final = 1_000_000_000
BASE_NS: Final = 1_700_000_000 * SECOND_NS
"""Times in tests count from here: a real date, so that a float in the way would show."""

Row = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class RankLog:
    """The log of one rank process, event by event; times are ns after :data:`BASE_NS` on its host's clock."""

    rank: int = 0
    attempt: int = 0
    session_id: str = SESSION
    host_uid: str = "host-0"
    offset_ns: int = 0
    started: int = 0
    ended: int | None = None
    complete: bool | None = True
    events: list[Row] = field(default_factory=list)
    allocations: dict[str, Row] = field(default_factory=dict)
    endings: list[Row] = field(default_factory=list)
    changes: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    ooms: list[Row] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)
    coordinates: dict[str, int] = field(default_factory=dict)
    """Parallel coordinates, columns of rank_info such as dp."""
    _totals: dict[str, int] = field(default_factory=dict)
    _seq: int = 0

    def alloc(self, name: str, size_bytes: int, *, at: int, device: str = "cpu", **columns: Any) -> int:
        """Allocates a block; returns its seq. ``columns`` are those of allocation_record."""
        seq = self._event("alloc", size_bytes, size_bytes, at, device)
        self.allocations[name] = self._of_device(device) | {
            "allocation_id": seq,
            "address": 4096 + seq,
            "size_bytes": size_bytes,
            "component": "pytorch",
            "allocated_ns": BASE_NS + at,
            "preexisting": False,
            **columns,
        }
        return seq

    def preexisting(self, name: str, size_bytes: int, *, device: str = "cpu", **columns: Any) -> None:
        """A block older than the recording. ``columns`` are those of allocation_record."""
        self._totals[device] = self._totals.get(device, 0) + size_bytes
        number = sum(row["preexisting"] for row in self.allocations.values())
        self.allocations[name] = self._of_device(device) | {
            "allocation_id": -1 - number,
            "size_bytes": size_bytes,
            "component": "pytorch",
            "preexisting": True,
            **columns,
        }

    def free(self, name: str, *, at: int, told_later: bool = False) -> int:
        """Frees a block; returns the event's seq. ``told_later``: its record was sent before."""
        row = self.allocations[name]
        seq = self._event("free_completed", row["size_bytes"], -row["size_bytes"], at, row["device"])
        freed = {"freed_ns": BASE_NS + at, "freed_seq": seq}
        if told_later:
            self.endings.append(
                self._of_device(row["device"]) | {"allocation_id": row["allocation_id"]} | freed
            )
        else:
            row |= freed
        return seq

    def request_free(self, name: str, *, at: int) -> int:
        """A block's tensor is freed while another stream may still use the block; returns the seq."""
        row = self.allocations[name]
        seq = self._event("free_requested", row["size_bytes"], 0, at, row["device"])
        row |= {"free_requested_ns": BASE_NS + at, "free_requested_seq": seq}
        return seq

    def means(self, name: str, category: str, *, at: int, since_alloc: bool = False) -> int:
        """A block's category from here on, or as it always was; returns the seq of the change."""
        row = self.allocations[name]
        seq = row["allocation_id"] if since_alloc else self._seq
        self._seq += 1
        time_ns = row.get("allocated_ns", BASE_NS + self.started) if since_alloc else BASE_NS + at
        self.changes.append(
            self._of_device(row["device"])
            | {
                "allocation_id": row["allocation_id"],
                "seq": seq,
                "time_ns": time_ns,
                "category": category,
            }
        )
        return seq

    def step_ends(self, step: int, *, at: int, optimizer: str = "SGD") -> None:
        """A training step is over."""
        self.steps.append(
            self._of_rank()
            | {"step": step, "ended_ns": BASE_NS + at, "seq": self._seq, "optimizer": optimizer}
        )
        self._seq += 1

    def in_summary(self, first: int) -> Row:
        """From the step on no operator was observed: blanks what shows it; the row of control_change."""
        seq = 1 + max(row["seq"] for row in self.steps if row["step"] < first)
        for row in self.allocations.values():
            if row["allocation_id"] >= seq:
                is_tagged = row.get("category") in ("parameter", "gradient", "optimizer_state")
                row |= dict.fromkeys(("operator", "module", "phase", "stack_id", "forward_stack_id"))
                row["category"] = row["category"] if is_tagged else "unknown"
        change = {"order_id": 1, "outcome": "applied", "detail": "summary", "step": first, "seq": seq}
        return self._of_rank() | change | {"time_ns": BASE_NS}

    def segment(self, action: str, address: int, size_bytes: int, *, at: int, device: str = "cuda:0") -> None:
        """The allocator reserves memory from the device, or releases it."""
        self._event(action, size_bytes, 0, at, device)
        self.events[-1]["address"] = address

    def oom(self, size_bytes: int, *, at: int, device: str = "cuda:0", **columns: Any) -> int:
        """An allocation fails; returns its seq. ``columns`` are those of oom."""
        seq = self._event("oom", size_bytes, 0, at, device)
        self.ooms.append(
            self._of_device(device)
            | {
                "seq": seq,
                "time_ns": BASE_NS + at,
                "size_bytes": size_bytes,
                "requested_bytes": self._totals[device],
                **columns,
            }
        )
        return seq

    def sample(self, app_reserved_bytes: int | None, *, at: int, device: str = "cpu", **columns: Any) -> None:
        """The process is seen from outside. ``columns``: further ones of process_sample."""
        self.samples.append(
            self._of_device(device)
            | {"seq": self._seq, "time_ns": BASE_NS + at, "app_reserved_bytes": app_reserved_bytes}
            | columns
        )
        self._seq += 1

    def totals(self, device: str, values: Iterable[tuple[int, int]]) -> None:
        """Events told by (time, requested bytes after it) alone, for tests of sums."""
        for at, total in values:
            self._event("alloc", 0, total - self._totals.get(device, 0), at, device)

    def skip(self, records: int = 1) -> None:
        """Records of the log that are no events."""
        self._seq += records

    def _event(self, action: str, size_bytes: int, change: int, at: int, device: str) -> int:
        seq = self._seq
        self._seq += 1
        self._totals[device] = self._totals.get(device, 0) + change
        self.events.append(
            self._of_device(device)
            | {
                "seq": seq,
                "time_ns": BASE_NS + at,
                "action": action,
                "size_bytes": size_bytes,
                "component": "pytorch",
                "requested_bytes": self._totals[device],
            }
        )
        return seq

    def _of_rank(self) -> Row:
        return {"session_id": self.session_id, "attempt": self.attempt, "rank": self.rank}

    def _of_device(self, device: str) -> Row:
        return self._of_rank() | {"device": device}

    def rank_row(self) -> Row:
        """Its row of rank_info."""
        return {
            "session_id": self.session_id,
            "attempt": self.attempt,
            "rank": self.rank,
            "host_uid": self.host_uid,
            "spool_id": f"{self.session_id}-{self.attempt}-{self.rank}",
            "clock_offset_ns": self.offset_ns,
            "clock_error_ns": 1000,
            "started_at_ns": BASE_NS + self.started,
            "ended_at_ns": None if self.ended is None else BASE_NS + self.ended,
            "end_reason": None if self.ended is None else "exit",
            "events": len(self.events),
            "events_lost": 0,
            "complete": self.complete,
            **self.coordinates,
        }


def empty_database(path: str | None = None) -> duckdb.DuckDBPyConnection:
    """A database with rankmem's tables and views and no rows: a copy of the first such of this process.

    Without a path it lies in a folder that goes with the process: the views would take a second of CPU time
    to be made in memory.
    """
    if path is None:
        path = f"{tempfile.mkdtemp(dir=_folder().name)}/memory.duckdb"
    if Path(path).exists():
        return _made(path)
    Path(path).write_bytes(_empty_file())
    connection = duckdb.connect(path)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _made(path: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(path)
    connection.execute("SET TimeZone = 'UTC'")
    schema.prepare(connection)
    install_views(connection)
    return connection


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@cache
def _empty_file() -> bytes:
    """Made once a process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.duckdb"
        with duckdb.connect(path) if templates.place(path) else _made(str(path)) as connection:
            schema.write_meta(connection)
        return path.read_bytes()


def clear(connection: duckdb.DuckDBPyConnection) -> None:
    """Deletes all rows."""
    for table in (TABLES | SUMMARY_TABLES).values():
        connection.execute(f"DELETE FROM {schema.stored_name(table)}")


def store_rows(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Row]) -> None:
    """Appends rows, given as dictionaries; columns left out are NULL."""
    if not rows:
        return
    declared = TABLES[table]
    connection.register(schema.INCOMING, pa.Table.from_pylist(list(rows), schema=declared.arrow_schema()))
    connection.execute(schema.append_statement(declared))
    connection.unregister(schema.INCOMING)


def store_logs(
    connection: duckdb.DuckDBPyConnection, logs: Sequence[RankLog], *, cuts: Sequence[int] = ()
) -> None:
    """Stores the logs as one or more sessions; ``cuts``: seqs at which a batch ended within a second."""
    for session_id in dict.fromkeys(log.session_id for log in logs):
        ours = [log for log in logs if log.session_id == session_id]
        started = BASE_NS + min(log.started for log in ours)
        store_rows(
            connection,
            "session",
            [{"session_id": session_id, "name": "test", "source": "live", "started_at_ns": started}],
        )
    hosts = sorted({log.host_uid for log in logs})
    store_rows(connection, "host_info", [{"host_uid": uid, "host_name": f"name-of-{uid}"} for uid in hosts])
    store_rows(connection, "rank_info", [log.rank_row() for log in logs])
    store_rows(connection, "memory_event", [row for log in logs for row in log.events])
    store_rows(connection, "allocation_record", [row for log in logs for row in log.allocations.values()])
    store_rows(connection, "allocation_end", [row for log in logs for row in log.endings])
    store_rows(connection, "category_change", [row for log in logs for row in log.changes])
    store_rows(connection, "step", [row for log in logs for row in log.steps])
    store_rows(connection, "step_bucket", [row for log in logs for row in step_buckets_of(log)])
    store_rows(connection, "oom", [row for log in logs for row in log.ooms])
    store_rows(connection, "process_sample", [row for log in logs for row in log.samples])
    store_rows(connection, "memory_bucket", [row for log in logs for row in buckets_of(log.events, cuts)])


def step_buckets_of(log: RankLog) -> list[Row]:
    """The step_bucket rows of a rank: one for each end of a step and device that had events before it."""
    rows: list[Row] = []
    before = -1
    for step in sorted(log.steps, key=lambda step: step["seq"]):
        inside = [event for event in log.events if before < event["seq"] < step["seq"]]
        for device in sorted({event["device"] for event in inside}):
            own = [event for event in inside if event["device"] == device]
            top = max(own, key=lambda event: (event["requested_bytes"], -event["seq"]))
            made = [event["size_bytes"] for event in own if event["action"] == "alloc"]
            rows.append(
                {name: top[name] for name in ("session_id", "attempt", "rank", "device")}
                | {
                    "step": step["step"],
                    "seq_last": own[-1]["seq"],
                    "peak_bytes": top["requested_bytes"],
                    "peak_seq": top["seq"],
                    "peak_ns": top["time_ns"],
                    "last_bytes": own[-1]["requested_bytes"],
                    "allocated_bytes": sum(made),
                    "num_allocations": len(made),
                }
            )
        before = step["seq"]
    return rows


def buckets_of(events: Sequence[Row], cuts: Sequence[int] = ()) -> list[Row]:
    """The memory_bucket rows of a rank's events: one for each device, second, 64 records and batch."""
    rows: list[Row] = []
    for device in sorted({event["device"] for event in events}):
        own = [event for event in events if event["device"] == device]

        def bucket(event: Row) -> tuple[int, int, int]:
            batch = sum(cut <= event["seq"] for cut in cuts)
            return event["time_ns"] // SECOND_NS, event["seq"] // 64, batch

        rows += [_bucket_of(list(group)) for _, group in groupby(own, key=bucket)]
    return rows


def _bucket_of(events: Sequence[Row]) -> Row:
    first, last = events[0], events[-1]
    top = max(events, key=lambda event: (event["requested_bytes"], -event["seq"]))
    figures: Row = {}
    for name in ("allocated", "active"):
        known = [event[f"{name}_bytes"] for event in events if event.get(f"{name}_bytes") is not None]
        figures[f"{name}_peak_bytes"] = max(known, default=None)
        figures[f"{name}_last_bytes"] = known[-1] if known else None
    return {name: first[name] for name in ("session_id", "attempt", "rank", "device")} | {
        "bucket_ns": first["time_ns"] // SECOND_NS * SECOND_NS,
        "seq_first": first["seq"],
        "seq_last": last["seq"],
        "first_ns": first["time_ns"],
        "last_ns": last["time_ns"],
        "events": len(events),
        "requested_peak_bytes": top["requested_bytes"],
        "requested_peak_ns": top["time_ns"],
        "requested_peak_seq": top["seq"],
        "requested_last_bytes": last["requested_bytes"],
        "reserved_peak_bytes": max((e.get("reserved_bytes") or 0 for e in events), default=0) or None,
        "reserved_last_bytes": last.get("reserved_bytes"),
        **figures,
    }
