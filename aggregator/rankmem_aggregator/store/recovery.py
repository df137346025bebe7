"""One DuckDB instance that stays usable: opened again where DuckDB has invalidated it.

Stage: store, between ``store`` and DuckDB. In: what is executed on the write connection; out: the same,
committed, or an error that says whether it may be tried again (:data:`TRANSIENT`). All that DuckDB 2.0 does
where memory or disk runs out is handled here: an instance that was invalidated, a COMMIT that may be done or
not, a ROLLBACK that fails, a log that was not synced. Any thread may take a cursor; the rest is for the
writer's thread alone.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

import duckdb
import pyarrow as pa

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.store import private_files, schema
from rankmem_aggregator.store.disk import Disk, DiskLowError, could_not_sync, could_not_write
from rankmem_aggregator.store.instance import USE, is_invalidating, open_instance
from rankmem_aggregator.store.statements import Statements
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)


class InvalidatedError(Exception):
    """DuckDB invalidated the instance; it is open again, or will be before its next use. The transaction that
    met this is not stored, or is in doubt."""


TRANSIENT: Final = (duckdb.OutOfMemoryException, duckdb.IOException, DiskLowError, InvalidatedError)
"""Errors of a commit that may pass: memory taken by a client's query, a full disk."""

REOPENS_MAX: Final = 3
"""Without a commit in between: what invalidates the instance so often may be the rows, or the file. Files
that could not be written do not count: there will be room again."""
_WANTS_MEMORY: Final = ("failed to pin block", "failed to allocate", "could not allocate")
"""In the message of a COMMIT without memory; DuckDB 2.0 raises it as an error of the transaction."""
_HELD_BYTES: Final = (
    "SELECT sum(memory_usage_bytes) FROM duckdb_memory() "
    "WHERE tag NOT IN ('BASE_TABLE', 'METADATA', 'HASH_TABLE', 'ORDER_BY', 'COLUMN_DATA')"
)
"""Without what gives way: cached blocks of tables, and what sorts, joins and groupings spill."""
CLOSE_TIMEOUT_S: Final = 10.0
"""For interrupted statements to end: they look up about once a vector of rows."""
CLOSE_AGAIN_S: Final = 0.05


class Readers(Protocol):
    """The statements that read the instance beside its writer."""

    @property
    def running(self) -> int:
        """How many run now."""

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Within it none runs: those that did are stopped, new ones wait."""


class RecoveringInstance:
    """The open instance, its write connection and the statements prepared on it.

    Args:
        config: of the database.
        disk: where it stands.

    Raises:
        RankmemError: as :func:`~rankmem_aggregator.store.instance.open_instance`.
    """

    def __init__(self, config: AggregatorConfig, disk: Disk) -> None:
        self._path = config.database_path
        self._config = config
        self._disk = disk
        private_files.hold(self._path)
        try:
            self.connection, self.facts = open_instance(config)
        except BaseException:
            private_files.release()
            raise
        self.statements = Statements(self.connection)
        self.is_invalidated = False
        """Whether DuckDB has invalidated it and it is not open again; see :meth:`reopen_if_invalidated`."""
        self.readers: Readers | None = None
        """Paused where the writer needs the memory, or reopens."""
        self._lock = threading.Lock()
        self._closed = False
        self._owes_rollback = False
        self._in_doubt = False  # a COMMIT raised after it was done, or before it began
        self._was_short = False  # of memory, at the last write
        self._is_unsynced = False  # what the log holds may not be on the disk
        self._reopens = 0  # since the last commit
        self._is_lost = False  # it is closed, and could not be opened again yet

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the same instance; the caller closes it. Any thread.

        Raises:
            RankmemError: UNAVAILABLE once it is closed, or while it is invalidated.
        """
        with self._lock:
            if self._closed:
                raise RankmemError(Code.UNAVAILABLE, f"{self._path} is being closed", "try again in a moment")
            try:
                cursor = self.connection.cursor()
                cursor.execute(USE)
            except duckdb.Error as exc:
                if not isinstance(exc, duckdb.ConnectionException) and not is_invalidating(exc):
                    raise
                self.is_invalidated = True
                raise RankmemError(
                    Code.UNAVAILABLE, f"{self._path} is being reopened: {exc}", "try again in a moment"
                ) from exc
        return cursor

    def reopen_if_invalidated(self) -> None:
        """Opens the instance again if it was found invalidated.

        Raises:
            duckdb.Error: it cannot be opened. Without memory or disk nothing is raised: it is tried again
                later.
        """
        if self.is_invalidated:
            with contextlib.suppress(*TRANSIENT), self.usable() as connection:
                connection.execute("SELECT session_id FROM session LIMIT 0").fetchall()
                self.is_invalidated = False

    @contextlib.contextmanager
    def usable(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The write connection, without a transaction that failed.

        Raises:
            InvalidatedError: DuckDB invalidated the instance within the block, or could not open it again.
            duckdb.Error, DiskLowError: as the block does, or the ROLLBACK before it.
        """
        with self._reopening():
            self.end_transaction()
            yield self.connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Within it one transaction is stored, with memory to commit it.

        Raises:
            InvalidatedError, duckdb.Error, DiskLowError: as :meth:`usable`; a write that follows asks
                :meth:`has_stored` first.
        """
        try:
            with self._reopening(), self._memory_to_commit():
                self._was_short = True
                self.end_transaction()
                self._sync()
                yield
                self._was_short = self._disk.has_failed = False
                self._reopens = 0
        except InvalidatedError:
            self._in_doubt = True
            raise

    def has_stored(self, rows: Mapping[str, pa.Table]) -> bool:
        """Whether these rows are stored already, by a transaction that was left in doubt."""
        is_stored = self._in_doubt and self._has(rows)
        self._in_doubt = False
        return is_stored

    @contextlib.contextmanager
    def transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A transaction, committed at the end of the block, rolled back if that raises."""
        self.connection.execute("BEGIN TRANSACTION")
        try:
            yield self.connection
            self._commit()
        except BaseException:
            self._owes_rollback = True
            with contextlib.suppress(duckdb.Error):  # before the next use of the connection at the latest
                self.end_transaction()
            raise

    def end_transaction(self) -> None:
        """Rolls a failed transaction back. ROLLBACK itself runs out of memory beside a greedy query (seen:
        DuckDB 2.0), and leaves a connection that does nothing else."""
        if not self._owes_rollback:
            return
        try:
            self.connection.execute("ROLLBACK")
        except duckdb.TransactionException as exc:
            if "no transaction is active" not in str(exc):
                raise
        self._owes_rollback = False

    def is_over_memory_limit(self) -> bool:
        """Whether statements hold more than their share, so that commits may lack memory. Any thread, 1 ms.

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

    def close(self) -> None:
        """Checkpoints, so that the file stands alone without its log, and closes. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self.connection.execute("CHECKPOINT")
        except duckdb.Error as exc:
            # A reader holds an old version, or the disk is full. The log beside the file has it all.
            logger.warning("%s is closed without a checkpoint: %s", self._path, exc)
        finally:
            self._disconnect()
            private_files.release()

    def _disconnect(self) -> None:
        """Closes the connection and with it all cursors; one may need a moment to see that its statement was
        interrupted."""
        deadline, pause = time.monotonic() + CLOSE_TIMEOUT_S, threading.Event()
        while True:
            try:
                self.connection.close()
                return
            except duckdb.ResourceInUseException as exc:
                if time.monotonic() >= deadline:
                    logger.warning("%s: a statement is still running and keeps the file: %s", self._path, exc)
                    return
            pause.wait(CLOSE_AGAIN_S)

    @contextlib.contextmanager
    def _reopening(self) -> Iterator[None]:
        """Within it an invalidated instance is reopened, and the block ends in InvalidatedError."""
        if self._is_lost:
            self._disk.check_room(0)
            self._reopen()
        try:
            yield
        except duckdb.Error as exc:
            self._is_unsynced |= could_not_sync(exc)
            self._disk.has_failed |= could_not_write(exc)
            if not is_invalidating(exc):
                raise
            self._count_reopen(exc)
            logger.error("DuckDB invalidated %s, it is reopened: %s", self._path, exc)
            self._reopen()
            raise InvalidatedError(f"{self._path} was reopened, for DuckDB invalidated it: {exc}") from exc

    def _count_reopen(self, exc: Exception) -> None:
        if could_not_write(exc):
            return
        if self._reopens == REOPENS_MAX:
            raise exc
        self._reopens += 1

    def _reopen(self) -> None:
        """Closes the instance and opens another.

        Raises:
            InvalidatedError: that failed; it is tried again before the next use.
        """
        readers = self.readers
        self._is_lost = self.is_invalidated = True
        try:
            with contextlib.nullcontext() if readers is None else readers.paused():
                with self._lock:
                    self._disconnect()
                    self.connection, _ = open_instance(self._config)
                self.statements = Statements(self.connection)
        except (duckdb.Error, RankmemError, OSError) as exc:
            self._disk.has_failed |= could_not_write(exc)
            self._count_reopen(exc)
            raise InvalidatedError(f"{self._path} cannot be reopened yet: {exc}") from exc
        self._owes_rollback = self._is_lost = self.is_invalidated = False

    @contextlib.contextmanager
    def _memory_to_commit(self) -> Iterator[None]:
        """Where memory runs short, with the readers paused: a COMMIT that fails for want of it can cost the
        whole instance ("Failed to rollback transaction. Cannot continue operation", seen: DuckDB 2.0)."""
        readers = self.readers
        if readers is None or not readers.running or not (self._was_short or self.is_over_memory_limit()):
            yield
            return
        with readers.paused():
            yield

    def _has(self, rows: Mapping[str, pa.Table]) -> bool:
        """Whether the transaction of these rows is stored: the progress of its spools went with it."""
        progress = rows.get(schema.INGEST_PROGRESS.name)
        if progress is None or not progress.num_rows:
            return False
        first = progress.slice(0, 1).to_pylist()[0]
        stored = self.connection.execute(
            "SELECT last_sequence FROM ingest_progress WHERE spool_id = $spool", {"spool": first["spool_id"]}
        ).fetchall()
        return stored == [(first["last_sequence"],)]

    def _commit(self) -> None:
        try:
            self.connection.execute("COMMIT")
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
        """After a sync that failed the log may have a hole that only a loss of power would show: its rows
        are written once more, to the file, before anything is acknowledged behind it."""
        if not self._is_unsynced:
            return
        try:
            self.connection.execute("CHECKPOINT")
        except duckdb.TransactionException as exc:
            raise duckdb.IOException(f"the log must be written again first: {exc}") from exc
        self._is_unsynced = False
