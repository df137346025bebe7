"""A lake cut to a slice of time: the tables of which the highest sum over ranks is asked.

Stage: query, in a process of an engine. In: a lake and a slice; out: an instance in which ``memory_event``
and ``memory_bucket`` have the slice's rows alone, and one for what each device held where the slice begins.
Another row where it ends keeps a device whose bytes outlast the slice from being over with its last event.
"""

from __future__ import annotations

import json
from typing import Final

from rankmem_aggregator.lake.catalog import Catalog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.instance import LakeInstance
from rankmem_aggregator.lake.parts import SlicePart, Track
from rankmem_aggregator.sql import view_text
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.instance import Settings
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import Table

_HELD_SEQ: Final = (1 << 63) - 2
"""Of a row that only says that a device's bytes outlast the slice: behind every event, before an end."""


class SliceInstance(LakeInstance):
    """A slice's events and buckets alone, and rows for what devices held where it begins and ends."""

    def __init__(self, files: LakeFiles, catalog: Catalog, part: SlicePart, settings: Settings) -> None:
        self._part = part
        offsets = [0, *(offset for _, _, offset in part.offsets)]
        self._values = {
            "$session": schema.literal(part.session_id),
            "$from": str(part.from_ns),
            "$until": str(part.until_ns),
            "$held": str(_HELD_SEQ),
            "$offset_most": str(max(offsets)),
            "$offset_least": str(min(offsets)),
        }
        super().__init__(files, catalog, settings)
        self._connection.execute(_OFFSETS, {"rows": json.dumps(part.offsets)})
        edges = [_edge(track, part.from_ns - 1) for track in part.openings]
        edges += [_edge(track, part.until_ns) for track in part.held]
        self._connection.execute(_EDGES, {"rows": json.dumps(edges)})

    def check_order(self) -> None:
        """Compares positions in the logs with times: a slice has to be one of both. After an answer.

        Raises:
            RankmemError: CONFLICT where a log's times go back over an edge of the slice.
        """
        if self._connection.execute(self._filled(_UNORDERED)).fetchone():
            raise RankmemError(Code.CONFLICT, f"times of a log go back in {self._part}", "leave --engine out")

    def _table_statements(self, table: Table) -> list[str]:
        if table.name == "memory_event":
            return [self._filled(_SLICE_EVENT, self.rows_of(table)), self._filled(_EVENTS)]
        if table.name == "memory_bucket":
            return [view_text("unstreamed"), self._filled(BUCKETS, self.rows_of(table))]
        return super()._table_statements(table)

    def _filled(self, statement: str, rows: str = "") -> str:
        for name in sorted(self._values, key=len, reverse=True):
            statement = statement.replace(name, self._values[name])
        return statement.replace("$rows", rows)


def _edge(track: Track, at_ns: int) -> list[object]:
    return [track.attempt, track.rank, track.device, track.requested_bytes, track.seq, at_ns]


_OFFSETS: Final = """
CREATE TABLE slice_offset AS
SELECT t[1] AS attempt, t[2] AS rank, t[3] AS offset_ns
FROM (SELECT unnest($rows::BIGINT[][]) AS t)
"""
_EDGES: Final = """
CREATE TABLE slice_edge AS
SELECT
    e.*,
    e.at_ns - coalesce(o.offset_ns, 0) AS time_ns
FROM (
    SELECT
        t[1]::INTEGER AS attempt, t[2]::INTEGER AS rank, t[3] AS device, t[4]::BIGINT AS requested_bytes,
        t[5]::BIGINT AS seq, t[6]::BIGINT AS at_ns
    FROM (SELECT unnest(from_json($rows, '[["VARCHAR"]]')) AS t)
) AS e
LEFT JOIN slice_offset AS o USING (attempt, rank)
"""
_SLICE_EVENT: Final = """
CREATE VIEW slice_event AS
SELECT e.*
FROM ($rows) AS e
LEFT JOIN slice_offset AS o USING (attempt, rank)
WHERE e.session_id = $session
    -- What follows from the rest, by which DuckDB skips.
    AND e.time_ns >= $from - ($offset_most)
    AND e.time_ns < $until - ($offset_least)
    AND e.time_ns + coalesce(o.offset_ns, 0) >= $from
    AND e.time_ns + coalesce(o.offset_ns, 0) < $until
"""
_EVENTS: Final = """
CREATE VIEW memory_event AS
FROM slice_event
UNION ALL BY NAME
SELECT
    $session AS session_id,
    attempt,
    rank,
    device,
    CASE WHEN at_ns < $from THEN seq ELSE $held END AS seq,
    time_ns,
    requested_bytes
FROM slice_edge
"""
_UNORDERED: Final = """
SELECT 1
FROM slice_edge AS e
INNER JOIN memory_bucket AS b USING (attempt, rank, device)
WHERE b.seq_first < $held
    AND b.first_ns <> e.time_ns
    AND CASE WHEN e.at_ns < $from THEN b.seq_first <= e.seq ELSE b.seq_last > e.seq END
LIMIT 1
"""
BUCKETS: Final = """
CREATE TABLE memory_bucket AS
WITH piece AS MATERIALIZED (
    SELECT b.*, coalesce(o.offset_ns, 0) AS offset_ns
    FROM ($rows) AS b
    LEFT JOIN slice_offset AS o USING (attempt, rank)
    WHERE b.session_id = $session
        AND b.last_ns + coalesce(o.offset_ns, 0) >= $from
        AND b.first_ns + coalesce(o.offset_ns, 0) < $until
),
-- An edge goes through these: what is of the slice is made of its events again.
cut AS MATERIALIZED (
    FROM piece WHERE first_ns + offset_ns < $from OR last_ns + offset_ns >= $until
)
SELECT * EXCLUDE (offset_ns) FROM piece WHERE first_ns + offset_ns >= $from AND last_ns + offset_ns < $until
UNION ALL BY NAME
SELECT
    c.session_id,
    c.attempt,
    c.rank,
    c.device,
    c.bucket_ns,
    min(e.seq) AS seq_first,
    max(e.seq) AS seq_last,
    min(e.time_ns) AS first_ns,
    max(e.time_ns) AS last_ns,
    count(*) AS events,
    max(e.requested_bytes) AS requested_peak_bytes,
    arg_max(e.time_ns, (e.requested_bytes, -e.seq)) AS requested_peak_ns,
    arg_max(e.seq, (e.requested_bytes, -e.seq)) AS requested_peak_seq,
    arg_max(e.requested_bytes, e.seq) AS requested_last_bytes
FROM cut AS c
INNER JOIN slice_event AS e
    ON e.attempt = c.attempt
    AND e.rank = c.rank
    AND e.device = c.device
    AND e.seq >= c.seq_first
    AND e.seq <= c.seq_last
WHERE e.requested_bytes IS NOT NULL
    AND e.time_ns >= (SELECT min(first_ns) FROM cut)
    AND e.time_ns <= (SELECT max(last_ns) FROM cut)
GROUP BY c.session_id, c.attempt, c.rank, c.device, c.bucket_ns, c.seq_first
UNION ALL BY NAME
SELECT
    $session AS session_id,
    attempt,
    rank,
    device,
    time_ns // 1000000000 * 1000000000 AS bucket_ns,
    CASE WHEN at_ns < $from THEN seq ELSE $held END AS seq_first,
    seq_first AS seq_last,
    time_ns AS first_ns,
    time_ns AS last_ns,
    1 AS events,
    requested_bytes AS requested_peak_bytes,
    time_ns AS requested_peak_ns,
    seq_first AS requested_peak_seq,
    requested_bytes AS requested_last_bytes
FROM slice_edge
CROSS JOIN unstreamed
"""
"""Makes ``memory_bucket`` of ``$rows``, all of the lake's."""
