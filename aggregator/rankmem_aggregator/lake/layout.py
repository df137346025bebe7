"""How a lake is laid out: its tables, the folders and names of its files, their order and encodings.

Stage: the contract between what writes a lake and what reads it. Pure values; nothing here opens a file.

``URI/TABLE`` is a Delta table for each table of the database but :data:`LEFT_OUT`, partitioned by
``session_id``, ``segment`` and ``hosts``. A file holds all declared columns, those of the partition too.
``URI/lake_progress`` is a Delta table with a row for each file that counts: a reader takes these and no
others, so one commit there makes rows of many tables seen together. What a file lacks against this version
(``schema_version``) is NULL.

``stack_id`` is the content hash that shippers send: writers of a lake have no numbers in common.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.store import schema
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import Column, Table

LEFT_OUT: Final = frozenset({"rankmem_meta", "stack_hash"})
"""Tables of a database file alone: its identity, its numbers for stacks."""
IMPORT_PREFIX: Final = "import:"
"""Begins the name of a writer that replaces its own files: nothing else may join them."""
ALL_SESSIONS: Final = "_"
"""``session_id`` of files whose rows belong to no session: host_info, clock_offset, stack_frame. (An empty
text would be NULL as the value of a partition.)"""
WHOLE: Final = -1
"""``segment`` or ``hosts`` of a file that is not cut by time, or by hosts."""
LAYOUT_VERSION: Final = 3
"""Of what this rankmem writes, beside the tables' own: raised where files of another version would be read
wrongly. 2: ``opening`` has what a device held before its first event. 3: and the clock offset of the cut."""
LAYOUT_OLDEST: Final = 2
"""A lake of an older layout is refused, not answered from wrongly: its sessions are imported again."""
OPENING_LAYOUT: Final = 3
"""Of an older layout openings are not used: one process answers what slices of time would."""
ROW_GROUP_ROWS: Final = 32_768
"""A row group is what a filter can skip. Larger ones cost more bytes, as one then holds several ranks."""

DIGEST_DIGITS: Final = 16
"""Of what is in the name of a file: its writer, and what that had read."""

_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}"
"""A session's id, as the aggregator takes it, but no longer than a folder's name: it is in folders and logs
without escapes."""


def _column(name: str, kind: pa.DataType, doc: str, unit: str = "", *, nullable: bool = False) -> Column:
    return Column(name=name, type=kind, doc=doc, unit=unit, nullable=nullable)


_COMMON_NS: Final = "ns since 1970-01-01 UTC, the common clock"

LAKE_PROGRESS: Final = Table(
    name="lake_progress",
    doc="The files of a lake that count. A commit here makes rows of many tables seen at once.",
    columns=(
        _column("table_name", pa.string(), "The table whose rows the file holds."),
        _column("session_id", pa.string(), "Its session; _ where its rows belong to none."),
        _column("segment", pa.int64(), "Number of its part of the session's time; -1: not cut by time."),
        _column("hosts", pa.int32(), "Number of its group of hosts; -1: all hosts."),
        _column("path", pa.string(), "Path below the lake, with / between folders."),
        _column("size_bytes", pa.int64(), "Size of the file.", "bytes"),
        _column("num_rows", pa.int64(), "Rows in it."),
        _column(
            "from_ns", pa.int64(), "Its rows begin here; NULL: not cut by time.", _COMMON_NS, nullable=True
        ),
        _column("until_ns", pa.int64(), "They begin before here; NULL likewise.", _COMMON_NS, nullable=True),
        _column("host_uids", pa.string(), "JSON list of its hosts; NULL: all.", nullable=True),
        _column("writer", pa.string(), "Who wrote it: import:DATABASE_ID, an aggregator, compact, prune."),
        _column("sequence", pa.int64(), "The writer's count of commits for the session, from 1."),
        _column("state", pa.string(), "Digest of what the writer had read."),
        _column("schema_version", pa.int32(), "Of the tables, when it was written."),
        _column("layout_version", pa.int32(), "Of the lake, likewise; NULL is 1.", nullable=True),
    ),
)

OPENING: Final = Table(
    name="opening",
    doc="What a device of a rank held where a segment begins, and the most it held in it: bounds of sums "
    "over ranks, which take no event to find.",
    key=("session_id", "attempt", "rank", "device", "of_segment"),
    columns=(
        *schema.ALL_TABLES["memory_event"].columns[:4],
        _column("of_segment", pa.int64(), "Number of the segment: the folder's own is that of the file."),
        _column("from_ns", pa.int64(), "Where the segment begins.", _COMMON_NS),
        _column("until_ns", pa.int64(), "Where it ends.", _COMMON_NS),
        _column(
            "opening_bytes",
            pa.int64(),
            "Requested bytes after the last event before it; NULL: none before.",
            "bytes",
            nullable=True,
        ),
        _column("opening_seq", pa.int64(), "That event.", nullable=True),
        _column(
            "highest_bytes",
            pa.int64(),
            "Highest requested bytes after an event in it; NULL: no event.",
            "bytes",
            nullable=True,
        ),
        _column(
            "offset_ns",
            pa.int64(),
            "What was added to its host's times when it was cut; since then rank_span may have a better one.",
            "ns",
        ),
    ),
)

TABLES: Final = {
    table.name: table for table in (*schema.ALL_TABLES.values(), OPENING) if table.name not in LEFT_OUT
}
"""The tables of a lake by name, but lake_progress."""
PARTITION: Final = ("session_id", "segment", "hosts")

TIME_OF: Final = {
    "memory_event": "time_ns",
    "memory_bucket": "first_ns",
    "allocation_record": "allocated_ns",
    "category_change": "time_ns",
    "operator_call": "started_ns",
    "kernel_launch": "started_ns",
    "marker": "started_ns",
}
"""By table that may be cut by time, the column (on the host's clock) that says in which segment a row is;
a row without it is in the first."""

_ORDER: Final = {
    "memory_bucket": ("attempt", "rank", "device", "seq_first"),
    "memory_level": ("width_s", "attempt", "rank", "device", "seq_first"),
    "group_bucket": ("group_by", "attempt", "rank", "device", "seq_first"),
    "stack_frame": ("stack_id", "ordering"),
    "opening": ("of_segment", "attempt", "rank", "device"),
}
_LOG_POSITIONS: Final = (
    "seq", "seq_last", "allocation_id", "call_id", "marker_id", "kernel_id", "sequence_first", "time_ns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataFile:
    """A row of :data:`LAKE_PROGRESS`: a file that counts. Fields are its columns."""

    table_name: str
    session_id: str
    segment: int
    hosts: int
    path: str
    size_bytes: int
    num_rows: int
    from_ns: int | None
    until_ns: int | None
    host_uids: str | None
    writer: str
    sequence: int
    state: str
    schema_version: int
    layout_version: int = LAYOUT_VERSION


def order_of(table: Table) -> tuple[str, ...]:
    """The columns by which the rows of a file are ordered: rank and log."""
    names = table.column_names()
    if table.name in _ORDER:
        return _ORDER[table.name]
    of_log = next((name for name in _LOG_POSITIONS if name in names), None)
    rest = (of_log,) if of_log else tuple(table.key)
    return tuple(dict.fromkeys(name for name in ("attempt", "rank", *rest) if name in names))


def file_schema(table: Table) -> pa.Schema:
    """The schema of a table's files: declared columns in declared order, text where the wire has numbers."""
    return pa.schema([pa.field(c.name, _stored(c.type)) for c in table.columns])


def delta_schema(table: Table) -> pa.Schema:
    """The schema of a table in Delta's log: that of its files, and the columns of the partition."""
    found = file_schema(table)
    kinds = {"session_id": pa.string(), "segment": pa.int64(), "hosts": pa.int32()}
    for name in PARTITION:
        if name not in found.names:
            found = found.append(pa.field(name, kinds[name]))
    return found


def folder_of(session_id: str, segment: int, hosts: int) -> str:
    """The folder of a partition below its table.

    Raises:
        RankmemError: INVALID for a session id that cannot be a folder's name.
    """
    if session_id != ALL_SESSIONS and not re.fullmatch(_ID, session_id):
        raise RankmemError(
            Code.INVALID,
            f"the session id {session_id!r} cannot be the name of a folder",
            "a lake takes ids of up to 200 letters, digits and ._:- that begin with a letter or digit",
        )
    return f"session_id={session_id}/segment={segment}/hosts={hosts}"


def path_of(
    table_name: str, session_id: str, segment: int, hosts: int, *, sequence: int, writer: str, state: str
) -> str:
    """Where a file lies below the lake. Of rows with one key that of the file with the last name counts.

    Raises:
        RankmemError: as :func:`folder_of`.
    """
    name = f"{sequence:09d}-{digest(writer)}-{state}.parquet"
    return f"{table_name}/{folder_of(session_id, segment, hosts)}/{name}"


def digest(value: object) -> str:
    """What stands for a value in the names of files."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]


def is_data_path(path: str, table_name: str) -> bool:
    """Whether a path could have been made by :func:`folder_of`: below its table, without a way out."""
    return _DATA_PATH.fullmatch(path) is not None and path.startswith(f"{table_name}/")


_DATA_PATH: Final = re.compile(
    rf"\w+/session_id=(?:_|{_ID})/segment=-?\d+/hosts=-?\d+/[A-Za-z0-9_-]+\.parquet"
)


def _stored(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
