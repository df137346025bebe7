"""A lake as an aggregator serves it: what is stored, by whomever, and what it has received itself.

Stage: query, in the aggregator. In: the lake's files that count, and the batches of the tail; out: cursors of
an instance of DuckDB in which every table is both. It is made once, at the start. When files have changed and
somebody asks, the lists of those tables change, in one transaction with the received rows: statements under
way go on in the state in which they began, and no view is made again.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.sequence import Progress
from rankmem_aggregator.ingest.stored_state import progress_rows
from rankmem_aggregator.lake.aspects import needs_aspect, set_aspect
from rankmem_aggregator.lake.files import LakeFiles, said_by_store
from rankmem_aggregator.lake.freshness import Freshness
from rankmem_aggregator.lake.instance import LakeInstance
from rankmem_aggregator.lake.lanes import Lanes
from rankmem_aggregator.lake.layout import TABLES
from rankmem_aggregator.lake.not_here import refusing
from rankmem_aggregator.lake.queries import session_asked
from rankmem_aggregator.lake.tail import Received, Tail
from rankmem_aggregator.query.file_faults import file_error
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.store import private_files, schema
from rankmem_aggregator.store.disk import DISK_SLACK_BYTES, DiskLowError
from rankmem_aggregator.store.instance import Settings
from rankmem_aggregator.store.recovery import Readers
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import AVAILABILITY, DETAIL_TABLES, MEMORY_BUCKET, SCHEMA_VERSION, Table

_LACKS: Final = "SELECT 1 FROM rank_availability WHERE session_id = $session AND here < stretches LIMIT 1"
_TAIL: Final = "tail"
"""Schema of the tables with received rows."""
_PLACE: Final = "tail_place"
"""Their column that orders rows with one key."""
_NOW: Final = "shown_now"
"""Schema of the lists: a view of a table's files and received rows. All that clients name reads these."""
_LOOK_S: Final = 0.1


class TailInstance(LakeInstance):
    """A lake with rows that are not in its files.

    Args:
        files: the lake.
        tail: the files that count, and the batches.
        settings: of DuckDB.
    """

    def __init__(self, files: LakeFiles, tail: Tail, settings: Settings) -> None:
        super().__init__(files, tail.catalog, settings)
        self.version, self.generation = tail.catalog.version, tail.generation
        self._num_added = 0
        self._lists: dict[str, str] = {}
        self._filled: set[str] = set()  # tables with received rows
        self._writing = self._connection.cursor()  # other threads make their own meanwhile
        self._writing.execute(f"CREATE SCHEMA {_TAIL}")
        self._writing.execute(f"CREATE SCHEMA {_NOW}")
        self._empty_tail(TABLES)
        self._show_files()
        self.complete()
        self.add(tail.batches)

    def show(self, tail: Tail) -> None:
        """Shows this state in place of the one before, at once."""
        before = self._catalog, dict(self._lists), set(self._filled), self._num_added
        try:
            with self._transaction():  # a question sees one of the two
                if tail.catalog.version != self.version:
                    self._know(tail.catalog)
                    self._show_files()
                if tail.generation != self.generation:
                    self._empty_tail(self._filled)
                    self._filled, self._num_added = set(), 0
                self._insert_new(tail.batches)
        except BaseException:
            self._catalog, self._lists, self._filled, self._num_added = before
            raise
        self.version, self.generation = tail.catalog.version, tail.generation

    def add(self, batches: tuple[Received, ...]) -> None:
        """Adds those that are new, of the same tail; also an older state of it."""
        if len(batches) > self._num_added:
            with self._transaction():  # a question sees all of a batch or nothing
                self._insert_new(batches)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writing.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._writing.execute("ROLLBACK")
            raise
        self._writing.execute("COMMIT")

    def _show_files(self) -> None:
        """Has the tables whose files have changed be lists of the new ones."""
        in_order = sorted(TABLES.values(), key=lambda table: table.name in DETAIL_TABLES)  # these read others
        for table in in_order:
            rows = self.whole_rows(table, self._all_rows(table))
            if rows != self._lists.get(table.name):
                self._writing.execute(f"CREATE OR REPLACE VIEW {_now(table)} AS {rows}")
                self._lists[table.name] = rows

    def _empty_tail(self, names: Iterable[str]) -> None:
        """New tables in place of those: what DuckDB deletes in memory it keeps."""
        for name in names:
            columns = ", ".join(
                f"{schema.quoted(c.name)} {schema.duckdb_type(c.type)}" for c in TABLES[name].columns
            )
            self._writing.execute(
                f"CREATE OR REPLACE TABLE {_tail_of(TABLES[name])} ({columns}, {_PLACE} BIGINT)"
            )

    def _insert_new(self, batches: tuple[Received, ...]) -> None:
        for place, received in enumerate(batches[self._num_added :], self._num_added):
            self._insert(place, received)
        self._num_added = max(self._num_added, len(batches))

    def _insert(self, place: int, received: Received) -> None:
        for name, rows in {**received.batch.rows, **_progress(received)}.items():
            self._writing.register("received", rows)
            placed = f"SELECT *, {place} AS {_PLACE} FROM received"
            self._writing.execute(f"INSERT INTO {_tail_of(TABLES[name])} BY NAME {placed}")
            self._writing.unregister("received")
            self._filled.add(name)

    def connection(self) -> duckdb.DuckDBPyConnection:
        """A new one to the instance."""
        return self._connection.cursor()

    def _table_statements(self, table: Table) -> list[str]:
        if table.name not in TABLES:
            return super()._table_statements(table)
        columns = ", ".join(map(schema.quoted, table.column_names()))
        return [f"CREATE VIEW {schema.quoted(table.name)} AS SELECT {columns} FROM {_now(table)}"]

    def _all_rows(self, table: Table) -> str:
        """The statement of the rows in files and of those that were received."""
        columns = ", ".join(map(schema.quoted, table.column_names()))
        tail = f"SELECT {columns}, {_PLACE} FROM {_tail_of(table)}"
        if self._catalog.of_table(table.name):
            rows = f"SELECT {columns}, -1 AS {_PLACE} FROM ({self.rows_of(table)}) UNION ALL {tail}"
        else:
            rows = tail
        latest = ""
        if table.key:
            key = ", ".join(map(schema.quoted, table.key))
            latest = f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {_PLACE} DESC) = 1"
        # Several writers have the same rows of what belongs to no session.
        distinct = "DISTINCT" if not table.key and "session_id" not in table.column_names() else ""
        return f"SELECT {distinct} {columns} FROM ({rows}) {latest}"

    def whole_rows(self, table: Table, rows: str) -> str:
        # Rows of availability may come with any batch: what is not here is looked up by each statement.
        return refusing(table, rows, f"FROM {_now(AVAILABILITY)}", f"FROM {_now(MEMORY_BUCKET)}")


class _Instance:
    """What the limits of statements ask: nothing is written by this instance."""

    def __init__(self) -> None:
        self.is_invalidated = False
        self.readers: Readers | None = None

    def is_over_memory_limit(self) -> bool:
        """Never: DuckDB's own limit ends a statement, and no commit needs the memory."""
        return False


class LakeDisk:
    """Where a lake's bytes go."""

    def __init__(self, files: LakeFiles, scratch: Path, tail: Callable[[], Tail]) -> None:
        self._files, self._scratch, self._tail = files, scratch, tail

    def free_bytes(self) -> int:
        """Free beside a lake in a folder; of an object store: where statements spill."""
        return shutil.disk_usage(self._files.root if self._files.is_local else self._scratch).free

    def file_bytes(self) -> int:
        """Of the lake's files."""
        return sum(file.size_bytes for file in self._tail().catalog.files)

    def log_bytes(self) -> int:
        """Decoded bytes that are received and not stored."""
        return sum(received.batch.size_bytes for received in self._tail().batches)

    def check_room(self, size_bytes: int = 0) -> None:
        """Raises DiskLowError where a folder has no room for so many bytes more."""
        needed = size_bytes + DISK_SLACK_BYTES
        if self._files.is_local and self.free_bytes() < needed:
            raise DiskLowError(
                f"{self.free_bytes()} bytes are free in {self._files.root}, a commit may need {needed}"
            )


class LakeStore:
    """A lake that is served.

    Args:
        config: of the aggregator, with a lake.

    Raises:
        RankmemError: as :class:`LakeFiles` and :class:`Lanes`.
    """

    def __init__(self, config: AggregatorConfig) -> None:
        # See open_store: Arrow's own pool gives pages back, and the kernel zeroes them again.
        pa.set_memory_pool(pa.system_memory_pool())
        self.files = LakeFiles(config.lake)
        self.place = self.files.root
        private_files.hold(Path(self.files.root))
        try:
            self.lanes = Lanes(self.files)
            self._scratch = Path(tempfile.mkdtemp(prefix="rankmem-serve-"))
        except BaseException:
            private_files.release()
            raise
        self.path = self._scratch / "lake"
        self.facts = schema.DatabaseFacts(
            database_id=self.lanes.lake_id, schema_version=SCHEMA_VERSION, created_ns=0
        )
        self.disk = LakeDisk(self.files, self._scratch, lambda: self._tail())
        self.instance = _Instance()
        self._settings: Settings = {
            "memory_limit": f"{config.duckdb_memory()}B",
            "threads": config.thread_count(),
        }
        self._tail: Callable[[], Tail] = lambda: Tail(self.lanes.catalog, (), 0)
        self._refresh: Callable[[], None] = lambda: None
        self._freshness = Freshness(self.place, self._bring)
        self._lock = threading.Lock()
        self._showing = threading.Lock()
        """What the instance shows is changed by one thread at a time."""
        self._shown: TailInstance | None = None
        self._closed = False

    def follow(self, tail: Callable[[], Tail], refresh: Callable[[], None]) -> None:
        """Answers from this tail from now on; what it shows is made in the background, before anybody asks.

        Args:
            tail: what there is now.
            refresh: looks what others have stored; raises RankmemError while the lake cannot be read.
        """
        self._tail, self._refresh = tail, refresh
        self._freshness.begin(is_due=True)

    @property
    def stale(self) -> str:
        """What answers may lack while the store is away, in a sentence; empty: nothing."""
        return self._freshness.word

    def freshen(self) -> None:
        """Looks what others have stored, and waits some seconds at most. Any thread."""
        for _ in range(2):  # a look that was under way may have begun before what is asked for
            tail = self._tail()
            with self._lock:
                if self._closed:
                    return
                is_due = self._at(tail) is None
            self._freshness.look(is_due=is_due)
            self._add(tail)
            if self._at(tail) is not None or self.stale:
                return

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection that sees what is stored and received by now; the caller closes it. Any thread.

        Raises:
            RankmemError: UNAVAILABLE once it is closed, or where the lake could not be read yet.
        """
        self._add(self._tail())
        with self._lock:
            if self._closed:
                raise RankmemError(Code.UNAVAILABLE, f"{self.place} is being closed", "try again in a moment")
            if self._shown is None:
                why = self.stale or f"{self.place} was not read yet"
                raise RankmemError(Code.UNAVAILABLE, why, "ask again when the store is back")
            return self._shown.connection()

    def _at(self, tail: Tail) -> TailInstance | None:
        """The instance, if it shows this state of the tail."""
        shown = self._shown
        is_it = shown and (shown.version, shown.generation) == (tail.catalog.version, tail.generation)
        return shown if is_it else None

    def _add(self, tail: Tail) -> None:
        """Has the instance have the batches of a state, if it is of that state but for them."""
        while not self._showing.acquire(timeout=_LOOK_S):
            if self.stale:
                return  # a file of the store is waited for; what is shown is what is known
        try:
            if (shown := self._at(tail)) is not None:
                shown.add(tail.batches)
        finally:
            self._showing.release()

    def _bring(self) -> None:
        """Brings what is known up to date, and shows it; in a thread of its own."""
        failure: RankmemError | None = None
        try:
            self._refresh()
        except RankmemError as exc:
            failure = exc  # what is known is right, and older
        self._freshness.answered()
        try:
            with self._showing:
                self._show(self._tail())
        except (duckdb.Error, OSError) as exc:
            other = RankmemError(Code.UNAVAILABLE, said_by_store(exc), "rankmem lake check")
            raise file_error(str(exc)) or other from exc
        if failure is not None:
            raise failure

    def _show(self, tail: Tail) -> None:
        if self._at(tail) is not None:
            return
        if self._shown is not None:
            self._shown.show(tail)
            return
        made = TailInstance(self.files, tail, self._settings)
        with self._lock:
            if not self._closed:
                self._shown = made

    def prepare(self, cursor: duckdb.DuckDBPyConnection, text: str, parameters: Mapping[str, Value]) -> None:
        """Compares the files that a question reads, and has a cursor show what it needs of a session whose
        events are partly on their hosts.

        Raises:
            RankmemError: as :meth:`LakeInstance.check_files`.
        """
        if (shown := self._shown) is not None:
            shown.check_files(text, session_asked(text, parameters))
        session = {"session": parameters.get("session")}
        if needs_aspect(text, parameters) and cursor.execute(_LACKS, session).fetchone():
            set_aspect(cursor, text, parameters)

    def close(self) -> None:
        """Ends it; statements that run are interrupted before. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._freshness.close()
        with self._lock:
            self._shown = None
        shutil.rmtree(self._scratch, ignore_errors=True)
        private_files.release()


def _tail_of(table: Table) -> str:
    return f"{_TAIL}.{schema.quoted(table.name)}"


def _now(table: Table) -> str:
    return f"{_NOW}.{schema.quoted(table.name)}"


def _progress(received: Received) -> dict[str, pa.Table]:
    """The rows that the commit of a batch has beside its own."""
    batch = received.batch
    if batch.is_details:
        return {}
    spool = batch.spool
    moved = Progress(spool=spool, last_sequence=batch.sequence_last, final=batch.final)
    start: dict[str, Any] = {
        "spool_id": spool.spool_id,
        "session_id": spool.session_id,
        "attempt": spool.attempt,
        "rank": spool.rank,
        "declared_attempt": spool.attempt if spool.declared_attempt is None else spool.declared_attempt,
        "start": spool.start,
        "launch": spool.launch,
    }
    return {
        schema.INGEST_PROGRESS.name: progress_rows([moved], received.at_ns),
        schema.SPOOL_START.name: pa.Table.from_pylist([start], schema.SPOOL_START.arrow_schema()),
    }
