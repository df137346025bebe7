"""Writes the memory files of a profiler folder for MindStudio Insight: an SQLite database and CSV files.

Stage: export, in the reader's process. In: records, blocks, samples as values; out: both formats at once,
with torch_npu's headers, types and units: ns and bytes in the database; decimal microseconds that end in a
tab, MB and KB of 1024 in the CSV files. Each file exists only with rows. Holds ROWS_HELD_MAX rows of each
table.
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from rankmem_aggregator.csv_cells import no_formula
from rankmem_aggregator.exports.mindstudio_totals import GRAPH, Record
from rankmem_aggregator.sql import export_text

ROWS_HELD_MAX: Final = 20_000
"""Rows of a table held before they are inserted: some MB."""
STRING_ID_FIRST: Final = 2 << 28
"""First id of the texts in the memory tables, as in torch_npu."""
SCHEMA_VERSION: Final = (
    ("SCHEMA_VERSION_MICRO", "2"),
    ("SCHEMA_VERSION_MINOR", "0"),
    ("SCHEMA_VERSION_MAJOR", "1"),
    ("SCHEMA_VERSION", "1.0.2"),
)
RECORD_HEADER: Final = (
    "Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)", "Total Active(MB)",
    "Stream Ptr", "Device Type",
)  # fmt: skip
OPERATOR_HEADER: Final = (
    "Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)", "Active Release Time(us)", "Duration(us)",
    "Active Duration(us)", "Allocation Total Allocated(MB)", "Allocation Total Reserved(MB)",
    "Allocation Total Active(MB)", "Release Total Allocated(MB)", "Release Total Reserved(MB)",
    "Release Total Active(MB)", "Stream Ptr", "Device Type",
)  # fmt: skip
MODULE_HEADER: Final = ("Component", "Timestamp(us)", "Total Reserved(MB)", "Device")
STATIC_HEADER: Final = (
    "Device ID", "Op Name", "Model Name", "Graph ID", "Node Index Start", "Node Index End", "Size(KB)",
)  # fmt: skip


class Block(NamedTuple):
    """A row of OP_MEMORY."""

    name: str
    size: int
    allocated_ns: int | None
    released_ns: int | None
    active_released_ns: int | None
    at_alloc: tuple[int | None, ...]
    at_release: tuple[int | None, ...]
    stream: int | None

    def times(self) -> tuple[int | None, ...]:
        """The three times and the two durations."""
        ends = (self.released_ns, self.active_released_ns)
        durations = (_since(self.allocated_ns, end) for end in ends)
        return (self.allocated_ns, *ends, *durations)


class RankFiles:
    """Writes a rank's output folder; a context manager that finishes the files."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.counts: dict[str, int] = {}
        self._rank = rank
        self._open = ExitStack()
        self._database = sqlite3.connect(folder / f"ascend_pytorch_profiler_{rank}.db")
        self._open.callback(self._database.close)
        self._database.executescript(export_text("mindstudio_tables"))
        self._texts: dict[str, int] = {}
        self._modules: dict[int, str] = {}
        self._waiting: dict[str, list[tuple[Any, ...]]] = {}
        self._csvs: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._insert("STRING_IDS", [(number, text) for text, number in self._texts.items()])
                self._insert("ENUM_MODULE", list(self._modules.items()))
                for table in list(self._waiting):
                    self._flush(table)
                self._database.commit()
        finally:
            self._open.close()

    def describe(
        self,
        *,
        span_ns: tuple[int, int],
        host: tuple[str, str],
        devices: Mapping[int, str],
        steps: Sequence[tuple[int, int, int]],
    ) -> None:
        """Writes first and last instant, uid and name of the host, names of devices, and steps."""
        self._insert("SESSION_TIME_INFO", [span_ns])
        self._insert("HOST_INFO", [host])
        self._insert("RANK_DEVICE_MAP", [(self._rank, device) for device in devices])
        self._insert("NPU_INFO", list(devices.items()))
        self._insert("META_DATA", list(SCHEMA_VERSION))
        self._insert("STEP_TIME", list(steps))

    def sample(self, time_ns: int, app: int | None, used: int | None, device: int) -> None:
        """Writes what the process, and all processes, held."""
        for kind, held in (("app", app), ("device", used)):
            if held is not None:
                self._insert("NPU_MEM", [(self._text(kind), 0, held, time_ns, device)])
        if app is not None:
            row = ("APP", _us(time_ns), "", _mb(app), "", "", f"NPU:{device}")
            self._csv("memory_record.csv", RECORD_HEADER).writerow(row)

    def records(self, records: Iterable[Record], device: int) -> None:
        """Writes rows of MEMORY_RECORD."""
        writer = self._csv("memory_record.csv", RECORD_HEADER)
        for row in records:
            totals = (row.allocated, row.reserved, row.active)
            self._insert(
                "MEMORY_RECORD", [(self._text(row.component), row.time_ns, *totals, row.stream, device)]
            )
            cells = [_mb(total) for total in totals]
            if row.component == GRAPH:
                cells[2] = ""
            stream = "" if row.stream is None else row.stream
            writer.writerow((row.component, _us(row.time_ns), *cells, stream, f"NPU:{device}"))
            self._count("records")

    def blocks(self, blocks: Iterable[Block], device: int) -> None:
        """Writes rows of OP_MEMORY."""
        writer = self._csv("operator_memory.csv", OPERATOR_HEADER)
        for block in blocks:
            times, totals = block.times(), (*block.at_alloc, *block.at_release)
            self._insert(
                "OP_MEMORY", [(self._text(block.name), block.size, *times, *totals, block.stream, device)]
            )
            writer.writerow(
                (
                    no_formula(block.name),
                    _kb(block.size),
                    *(_us(time) for time in times),
                    *(_mb(total) for total in totals),
                    "" if block.stream is None else block.stream,
                    f"NPU:{device}",
                )
            )
            self._count("blocks")

    def module(self, number: int, name: str, time_ns: int, held: int, device: int) -> None:
        """Writes a row of NPU_MODULE_MEM."""
        self._modules[number] = name
        self._insert("NPU_MODULE_MEM", [(number, time_ns, held, device)])
        row = (no_formula(name), _us(time_ns), _mb(held), f"NPU:{device}")
        self._csv("npu_module_mem.csv", MODULE_HEADER).writerow(row)

    def static_block(self, row: Mapping[str, Any], device: int) -> None:
        """Writes a row of static_op_mem.csv; the database has no such table."""
        cells = [row[name] for name in ("operator", "model", "graph_id", "node_first", "node_last")]
        cells = [no_formula(cell) if isinstance(cell, str) else cell for cell in cells]
        self._csv("static_op_mem.csv", STATIC_HEADER).writerow((device, *cells, _kb(row["size_bytes"])))

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        waiting = self._waiting.setdefault(table, [])
        waiting.extend(rows)
        if len(waiting) >= ROWS_HELD_MAX:
            self._flush(table)

    def _flush(self, table: str) -> None:
        rows = self._waiting.pop(table, [])
        if rows:
            self._database.executemany(_INSERTS[table], rows)

    def _csv(self, name: str, header: Sequence[str]) -> Any:
        writer = self._csvs.get(name)
        if writer is None:
            file = self._open.enter_context((self.folder / name).open("w", newline="", encoding="utf-8"))
            writer = self._csvs[name] = csv.writer(file)
            writer.writerow(header)
        return writer

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, STRING_ID_FIRST + len(self._texts))

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


_INSERTS: Final = {
    "SESSION_TIME_INFO": "INSERT INTO SESSION_TIME_INFO VALUES (?, ?)",
    "HOST_INFO": "INSERT INTO HOST_INFO VALUES (?, ?)",
    "RANK_DEVICE_MAP": "INSERT INTO RANK_DEVICE_MAP VALUES (?, ?)",
    "NPU_INFO": "INSERT INTO NPU_INFO VALUES (?, ?)",
    "META_DATA": "INSERT INTO META_DATA VALUES (?, ?)",
    "STRING_IDS": "INSERT INTO STRING_IDS VALUES (?, ?)",
    "ENUM_MODULE": "INSERT INTO ENUM_MODULE VALUES (?, ?)",
    "STEP_TIME": "INSERT INTO STEP_TIME VALUES (?, ?, ?)",
    "NPU_MEM": "INSERT INTO NPU_MEM VALUES (?, ?, ?, ?, ?)",
    "NPU_MODULE_MEM": "INSERT INTO NPU_MODULE_MEM VALUES (?, ?, ?, ?)",
    "MEMORY_RECORD": "INSERT INTO MEMORY_RECORD VALUES (?, ?, ?, ?, ?, ?, ?)",
    "OP_MEMORY": "INSERT INTO OP_MEMORY VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
}


def _us(ns: int | None) -> str:
    """Decimal microseconds; the tab keeps spreadsheets from rounding them."""
    return "" if ns is None else f"{ns // 1000}.{ns % 1000:03d}\t"


def _mb(size: int | None) -> str:
    return "" if size is None else repr(size / (1 << 20))


def _kb(size: int | None) -> str:
    return "" if size is None else repr(size / (1 << 10))


def _since(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else end - start
