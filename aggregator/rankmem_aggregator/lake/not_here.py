"""Rows of events that are not in the lake: what reads a table of them fails, and says whose they are.

Stage: open, in the reader's process. In: the statement of a table's rows and those of ``availability`` and
``memory_bucket``; out: a statement with one row more for each rank of which a stretch is not here. Reading
that row is an error that names the rank. DuckDB compares session, attempt and rank before: what is asked
about ranks that are here is answered, and no answer is a smaller one. No view needs to know of it.

Two variables of a connection (see ``aspects``) change what a question sees: rows of some ranks alone, or, in
place of the events of a stretch that is not here, what its buckets say of them at least or at most.
"""

from __future__ import annotations

from typing import Final

from rankmem_aggregator.query.not_here import MARK
from rankmem_aggregator.store import schema
from rankmem_protos.tables import ALLOCATION_RECORD, DETAIL_TABLES, MEMORY_EVENT, Table

ABOUT_RANKS: Final = "rankmem_about_ranks"
"""Variable: a list; rows of events of other ranks are left out, here or not. NULL: of all."""
MISSING_AS: Final = "rankmem_missing_as"
"""Variable, for the sum over ranks: ``lowest`` or ``highest``, where what devices held at least, or at most,
stands in place of events that are not here. NULL: reading them fails."""
BOUNDED: Final = frozenset({MEMORY_EVENT.name, ALLOCATION_RECORD.name})
"""The tables that the search for the highest sum reads. Of blocks older than the recording it takes what
buckets say, too."""
WHOSE: tuple[str, ...] = ("session_id", "attempt", "rank")
_IS_ASKED: Final = (
    f"(getvariable('{ABOUT_RANKS}') IS NULL OR list_contains(getvariable('{ABOUT_RANKS}')::INTEGER[], rank))"
)


def refusing(table: Table, rows: str, availability: str, buckets: str) -> str:
    """The statement of a table whose rows may have stayed on their hosts.

    Args:
        table: of the lake.
        rows: the statement of the rows that are here.
        availability: the statement of the rows of ``availability``.
        buckets: the statement of the rows of ``memory_bucket``.
    """
    if table.name not in DETAIL_TABLES:
        return rows
    types = ", ".join(
        f"{schema.quoted(c.name)} {schema.duckdb_type(c.type)}" for c in table.columns if c.name not in WHOSE
    )
    columns = ", ".join(
        schema.quoted(c) if c in WHOSE else f"r.{schema.quoted(c)}" for c in table.column_names()
    )
    is_refused = f"getvariable('{MISSING_AS}') IS NULL" if table.name in BOUNDED else "true"
    # The rows of a list that cannot be made: filters on its columns wait for it, and it cannot be left out.
    statement = f"""
SELECT * FROM ({rows}) WHERE {_IS_ASKED}
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
    WHERE {is_refused} AND {_IS_ASKED}
)"""
    if table.name != MEMORY_EVENT.name:
        return statement
    return f"{statement}\nUNION ALL\n{_stand_ins(table, availability, buckets)}"


def stretches(availability: str) -> str:
    """The statement of the stretches: whose, first and last position, is_here, is_gone, host_uid."""
    return f"""
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
GROUP BY session_id, attempt, rank, sequence_first, sequence_last"""


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
FROM ({stretches(availability)})
GROUP BY session_id, attempt, rank
HAVING missing > 0"""


def _stand_ins(table: Table, availability: str, buckets: str) -> str:
    """Rows in place of events that are not here, by what their buckets say: points that are known (the
    highest, the last), and between them nothing, or the highest.

    A bucket lies within one stretch. Those of a log's older blocks have no events, and are known. Where some
    of these blocks are not here, the first bucket with events may need the row that ``held_before`` lacks.
    """
    given = {
        "session_id": "session_id", "attempt": "attempt", "rank": "rank", "device": "device",
        "seq": "point.seq", "time_ns": "point.time_ns", "requested_bytes": "point.requested_bytes",
    }  # fmt: skip
    columns = ", ".join(
        f"{given.get(c.name, 'NULL')}::{schema.duckdb_type(c.type)} AS {schema.quoted(c.name)}"
        for c in table.columns
    )
    return f"""
SELECT {columns}
FROM (
    SELECT session_id, attempt, rank, device, unnest(CASE
        WHEN NOT is_missing
            THEN [{_point("requested_peak_seq", "requested_peak_ns", "requested_peak_bytes")}]
        WHEN getvariable('{MISSING_AS}')::VARCHAR = 'highest' THEN list_filter([
            CASE WHEN seq_first < seq_last THEN {_point("seq_first", "first_ns", "requested_peak_bytes")} END,
            {_point("seq_last", "last_ns", "requested_last_bytes")}
        ], lambda p: p IS NOT NULL)
        ELSE list_filter([
            CASE WHEN seq_first < requested_peak_seq THEN {_point("seq_first", "first_ns", "0")} END,
            {_point("requested_peak_seq", "requested_peak_ns", "requested_peak_bytes")},
            CASE WHEN requested_peak_seq + 1 < seq_last
                THEN {_point("requested_peak_seq + 1", "requested_peak_ns", "0")} END,
            CASE WHEN requested_peak_seq < seq_last
                THEN {_point("seq_last", "last_ns", "requested_last_bytes")} END
        ], lambda p: p IS NOT NULL)
    END) AS point
    FROM (
        SELECT b.*, m.sequence_last >= b.seq_first AS is_missing
        FROM (
            SELECT *, seq_first = min(seq_first) FILTER (events > 0) OVER (
                PARTITION BY session_id, attempt, rank, device
            ) AS is_first
            FROM ({buckets})
            WHERE getvariable('{MISSING_AS}') IS NOT NULL
        ) AS b
        ASOF JOIN (
            SELECT * FROM ({stretches(availability)})
            WHERE NOT is_here AND getvariable('{MISSING_AS}') IS NOT NULL
        ) AS m
            ON b.session_id = m.session_id AND b.attempt = m.attempt AND b.rank = m.rank
            AND b.seq_first >= m.sequence_first
        WHERE b.events > 0 AND (is_missing OR b.is_first)
    )
)"""


def _point(seq: str, time_ns: str, requested_bytes: str) -> str:
    return (
        f"{{seq: ({seq})::BIGINT, time_ns: {time_ns}::BIGINT, requested_bytes: ({requested_bytes})::BIGINT}}"
    )
