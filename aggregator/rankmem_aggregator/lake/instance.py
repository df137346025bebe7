"""DuckDB's instance in which a lake is read: the views of ``sql/`` over its Parquet files.

Stage: open, in the reader's process. In: a lake's place and the files that count; out: cursors. The lake may
come from a stranger: the instance opens the files of ``lake_progress`` and no others, and columns are read in
their declared types or not at all. Sizes are compared before a table is read, so a file that is missing, torn
or replaced fails the question, and names itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Final

import duckdb

from rankmem_aggregator.lake.catalog import Catalog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.layout import ALL_SESSIONS, LEFT_OUT, DataFile
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.instance import ISOLATED, Settings
from rankmem_aggregator.store.reading_instance import MINDSTUDIO, ConfinedInstance, needed_names
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import SCHEMA_VERSION, Table

_HIVE: Final = "hive_types = {'session_id': VARCHAR, 'segment': BIGINT, 'hosts': INTEGER}"
"""Folders give the partition: a filter on session_id then opens no file of another session."""
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
        spill = os.path.join(tempfile.gettempdir(), f"rankmem-lake-{os.getpid()}.tmp")
        config: Settings = {"temp_directory": spill, **(settings or {}), **ISOLATED}
        super().__init__(duckdb.connect(":memory:", config=config))
        self._files, self._catalog = files, catalog
        self._checked: set[tuple[str, str | None]] = set()
        try:
            if not files.is_local:
                from rankmem_aggregator.lake.remote_files import RemoteFiles

                sizes = {file.path: file.size_bytes for file in catalog.files}
                self._connection.register_filesystem(RemoteFiles(_REMOTE_SCHEME, files.filesystem(), sizes))
            paths = ", ".join(schema.literal(self._place(file)) for file in catalog.files)
            self._connection.execute(f"SET allowed_paths = [{paths}]")
            self._confine()
            self._connection.execute(f"CREATE SCHEMA {MINDSTUDIO}")
            self._connection.execute("CREATE SCHEMA packed")
        except BaseException:
            self._connection.close()
            raise

    def check_files(self, text: str, session: str | None) -> None:
        """Compares the files that a statement reads with what they should be.

        Args:
            text: the statement.
            session: the session that it is about; None: any.

        Raises:
            RankmemError: INVALID for one that is missing, torn or another's.
        """
        if not self._files.is_local:
            return  # DuckDB fails at one that is missing, and asks for each size itself
        for name in needed_names(text):
            if (name, None) in self._checked or (name, session) in self._checked:
                continue
            for file in self._catalog.of_table(name):
                if session is None or file.session_id in (session, ALL_SESSIONS):
                    self._check(file)
            self._checked.add((name, session))

    def _check(self, file: DataFile) -> None:
        size = self._files.size_of(file.path)
        if size == file.size_bytes:
            return
        place = self._files.place(file.path)
        raise RankmemError(
            Code.INVALID,
            f"the lake's file {place} is missing"
            if size is None
            else f"the lake's file {place} has {size} bytes, not {file.size_bytes}: it is torn, or another",
            "rankmem lake check lists all such files; import the session again",
        )

    def _table_statements(self, table: Table) -> list[str]:
        name = schema.quoted(table.name)
        if table.name == schema.META.name:
            # As a file of this version: a copy is one.
            return [
                f"CREATE VIEW {name} AS SELECT {SCHEMA_VERSION}::INTEGER AS schema_version, "
                "'lake' AS database_id, 0::BIGINT AS created_ns"
            ]
        return [f"CREATE VIEW {name} AS {self.rows_of(table)}"]

    def rows_of(self, table: Table) -> str:
        """The statement that reads a table of the lake: its declared columns."""
        files = self._catalog.of_table(table.name)
        if not files:
            columns = ", ".join(f"{_null(table, c)} AS {schema.quoted(c)}" for c in table.column_names())
            return f"SELECT {columns} FROM range(0)"
        present = self._present_columns(table, files)
        columns = ", ".join(
            f"CAST({schema.quoted(c) if c in present else 'NULL'} AS {_type(table, c)}) AS {schema.quoted(c)}"
            for c in table.column_names()
        )
        options = ["hive_partitioning = true", _HIVE]
        if len({file.schema_version for file in files}) > 1:
            options.append("union_by_name = true")
        is_shared = "session_id" not in table.column_names()
        merged = (len(files) > 1 and is_shared) or _has_later_files(files)
        if merged and table.key:
            options.append("filename = true")
        paths = ", ".join(schema.literal(self._place(file)) for file in files)
        rows = f"FROM read_parquet([{paths}], {', '.join(options)})"
        if merged and table.key:  # a row replaces the one with the same key: names begin with the sequence
            key = ", ".join(map(schema.quoted, table.key))
            latest = f"row_number() OVER (PARTITION BY {key} ORDER BY parse_filename(filename) DESC) = 1"
            return f"SELECT {columns} {rows} QUALIFY {latest}"
        # Of what belongs to no session, several writers have the same rows.
        return f"SELECT {'DISTINCT ' if merged and is_shared else ''}{columns} {rows}"

    def _present_columns(self, table: Table, files: Sequence[DataFile]) -> frozenset[str]:
        """The declared columns that any of the files has."""
        if all(file.schema_version == SCHEMA_VERSION for file in files):
            return frozenset(table.column_names())
        import pyarrow.parquet as pq

        found: set[str] = set()
        for file in {file.schema_version: file for file in files}.values():
            with self._files.open_input(file.path) as opened:
                found |= set(pq.read_schema(opened).names)
        return frozenset(found)

    def _present(self) -> dict[str, set[str]]:
        return {
            table.name: set(table.column_names())
            for table in schema.ALL_TABLES.values()
            if table.name not in LEFT_OUT or table.name == schema.META.name
        }

    def _place(self, file: DataFile) -> str:
        if not self._files.is_local:
            return f"{_REMOTE_SCHEME}://{file.path}"
        return self._files.place(file.path)


def _has_later_files(files: Sequence[DataFile]) -> bool:
    """Whether a part of a session has several files, of which later ones replace rows of earlier ones."""
    parts = [(file.session_id, file.hosts) for file in files]
    return len(set(parts)) < len(parts)


def _type(table: Table, column: str) -> str:
    return schema.duckdb_type(next(c.type for c in table.columns if c.name == column))


def _null(table: Table, column: str) -> str:
    return f"CAST(NULL AS {_type(table, column)})"
