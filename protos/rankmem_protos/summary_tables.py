"""The tables that the aggregator makes from stored rows, so that peaks of groups take no pass over them.

Stage: the contract with writers of SQL; never on the wire. Each row is a function of the rows of
``rankmem_protos.tables`` up to a position of its rank's log. ``summary_progress`` has up to which position
a rank is in them; a row of a later position (left over from a pass that was undone) does not count.
Nothing depends on them but time: a view adds what they do not cover yet, and is exact at any moment.
``level_progress`` is the same for memory_level, which rests on memory_bucket alone: its rows never change
once they are stored, so cells follow a running job closely, where groups wait until categories are known.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rankmem_protos.tables import ALLOCATION_RECORD, NAME, Column, Table


def _column(name: str, type_: pa.DataType, doc: str, unit: str = "", *, nullable: bool = False) -> Column:
    return Column(name=name, type=type_, doc=doc, unit=unit, nullable=nullable)


_OF_DEVICE: Final = ALLOCATION_RECORD.columns[:4]
"""session_id, attempt, rank, device."""
_HOST_NS: Final = "ns since 1970-01-01 UTC, the host's clock"

SUMMARY_PROGRESS: Final = Table(
    name="summary_progress",
    doc="How far a rank is in the summaries, which are made of its rows in the background.",
    key=("session_id", "attempt", "rank"),
    columns=(
        *_OF_DEVICE[:3],
        _column("seq", pa.int64(), "Last position of the rank's log in them; -4611686018427387904: none."),
        _column("final", pa.bool_(), "True if that is the log's end: nothing comes after it."),
    ),
)

GROUP_BUCKET: Final = Table(
    name="group_bucket",
    doc="A summary: a group of a device's blocks in a stretch of the log in which it grew or shrank. A "
    "stretch ends at a multiple of 1024 positions, or where a pass over the log ended.",
    columns=(
        *_OF_DEVICE,
        _column("group_by", NAME, "stream, component, phase or category."),
        _column("group_name", NAME, "The group; NULL for blocks without one.", nullable=True),
        _column("seq_first", pa.int64(), "First change in it; -1 for blocks older than the recording."),
        _column("seq_last", pa.int64(), "Last change in it."),
        _column("peak_bytes", pa.int64(), "Highest requested bytes after a change in it.", "bytes"),
        _column("peak_seq", pa.int64(), "The first such change."),
        _column(
            "peak_ns",
            pa.int64(),
            "Its time; NULL for blocks older than the recording.",
            _HOST_NS,
            nullable=True,
        ),
        _column("last_bytes", pa.int64(), "Requested bytes of the group after its last change.", "bytes"),
        _column("last_ns", pa.int64(), "That change's time; NULL likewise.", _HOST_NS, nullable=True),
    ),
)

GROUP_TOTAL: Final = Table(
    name="group_total",
    doc="A summary: blocks of a group that ended in one pass over the log, added up; those that are alive at "
    "the log's end count as ended there.",
    columns=(
        *_OF_DEVICE,
        _column(
            "group_by", NAME, "category: what a block meant last. Other groups stand in allocation_record."
        ),
        _column("group_name", NAME, "The group."),
        _column("seq_last", pa.int64(), "Last position of the rank's log in the pass."),
        _column("allocated_bytes", pa.int64(), "Of blocks made since the recording began.", "bytes"),
        _column("num_allocations", pa.int64(), "How many they are."),
        _column("largest_bytes", pa.int64(), "The largest, older blocks included.", "bytes"),
    ),
)

LEVEL_WIDTHS_S: Final = (4, 16, 64, 256, 1024)
"""Widths of memory_level's cells. Each is four of the one before, so all together have a third of the rows of
memory_bucket where that has one for each second, and less where it has more."""

LEVEL_PROGRESS: Final = Table(
    name="level_progress",
    doc="How far a rank is in memory_level: its rows of memory_bucket up to there are in the cells, the "
    "others are not. The macro memory_cell has both.",
    key=("session_id", "attempt", "rank"),
    columns=(
        *_OF_DEVICE[:3],
        _column(
            "seq",
            pa.int64(),
            "Rows with a seq_first up to here are in the cells, at every width; -4611686018427387904: none "
            "are, and cells of the rank do not count.",
        ),
        _column("final", pa.bool_(), "True if that is all: nothing comes after it."),
    ),
)

MEMORY_LEVEL: Final = Table(
    name="memory_level",
    doc="A summary: the rows of memory_bucket of a device that begin in one cell of time, as one row; the "
    "same again at each width. A cell has several rows where the log was read up to an instant within it.",
    columns=(
        *_OF_DEVICE,
        _column("width_s", pa.int32(), "Width of the cell: 4, 16, 64, 256 or 1024.", "s"),
        _column("cell_ns", pa.int64(), "Where the cell begins, a multiple of its width.", _HOST_NS),
        _column("seq_first", pa.int64(), "First event in it."),
        _column("seq_last", pa.int64(), "Last event in it."),
        _column("first_ns", pa.int64(), "Time of the first event.", _HOST_NS),
        _column("last_ns", pa.int64(), "Time of the last event.", _HOST_NS),
        _column("events", pa.int64(), "Events in it."),
        _column("peak_bytes", pa.int64(), "Highest requested bytes after an event in it.", "bytes"),
        _column("peak_ns", pa.int64(), "Its first instant.", _HOST_NS),
        _column("peak_seq", pa.int64(), "Its event: the first of those that reach it."),
        _column(
            "low_bytes",
            pa.int64(),
            "Lowest requested bytes known in it: of the last event of each row of memory_bucket.",
            "bytes",
        ),
        _column("last_bytes", pa.int64(), "Requested bytes after the last event.", "bytes"),
        _column(
            "allocated_peak_bytes",
            pa.int64(),
            "Highest allocated bytes known, the allocator's own figure.",
            "bytes",
            nullable=True,
        ),
        _column("active_peak_bytes", pa.int64(), "Highest active bytes known.", "bytes", nullable=True),
        _column("reserved_peak_bytes", pa.int64(), "Highest reserved bytes known.", "bytes", nullable=True),
        _column(
            "allocated_last_bytes", pa.int64(), "Allocated bytes, the last known.", "bytes", nullable=True
        ),
        _column("active_last_bytes", pa.int64(), "The last active known.", "bytes", nullable=True),
        _column("reserved_last_bytes", pa.int64(), "The last reserved known.", "bytes", nullable=True),
    ),
)

GROUP_SUMMARIES: Final = (SUMMARY_PROGRESS, GROUP_BUCKET, GROUP_TOTAL)
"""Those of groups of blocks: what changes a block's meaning invalidates them."""

SUMMARY_TABLES: Final[dict[str, Table]] = {
    table.name: table for table in (*GROUP_SUMMARIES, LEVEL_PROGRESS, MEMORY_LEVEL)
}
"""All of them by name."""
