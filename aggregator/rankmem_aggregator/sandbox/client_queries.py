"""Runs clients' statements: each on its own cursor, read-only, limited in time, rows and number.

Stage: query. In: SQL, named parameters, limits; out: DuckDB's Arrow record batches. Runs in the caller's
thread (a gRPC handler's); never waits for ingest, and yields to it: the writer may interrupt all statements.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import duckdb
import pyarrow as pa

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.query.arrow_batches import batches_of
from rankmem_aggregator.query.file_faults import file_error
from rankmem_aggregator.query.not_here import not_here_error
from rankmem_aggregator.sandbox.catalog import Catalog, read_catalog
from rankmem_aggregator.sandbox.memory_watch import MemoryWatch
from rankmem_aggregator.sandbox.statements import check_statement
from rankmem_aggregator.store.instance import is_invalidating
from rankmem_aggregator.store.schema import ALL_TABLES
from rankmem_aggregator.store.served import ServedStore
from rankmem_aggregator.supervision.crashed_statements import StatementGuard
from rankmem_protos.errors import Code, RankmemError

Parameter = int | float | str | bool | None
Watch = Callable[[Callable[[], None]], object]

BATCH_ROWS: Final = 16_384
"""Rows fetched at once: some 1 MiB of a ten-column result."""


PAUSE_S: Final = 5.0
"""For statements to end when they are stopped: DuckDB looks between two vectors. And for new ones to wait."""
_FAILURES: Final = (duckdb.Error, pa.ArrowException, OSError, MemoryError)
"""Of a statement; Arrow wraps DuckDB's errors in OSError."""
_LESS: Final = "aggregate or filter first, a command by --rank; or rankmem serve --memory-limit-bytes"
_ADVICE: Final = "Possible solutions:"
"""What follows it is about settings, which are locked here."""
_STACK_TRACE: Final = "Stack Trace:"
"""What follows it in an internal error of DuckDB: paths and addresses of this process, none of a client's."""


def _unwatched(stop: Callable[[], None]) -> None:
    """For statements without a client to watch: they end by themselves or at their time limit."""


def _unheard(stale: str) -> None:
    """For statements without a client to hear it."""


class _Running:
    """A statement under way, with the reason if it was interrupted."""

    def __init__(self, store: ServedStore) -> None:
        self.stale = store.stale  # looked up first: what comes in between is not missing
        self.cursor = store.cursor()
        self.stopped_by: RankmemError | None = None
        self._lock = threading.Lock()
        self._finished = False

    def stop(self, reason: RankmemError) -> None:
        """Interrupts it. Any thread, at any time, even after its end."""
        with self._lock:
            if not self._finished:
                self.stopped_by = self.stopped_by or reason
                self.cursor.interrupt()

    def finish(self) -> None:
        with self._lock:
            self._finished = True
        self.cursor.close()


class ClientQueries:
    """The statements of all clients of one store."""

    def __init__(
        self, store: ServedStore, config: AggregatorConfig, guard: StatementGuard | None = None
    ) -> None:
        self._store = store
        self._guard = guard
        self._config = config
        self._catalog: Catalog | None = None
        self._lock = threading.Lock()
        self._running: set[_Running] = set()
        self._free = threading.Condition(self._lock)
        self._pauses = 0
        self._memory = MemoryWatch(
            config.duckdb_memory(), store.instance.is_over_memory_limit, self.stop_for_memory
        )
        store.instance.readers = self

    @property
    def running(self) -> int:
        """Statements and exports under way. Any thread."""
        return len(self._running)

    def time_limit_s(self, asked_s: float) -> float:
        """The time limit of a statement that asks for so much; 0 or above the server's: the server's."""
        most_s = self._config.query_timeout_s
        return asked_s if 0 < asked_s < most_s else most_s

    def run(
        self,
        sql: str,
        parameters: Mapping[str, Parameter],
        *,
        timeout_s: float = 0.0,
        row_limit: int = 0,
        watch: Watch = _unwatched,
        told: Callable[[str], None] = _unheard,
    ) -> Iterator[pa.RecordBatch]:
        """The result in batches; the first comes even without rows, for the schema.

        Args:
            sql: one SELECT, with ``$name`` for each parameter.
            timeout_s: of the whole, reading the result included; 0 or above the server's: the server's.
            row_limit: more rows end the result with an error; 0 or above the server's: the server's.
            watch: gets a function that stops the statement, to be called when its client is gone.
            told: gets what the result may lack since a store is away; see ``ServedStore.stale``.

        Raises:
            RankmemError: DENIED, INVALID for wrong SQL, EXHAUSTED at a limit.
        """
        timeout_s = self.time_limit_s(timeout_s)
        row_limit = min(row_limit or self._config.query_row_limit, self._config.query_row_limit)
        tried = None if self._guard is None else self._guard.running(sql, parameters)
        with self._reading(timeout_s, watch, told, tried) as cursor:
            if self._catalog is None:  # two threads may both read it: the same
                self._catalog = read_catalog(cursor)
            check_statement(cursor, sql, self._catalog)
            self._store.prepare(cursor, sql, parameters)
            reader = cursor.sql(sql, params=dict(parameters)).to_arrow_reader(BATCH_ROWS)
            yield from _limited(reader, row_limit)

    @contextmanager
    def reading(
        self, timeout_s: float, watch: Watch = _unwatched, told: Callable[[str], None] = _unheard
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor in a read-only transaction, for all tables: one state of the database.

        Args:
            timeout_s: until it is stopped.
            watch: as of :meth:`run`, likewise told.
        """
        with self._reading(timeout_s, watch, told) as cursor:
            self._store.prepare(cursor, " ".join(ALL_TABLES), {})
            yield cursor

    @contextmanager
    def _reading(
        self,
        timeout_s: float,
        watch: Watch,
        told: Callable[[str], None],
        tried: AbstractContextManager[None] | None = None,
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        """Such a cursor; ``tried`` is entered when it is admitted, left when it has ended."""
        running = self._admit()
        try:
            told(running.stale)
            with tried or nullcontext(), self._in_time(running, timeout_s, watch):
                yield running.cursor
        finally:
            running.finish()
            with self._free:
                self._running.discard(running)
                self._free.notify_all()
                if not self._running:
                    self._memory.idle()

    @contextmanager
    def _in_time(self, running: _Running, timeout_s: float, watch: Watch) -> Iterator[None]:
        reason = RankmemError(
            Code.EXHAUSTED,
            f"the statement ran longer than {timeout_s:g} s",
            "ask for less, or raise the time limit",
        )
        timer = threading.Timer(timeout_s, running.stop, [reason])
        timer.name, timer.daemon = "rankmem-query-timer", True
        try:
            timer.start()
            self._memory.look_while(lambda: bool(self._running))
            watch(lambda: running.stop(RankmemError(Code.UNAVAILABLE, "the client is gone")))
            running.cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield
        except _FAILURES as exc:
            if is_invalidating(exc):
                self._store.instance.is_invalidated = True
            raise _translated(exc, running.stopped_by) from exc
        finally:
            timer.cancel()
            running.finish()

    def interrupt_all(self, reason: RankmemError) -> None:
        """Stops every statement under way; their clients get the reason. Any thread."""
        with self._lock:
            for running in self._running:
                running.stop(reason)

    def _admit(self) -> _Running:
        self._store.freshen()  # may wait for an object store: not within the lock
        with self._free:
            if not self._free.wait_for(lambda: not self._pauses, PAUSE_S):
                raise RankmemError(Code.UNAVAILABLE, "ingest needs the memory", "ask again in a moment")
            if len(self._running) >= self._config.queries_max:
                raise RankmemError(
                    Code.EXHAUSTED,
                    f"{self._config.queries_max} statements are running already",
                    "try again in a moment",
                )
            running = _Running(self._store)
            self._running.add(running)
        return running

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it no statement runs: those that did are stopped, new ones wait. The writer's thread."""
        with self._free:
            self._pauses += 1
        try:
            self.stop_for_memory()
            with self._free:
                self._free.wait_for(lambda: not self._running, PAUSE_S)
            yield
        finally:
            with self._free:
                self._pauses -= 1
                self._free.notify_all()

    def stop_for_memory(self) -> None:
        """Stops every statement under way, as one of them may take the memory. Any thread."""
        self.interrupt_all(
            RankmemError(
                Code.EXHAUSTED,
                "the statement was stopped: statements took more memory than the aggregator has for them",
                f"{_LESS}; long texts and lists count many times",
            )
        )


def _limited(reader: pa.RecordBatchReader, row_limit: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([], schema=reader.schema)
    num_rows = 0
    for batch in batches_of(reader):
        num_rows += batch.num_rows
        if num_rows > row_limit:
            raise RankmemError(
                Code.EXHAUSTED,
                f"the result has more than {row_limit} rows",
                "add LIMIT or aggregate, or raise the row limit",
            )
        yield batch


def _translated(exc: Exception, stopped_by: RankmemError | None) -> RankmemError:
    if stopped_by is not None:
        return stopped_by
    text = str(exc).partition(_STACK_TRACE)[0].rstrip()
    if (not_here := not_here_error(text)) is not None:
        return not_here
    if (of_file := file_error(text)) is not None:
        return of_file
    if isinstance(exc, duckdb.OutOfMemoryException | MemoryError) or "Out of Memory" in text:
        return RankmemError(
            Code.EXHAUSTED,
            f"the statement needs more memory than the aggregator has: {text.partition(_ADVICE)[0].rstrip()}",
            _LESS,
        )
    if isinstance(exc, duckdb.PermissionException):
        return RankmemError(Code.DENIED, text, "a client's SQL reads the database alone")
    if isinstance(exc, duckdb.TransactionException):
        return RankmemError(Code.DENIED, text, "a client's SQL is read-only")
    if is_invalidating(exc):
        return RankmemError(
            Code.UNAVAILABLE, f"the database is being opened again: {text}", "try again in a moment"
        )
    if isinstance(exc, duckdb.InternalException):
        return RankmemError(Code.INTERNAL, text)
    return RankmemError(Code.INVALID, text, "see docs/schema.md for tables and columns")
