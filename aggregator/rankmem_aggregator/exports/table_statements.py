"""Makes the SQL that reads one table for an export from the table's declaration.

Stage: export. In: a table of ``rankmem_protos.tables``; out: SELECTs with named parameters. As in ``schema``
the only names that enter are declared ones, and every value is a parameter: ``$session``, ``$attempt``,
``$rank``, ``$first``, ``$last`` (positions), ``$from_ns``, ``$until_ns`` (the host's clock; NULL: no bound).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from rankmem_aggregator.store.schema import quoted, select_statement
from rankmem_protos.tables import Table

POSITIONS: Final = {
    "memory_event": "seq",
    "allocation_record": "allocation_id",
    "allocation_end": "allocation_id",
    "allocation_use": "allocation_id",
    "category_change": "allocation_id",
    "operator_call": "call_id",
    "marker": "marker_id",
    "memory_bucket": "seq_first",
    "step_bucket": "seq_last",
    "group_bucket": "seq_first",
    "group_total": "seq_last",
    "memory_level": "seq_first",
}
"""The column by which a long table is read page by page; other tables fit in one statement."""

_TIMES: Final = (
    ("allocated_ns", "freed_ns"),
    ("started_ns", "ended_ns"),
    ("first_ns", "last_ns"),
    ("time_ns", "time_ns"),
    ("ended_ns", "ended_ns"),
)
"""Begin and end of the time for which a row counts: the first pair that a table has."""

_ALWAYS: Final = frozenset(
    {
        "weight", "module", "gap", "device_info", "rank_info", "allocation_end", "allocation_use",
        "step_bucket",
    }
)  # fmt: skip
"""Facts of a rank as a whole; or needed by blocks from before the range: their end, whenever it was."""


def is_of_rank(table: Table) -> bool:
    """Whether each row belongs to a rank."""
    return "rank" in table.column_names()


def bounds_statement(table: Table) -> str:
    """Lowest and highest position of a rank's rows, and their number: least, most, num_rows."""
    position = quoted(POSITIONS[table.name])
    return (
        f"SELECT min({position}) AS least, max({position}) AS most, count(*) AS num_rows "
        f"FROM {quoted(table.name)} WHERE {_OF_RANK} ORDER BY least"
    )


def rows_statement(table: Table, present: Collection[str] | None = None) -> str:
    """A rank's rows in the range of time, in order; of a long table those between two positions.

    Args:
        present: see :func:`~rankmem_aggregator.store.schema.select_statement`.
    """
    conditions = [_OF_RANK]
    position = POSITIONS.get(table.name)
    if position is not None:
        conditions.append(f"{quoted(position)} BETWEEN $first AND $last")
    times = times_of(table)
    if times is not None:
        begin, end = map(quoted, times)
        conditions.append(f"($until_ns::BIGINT IS NULL OR {begin} IS NULL OR {begin} <= $until_ns)")
        conditions.append(f"($from_ns::BIGINT IS NULL OR {end} IS NULL OR {end} >= $from_ns)")
    order = position or (times[0] if times else "rank")
    return f"{select_statement(table, present)} WHERE {' AND '.join(conditions)} ORDER BY {quoted(order)}"


def times_of(table: Table) -> tuple[str, str] | None:
    """The columns with begin and end of a row's time; None for a table that a range does not limit."""
    names = set(table.column_names())
    if table.name in _ALWAYS:
        return None
    return next((pair for pair in _TIMES if names.issuperset(pair)), None)


_OF_RANK: Final = "session_id = $session AND attempt = $attempt AND rank = $rank"
