"""The rows of received batches as files of a lake: one a table and session, ordered by rank and log.

Stage: ingest, in the writer's thread of an aggregator that writes a lake. In: accepted batches of a while;
out: files that are there, and do not count yet. Rows that belong to no session are in files of their own.
Stack ids stay the content hashes of the wire.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.ingest.batch import IncomingBatch
from rankmem_aggregator.ingest.group import last_by_key
from rankmem_aggregator.ingest.sequence import Progress
from rankmem_aggregator.ingest.stored_state import progress_rows
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.lanes import Lanes, lane, spools_of
from rankmem_aggregator.lake.late_details import detail_lane
from rankmem_aggregator.lake.layout import (
    ALL_SESSIONS,
    DIGEST_DIGITS,
    TABLES,
    WHOLE,
    DataFile,
    file_schema,
    order_of,
    path_of,
)
from rankmem_aggregator.lake.moves import Move
from rankmem_aggregator.lake.parquet import write_rows
from rankmem_aggregator.store.schema import INGEST_PROGRESS, SPOOL_START
from rankmem_protos.tables import SCHEMA_VERSION, STACK_FRAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a commit stores."""

    rows: dict[str, dict[str, pa.Table]]
    """By session and table; see :func:`rows_by_session`."""
    names: FileNames
    moves: dict[str, Move]
    """The numbers that guard it."""
    stacks: set[int]
    """Whose frames are among the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNames:
    """What the files of one commit have in their names."""

    writer: str
    state: str
    """Of this commit alone."""
    sequences: Mapping[str, int]
    """By session: of rows with one key that of the file with the higher sequence counts."""

    def path(self, table_name: str, session_id: str) -> str:
        """Where a file lies below the lake."""
        sequence = self.sequences[session_id]
        return path_of(
            table_name, session_id, WHOLE, WHOLE, sequence=sequence, writer=self.writer, state=self.state
        )


def prepared(
    batches: Sequence[IncomingBatch],
    progress: Sequence[Progress],
    starts: pa.Table,
    lanes: Lanes,
    *,
    writer: str,
    known_stacks: set[int],
) -> Prepared:
    """The rows of batches and what is needed to store them once.

    Args:
        batches: in the order in which they came.
        progress: how far their spools are stored with them.
        starts: rows of spool_start that are new.
        lanes: what the lake has.
        writer: who stores them.
        known_stacks: whose frames this writer has stored.

    Raises:
        pa.ArrowException: a file cannot have such rows.
    """
    first = {b.spool.spool_id: b.sequence_first for b in reversed(batches) if not b.is_details}
    moves = {}
    for name in {guard_of(batch) for batch in batches if batch.is_details}:
        before = lanes.numbers.get(name, 0)
        moves[name] = Move(before, before + 1)
    for one in progress:
        name = lane(one.spool.spool_id)
        # Without a number it is new, or an import has brought what came before.
        before = first[one.spool.spool_id] if lanes.numbers.get(name) else 0
        moves[name] = Move(before, one.last_sequence + 1)
    for session_id in starts["session_id"].unique().to_pylist():
        before = lanes.numbers.get(spools_of(session_id), 0)
        moves[spools_of(session_id)] = Move(before, before + 1)
    rows = rows_by_session(batches, progress, starts)
    stacks = _drop_known_frames(rows, known_stacks)
    sequences = {
        session_id: 1 + max((file.sequence for file in lanes.catalog.of_session(session_id)), default=0)
        for session_id in rows
    }
    names = FileNames(writer=writer, state=secrets.token_hex(DIGEST_DIGITS // 2), sequences=sequences)
    return Prepared(rows=rows, names=names, moves=moves, stacks=stacks)


def guard_of(batch: IncomingBatch) -> str:
    """The name of the number that guards a batch."""
    spool_id = batch.spool.spool_id
    return detail_lane(spool_id) if batch.is_details else lane(spool_id)


def rows_by_session(
    batches: Sequence[IncomingBatch], progress: Iterable[Progress], starts: pa.Table
) -> dict[str, dict[str, pa.Table]]:
    """The rows of all tables by session, in the order of the files; under ALL_SESSIONS those of none.

    Args:
        batches: in the order in which they came.
        progress: how far their spools are stored with them.
        starts: rows of spool_start that are new.
    """
    found: dict[str, dict[str, pa.Table]] = {}
    shared: list[dict[str, pa.Table]] = []
    moved = list(progress)
    for session_id in sorted({batch.spool.session_id for batch in batches}):
        of_session = [batch for batch in batches if batch.spool.session_id == session_id]
        of_session.sort(key=lambda batch: batch.rank_key)  # mostly the order of the files already
        rows = _joined([batch.rows for batch in of_session])
        rows[INGEST_PROGRESS.name] = progress_rows([p for p in moved if p.spool.session_id == session_id])
        rows[SPOOL_START.name] = starts.filter(pc.equal(starts["session_id"], session_id))
        shared.append({name: rows.pop(name) for name in list(rows) if not _has_session(name)})
        found[session_id] = {name: _ordered(name, table) for name, table in rows.items() if table.num_rows}
    if any(shared):
        rows = _joined(shared)
        found[ALL_SESSIONS] = {name: _ordered(name, table) for name, table in rows.items()}
    return found


def write_files(files: LakeFiles, what: Prepared, threads: Executor) -> list[DataFile]:
    """Writes the files; again in the same places where that failed.

    Raises:
        OSError, pa.ArrowException, deltalake's errors: not all of them are there.
    """

    def write(session_id: str, table_name: str, table: pa.Table) -> DataFile:
        path = what.names.path(table_name, session_id)
        num_rows, size_bytes = write_rows(files, path, TABLES[table_name], iter(table.to_batches()))
        return DataFile(
            table_name=table_name,
            session_id=session_id,
            segment=WHOLE,
            hosts=WHOLE,
            path=path,
            size_bytes=size_bytes,
            num_rows=num_rows,
            from_ns=None,
            until_ns=None,
            host_uids=None,
            writer=what.names.writer,
            sequence=what.names.sequences[session_id],
            state=what.names.state,
            schema_version=SCHEMA_VERSION,
        )

    writing = [
        threads.submit(write, session_id, name, table)
        for session_id, tables in what.rows.items()
        for name, table in tables.items()
    ]
    return [file.result() for file in writing]


def check_writable(batch: IncomingBatch) -> None:
    """Raises pa.ArrowException for rows that no file can have."""
    for name, table in batch.rows.items():
        table.cast(file_schema(TABLES[name]))


def _drop_known_frames(rows: dict[str, dict[str, pa.Table]], known: set[int]) -> set[int]:
    """Leaves each frame once, and none that was written before; returns the stacks that have some."""
    shared = rows.get(ALL_SESSIONS, {})
    if (frames := shared.pop(STACK_FRAME.name, None)) is None:
        return set()
    ids = frames["stack_id"]
    frames = frames.filter(pc.invert(pc.is_in(ids, value_set=pa.array(list(known), ids.type))))
    if frames.num_rows:
        columns = frames.column_names
        shared[STACK_FRAME.name] = frames.group_by(columns, use_threads=False).aggregate([]).select(columns)
    elif not shared:
        del rows[ALL_SESSIONS]
    return set(frames["stack_id"].unique().to_pylist())


def _has_session(table_name: str) -> bool:
    return "session_id" in TABLES[table_name].column_names()


def _joined(parts: Sequence[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    """The rows by table, in the types of the files; of those with one key the last."""
    by_table: dict[str, list[pa.Table]] = {}
    for rows in parts:
        for name, table in rows.items():
            by_table.setdefault(name, []).append(table.cast(file_schema(TABLES[name])))
    joined = {name: pa.concat_tables(tables) for name, tables in by_table.items()}
    return {
        name: last_by_key(rows, TABLES[name]) if TABLES[name].key else rows for name, rows in joined.items()
    }


def _ordered(table_name: str, rows: pa.Table) -> pa.Table:
    table = TABLES[table_name]
    plain, order = rows.cast(file_schema(table)), order_of(table)
    if _is_ordered([plain[name] for name in order]):
        return plain
    return plain.sort_by([(name, "ascending") for name in order])


def _is_ordered(columns: Sequence[pa.ChunkedArray]) -> bool:
    """Whether rows are in the order of these columns: a look takes a tenth of a sort. False: perhaps not."""
    if not all(pa.types.is_integer(column.type) and not column.null_count for column in columns):
        return False
    is_equal: npt.NDArray[np.bool_] | None = None
    for column in columns:
        values = column.to_numpy()
        before, after = values[:-1], values[1:]
        rises = before <= after if is_equal is None else ~is_equal | (before <= after)
        if not rises.all():
            return False
        is_equal = (before == after) if is_equal is None else is_equal & (before == after)
    return True
