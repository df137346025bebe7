"""DuckDB's instance in which a lake is read: the views of ``sql/`` over its Parquet files.

Stage: open, in the reader's process. In: a lake's place and the files that count; out: cursors. The lake may
come from a stranger: the instance opens files below the lake's tables alone, and reads columns in their
declared types or not at all. Sizes are compared before a table is read, so a file that is missing, torn or
replaced fails the question, and names itself.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import duckdb

from rankmem_aggregator.lake.catalog import Catalog
from rankmem_aggregator.lake.files import LakeFiles, said_by_store
from rankmem_aggregator.lake.layout import (
    ALL_SESSIONS,
    LAYOUT_VERSION,
    LEFT_OUT,
    OPENING,
    TABLES,
    WHOLE,
    DataFile,
)
from rankmem_aggregator.lake.not_here import not_here, refusing
from rankmem_aggregator.query.file_faults import unread_file, wrong_file
from rankmem_aggregator.query.local import translating
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.instance import ISOLATED, Settings
from rankmem_aggregator.store.reading_instance import MINDSTUDIO, ConfinedInstance, names_read
from rankmem_protos.tables import AVAILABILITY, DETAIL_TABLES, MEMORY_BUCKET, SCHEMA_VERSION, Table

_HIVE: Final = "hive_types = {'session_id': VARCHAR, 'segment': BIGINT, 'hosts': INTEGER}"
"""Folders give the partition: a filter on session_id then opens no file of another session."""
_FOOTERS: Final = "SET GLOBAL parquet_metadata_cache = true"
"""A question opens each file several times; DuckDB drops footers when it needs the memory."""
_EMPTY: Final = "without_rows"
"""Schema of the tables that no file has rows of."""
_GONE_MAX: Final = 64
"""Exchanges of files, by a compaction or prune, that a statement may outlast."""
_REMOTE_SCHEME: Final = "rankmemlake"
"""Under it DuckDB opens the files of an object store, through deltalake's client."""


class LakeInstance(ConfinedInstance):
    """An open lake, at one version.

    Args:
        files: the lake.
        catalog: the files that count.
        settings: of DuckDB, beside ours: an engine's process has a share of the machine.
    """

    def __init__(self, files: LakeFiles, catalog: Catalog, settings: Settings | None = None) -> None:
        # Private, and of this instance alone; it goes with the last answer that is read from it.
        spill = tempfile.mkdtemp(prefix="rankmem-lake-")
        weakref.finalize(self, shutil.rmtree, spill, ignore_errors=True)
        config: Settings = {"temp_directory": spill, **(settings or {}), **ISOLATED}
        super().__init__(duckdb.connect(":memory:", config=config))
        self._files = files
        self._remote: Any = None
        self._catalog = Catalog(-1, ())
        self._gone: deque[set[DataFile]] = deque(maxlen=_GONE_MAX)
        try:
            if not files.is_local:
                from rankmem_aggregator.lake.remote_files import RemoteFiles  # it needs fsspec

                self._remote = RemoteFiles(_REMOTE_SCHEME, files.root, files.filesystem())
                self._connection.register_filesystem(self._remote)
            self._know(catalog)
            # Not each file: 50,000 of them took 1.5 CPU seconds.
            folders = ", ".join(schema.literal(f"{self._place(name)}/") for name in TABLES)
            self._connection.execute(f"SET allowed_directories = [{folders}]")
            self._connection.execute(_FOOTERS)
            self._take_views()
            self._confine()
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {MINDSTUDIO}")
            self._connection.execute(f"CREATE SCHEMA {_EMPTY}")
        except BaseException:
            self._connection.close()
            raise

    def _know(self, catalog: Catalog) -> None:
        """Takes these files for those that count; statements under way may still read those of before."""
        if self._remote is not None:
            if gone := {*self._catalog.files}.difference(catalog.files):
                self._gone.append(gone)
            self._remote.sizes = {
                file.path: file.size_bytes for files in (*self._gone, catalog.files) for file in files
            }
        self._catalog = catalog

    def check_files(self, text: str, session: str | None = None) -> None:
        """Compares the sizes of the files that a statement reads with what they should be.

        Each time: a file is compared in 3 us, and read by DuckDB in 130.

        Args:
            text: the statement.
            session: its files alone are read; None: those of all.

        Raises:
            RankmemError: INVALID for one that is missing, torn or another's.
        """
        if not self._files.is_local:
            return  # each is compared when DuckDB opens it
        needed = names_read(text)
        if not needed.isdisjoint(DETAIL_TABLES) and self._catalog.of_table(AVAILABILITY.name):
            needed |= {AVAILABILITY.name, MEMORY_BUCKET.name}
        for name in sorted(needed):
            self._check_table(name, session)

    def _check_table(self, name: str, session: str | None = None) -> None:
        for file in self._catalog.of_table(name):
            if session is None or file.session_id in (session, ALL_SESSIONS):
                place = self._files.place(file.path)
                try:
                    size = self._files.size_of(file.path)
                except OSError as exc:
                    raise unread_file(place, said_by_store(exc)) from exc
                if size != file.size_bytes:
                    raise wrong_file(place, size, file.size_bytes)

    @cached_property
    def lacking_sessions(self) -> frozenset[str]:
        """The sessions of whose events some are not here: on their hosts, or gone.

        Raises:
            RankmemError: as :meth:`check_files`.
        """
        if not self._catalog.of_table(AVAILABILITY.name):
            return frozenset()
        if self._files.is_local:
            self._check_table(AVAILABILITY.name)
        statement = f"SELECT DISTINCT session_id FROM ({not_here(self.rows_of(AVAILABILITY))})"
        with translating(), self._connection.cursor() as cursor:
            return frozenset(session_id for (session_id,) in cursor.execute(statement).fetchall())

    def _table_statements(self, table: Table) -> list[str]:
        name = schema.quoted(table.name)
        if table.name == schema.META.name:
            # As a file of this version: a copy is one.
            return [
                f"CREATE VIEW {name} AS SELECT {SCHEMA_VERSION}::INTEGER AS schema_version, "
                "'lake' AS database_id, 0::BIGINT AS created_ns"
            ]
        if self._catalog.of_table(table.name):
            return [f"CREATE VIEW {name} AS {self.whole_rows(table, self.rows_of(table))}"]
        # A table without rows: DuckDB 2.0 fails at some views over columns that are constants.
        columns = ", ".join(f"{schema.quoted(c)} {_type(table, c)}" for c in table.column_names())
        return [
            f"CREATE TABLE {_EMPTY}.{name} ({columns})",
            f"CREATE VIEW {name} AS {self.whole_rows(table, f'SELECT * FROM {_EMPTY}.{name}')}",
        ]

    def whole_rows(self, table: Table, rows: str) -> str:
        """The statement of a table's rows, which fails where some are not in the lake."""
        if table.name not in DETAIL_TABLES or not self.lacking_sessions:
            return rows
        return refusing(table, rows, self.rows_of(AVAILABILITY), self.rows_of(MEMORY_BUCKET))

    def rows_of(self, table: Table, of_files: Sequence[DataFile] | None = None) -> str:
        """The statement that reads a table of the lake: its declared columns.

        Args:
            table: of the lake.
            of_files: some of its files; None: all.
        """
        files = self._catalog.of_table(table.name) if of_files is None else of_files
        if not files:
            columns = ", ".join(f"{_null(table, c)} AS {schema.quoted(c)}" for c in table.column_names())
            return f"SELECT {columns} FROM range(0)"
        present = self._present_columns(table, files)
        columns = ", ".join(
            f"CAST({schema.quoted(c) if c in present else 'NULL'} AS {_type(table, c)}) AS {schema.quoted(c)}"
            for c in table.column_names()
        )
        options = ["hive_partitioning = true", _HIVE]
        if len({_versions(file) for file in files}) > 1:
            options.append("union_by_name = true")
        is_shared = "session_id" not in table.column_names()
        merged = (len(files) > 1 and is_shared) or _has_later_files(table, files)
        if merged and table.key:
            options.append("filename = true")
        paths = ", ".join(schema.literal(self._place(file.path)) for file in files)
        rows = f"FROM read_parquet([{paths}], {', '.join(options)})"
        if merged and table.key:  # a row replaces the one with the same key: names begin with the sequence
            key = ", ".join(map(schema.quoted, table.key))
            latest = f"row_number() OVER (PARTITION BY {key} ORDER BY parse_filename(filename) DESC) = 1"
            return f"SELECT {columns} {rows} QUALIFY {latest}"
        # Of what belongs to no session, several writers have the same rows.
        return f"SELECT {'DISTINCT ' if merged and is_shared else ''}{columns} {rows}"

    def _present_columns(self, table: Table, files: Sequence[DataFile]) -> frozenset[str]:
        """The declared columns that any of the files has."""
        if all(_versions(file) == (SCHEMA_VERSION, LAYOUT_VERSION) for file in files):
            return frozenset(table.column_names())
        import pyarrow as pa
        import pyarrow.parquet as pq

        found: set[str] = set()
        for file in {_versions(file): file for file in files}.values():
            try:
                with self._files.open_input(file.path) as opened:
                    found |= set(pq.read_schema(opened).names)
            except (OSError, pa.ArrowException) as exc:
                raise unread_file(self._files.place(file.path), said_by_store(exc)) from exc
        return frozenset(found)

    def _present(self) -> dict[str, set[str]]:
        return {
            table.name: set(table.column_names())
            for table in schema.ALL_TABLES.values()
            if table.name not in LEFT_OUT or table.name == schema.META.name
        }

    def _place(self, path: str) -> str:
        """Where DuckDB opens what is below the lake."""
        return self._files.place(path) if self._files.is_local else f"{_REMOTE_SCHEME}://{path}"


def _versions(file: DataFile) -> tuple[int, int]:
    """What decides which columns a file has."""
    return file.schema_version, file.layout_version if file.table_name == OPENING.name else LAYOUT_VERSION


def _has_later_files(table: Table, files: Sequence[DataFile]) -> bool:
    """Whether a part of a session has several files, of which later ones replace rows of earlier ones."""
    is_of_hosts = not {"rank", "spool_id"}.isdisjoint(table.key)
    parts = [(file.session_id, file.hosts if is_of_hosts else WHOLE) for file in files]
    whole = {session_id for session_id, hosts in parts if hosts == WHOLE}
    return len(set(parts)) < len(parts) or any(hosts != WHOLE and own in whole for own, hosts in parts)


def _type(table: Table, column: str) -> str:
    return schema.duckdb_type(next(c.type for c in table.columns if c.name == column))


def _null(table: Table, column: str) -> str:
    return f"CAST(NULL AS {_type(table, column)})"
