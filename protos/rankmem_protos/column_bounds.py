"""Bounds of the values of each column: the aggregator refuses others, so a shipper sends none.

Stage: the contract between shipper and aggregator. A stored row must never make somebody's question fail:
views add these numbers up within 64 bits. Imports pyarrow, so never in the trainer.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rankmem_protos.bounds import (
    COUNT_MAX,
    MODULE_BYTES_MAX,
    NAME_BYTES_MAX,
    NUMBER_MAX,
    OFFSET_NS_MAX,
    RANKS_MAX,
    SIZE_BYTES_MAX,
    TEXT_VALUE_BYTES_MAX,
)
from rankmem_protos.tables import STEADY_COUNTS, Column

_ANY_NUMBER: Final = frozenset({"address", "stack_id", "forward_stack_id", "stream"})
"""Columns of 64 bits without an order: hashes, addresses and handles."""
_COUNTS: Final = frozenset(
    {"allocations", "events", "events_lost", "num_allocations", "records", "stacks", *STEADY_COUNTS}
)
_OFFSETS: Final = frozenset({"clock_offset_ns", "offset_ns"})
_ERRORS: Final = frozenset({"clock_error_ns", "error_ns"})
_SIGNED_BYTES: Final = frozenset({"unexplained_bytes"})


def number_bounds(column: Column) -> tuple[int, int] | None:
    """Least and most of a column of numbers; None where it may hold anything of its type."""
    if column.name == "world_size":
        return 0, RANKS_MAX
    if column.type != pa.int64() or column.name in _ANY_NUMBER:
        return None
    if column.name in _OFFSETS:
        return -OFFSET_NS_MAX, OFFSET_NS_MAX
    if column.name in _ERRORS:
        return 0, OFFSET_NS_MAX
    if column.name in _COUNTS:
        return 0, COUNT_MAX
    if column.unit == "bytes":
        return (-SIZE_BYTES_MAX if column.name in _SIGNED_BYTES else 0), SIZE_BYTES_MAX
    return -NUMBER_MAX, NUMBER_MAX


def fits(column: Column, number: int) -> bool:
    """Whether the column may hold the number, and its type can."""
    bits = column.type.bit_width
    least, most = number_bounds(column) or (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return least <= number <= most


def text_bytes_max(column: Column) -> int:
    """Of the column's texts, UTF-8."""
    if column.name == "module":
        return MODULE_BYTES_MAX
    return NAME_BYTES_MAX if pa.types.is_dictionary(column.type) else TEXT_VALUE_BYTES_MAX
