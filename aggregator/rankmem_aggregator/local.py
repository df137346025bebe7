"""A database file as :class:`Queries`: opened read-only in this process.

Stage: query, in the reader's process. In: the path of a file that no process holds. Out: Arrow. Every
statement runs on a read-only connection, so SQL of the user can change nothing. A file that an aggregator
holds cannot be opened by DuckDB at all; :func:`open_file` then follows the address that it left beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from rankmem_aggregator.address import read_address
from rankmem_aggregator.exports.database import export_duckdb
from rankmem_aggregator.queries import Parameters, Queries
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError

BATCH_ROWS: Final = 65_536
"""Rows of a streamed batch: some MiB of the widest table."""

_EXHAUSTED = (duckdb.OutOfMemoryException, duckdb.InterruptException)


def open_file(path: Path, credentials: Credentials) -> Queries:
    """The queries of a database file, by itself or through the aggregator that holds it.

    Args:
        path: of the file.
        credentials: for the aggregator, as far as it asks for them.

    Raises:
        RankmemError: NOT_FOUND without such a file, INVALID for a file that is no database, CONFLICT where
            a program that left no address holds it.
    """
    try:
        return LocalQueries(path)
    except RankmemError as exc:
        server = read_address(path) if exc.code is Code.CONFLICT else None
        if server is None:
            raise
    from rankmem_aggregator.remote import RemoteQueries

    return RemoteQueries(server.address, credentials.only(tls=server.tls, token=server.token))


class LocalQueries(Queries):
    """A database file, read in this process.

    Args:
        path: of a DuckDB file made by an aggregator.
    """

    def __init__(self, path: Path) -> None:
        self.target = str(path)
        if not path.is_file():
            raise RankmemError(
                Code.NOT_FOUND,
                f"no database {path}",
                "give its path with --db, or record one: rankmem run --db FILE -- COMMAND",
            )
        try:
            self._connection = duckdb.connect(str(path), read_only=True)
        except duckdb.Error as exc:
            raise _cannot_open(path, exc) from exc
        # GLOBAL: each question runs on a cursor of its own, which would have the machine's zone.
        self._connection.execute("SET GLOBAL TimeZone = 'UTC'")

    def sql(self, text: str, parameters: Parameters | None = None) -> pa.Table:
        try:
            return self._relation(text, parameters).to_arrow_table()
        except duckdb.Error as exc:
            raise _failed(exc) from exc

    def stream(self, text: str, parameters: Parameters | None = None) -> Iterator[pa.RecordBatch]:
        try:
            reader = self._relation(text, parameters).to_arrow_reader(BATCH_ROWS)
            empty = True
            for batch in reader:
                empty = False
                yield batch
            if empty:
                yield pa.RecordBatch.from_pylist([], schema=reader.schema)
        except duckdb.Error as exc:
            raise _failed(exc) from exc

    def copy_to(self, out_path: Path) -> None:
        with self._connection.cursor() as cursor:
            cursor.begin()  # one transaction: every table is of the same instant
            try:
                export_duckdb(cursor, out_path)
            except duckdb.Error as exc:
                raise _failed(exc) from exc

    def close(self) -> None:
        self._connection.close()

    def _relation(self, text: str, parameters: Parameters | None) -> duckdb.DuckDBPyRelation:
        # A cursor of its own: a stream that is read slowly does not end when the next question is asked.
        relation = self._connection.cursor().sql(text, params=dict(parameters) if parameters else None)
        if relation is None:
            raise RankmemError(
                Code.INVALID, "no statement in the SQL", 'rankmem sql "SELECT * FROM peak_by_rank"'
            )
        return relation


def _cannot_open(path: Path, exc: duckdb.Error) -> RankmemError:
    held = ("lock on file", "already attached")  # by another process, by this one
    if isinstance(exc, duckdb.ConnectionException) or any(words in str(exc) for words in held):
        return RankmemError(
            Code.CONFLICT,
            f"another program holds {path}: {exc}",
            "close it, or ask the aggregator that holds it: --aggregator HOST:PORT",
        )
    return RankmemError(Code.INVALID, f"cannot read {path}: {exc}", "give a database made by rankmem")


def _failed(exc: duckdb.Error) -> RankmemError:
    message = str(exc)
    if isinstance(exc, _EXHAUSTED):
        return RankmemError(Code.EXHAUSTED, message, "ask for less: filter by session_id and rank")
    if isinstance(exc, duckdb.CatalogException):
        return RankmemError(Code.INVALID, message, "docs/schema.md lists the tables, docs/sql.md the views")
    if "read-only mode" in message:
        return RankmemError(
            Code.DENIED, message, "only reading statements run here; copy the file to change it"
        )
    return RankmemError(Code.INVALID, message, "the SQL is DuckDB's; docs/sql.md has examples")
