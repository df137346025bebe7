"""The statements that store rows: one a table, planned once, fed from memory.

Stage: store, on the write connection, in the writer's thread. In: an Arrow table for a database table; out:
its rows appended, or merged where the table has a key, within the caller's transaction.

Registering a table and planning its insert takes 2.2 ms of CPU, however few rows it has (20 columns,
DuckDB 2.0); a commit has seven of them. So each database table has a source that is registered once, from
which DuckDB asks for the rows of the moment, and an append is prepared once: 0.6 ms. A merge is planned
anew each time: its plan reads the table, and DuckDB may build into a plan what it knows of the values then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import duckdb
import pyarrow as pa

from rankmem_aggregator import schema

_SOURCES: Final = {name: f"rankmem_incoming_{name}" for name in schema.ALL_TABLES}
"""Name under which each table's source is registered."""


class Source:
    """What DuckDB scans: the rows that were put in last, through Arrow's C stream interface."""

    def __init__(self, arrow_schema: pa.Schema) -> None:
        self.arrow_schema = arrow_schema
        """Of all rows that are ever put in: DuckDB read it once."""
        self._empty = arrow_schema.empty_table()
        self._rows = self._empty

    def put(self, rows: pa.Table) -> None:
        """These rows from now on."""
        self._rows = rows

    def clear(self) -> None:
        """None: their memory is free."""
        self._rows = self._empty

    def __arrow_c_schema__(self) -> object:
        return self.arrow_schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


class Statements:
    """The store statements of one connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._sources: dict[str, Source] = {}
        self._texts: dict[str, str] = {}

    def prepare(self, rows: Mapping[str, pa.Table]) -> None:
        """Makes ready for rows of these tables. Before the transaction: what is registered in one that is
        rolled back is gone.
        """
        for name, table in rows.items():
            source = self._sources.get(name)
            if source is None or source.arrow_schema != table.schema:
                self._make(name, table.schema)

    def store(self, table_name: str, rows: pa.Table) -> None:
        """Stores the rows of one table, prepared for: appended, or merged by its key.

        Raises:
            duckdb.Error: as the statement does.
        """
        source = self._sources[table_name]
        source.put(rows)
        try:
            self._connection.execute(self._texts[table_name])
        finally:
            source.clear()

    def _make(self, table_name: str, arrow_schema: pa.Schema) -> None:
        source, table = Source(arrow_schema), schema.ALL_TABLES[table_name]
        self._connection.register(_SOURCES[table_name], source)
        text = schema.store_statement(table, _SOURCES[table_name])
        if not table.key:
            prepared = schema.quoted(f"store_{table_name}")
            self._connection.execute(f"PREPARE {prepared} AS {text}")
            text = f"EXECUTE {prepared}"
        self._sources[table_name], self._texts[table_name] = source, text
