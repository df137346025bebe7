"""How an import cuts a session: by groups of hosts and by segments of the common clock.

Stage: import. In: an open database; out: the parts of a table, each with the statement that reads its rows.
Every row is in exactly one part: a rank without a host is in the first group, a row without a time in the
first segment, one outside of the session's span in the segment next to it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rankmem_aggregator.lake.layout import ALL_SESSIONS, OPENING, TIME_OF, WHOLE, order_of
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.store.schema import quoted
from rankmem_protos.tables import Table

PART_ROWS: Final = 4_000_000
"""Events of a part, some 20 to 40 MB: with fewer a plan has more files, with more an engine less to share."""
CUT_SHARE: Final = 4
"""A table is cut if it has a quarter of the rows of a part; others are one file of the session."""
_SECOND_NS: Final = 1_000_000_000

_RANKS: Final = """
SELECT attempt, rank, host_uid, offset_ns FROM rank_span WHERE session_id = $session
ORDER BY attempt, rank
"""
_SPAN: Final = """
SELECT
    min(b.first_ns + coalesce(s.offset_ns, 0)) AS first_ns,
    max(b.last_ns + coalesce(s.offset_ns, 0)) AS last_ns
FROM memory_bucket AS b LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE b.session_id = $session
"""
_PLACES: Final = """
WITH place AS (
    SELECT attempt, rank, hosts, offset_ns
    FROM (SELECT unnest(from_json($places, '[{"attempt": "INTEGER", "rank": "INTEGER", "hosts": "INTEGER",
        "offset_ns": "BIGINT"}]'), recursive := true))
)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of a table's rows: a file."""

    session_id: str
    statement: str
    """Reads its rows, ordered."""
    parameters: dict[str, Value]
    segment: int = WHOLE
    hosts: int = WHOLE
    from_ns: int | None = None
    until_ns: int | None = None
    host_uids: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A session's groups of hosts and its segments."""

    session_id: str
    places: str
    """JSON: attempt, rank, hosts, offset_ns of each rank."""
    host_uids: tuple[tuple[str, ...], ...]
    """Of each group."""
    ranks: tuple[tuple[int, int], ...]
    """Lowest and highest rank of each group."""
    begin_ns: int
    width_ns: int
    segments: int
    part_rows: int

    def parts(self, table: Table, rows: int) -> Iterator[Part]:
        """The parts of a table.

        Args:
            table: one with ``session_id``.
            rows: that the session has in it.
        """
        is_cut = rows * CUT_SHARE >= self.part_rows and "rank" in table.column_names()
        if not is_cut or (len(self.host_uids) < 2 and (self.segments < 2 or table.name not in TIME_OF)):
            rows_of = f"SELECT {_columns(table)} FROM {quoted(table.name)} WHERE session_id = $session"
            statement = f"{rows_of} {_order(table)}"
            yield Part(
                session_id=self.session_id,
                statement=statement,
                parameters={"session": self.session_id},
            )
            return
        is_timed = self.segments > 1 and table.name in TIME_OF
        for hosts in range(max(1, len(self.host_uids))):
            for segment in range(self.segments) if is_timed else (WHOLE,):
                yield self._part(table, hosts, segment)

    def _part(self, table: Table, hosts: int, segment: int) -> Part:
        conditions = ["t.session_id = $session", "coalesce(place.hosts, 0) = $hosts"]
        parameters: dict[str, Value] = {"session": self.session_id, "places": self.places, "hosts": hosts}
        if hosts:  # skips row groups; ranks that are not known are in the first group
            conditions.append("t.rank BETWEEN $lowest AND $highest")
            parameters["lowest"], parameters["highest"] = self.ranks[hosts]
        from_ns = until_ns = None
        if segment != WHOLE:
            conditions.append(f"{_segment_of(f't.{TIME_OF[table.name]}')} = $segment")
            parameters |= self._clock() | {"segment": segment}
            from_ns, until_ns = self.bounds(segment)
        statement = (
            f"{_PLACES} SELECT {_columns(table, 't.')} FROM {quoted(table.name)} AS t "
            f"LEFT JOIN place USING (attempt, rank) WHERE {' AND '.join(conditions)} {_order(table, 't.')}"
        )
        uids = json.dumps(self.host_uids[hosts]) if self.host_uids else None
        return Part(
            session_id=self.session_id,
            segment=segment,
            hosts=hosts,
            from_ns=from_ns,
            until_ns=until_ns,
            host_uids=uids,
            statement=statement,
            parameters=parameters,
        )

    def opening(self) -> Part:
        """The rows of :data:`OPENING`, one file."""
        source = _OPENING_OF_EVENTS if self.segments > 1 else _OPENING_OF_BUCKETS
        columns = ", ".join(quoted(name) for name in OPENING.column_names())
        statement = (
            f"{_PLACES}, source AS ({source}), {_OPENING} "
            f"SELECT {columns} FROM opened CROSS JOIN unstreamed {_order(OPENING)}"
        )
        return Part(
            session_id=self.session_id,
            statement=statement,
            parameters={"session": self.session_id, "places": self.places, **self._clock()},
        )

    def bounds(self, segment: int) -> tuple[int, int]:
        """Where a segment begins and ends, common clock."""
        return self.begin_ns + segment * self.width_ns, self.begin_ns + (segment + 1) * self.width_ns

    def _clock(self) -> dict[str, Value]:
        return {"begin_ns": self.begin_ns, "width_ns": self.width_ns, "last_segment": self.segments - 1}


def cut_session(queries: Queries, session_id: str, events: int, part_rows: int) -> Cut:
    """How a session is cut.

    Args:
        queries: the database.
        session_id: the session.
        events: its rows in memory_event.
        part_rows: see :data:`PART_ROWS`.
    """
    ranks = queries.sql(_RANKS, {"session": session_id}).to_pylist()
    ((first_ns, last_ns),) = [
        (row["first_ns"], row["last_ns"]) for row in queries.sql(_SPAN, {"session": session_id}).to_pylist()
    ]
    hosts = list(
        dict.fromkeys(row["host_uid"] for row in sorted(ranks, key=lambda row: (row["rank"], row["attempt"])))
    )
    wanted = math.ceil(events / part_rows)
    num_groups = min(len(hosts), math.isqrt(max(0, wanted - 1)) + 1) or 1
    group_of = {host: index * num_groups // len(hosts) for index, host in enumerate(hosts)}
    begin_ns, end_ns = first_ns or 0, (last_ns or 0) + 1
    # Whole seconds: rows of memory_bucket do not reach over one on their host's clock.
    begin_ns -= begin_ns % _SECOND_NS
    seconds = max(1, -(-(end_ns - begin_ns) // _SECOND_NS))
    width_s = -(-seconds // max(1, math.ceil(wanted / num_groups)))
    return Cut(
        session_id=session_id,
        places=json.dumps([_place(row, group_of) for row in ranks]),
        host_uids=tuple(
            tuple(h for h in hosts if group_of[h] == group) for group in range(num_groups) if hosts
        ),
        ranks=tuple(
            _span([row["rank"] for row in ranks if group_of[row["host_uid"]] == group])
            for group in range(num_groups)
            if hosts
        ),
        begin_ns=begin_ns,
        width_ns=width_s * _SECOND_NS,
        segments=-(-seconds // width_s),
        part_rows=part_rows,
    )


def shared_part(table: Table) -> Part:
    """All rows of a table that has no session."""
    statement = f"SELECT {_columns(table)} FROM {quoted(table.name)} {_order(table)}"
    return Part(
        session_id=ALL_SESSIONS,
        segment=WHOLE,
        hosts=WHOLE,
        from_ns=None,
        until_ns=None,
        host_uids=None,
        statement=statement,
        parameters={},
    )


def _place(row: dict[str, Any], group_of: dict[str, int]) -> dict[str, Any]:
    return {
        "attempt": row["attempt"],
        "rank": row["rank"],
        "hosts": group_of[row["host_uid"]],
        "offset_ns": row["offset_ns"],
    }


def _span(ranks: list[int]) -> tuple[int, int]:
    return min(ranks), max(ranks)


def _columns(table: Table, prefix: str = "") -> str:
    return ", ".join(f"{prefix}{quoted(name)}" for name in table.column_names())


def _order(table: Table, prefix: str = "") -> str:
    return f"ORDER BY {', '.join(f'{prefix}{quoted(name)}' for name in order_of(table))}"


def _segment_of(time: str) -> str:
    """The number of the segment of a time on its host's clock."""
    number = f"({time} + coalesce(place.offset_ns, 0) - $begin_ns::BIGINT) // $width_ns::BIGINT"
    return f"CASE WHEN {time} IS NULL THEN 0 ELSE greatest(0, least($last_segment::BIGINT, {number})) END"


_OPENING_OF_EVENTS: Final = """
    SELECT attempt, rank, device, seq, time_ns, requested_bytes AS last_bytes,
        requested_bytes AS highest_bytes
    FROM memory_event
    WHERE session_id = $session AND requested_bytes IS NOT NULL
    UNION ALL
    SELECT attempt, rank, device, seq, time_ns, requested_bytes, requested_bytes
    FROM held_before
    WHERE session_id = $session
"""
_OPENING_OF_BUCKETS: Final = """
    SELECT attempt, rank, device, seq_last AS seq, first_ns AS time_ns, requested_last_bytes AS last_bytes,
        requested_peak_bytes AS highest_bytes
    FROM memory_bucket
    WHERE session_id = $session
"""
_OPENING: Final = f"""
    piece AS (
        SELECT t.attempt, t.rank, t.device, {_segment_of("t.time_ns")} AS segment,
            max(t.highest_bytes) AS highest_bytes, arg_max(t.last_bytes, t.seq) AS last_bytes,
            max(t.seq) AS last_seq
        FROM source AS t LEFT JOIN place USING (attempt, rank)
        GROUP BY ALL
    ),
    cell AS (
        SELECT g.attempt, g.rank, g.device, g.segment, p.highest_bytes, p.last_bytes, p.last_seq
        FROM (
            SELECT attempt, rank, device, unnest(range(0, $last_segment::BIGINT + 1)) AS segment
            FROM (SELECT DISTINCT attempt, rank, device FROM piece)
        ) AS g
        LEFT JOIN piece AS p USING (attempt, rank, device, segment)
    ),
    opened AS (
        SELECT $session::VARCHAR AS session_id, attempt, rank, device, segment AS of_segment,
            coalesce(place.offset_ns, 0) AS offset_ns,
            $begin_ns::BIGINT + segment * $width_ns::BIGINT AS from_ns,
            $begin_ns::BIGINT + (segment + 1) * $width_ns::BIGINT AS until_ns,
            last_value(last_bytes IGNORE NULLS) OVER before AS opening_bytes,
            last_value(last_seq IGNORE NULLS) OVER before AS opening_seq,
            highest_bytes
        FROM cell LEFT JOIN place USING (attempt, rank)
        WINDOW before AS (
            PARTITION BY attempt, rank, device ORDER BY segment
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    )
"""
