"""Columns that are stored in another form than they are read in: smaller, and restored exactly.

Stage: store. In: the names of declared tables; out: the form of their columns in the file, and the SQL
between the two forms: ``sql/packing`` on the way in, ``sql/packed`` (a view with the declared name and
columns, which readers query) on the way out. Pure values; nothing here touches a database.

Why: DuckDB packs 2,048 integers in the bits that their widest difference takes, so a few large sizes make
all of them wide; text has a dictionary. Measured on a real training, bytes an event: memory_event.size_bytes
2.5 as integer and 0.5 as text, all columns listed here 14.6 and 8.0. Columns that queries for peaks
scan (time, running total, sequence) are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rankmem_aggregator.sql import statement_text

PACKED_SCHEMA: Final = "packed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A column's form on disk."""

    type: str
    """In DuckDB."""
    doc: str
    """Meaning of the stored value; its ``COMMENT``."""
    null_means: bool = False
    """NULL stands for a value: the column must not be declared NOT NULL on disk."""


_REPEATING: Final = Packed(
    type="VARCHAR", doc="Bytes in decimal: few values, many times, and only text has a dictionary."
)
_ADDRESS: Final = Packed(
    type="BIGINT",
    doc="A multiple of 64 (every allocator's alignment) divided by it; any other address moved away from 0 "
    "by 2 to the power 57.",
)
_COMPONENT: Final = Packed(
    type="VARCHAR", doc="NULL for pytorch, which it nearly always is.", null_means=True
)
_BESIDE_SEQ: Final = Packed(type="BIGINT", doc="Less seq_first.")
_BESIDE_TIME: Final = Packed(type="BIGINT", doc="Less first_ns.")
_BESIDE_PEAK: Final = Packed(type="BIGINT", doc="Less requested_peak_bytes, which it equals on cpu.")
_BESIDE_LAST: Final = Packed(type="BIGINT", doc="Less requested_last_bytes, which it equals on cpu.")
PACKED: Final[Mapping[str, Mapping[str, Packed]]] = {
    "memory_event": {"address": _ADDRESS, "size_bytes": _REPEATING, "component": _COMPONENT},
    "allocation_record": {"address": _ADDRESS, "size_bytes": _REPEATING, "component": _COMPONENT},
    "operator_call": {
        "sequence_last": Packed(type="BIGINT", doc="sequence_last minus sequence_first (0 where NULL)."),
        "ended_ns": Packed(type="BIGINT", doc="ended_ns minus started_ns (0 where NULL)."),
        "allocated_bytes": _REPEATING,
        "freed_bytes": _REPEATING,
    },
    "memory_bucket": {
        "seq_last": _BESIDE_SEQ,
        "requested_peak_seq": _BESIDE_SEQ,
        "last_ns": _BESIDE_TIME,
        "requested_peak_ns": _BESIDE_TIME,
        "allocated_peak_bytes": _BESIDE_PEAK,
        "active_peak_bytes": _BESIDE_PEAK,
        "reserved_peak_bytes": _BESIDE_PEAK,
        "allocated_last_bytes": _BESIDE_LAST,
        "active_last_bytes": _BESIDE_LAST,
        "reserved_last_bytes": _BESIDE_LAST,
    },
}
"""By table and column. All other columns of these tables are stored as declared."""


def is_packed(table_name: str) -> bool:
    """Whether the table of this name is a view over one in :data:`PACKED_SCHEMA`."""
    return table_name in PACKED


def form_of(table_name: str, column_name: str) -> Packed | None:
    """The column's form on disk; None where it is the declared one."""
    return PACKED.get(table_name, {}).get(column_name)


def packed_rows(table_name: str, source: str) -> str:
    """The FROM clause for the rows of ``source`` (a name of ours) in their form on disk."""
    if not is_packed(table_name):
        return source
    return f"(WITH incoming AS (FROM {source})\n{statement_text('packing', table_name)})"


def reading_view(table_name: str) -> str:
    """The statement that makes the view of the declared name."""
    return statement_text("packed", table_name)
