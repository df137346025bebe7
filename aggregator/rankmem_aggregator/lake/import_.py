"""``rankmem lake import``: a database file written into a lake, once, whatever happens in between.

Stage: import, in the process of the command line. In: a database file, opened as if a stranger had made it;
out: Parquet files, a commit in the log of each table, and last one in ``lake_progress``, which makes a
session seen. A digest of what the file knows of a session (``state``) is in the names of its files: an import
that was killed goes on with the tables that do not have it, one that is repeated writes nothing, and one of
a session that has grown since replaces it. Numbers of stacks become content hashes again.

An aggregator of the lake may receive the same session meanwhile: see ``import_commit``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmem_aggregator.lake.catalog import (
    Catalog,
    join_progress,
    open_progress,
    read_catalog,
    replace_progress,
)
from rankmem_aggregator.lake.cutting import PART_ROWS, Part, cut_session, shared_part
from rankmem_aggregator.lake.delta import ActiveFile, DeltaLog, sequence_in
from rankmem_aggregator.lake.files import LakeFiles, writing
from rankmem_aggregator.lake.import_commit import (
    StoredElsewhereError,
    check_alone,
    commit_session,
    moves_of,
    withdraw,
)
from rankmem_aggregator.lake.layout import (
    ALL_SESSIONS,
    IMPORT_PREFIX,
    LAYOUT_VERSION,
    OPENING,
    TABLES,
    DataFile,
    digest,
    folder_of,
)
from rankmem_aggregator.lake.moves import Move
from rankmem_aggregator.lake.part_files import Authorship, part_file, write_part
from rankmem_aggregator.query.local import LocalQueries
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.store.schema import PRUNED_SPOOL, quoted
from rankmem_protos.tables import Table

Outcome = Literal["written", "replaced", "already there", "pruned"]
OF_SESSIONS: Final = tuple(
    t for t in TABLES.values() if "session_id" in t.column_names() and t not in (OPENING, PRUNED_SPOOL)
)
_SHARED: Final = tuple(t for t in TABLES.values() if "session_id" not in t.column_names())
_OF_STATE: Final = (
    "session", "rank_info", "device_info", "ingest_progress", "spool_start", "summary_progress",
    "level_progress",
)  # fmt: skip
"""Tables whose rows change while a session is recorded: their rows are in its state, of others the number."""
_OFFSETS: Final = """
SELECT attempt, rank, offset_ns FROM rank_span WHERE session_id = $session
ORDER BY attempt, rank
"""


@dataclass(kw_only=True)
class LakeImport:
    """What an import did."""

    sessions: dict[str, Outcome] = field(default_factory=dict)
    rows: int = 0
    """Written now."""
    size_bytes: int = 0


def import_database(
    path: Path, address: str, *, part_rows: int = PART_ROWS, say: Callable[[str], None] = lambda text: None
) -> LakeImport:
    """Writes all sessions of a database file into a lake, which is made where there is none.

    Args:
        path: of the file; no aggregator may hold it.
        address: of the lake, see :class:`LakeFiles`.
        part_rows: events of a file, about.
        say: called with what is being written.

    Raises:
        RankmemError: as :class:`LocalQueries`; CONFLICT for a session that the lake has from elsewhere, or
            that another process imports now; EXHAUSTED where the lake cannot be written.
    """
    files = LakeFiles(address)
    with LocalQueries(path) as queries, writing(files):
        return _Importer(queries, files, part_rows, say).run()


class _Importer:
    def __init__(
        self, queries: Queries, files: LakeFiles, part_rows: int, say: Callable[[str], None]
    ) -> None:
        self._queries, self._files, self._part_rows, self._say = queries, files, part_rows, say
        self._writer = f"{IMPORT_PREFIX}{_database_id(queries)}"
        self._stacks = _StackHashes(queries)
        self._done = LakeImport()

    def run(self) -> LakeImport:
        catalog = (
            Catalog(-1, ())
            if open_progress(self._files) is None
            else read_catalog(self._files, is_answered=False)
        )
        counts = {table.name: counts_by_session(self._queries, table) for table in OF_SESSIONS}
        sessions = sorted({session for of_table in counts.values() for session in of_table})
        self._import_shared(catalog)
        for session_id in sessions:
            folder_of(session_id, 0, 0)
            of_session = {name: by_session.get(session_id, 0) for name, by_session in counts.items()}
            self._done.sessions[session_id] = self._import_session(catalog, session_id, of_session)
        join_progress(self._files)
        return self._done

    def _import_shared(self, catalog: Catalog) -> None:
        state = digest([LAYOUT_VERSION, *([t.name, _all_rows_digest(self._queries, t)] for t in _SHARED)])
        parts = {table.name: [shared_part(table)] for table in _SHARED}
        self._bring(catalog, ALL_SESSIONS, state, lambda: parts, {})

    def _import_session(self, catalog: Catalog, session_id: str, counts: dict[str, int]) -> Outcome:
        present = catalog.of_session(session_id)
        if any(file.table_name == PRUNED_SPOOL.name for file in present):
            return "pruned"
        rows = {name: _rows_of(self._queries, name, session_id) for name in _OF_STATE}
        is_cut = counts["memory_event"] > self._part_rows  # by time: clock offsets then decide
        offsets = self._queries.sql(_OFFSETS, {"session": session_id}).to_pylist() if is_cut else []
        state = digest([LAYOUT_VERSION, counts, rows, offsets])

        def parts() -> dict[str, list[Part]]:
            cut = cut_session(self._queries, session_id, counts["memory_event"], self._part_rows)
            found = {t.name: list(cut.parts(t, counts[t.name])) for t in OF_SESSIONS if counts[t.name]}
            return {**found, OPENING.name: [cut.opening()]}

        own = [file for file in present if file.writer == self._writer]
        if own and all(file.state == state for file in own):
            return "already there"
        moves = moves_of(open_progress(self._files), session_id, rows["ingest_progress"])
        try:
            check_alone(self._files, session_id, self._writer, present)
            return self._bring(catalog, session_id, state, parts, moves)
        except StoredElsewhereError:
            withdraw(self._files, session_id, self._writer)
            raise

    def _bring(
        self,
        catalog: Catalog,
        session_id: str,
        state: str,
        parts: Callable[[], dict[str, list[Part]]],
        moves: dict[str, Move],
    ) -> Outcome:
        """Makes the lake have these rows of a session in this state."""
        present = [file for file in catalog.of_session(session_id) if file.writer == self._writer]
        if present and all(file.state == state for file in present):
            return "already there"
        app = f"{self._writer}/{session_id}"
        logs = {name: DeltaLog(self._files, table) for name, table in TABLES.items()}
        # First what counts, then what is in the logs: whatever another import of this database commits from
        # here on, this one's own commits are refused.
        sequence = 1 + sequence_in(open_progress(self._files), app)
        states = {name: log.state(session_id, app) for name, log in logs.items()}
        active = {name: self._of_this(found.files) for name, found in states.items()}
        last = {name: found.last_sequence for name, found in states.items()}
        if (latest := max(last.values())) >= sequence:  # not finished: gone on with where it is of this state
            latest_files = [file for name in logs if last[name] == latest for file in active[name]]
            sequence = latest if all(_is_of(state, file) for file in latest_files) else latest + 1
        found: list[DataFile] = []
        to_write = parts()
        by = Authorship(writer=self._writer, sequence=sequence, state=state)
        for name, log in logs.items():
            wanted = to_write.get(name, [])
            if last[name] == sequence:
                found += [_committed(file, wanted, name, by) for file in active[name]]
                continue
            new = [file for part in wanted if (file := self._write(TABLES[name], part, by))]
            if new or active[name]:
                log.commit(new, active[name], app=app, sequence=sequence)
            found += new
        if session_id == ALL_SESSIONS:
            replace_progress(self._files, session_id, self._writer, found, app=app, sequence=sequence)
        else:
            commit_session(
                self._files, session_id, self._writer, found, moves=moves, app=app, sequence=sequence
            )
        return "replaced" if present else "written"

    def _of_this(self, active: Iterable[ActiveFile]) -> list[ActiveFile]:
        """Of files that belong to no session those of this database alone."""
        mark = digest(self._writer)
        return [file for file in active if f"-{mark}-" in file.path]

    def _write(self, table: Table, part: Part, by: Authorship) -> DataFile | None:
        self._say(
            f"writing {table.name} of {part.session_id}"
            if part.session_id != ALL_SESSIONS
            else f"writing {table.name}"
        )
        batches = self._queries.stream(part.statement, part.parameters)
        file = write_part(self._files, table, part, self._stacks.hashed(table, batches), by)
        if file is not None:
            self._done.rows += file.num_rows
            self._done.size_bytes += file.size_bytes
        return file


class _StackHashes:
    """The content hash of each number of a stack; a number without one is a hash already."""

    def __init__(self, queries: Queries) -> None:
        pairs = queries.sql("SELECT stack_id, stack_hash FROM stack_hash ORDER BY stack_id")
        self._numbers = pairs["stack_id"].to_numpy().astype(np.int64)
        self._hashes = pairs["stack_hash"].to_numpy()

    def hashed(self, table: Table, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches with hashes in each column that names a stack."""
        columns = [name for name in table.column_names() if name.endswith("stack_id")]
        for batch in batches:
            for column in columns if self._numbers.size else ():
                place = batch.schema.get_field_index(column)
                batch = batch.set_column(place, column, self._hashed(batch.column(place)))
            yield batch

    def _hashed(self, column: pa.Array) -> pa.Array:
        values: npt.NDArray[np.int64] = column.fill_null(0).to_numpy(zero_copy_only=False)
        places = np.minimum(np.searchsorted(self._numbers, values), self._numbers.size - 1)
        known = self._numbers[places] == values
        hashes = np.where(known, self._hashes[places], values)
        return pa.array(hashes, mask=column.is_null().to_numpy(zero_copy_only=False))


def _committed(file: ActiveFile, parts: list[Part], table: str, by: Authorship) -> DataFile:
    """A file that an import which did not finish has committed."""
    part = next(p for p in parts if (p.session_id, p.segment, p.hosts) == file.partition)
    return part_file(table, part, file.path, file.size_bytes, file.num_rows, by)


def _is_of(state: str, file: ActiveFile) -> bool:
    return file.path.endswith(f"-{state}.parquet")


def _database_id(queries: Queries) -> str:
    ((found,),) = [
        tuple(row.values())
        for row in queries.sql("SELECT max(database_id) AS id FROM rankmem_meta").to_pylist()
    ]
    # Part of predicates and of names: the file may come from a stranger.
    return found if found and re.fullmatch(r"[0-9a-f]{1,32}", found) else digest(found)


def counts_by_session(queries: Queries, table: Table) -> dict[str, int]:
    """The rows that each session has in a table."""
    rows = queries.sql(
        f"SELECT session_id, count(*) AS rows FROM {quoted(table.name)} GROUP BY ALL ORDER BY ALL"
    )
    return dict(zip(rows["session_id"].to_pylist(), rows["rows"].to_pylist(), strict=True))


def _rows_of(queries: Queries, name: str, session_id: str) -> list[dict[str, Any]]:
    statement = f"SELECT * FROM {quoted(name)} WHERE session_id = $session ORDER BY ALL"
    rows: list[dict[str, Any]] = queries.sql(statement, {"session": session_id}).to_pylist()
    return rows


def _all_rows_digest(queries: Queries, table: Table) -> list[Any]:
    statement = (
        f"SELECT count(*) AS rows, sum(hash(t)::HUGEINT)::VARCHAR AS digest FROM {quoted(table.name)} AS t"
    )
    rows: list[Any] = queries.sql(statement).to_pylist()
    return rows
