"""The one DuckDB instance: opens the file, owns the write connection, lends read cursors.

Stage: between writer and disk. In: groups of Arrow tables; out: committed rows, and cursors for queries.
Any thread may take a cursor; the write connection belongs to the writer's thread alone. Queries run on
cursors (connections) of their own and never wait for ingest: DuckDB keeps versions.
An instance that DuckDB has given up ("database has been invalidated") is closed and opened again here; where
that fails, as on a full disk, it is tried again before the next use. What cannot be written now is not
stored, and raises an error that passes (:data:`TRANSIENT`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

import duckdb
import pyarrow as pa

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.store import private_files, schema
from rankmem_aggregator.store.address import is_of_this_process, read_address
from rankmem_aggregator.store.disk import Disk, DiskLowError, could_not_sync, could_not_write
from rankmem_aggregator.store.instance import USE, is_given_up, open_instance
from rankmem_aggregator.store.statements import Statements
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import Table

logger = logging.getLogger(__name__)


class GivenUpError(Exception):
    """DuckDB gave the instance up; it is open again, or will be before its next use. What was under way is
    not stored, or is in doubt."""


TRANSIENT: Final = (duckdb.OutOfMemoryException, duckdb.IOException, DiskLowError, GivenUpError)
"""Errors of a commit that may pass: memory taken by a client's query, a full disk."""

REOPENS_MAX: Final = 3
"""Without a commit in between: what makes DuckDB give up so often may be the rows, or the file. Files that
could not be written do not count: there will be room again."""
_WANTS_MEMORY: Final = ("failed to pin block", "failed to allocate", "could not allocate")
"""What a COMMIT without memory says; DuckDB 2.0 raises it as an error of the transaction."""
_HELD_BYTES: Final = (
    "SELECT sum(memory_usage_bytes) FROM duckdb_memory() "
    "WHERE tag NOT IN ('BASE_TABLE', 'METADATA', 'HASH_TABLE', 'ORDER_BY', 'COLUMN_DATA')"
)
"""Without what gives way: cached blocks of tables, and what sorts, joins and groupings spill."""
CLOSE_TIMEOUT_S: Final = 10.0
"""For statements that were interrupted to end: they look up about once a vector of rows."""
CLOSE_AGAIN_S: Final = 0.05


class Guests(Protocol):
    """Who reads the instance beside its writer."""

    @property
    def are_there(self) -> bool:
        """Whether a statement of theirs runs now."""

    def standing_back(self) -> contextlib.AbstractContextManager[None]:
        """Within it none runs: those that did are stopped, new ones wait."""


class Store:
    """An open database. Made by :func:`open_store`."""

    def __init__(self, config: AggregatorConfig) -> None:
        self.path = config.database_path
        self._config = config
        self._disk = Disk(config.database_path)
        private_files.hold(self.path)
        try:
            self._connection, self.facts = open_instance(config)
        except BaseException:
            private_files.release()
            raise
        self._statements = Statements(self._connection)
        self._lock = threading.Lock()
        self._closed = False
        self._owes_rollback = False
        self._in_doubt = False  # a COMMIT raised after it was done, or before it began
        self._was_short = False  # of memory, at the last write
        self._is_unsynced = False  # what the log holds may not be on the disk
        self._reopens = 0  # since the last commit
        self._is_lost = False  # the instance is closed, and could not be opened again yet
        self.is_given_up = False
        """Whether an instance was met that DuckDB has given up, and is not open again: see :meth:`mend`."""
        self.guests: Guests | None = None
        """Whoever reads beside the writer, and can stand back."""

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the same instance; the caller closes it. Any thread.

        Raises:
            RankmemError: UNAVAILABLE once the store is closed, or while DuckDB has given the instance up.
        """
        with self._lock:
            if self._closed:
                raise RankmemError(Code.UNAVAILABLE, f"{self.path} is being closed", "try again in a moment")
            try:
                cursor = self._connection.cursor()
                cursor.execute(USE)
            except duckdb.Error as exc:
                if not isinstance(exc, duckdb.ConnectionException) and not is_given_up(exc):
                    raise
                self.is_given_up = True
                raise RankmemError(
                    Code.UNAVAILABLE, f"{self.path} is being opened again: {exc}", "try again in a moment"
                ) from exc
        return cursor

    def mend(self) -> None:
        """Opens the instance again if one was met that DuckDB has given up. Writer's thread.

        Raises:
            duckdb.Error: it cannot be. Nothing is raised for want of memory or disk: it is looked at again
                later.
        """
        if self.is_given_up:
            with contextlib.suppress(*TRANSIENT):
                self.read("SELECT session_id FROM session LIMIT 0")
                self.is_given_up = False

    def write(self, rows: Mapping[str, pa.Table]) -> None:
        """Stores the rows of all tables in one transaction: durable when it returns. Writer's thread.

        Raises:
            duckdb.Error, DiskLowError, GivenUpError: nothing of it is stored, as far as is known;
                :data:`TRANSIENT` ones may be tried again, with the same rows.
        """
        self.check_room(sum(table.get_total_buffer_size() for table in rows.values()))
        try:
            with self._surviving(), self._memory_to_commit():
                self._was_short = True
                self._write(rows)
                self._was_short = self._disk.has_failed = False
                self._reopens = 0
        except GivenUpError:
            self._in_doubt = True
            raise

    def _write(self, rows: Mapping[str, pa.Table]) -> None:
        connection = self._connection
        self._settle()
        self._sync()
        if self._in_doubt and self._has(rows):
            self._in_doubt = False
            return
        self._in_doubt = False
        self._statements.prepare(rows)
        connection.execute("BEGIN TRANSACTION")
        try:
            for name, table in rows.items():
                self._statements.store(name, table)
            self._commit()
        except BaseException:
            self._rollback()
            raise

    def write_all(self, groups: Iterable[Mapping[str, pa.Table]], empty: Mapping[str, pa.Table]) -> int:
        """Stores the rows of all groups in one transaction; how many groups. Nobody else uses the store.

        Args:
            groups: made while the transaction is open.
            empty: a table without rows for each that may occur, of the same schema.

        Raises:
            duckdb.Error, DiskLowError, and what ``groups`` raises: nothing of it is stored.
        """
        self._settle()
        # What is registered within a transaction that is rolled back is gone.
        self._statements.prepare(empty)
        self._connection.execute("BEGIN TRANSACTION")
        count = 0
        try:
            for rows in groups:
                self.check_room(sum(table.get_total_buffer_size() for table in rows.values()))
                for name, table in rows.items():
                    self._statements.store(name, table)
                count += 1
            self._commit()
        except BaseException:
            self._rollback()
            raise
        return count

    def checkpoint(self, log_bytes_min: int) -> bool:
        """Packs the log into the file if it has grown to so much; False if it has not, or that must wait.

        Writer's thread, between two commits.
        """
        if self.log_bytes() < log_bytes_min:
            return False
        try:
            with self._surviving():
                self._settle()
                self._connection.execute("CHECKPOINT")
        except (duckdb.TransactionException, *TRANSIENT) as exc:
            logger.debug("no checkpoint now: %s", exc)  # one comes with a commit at the latest
            return False
        return True

    @contextlib.contextmanager
    def transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The write connection in a transaction, committed at the end of the block. Writer's thread.

        Raises:
            duckdb.Error, DiskLowError, GivenUpError: nothing of it is stored, as far as is known.
        """
        self.check_room(0)
        with self._surviving():
            self._settle()
            self._connection.execute("BEGIN TRANSACTION")
            try:
                yield self._connection
                self._commit()
            except BaseException:
                self._rollback()
                raise

    def read(self, query: str, parameters: Mapping[str, int | str] | None = None) -> pa.Table:
        """The rows of one of our own queries, before or between writes. Writer's thread."""
        chosen = dict(parameters) if parameters else None
        with self._surviving():
            self._settle()
            return self._connection.sql(query, params=chosen).to_arrow_table()

    def rows_between(self, table: Table, session_id: str) -> tuple[int, int]:
        """The lowest and highest rowid of a session's rows in a table, or (0, -1). Writer's thread."""
        row = self.read(schema.span_statement(table), {"session": session_id}).to_pylist()[0]
        return (0, -1) if row["least"] is None else (row["least"], row["most"])

    def used_bytes(self) -> int:
        """Bytes of the file in use, blocks that are free for the next rows left out. Writer's thread."""
        row = self.read("SELECT used_blocks * block_size AS used FROM pragma_database_size()").to_pylist()[0]
        return int(row["used"])

    def close(self) -> None:
        """Checkpoints, so that the file stands alone without its log, and closes. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._connection.execute("CHECKPOINT")
        except duckdb.Error as exc:
            # A reader holds an old version, or the disk is full. The log beside the file has it all.
            logger.warning("%s is closed without a checkpoint: %s", self.path, exc)
        finally:
            self._let_go()
            private_files.release()

    def _let_go(self) -> None:
        """Closes the connection and with it all cursors, of which one may need a moment to see that its
        statement was interrupted."""
        deadline, pause = time.monotonic() + CLOSE_TIMEOUT_S, threading.Event()
        while True:
            try:
                self._connection.close()
                return
            except duckdb.ResourceInUseException as exc:
                if time.monotonic() >= deadline:
                    logger.warning("%s: a statement runs on and keeps the file: %s", self.path, exc)
                    return
            pause.wait(CLOSE_AGAIN_S)

    def check_room(self, size_bytes: int = 0) -> None:
        """Whether so many bytes of rows could be stored now. Any thread.

        A checkpoint that meets a full disk invalidates the instance (seen: DuckDB 2.0).

        Raises:
            DiskLowError: they could not.
        """
        self._disk.check_room(size_bytes, self.free_bytes())

    def free_bytes(self) -> int:
        """Free on the database's file system, for this user. Any thread."""
        return self._disk.free_bytes()

    def file_bytes(self) -> int:
        """Size of the file, without its log. Any thread."""
        return self._disk.file_bytes()

    def log_bytes(self) -> int:
        """Size of the write-ahead log. Any thread."""
        return self._disk.log_bytes()

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        """Within it an instance that DuckDB gives up is opened again, and the block ends in GivenUpError."""
        if self._is_lost:
            self.check_room()
            self._reopen()
        try:
            yield
        except duckdb.Error as exc:
            self._is_unsynced |= could_not_sync(exc)
            self._disk.has_failed |= could_not_write(exc)
            if not is_given_up(exc):
                raise
            self._count_reopen(exc)
            logger.error("DuckDB gave %s up, it is opened again: %s", self.path, exc)
            self._reopen()
            raise GivenUpError(f"{self.path} was opened again, for DuckDB had given it up: {exc}") from exc

    def _count_reopen(self, exc: Exception) -> None:
        if could_not_write(exc):
            return
        if self._reopens == REOPENS_MAX:
            raise exc
        self._reopens += 1

    def _reopen(self) -> None:
        """Closes the instance and opens another.

        Raises:
            GivenUpError: that failed; it is tried again before the next use.
        """
        guests = self.guests
        self._is_lost = self.is_given_up = True
        try:
            with contextlib.nullcontext() if guests is None else guests.standing_back():
                with self._lock:
                    self._let_go()
                    self._connection, _ = open_instance(self._config)
                self._statements = Statements(self._connection)
        except (duckdb.Error, RankmemError, OSError) as exc:
            self._disk.has_failed |= could_not_write(exc)
            self._count_reopen(exc)
            raise GivenUpError(f"{self.path} cannot be opened again yet: {exc}") from exc
        self._owes_rollback = self._is_lost = self.is_given_up = False

    @contextlib.contextmanager
    def _memory_to_commit(self) -> Iterator[None]:
        """Where memory runs short, alone: a COMMIT that fails for want of it can cost the whole instance
        ("Failed to rollback transaction. Cannot continue operation", seen: DuckDB 2.0)."""
        guests = self.guests
        if guests is None or not guests.are_there or not (self._was_short or self.is_crowded()):
            yield
            return
        with guests.standing_back():
            yield

    def is_crowded(self) -> bool:
        """Whether statements hold more than is theirs, so that commits may lack memory. Any thread, 1 ms.

        What can be evicted (cached blocks of tables) does not count.
        """
        try:
            with self.cursor() as cursor:
                ((held_bytes,),) = cursor.execute(_HELD_BYTES).fetchall()
        except duckdb.OutOfMemoryException:
            return True
        except (duckdb.Error, RankmemError):
            return False
        return bool(held_bytes > self._config.memory_limit())

    def _has(self, rows: Mapping[str, pa.Table]) -> bool:
        """Whether the transaction of these rows is stored: the progress of its spools went with it."""
        progress = rows.get(schema.INGEST_PROGRESS.name)
        if progress is None or not progress.num_rows:
            return False
        first = progress.slice(0, 1).to_pylist()[0]
        stored = self._connection.execute(
            "SELECT last_sequence FROM ingest_progress WHERE spool_id = $spool", {"spool": first["spool_id"]}
        ).fetchall()
        return stored == [(first["last_sequence"],)]

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except duckdb.OutOfMemoryException:
            # It is done all the same, or has not begun: DuckDB 2.0 makes its answer after it.
            self._in_doubt = True
            raise
        except duckdb.TransactionException as exc:
            if any(words in str(exc) for words in _WANTS_MEMORY):
                raise duckdb.OutOfMemoryException(str(exc)) from exc
            if could_not_write(exc):
                # It is rolled back, and its part of the log cut off, if that could be written.
                self._in_doubt = True
                raise duckdb.IOException(str(exc)) from exc
            raise

    def _sync(self) -> None:
        """After a sync that failed the log may have a hole which only a loss of power would show: its rows
        are written once more, to the file, before anything is acknowledged behind it."""
        if not self._is_unsynced:
            return
        try:
            self._connection.execute("CHECKPOINT")
        except duckdb.TransactionException as exc:
            raise duckdb.IOException(f"the log must be written again first: {exc}") from exc
        self._is_unsynced = False

    def _rollback(self) -> None:
        self._owes_rollback = True
        with contextlib.suppress(duckdb.Error):  # before the next use of the connection at the latest
            self._settle()

    def _settle(self) -> None:
        """Ends a failed transaction. ROLLBACK itself runs out of memory beside a greedy query (seen: DuckDB
        2.0), and leaves a connection that does nothing else."""
        if not self._owes_rollback:
            return
        try:
            self._connection.execute("ROLLBACK")
        except duckdb.TransactionException as exc:
            if "no transaction is active" not in str(exc):
                raise
        self._owes_rollback = False


def open_store(config: AggregatorConfig) -> Store:
    """Opens or makes the database, brings its schema to this version, installs the views, confines it.

    Raises:
        RankmemError: CONFLICT if another process holds the file, INVALID if it is not a DuckDB file,
            UNSUPPORTED for a newer schema, NOT_FOUND for a folder that is not there.
    """
    # Arrow's own pool gives pages back, and the kernel zeroes them again: a quarter of the CPU time that
    # decoding, joining and storing take in groups of a million rows (2.6 and 2.0 s a million events).
    pa.set_memory_pool(pa.system_memory_pool())
    path = config.database_path
    if not path.parent.is_dir():
        raise RankmemError(
            Code.NOT_FOUND, f"no folder {path.parent} for the database", "make it, or give another --db"
        )
    served = read_address(path)
    if served is not None and is_of_this_process(served):
        # DuckDB would share one instance within a process: two writers on one file.
        raise RankmemError(
            Code.CONFLICT, f"{path} is served by this process at {served.address}", "close it first"
        )
    return Store(config)
