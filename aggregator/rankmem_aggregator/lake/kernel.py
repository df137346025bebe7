"""What a task of an engine does: rankmem's own SQL over a part of a lake.

Stage: query, in a process of an engine. In: plain values (a lake's address, a version, a part, a statement);
out: Arrow. Nothing here knows which engine asks. A part is some ranks of a session (:class:`HostPart`), or
all ranks in a slice of the common clock (:class:`SlicePart`); the views of ``sql/`` are asked unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.lake.catalog import Catalog, read_catalog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.instance import LakeInstance
from rankmem_aggregator.lake.layout import ALL_SESSIONS, WHOLE, DataFile
from rankmem_aggregator.query.local import InstanceQueries
from rankmem_aggregator.query.types import Parameters
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.instance import Settings
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import Table

UNFILTERED: Final = frozenset({"rank_info", "ingest_progress", "level_progress"})
"""Tables that a part by hosts has whole: a rank's span, and whether one is missing, follows from all of them.
Rows that an answer then has of ranks elsewhere are left out of it."""
RANK_COLUMNS: Final = ("rank", "rankId")
FOREVER_NS: Final = 1 << 62
"""Beyond every time: the first slice begins at minus this."""
_HELD_SEQ: Final = (1 << 63) - 2
"""Of a row that only says that a device's bytes outlast the slice: behind every event, before an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPart:
    """Some ranks of a session: all attempts of each, and with a host all its ranks."""

    session_id: str
    ranks: tuple[int, ...]
    """Ordered. With ``is_rest`` these are left out, and all others are in."""
    is_rest: bool
    """Whether it has the rows of ranks that are not known: one part has."""
    host_uids: frozenset[str]
    """Its hosts."""

    def __str__(self) -> str:
        spans = ", ".join(
            f"{first}" if first == last else f"{first}-{last}" for first, last in ranges(self.ranks)
        )
        return (
            f"{'all ranks but' if self.is_rest else 'ranks'} {spans or 'none'} of session {self.session_id}"
        )

    def condition(self) -> str:
        """Which rows of a table with ranks are in the part, as SQL."""
        spans = " OR ".join(f"rank BETWEEN {first} AND {last}" for first, last in ranges(self.ranks))
        return f"NOT ({spans or 'false'})" if self.is_rest else f"({spans or 'false'})"

    def has_file(self, file: DataFile) -> bool:
        """Whether a file may hold rows of the part. Unknown ranks are in the first group of hosts."""
        if file.host_uids is None or (self.is_rest and file.hosts in (0, WHOLE)):
            return True
        return not self.host_uids.isdisjoint(json.loads(file.host_uids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A device of a rank where a slice begins or ends: what it held, and by which event."""

    attempt: int
    rank: int
    device: str
    requested_bytes: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePart:
    """All ranks of a session in a slice of the common clock."""

    session_id: str
    number: int
    from_ns: int
    until_ns: int
    segments: tuple[int, int]
    """The first and the last segment of the lake's files."""
    offsets: tuple[tuple[int, int, int], ...]
    """attempt, rank, offset_ns of each rank whose clock is not the common one."""
    openings: tuple[Track, ...]
    """What was there before, of each device that lives on where the slice begins."""
    held: tuple[Track, ...]
    """The same where it ends."""

    def __str__(self) -> str:
        return f"slice {self.number} of session {self.session_id}"

    def has_file(self, file: DataFile) -> bool:
        """Whether a file may hold rows of the slice."""
        if file.table_name == "allocation_record":  # what is older than the recording, of its first segment
            return file.segment in (WHOLE, 0)
        first, last = self.segments
        # A row of memory_bucket is in the segment in which it begins, and lasts less than a segment.
        return file.segment == WHOLE or first - (file.table_name == "memory_bucket") <= file.segment <= last


Part = HostPart | SlicePart


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A statement over a part."""

    address: str
    version: int
    part: Part
    sql: str
    parameters: Parameters
    threads: int = 1
    """Of DuckDB."""
    memory_bytes: int = 0
    """DuckDB's limit; 0: its own default, four fifths of the machine's."""

    def run(self) -> pa.Table:
        """The answer, in this process; see :func:`answer`."""
        return answer(
            self.address, self.version, self.part, self.sql, self.parameters, self.threads, self.memory_bytes
        )


def answer(
    address: str,
    version: int,
    part: Part,
    sql: str,
    parameters: Parameters,
    threads: int = 1,
    memory_bytes: int = 0,
) -> pa.Table:
    """The rows of a statement over a part of a lake.

    Args:
        address: of the lake, see :class:`LakeFiles`.
        version: of ``lake_progress``.
        part: the part; a statement over hosts is about its session.
        sql: one statement.
        parameters: of the statement.
        threads: of DuckDB.
        memory_bytes: DuckDB's limit; 0: its default.

    Raises:
        RankmemError: as :class:`LakeQueries`; CONFLICT for a slice of a log whose times go back.
    """
    files, catalog = _opened(address, version)
    settings: Settings = {"threads": threads}
    if memory_bytes:
        settings["memory_limit"] = f"{memory_bytes}B"
    about = catalog.about(part.session_id).files
    chosen = Catalog(version, tuple(f for f in about if f.session_id == ALL_SESSIONS or part.has_file(f)))
    instance = (
        _HostInstance(files, chosen, part, settings)
        if isinstance(part, HostPart)
        else _SliceInstance(files, chosen, part, settings)
    )
    with InstanceQueries(address, instance) as queries:
        instance.check_files(sql)
        try:
            rows = queries.sql(sql, parameters)
        except RankmemError as exc:
            raise instance.fault() or exc from exc
        if isinstance(instance, _SliceInstance):
            instance.check_order()
    return _of_part(rows, part) if isinstance(part, HostPart) else rows


@lru_cache(maxsize=2)
def _opened(address: str, version: int) -> tuple[LakeFiles, Catalog]:
    """Read once by a process: every part of a question has the same version."""
    files = LakeFiles(address)
    return files, read_catalog(files, version=version)


def _of_part(rows: pa.Table, part: HostPart) -> pa.Table:
    """Without rows of ranks elsewhere, which come of the tables that are whole."""
    for name in RANK_COLUMNS:
        if name in rows.column_names:
            column = rows[name]
            among = pc.is_in(column, value_set=pa.array(part.ranks, column.type))
            return rows.filter(pc.invert(among) if part.is_rest else among)
    return rows


def ranges(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Ordered numbers as the first and the last of each run."""
    found: list[tuple[int, int]] = []
    for rank in ranks:
        if found and found[-1][1] == rank - 1:
            found[-1] = found[-1][0], rank
        else:
            found.append((rank, rank))
    return found


class _HostInstance(LakeInstance):
    """The tables of some ranks."""

    def __init__(self, files: LakeFiles, catalog: Catalog, part: HostPart, settings: Settings) -> None:
        self._part = part
        super().__init__(files, catalog, settings)

    def _table_statements(self, table: Table) -> list[str]:
        if "rank" not in table.column_names() or table.name in UNFILTERED:
            return super()._table_statements(table)
        return [
            f"CREATE VIEW {schema.quoted(table.name)} AS SELECT * FROM ({self.rows_of(table)}) "
            f"WHERE session_id = {schema.literal(self._part.session_id)} AND {self._part.condition()}"
        ]


class _SliceInstance(LakeInstance):
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
            return [self._filled(_BUCKETS, self.rows_of(table))]
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
_BUCKETS: Final = """
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
"""
