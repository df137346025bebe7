"""A database file as :class:`Queries`: opened read-only in this process, and not trusted.

Stage: query, in the reader's process. In: the path of a file that no process holds. Out: Arrow. Every
statement runs in a read-only transaction of a confined instance (``reading_instance``), so SQL of the user
can change nothing, and neither that nor the file can read or write another file. A file that an aggregator
holds cannot be opened by DuckDB at all; :func:`open_file` then follows the address in the file next to it.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import duckdb
import pyarrow as pa

from rankmem_aggregator.query.arrow_batches import batches_of
from rankmem_aggregator.query.file_faults import file_error
from rankmem_aggregator.query.interrupts import Interrupts
from rankmem_aggregator.query.not_here import not_here_error
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import Parameters, Value
from rankmem_aggregator.store.copy import export_duckdb
from rankmem_aggregator.store.reading_instance import BareInstance, ConfinedInstance, ReadingInstance
from rankmem_protos.errors import Code, RankmemError

BATCH_ROWS: Final = 65_536
"""Rows of a streamed batch: some MiB of the widest table."""

_UNSAFE_HINT: Final = (
    "a file is opened as if a stranger had made it: rankmem sql --out FILE writes an answer, --unsafe lifts "
    "all limits for a file that you trust"
)
_LOCKED: Final = "the configuration has been locked"
_READ_ONLY: Final = ("read-only mode", "Can only delete from base table", "Can only update base table")
"""Parts of DuckDB's messages about statements that would write; our tables are views of the file's."""
T = TypeVar("T")
Asked = Callable[[duckdb.DuckDBPyConnection, str, dict[str, Value] | None], T | None]
"""Asks a statement with its parameters; None where the text holds none."""
_EXHAUSTED: Final = (duckdb.OutOfMemoryException, duckdb.InterruptException)


class InstanceQueries(Queries):
    """What an instance of DuckDB in this process answers.

    Args:
        target: what it reads, for messages.
        instance: open; closed with this.
    """

    _instance: BareInstance | ConfinedInstance

    def __init__(self, target: str, instance: BareInstance | ConfinedInstance | None) -> None:
        self.target = target
        if instance is not None:  # a lake's comes with the first question
            self._instance = instance
        self._interrupts = Interrupts()

    def sql(self, text: str, parameters: Parameters | None = None) -> pa.Table:
        with translating(), self._asking(_executed, text, parameters) as result:
            return result.to_arrow_table()

    def stream(self, text: str, parameters: Parameters | None = None) -> Iterator[pa.RecordBatch]:
        with translating(), self._asking(_related, text, parameters) as relation:
            reader = relation.to_arrow_reader(BATCH_ROWS)
            empty = True
            for batch in batches_of(reader):
                empty = False
                yield batch
            if empty:
                yield pa.RecordBatch.from_pylist([], schema=reader.schema)

    def copy_to(self, out_path: Path) -> None:
        with translating(), self._instance.snapshot() as (cursor, present):
            export_duckdb(cursor, out_path, present)

    def interrupt(self) -> None:
        self._interrupts.interrupt()

    def allow(self) -> None:
        self._interrupts.allow()

    def close(self) -> None:
        self._instance.close()

    @contextlib.contextmanager
    def _asking(self, ask: Asked[T], text: str, parameters: Parameters | None) -> Iterator[T]:
        """The answer of a statement, which can be interrupted until the caller has read it."""
        with contextlib.ExitStack() as running:
            try:
                answer = self._asked(running, ask, text, parameters)
            except duckdb.CatalogException:
                if self._instance.is_whole:
                    raise
                self._instance.complete()  # a name that the text does not have as a word
                answer = self._asked(running, ask, text, parameters)
            if answer is None:
                raise RankmemError(
                    Code.INVALID, "no statement in the SQL", 'rankmem sql "SELECT * FROM peak_by_rank"'
                )
            yield answer

    def _asked(
        self, running: contextlib.ExitStack, ask: Asked[T], text: str, parameters: Parameters | None
    ) -> T | None:
        self._interrupts.check()
        # A cursor of its own: a stream that is read slowly does not end when the next question is asked.
        cursor = self._cursor(text, parameters or {})

        def end() -> None:
            with contextlib.suppress(duckdb.Error):  # closed meanwhile
                cursor.interrupt()

        running.enter_context(self._interrupts.running(end))
        return ask(cursor, text, dict(parameters) if parameters else None)

    def _cursor(self, text: str, parameters: Parameters) -> duckdb.DuckDBPyConnection:
        return self._instance.cursor(text)


# A relation is bound when it is made and again when it runs: 3 to 13 ms of a statement of ours. What is
# executed is bound once, and the copy of its rows that the driver warns of costs less.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning, re.escape(__name__))


def _executed(
    cursor: duckdb.DuckDBPyConnection, text: str, given: dict[str, Value] | None
) -> duckdb.DuckDBPyConnection | None:
    return cursor.execute(text, given)


def _related(
    cursor: duckdb.DuckDBPyConnection, text: str, given: dict[str, Value] | None
) -> duckdb.DuckDBPyRelation | None:
    return cursor.sql(text, params=given)


class LocalQueries(InstanceQueries):
    """A database file, read in this process.

    Args:
        path: of a DuckDB file made by an aggregator, or claimed to be.
        unsafe: DuckDB bare: the file's own views and macros, COPY, ATTACH, settings, extensions. For a file
            that the caller made or trusts.
    """

    def __init__(self, path: Path, *, unsafe: bool = False) -> None:
        if not path.is_file():
            raise RankmemError(
                Code.NOT_FOUND,
                f"no database {path}",
                "give its path with --db, or record one: rankmem run --db FILE -- COMMAND",
            )
        try:
            super().__init__(str(path), BareInstance(path) if unsafe else ReadingInstance(path))
        except duckdb.Error as exc:
            raise _cannot_open(path, exc) from exc
        except RankmemError as exc:
            raise RankmemError(exc.code, f"cannot read {path}: {exc.message}", exc.hint) from exc


@contextlib.contextmanager
def translating() -> Iterator[None]:
    """Within it errors of DuckDB's become ours."""
    try:
        yield
    except duckdb.Error as exc:
        raise _failed(exc) from exc


def _cannot_open(path: Path, exc: duckdb.Error) -> RankmemError:
    held = ("lock on file", "already attached")  # by another process, by this one
    if isinstance(exc, duckdb.ConnectionException) or any(words in str(exc) for words in held):
        return RankmemError(
            Code.CONFLICT,
            f"another program holds {path}: {exc}",
            "close it, or ask the aggregator that holds it: --aggregator HOST:PORT",
        )
    if "Permission denied" in str(exc):
        return RankmemError(
            Code.DENIED,
            f"cannot read {path}: it is another user's: {exc}",
            "ask its owner for chmod g+r, or for the aggregator's address",
        )
    return RankmemError(Code.INVALID, f"cannot read {path}: {exc}", "give a database made by rankmem")


def _failed(exc: duckdb.Error) -> RankmemError:
    message = str(exc)
    if (not_here := not_here_error(message)) is not None:
        return not_here
    if (of_file := file_error(message)) is not None:
        return of_file
    if isinstance(exc, duckdb.PermissionException) or _LOCKED in message:
        return RankmemError(Code.DENIED, message, _UNSAFE_HINT)
    if isinstance(exc, _EXHAUSTED):
        return RankmemError(Code.EXHAUSTED, message, "ask for less: filter by session_id and rank")
    if isinstance(exc, duckdb.CatalogException):
        return RankmemError(Code.INVALID, message, "docs/schema.md lists the tables, docs/sql.md the views")
    if any(words in message for words in _READ_ONLY):
        return RankmemError(
            Code.DENIED, message, "only reading statements run here; copy the file to change it"
        )
    return RankmemError(Code.INVALID, message, "the SQL is DuckDB's; docs/sql.md has examples")
