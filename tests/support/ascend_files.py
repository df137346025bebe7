"""Profiler folders of an Ascend device made by hand: events of allocators, written as torch_npu does.

Stage: tests. In: calls such as ``story.malloc("aten::mm", 512)``. Out: the database and the CSV files that
torch_npu would have made of it, with its rule for PTA+GE: at each record of one the last record of the other
is added, the stream is the record's or else the other's; WORKSPACE stands apart.
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from rankmem_aggregator.store import schema
from rankmem_imports.recording import Identity, RankRecording

MB = 1 << 20
RECORD_HEADER = (
    "Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)", "Total Active(MB)",
    "Stream Ptr", "Device Type",
)  # fmt: skip
OPERATOR_HEADER = (
    "Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)", "Active Release Time(us)", "Duration(us)",
    "Active Duration(us)", "Allocation Total Allocated(MB)", "Allocation Total Reserved(MB)",
    "Allocation Total Active(MB)", "Release Total Allocated(MB)", "Release Total Reserved(MB)",
    "Release Total Active(MB)", "Stream Ptr", "Device Type",
)  # fmt: skip
MODULE_HEADER = ("Component", "Timestamp(us)", "Total Reserved(MB)", "Device")
STATIC_HEADER = (
    "Device ID",
    "Op Name",
    "Model Name",
    "Graph ID",
    "Node Index Start",
    "Node Index End",
    "Size(KB)",
)

Record = tuple[str, int, int | None, int | None, int | None, int | None, int]
"""component, ns, allocated, reserved, active, stream, device"""


@dataclass
class Block:
    """A block, as OP_MEMORY records it."""

    name: str
    size: int
    stream: int | None
    component: str
    allocated: int | None = None
    released: int | None = None
    active_released: int | None = None
    at_alloc: tuple[int | None, ...] = (None, None, None)
    at_release: tuple[int | None, ...] = (None, None, None)

    def row(self, device: int) -> tuple[Any, ...]:
        """As in OP_MEMORY, with the name for its id."""
        duration = self.released - self.allocated if self.released and self.allocated else None
        active = self.active_released - self.allocated if self.active_released and self.allocated else None
        times = (self.allocated, self.released, self.active_released, duration, active)
        return (self.name, self.size, *times, *self.at_alloc, *self.at_release, self.stream, device)


@dataclass
class Story:
    """The events of one rank's allocators, from a start time."""

    rank: int = 0
    device: int = 0
    now: int = 1_736_407_067_000_000_010
    reserved: int = 64 * MB
    base: int = 3 * MB
    records: list[Record] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    apps: list[tuple[int, int]] = field(default_factory=list)
    used: list[tuple[int, int]] = field(default_factory=list)
    modules: list[tuple[str, int, int]] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    statics: list[tuple[str, str, str, int, int, int]] = field(default_factory=list)
    """operator, model, graph, first node, last node, bytes"""
    workspace: int = 0
    gap: int = 370
    """ns from one action to the next."""

    def __post_init__(self) -> None:
        self.allocated = self.active = self.base
        self.ge = 0

    def tick(self, ns: int | None = None) -> int:
        """Advances the clock."""
        self.now += self.gap if ns is None else ns
        return self.now

    def malloc(self, name: str, size: int, stream: int = 572_920_208) -> Block:
        """An allocation by the framework."""
        self.allocated += size
        self.active += size
        block = Block(name, size, stream, "PTA", allocated=self.tick())
        block.at_alloc = (self.allocated, self.reserved, self.active)
        self.blocks.append(block)
        self._pta(stream)
        return block

    def free(self, block: Block, *, waits: bool = False) -> None:
        """Its tensor is gone: the block is given back just before, or (a stream still uses it) later."""
        self.allocated -= block.size
        if not waits:
            self.active -= block.size
            block.active_released = self.tick()
            self._pta(block.stream)
        block.released = self.tick(60)
        block.at_release = (self.allocated, self.reserved, self.active)
        self._pta(block.stream)

    def give_back(self, block: Block) -> None:
        """Frees a block once the stream has finished with it."""
        self.active -= block.size
        block.active_released = self.tick()
        self._pta(block.stream)

    def free_older(self, size: int, stream: int = 572_920_208) -> None:
        """Frees a block that was allocated before the recording."""
        self.allocated -= size
        self.active -= size
        self.tick()
        self._pta(stream)

    def ge_malloc(self, name: str, size: int) -> Block:
        """An allocation by the graph engine."""
        self.ge += size
        block = Block(name, size, None, "GE", allocated=self.tick())
        block.at_alloc = (self.ge, 16 * MB, None)
        self.blocks.append(block)
        self._ge()
        return block

    def ge_free(self, block: Block) -> None:
        """A free by the graph engine."""
        self.ge -= block.size
        block.released = self.tick()
        block.at_release = (self.ge, 16 * MB, None)
        self._ge()

    def grow_workspace(self, size: int) -> None:
        """WORKSPACE grows."""
        self.workspace += size
        self.tick()
        self.records.append(
            ("WORKSPACE", self.now, self.workspace, self.workspace + MB, self.workspace, 7, self.device)
        )

    def sample(self, app: int, used: int) -> None:
        """A sample of the bytes of the process and of the device."""
        self.apps.append((self.tick(), app))
        self.used.append((self.tick(), used))

    def told(self, *, with_apps: bool) -> list[Record]:
        """MEMORY_RECORD, with sums."""
        rows: list[Record] = []
        if with_apps:
            rows += [("APP", ns, None, held, None, None, self.device) for ns, held in self.apps]
        last: dict[str, Record] = {}
        for record in self.records:
            rows.append(record)
            component, ns, allocated, reserved, active, stream, device = record
            if component == "WORKSPACE":
                continue
            other = last.get("GE" if component == "PTA" else "PTA")
            if other is not None:
                allocated, reserved = (allocated or 0) + (other[2] or 0), (reserved or 0) + (other[3] or 0)
                active, stream = (active or 0) + (other[4] or 0), stream or other[5]
            rows.append(("PTA+GE", ns, allocated, reserved, active, stream, device))
            last[component] = record
        return rows

    def _pta(self, stream: int | None) -> None:
        self.records.append(
            ("PTA", self.now, self.allocated, self.reserved, self.active, stream, self.device)
        )

    def _ge(self) -> None:
        self.records.append(("GE", self.now, self.ge, 16 * MB, 0, None, self.device))


def a_story(rank: int = 0) -> Story:
    """All that can happen once: two streams, waiting, GE, WORKSPACE, older blocks, unreleased ones."""
    story = Story(rank=rank, device=rank)
    story.sample(200 * MB, 300 * MB)
    first = story.malloc("aten::mm", 512)
    second = story.malloc("aten::add", 2 * MB, stream=99)
    graph = story.ge_malloc("trans_TransData_0", 5 * MB)
    story.free(first)
    story.grow_workspace(4 * MB)
    story.free(second, waits=True)
    again = story.ge_malloc("Conv2D1", MB)
    story.ge_free(graph)
    story.give_back(second)
    story.free_older(MB)
    story.malloc("aten::empty", 4096)
    story.grow_workspace(MB)
    story.sample(210 * MB, 310 * MB)
    story.free(story.malloc("aten::relu", 1536, stream=99))
    story.ge_free(again)
    story.modules = [(name, story.now + t, t * 100 * MB) for name in ("HCCL", "GE", "APP") for t in range(3)]
    story.steps = [
        (50, story.records[0][1] - 5, story.records[9][1]),
        (51, story.records[9][1] + 1, story.now),
    ]
    return story


def write_database(story: Story, path: Path, *, host_uid: str | int = "3538958389648580163") -> None:
    """``ascend_pytorch_profiler_N.db``."""
    texts: dict[str, int] = {}

    def text(value: str) -> int:
        return texts.setdefault(value, (2 << 28) + len(texts))

    uid_type = "INTEGER" if isinstance(host_uid, int) else "TEXT"
    modules = {"HCCL": 3, "RUNTIME": 7, "APP": 33, "GE": 45}
    samples = [(text("app"), 0, held, ns, story.device) for ns, held in story.apps]
    samples += [(text("device"), 0, held, ns, story.device) for ns, held in story.used]
    tables: dict[str, tuple[str, Iterable[Sequence[Any]]]] = {
        "HOST_INFO": (f"hostUid {uid_type}, hostName TEXT", [(host_uid, "ubuntu")]),
        "RANK_DEVICE_MAP": ("rankId INTEGER, deviceId INTEGER", [(story.rank, story.device)]),
        "NPU_INFO": ("id INTEGER, name TEXT", [(story.device, "Ascend910B")]),
        "ENUM_MODULE": ("id INTEGER PRIMARY KEY, name TEXT", [(v, k) for k, v in modules.items()]),
        "META_DATA": ("name TEXT, value TEXT", [("SCHEMA_VERSION", "1.0.2")]),
        "STEP_TIME": ("id INTEGER, startNs INTEGER, endNs INTEGER", story.steps),
        "NPU_MEM": ("type INTEGER, ddr NUMERIC, hbm NUMERIC, timestampNs INTEGER, deviceId INTEGER", samples),
        "NPU_MODULE_MEM": (
            "moduleId INTEGER, timestampNs INTEGER, totalReserved NUMERIC, deviceId INTEGER",
            [(modules[name], ns, held, story.device) for name, ns, held in story.modules],
        ),
        "MEMORY_RECORD": (
            "component INTEGER, timestamp INTEGER, totalAllocated INTEGER, totalReserved INTEGER, "
            "totalActive INTEGER, streamPtr INTEGER, deviceId INTEGER",
            [(text(row[0]), *row[1:]) for row in story.told(with_apps=False)],
        ),
        "OP_MEMORY": (
            "name INTEGER, size INTEGER, allocationTime INTEGER, releaseTime INTEGER, "
            "activeReleaseTime INTEGER, duration INTEGER, activeDuration INTEGER, "
            "allocationTotalAllocated INTEGER, "
            "allocationTotalReserved INTEGER, allocationTotalActive INTEGER, releaseTotalAllocated INTEGER, "
            "releaseTotalReserved INTEGER, releaseTotalActive INTEGER, streamPtr INTEGER, deviceId INTEGER",
            [(text(name), *rest) for name, *rest in (b.row(story.device) for b in story.blocks)],
        ),
    }
    tables["STRING_IDS"] = ("id INTEGER PRIMARY KEY, value TEXT", [(v, k) for k, v in texts.items()])
    with sqlite3.connect(path) as database:
        for name, (columns, rows) in tables.items():
            database.execute(f"CREATE TABLE {name} ({columns})")
            marks = ", ".join("?" * (columns.count(",") + 1))
            database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    database.close()


def write_csvs(story: Story, folder: Path) -> None:
    """The four CSV files, as torch_npu writes them."""
    device = f"NPU:{story.device}"
    _csv(
        folder / "memory_record.csv",
        RECORD_HEADER,
        [
            (c, us(ns), mb(allocated), mb(reserved), "" if c == "GE" else mb(active), stream or "", device)
            for c, ns, allocated, reserved, active, stream, _ in story.told(with_apps=True)
        ],
    )
    blocks = [(block, block.row(story.device)) for block in story.blocks]
    _csv(
        folder / "operator_memory.csv",
        OPERATOR_HEADER,
        [
            (
                name if block.component == "PTA" else f"cann::{name}",
                repr(size / 1024),
                *(us(ns) for ns in times),
                *(mb(total) for total in totals),
                stream or "",
                device,
            )
            for block, row in blocks
            for name, size, times, totals, stream in [(row[0], row[1], row[2:7], row[7:13], row[13])]
        ],
    )
    _csv(
        folder / "npu_module_mem.csv", MODULE_HEADER, [(n, us(t), mb(v), device) for n, t, v in story.modules]
    )
    if story.statics:
        rows = [
            (story.device, op, model, graph, a, b, repr(n / 1024))
            for op, model, graph, a, b, n in story.statics
        ]
        _csv(folder / "static_op_mem.csv", STATIC_HEADER, rows)


def us(ns: int | None) -> str:
    """Decimal microseconds and a tab."""
    return "" if ns is None else f"{ns // 1000}.{ns % 1000:03d}\t"


def mb(size: int | None) -> str:
    """Megabytes."""
    return "" if size is None else repr(size / MB)


def store_parts(
    connection: duckdb.DuckDBPyConnection, recording: RankRecording, identity: Identity
) -> dict[str, int]:
    """Stores a recording as import would, with a row of rank_info; rows by table."""
    counts: dict[str, int] = {}
    position = -1
    for part in recording.parts(identity):
        assert part.sequence_last >= position
        position = part.sequence_last
        assert len({table for table, _ in part.rows}) == len(part.rows)
        for table, rows in part.rows:
            counts[table] = counts.get(table, 0) + rows.num_rows
            connection.register(schema.INCOMING, pa.Table.from_batches([rows]))
            connection.execute(schema.append_statement(schema.ALL_TABLES[table]))
            connection.unregister(schema.INCOMING)
    facts = recording.facts
    connection.execute(
        "INSERT INTO rank_info BY NAME SELECT $1 AS session_id, $2 AS attempt, $3 AS rank, 'h' AS host_uid, "
        "'s' AS spool_id, $4 AS started_at_ns, $5 AS ended_at_ns",
        [*identity, facts.started_ns, facts.ended_ns],
    )
    return counts


def _csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
