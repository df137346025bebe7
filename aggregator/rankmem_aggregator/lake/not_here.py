"""Rows of events that are not in the lake: what reads a table of them fails, and says whose they are.

Stage: open, in the reader's process. In: the statement of a table's rows and that of ``availability``; out:
a statement with one row more for each rank of which a stretch is not here. Reading that row is an error that
names the rank. DuckDB compares session, attempt and rank before: what is asked about ranks that are here is
answered, and no answer is a smaller one. No view needs to know of it.
"""

from __future__ import annotations

from rankmem_aggregator.query.not_here import MARK
from rankmem_aggregator.store import schema
from rankmem_protos.tables import DETAIL_TABLES, Table

WHOSE: tuple[str, ...] = ("session_id", "attempt", "rank")


def refusing(table: Table, rows: str, availability: str) -> str:
    """The statement of a table whose rows may have stayed on their hosts.

    Args:
        table: of the lake.
        rows: the statement of the rows that are here.
        availability: the statement of the rows of ``availability``.
    """
    if table.name not in DETAIL_TABLES:
        return rows
    types = ", ".join(
        f"{schema.quoted(c.name)} {schema.duckdb_type(c.type)}" for c in table.columns if c.name not in WHOSE
    )
    columns = ", ".join(
        schema.quoted(c) if c in WHOSE else f"r.{schema.quoted(c)}" for c in table.column_names()
    )
    # The rows of a list that cannot be made: filters on its columns wait for it, and it cannot be left out.
    return f"""
{rows}
UNION ALL
SELECT {columns}
FROM (
    SELECT
        session_id,
        attempt,
        rank,
        unnest(error(concat(
            '{MARK}', concat_ws(' ', session_id, attempt, rank, missing, gone, stretches, host_uid)
        ))::STRUCT({types})[]) AS r
    FROM ({not_here(availability)})
)"""


def not_here(availability: str) -> str:
    """The statement of the ranks of which stretches are not here: missing, gone and stretches are counts."""
    return f"""
SELECT
    session_id,
    attempt,
    rank,
    count(*) FILTER (NOT is_here) AS missing,
    count(*) FILTER (NOT is_here AND is_gone) AS gone,
    count(*) AS stretches,
    coalesce(max(host_uid), '') AS host_uid
FROM (
    SELECT
        session_id,
        attempt,
        rank,
        sequence_first,
        sequence_last,
        bool_or(place = 'here') AS is_here,
        bool_or(place = 'gone') AS is_gone,
        max(host_uid) AS host_uid
    FROM ({availability})
    GROUP BY ALL
)
GROUP BY session_id, attempt, rank
HAVING missing > 0"""
