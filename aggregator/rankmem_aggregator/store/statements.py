"""The statements that store rows: one or two a table, planned once, fed from memory.

Stage: store, on the write connection, in the writer's thread. In: an Arrow table for a database table; out:
its rows appended, or merged where the table has a key, within the caller's transaction.

Registering a table and planning its insert takes 2.2 ms of CPU, however few rows it has (20 columns,
DuckDB 2.0); a commit has seven of them. So each database table has a source that is registered once, from
which DuckDB requests the current rows, and its appends are prepared once, one for few rows and one for many:
0.6 ms. A merge is planned each time: its plan reads the table, and DuckDB may build statistics of its values
into the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import duckdb
import pyarrow as pa

from rankmem_aggregator.store import schema
from rankmem_protos.tables import Table

FEW_ROWS_MAX: Final = 40_960
"""Most rows of a table that count as few: a row group of ``rankmem serve``; more are written at once."""
_SOURCES: Final = {name: f"rankmem_incoming_{name}" for name in schema.ALL_TABLES}
"""Name under which each table's source is registered."""


class IncomingRows:
    """The rows that DuckDB scans next, through Arrow's C stream interface."""

    def __init__(self, arrow_schema: pa.Schema) -> None:
        self.arrow_schema = arrow_schema
        """Of all rows that are ever put in: DuckDB reads it once."""
        self._empty = arrow_schema.empty_table()
        self._rows = self._empty

    def put(self, rows: pa.Table) -> None:
        """Sets the rows."""
        self._rows = rows

    def clear(self) -> None:
        """Removes them and frees their memory."""
        self._rows = self._empty

    def __arrow_c_schema__(self) -> object:
        return self.arrow_schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


class Statements:
    """The store statements of one connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._sources: dict[str, IncomingRows] = {}
        self._texts: dict[str, tuple[str, str]] = {}  # for few rows, for many

    def prepare(self, rows: Mapping[str, pa.Table]) -> None:
        """Prepares for rows of these tables. Before the transaction: a rollback undoes a registration."""
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
            self._connection.execute(self._texts[table_name][rows.num_rows > FEW_ROWS_MAX])
        finally:
            source.clear()

    def _make(self, table_name: str, arrow_schema: pa.Schema) -> None:
        source, table = IncomingRows(arrow_schema), schema.ALL_TABLES[table_name]
        self._connection.register(_SOURCES[table_name], source)
        self._sources[table_name] = source
        if table.key:
            text = schema.store_statement(table, _SOURCES[table_name])
            self._texts[table_name] = (text, text)
        else:
            self._texts[table_name] = (self._prepared(table, few=True), self._prepared(table, few=False))

    def _prepared(self, table: Table, *, few: bool) -> str:
        """The statement that appends the rows of the table's source."""
        name = schema.quoted(f"store_{'few' if few else 'many'}_{table.name}")
        text = schema.append_statement(table, _SOURCES[table.name], few=few)
        self._connection.execute(f"PREPARE {name} AS {text}")
        return f"EXECUTE {name}"
