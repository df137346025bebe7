"""The database while it is open: writes groups of rows in one transaction each, reads, checkpoints, closes.

Stage: between writer and disk. In: groups of Arrow tables; out: committed rows, and cursors for queries.
Any thread may take a cursor; everything else belongs to the writer's thread. Queries run on cursors
(connections) of their own and never wait for ingest: DuckDB keeps versions. What DuckDB does where memory or
disk runs out is the business of ``recovery``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping

import duckdb
import pyarrow as pa

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.address import is_of_this_process, read_address
from rankmem_aggregator.store.disk import Disk
from rankmem_aggregator.store.recovery import TRANSIENT, RecoveringInstance
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import Table

logger = logging.getLogger(__name__)


class Store:
    """An open database. Made by :func:`open_store`."""

    def __init__(self, config: AggregatorConfig) -> None:
        self.path = config.database_path
        self.place = str(config.database_path.absolute())
        self.disk = Disk(config.database_path)
        self.instance = RecoveringInstance(config, self.disk)
        self.facts = self.instance.facts

    @property
    def stale(self) -> str:
        """Nothing: a file is written here alone."""
        return ""

    def freshen(self) -> None:
        """Nothing is to be done."""

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection for reading; the caller closes it. Any thread.

        Raises:
            RankmemError: UNAVAILABLE once the store is closed, or while DuckDB has invalidated the instance.
        """
        return self.instance.cursor()

    def prepare(self, cursor: duckdb.DuckDBPyConnection, text: str, parameters: Mapping[str, Value]) -> None:
        """Nothing is to be done: all rows are here."""

    def write(self, rows: Mapping[str, pa.Table]) -> None:
        """Stores the rows of all tables in one transaction: durable when it returns.

        Raises:
            duckdb.Error, DiskLowError, InvalidatedError: nothing of it is stored, as far as is known;
                :data:`~rankmem_aggregator.store.recovery.TRANSIENT` ones may be tried again, with the same
                rows.
        """
        self._check_room(rows)
        with self.instance.writing():
            if not self.instance.has_stored(rows):
                self.instance.statements.prepare(rows)
                with self.instance.transaction():
                    self._append(rows)

    def write_all(self, groups: Iterable[Mapping[str, pa.Table]], empty: Mapping[str, pa.Table]) -> int:
        """Stores the rows of all groups in one transaction; returns how many groups. Nobody else uses the
        store.

        Args:
            groups: made while the transaction is open.
            empty: a table without rows for each that may occur, of the same schema.

        Raises:
            duckdb.Error, DiskLowError, and what ``groups`` raises: nothing of it is stored.
        """
        self.instance.end_transaction()
        self.instance.statements.prepare(empty)
        count = 0
        with self.instance.transaction():
            for rows in groups:
                self._check_room(rows)
                self._append(rows)
                count += 1
        return count

    @contextlib.contextmanager
    def transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The write connection in a transaction, committed at the end of the block.

        Raises:
            duckdb.Error, DiskLowError, InvalidatedError: nothing of it is stored, as far as is known.
        """
        self.disk.check_room(0)
        with self.instance.usable(), self.instance.transaction() as connection:
            yield connection

    def read(self, query: str, parameters: Mapping[str, int | str] | None = None) -> pa.Table:
        """The rows of one of our own queries, before or between writes."""
        with self.instance.usable() as connection:
            return connection.sql(query, params=dict(parameters or {}) or None).to_arrow_table()

    def rows_between(self, table: Table, session_id: str) -> tuple[int, int]:
        """The lowest and highest rowid of a session's rows in a table, or (0, -1)."""
        row = self.read(schema.span_statement(table), {"session": session_id}).to_pylist()[0]
        return (0, -1) if row["least"] is None else (row["least"], row["most"])

    def used_bytes(self) -> int:
        """Bytes of the file in use, blocks that are free for the next rows left out."""
        row = self.read("SELECT used_blocks * block_size AS used FROM pragma_database_size()").to_pylist()[0]
        return int(row["used"])

    def checkpoint(self, log_bytes_min: int) -> bool:
        """Packs the log into the file if it has grown to so much; False if it has not, or that must wait."""
        if self.disk.log_bytes() < log_bytes_min:
            return False
        try:
            with self.instance.usable() as connection:
                connection.execute("CHECKPOINT")
        except (duckdb.TransactionException, *TRANSIENT) as exc:
            logger.debug("no checkpoint now: %s", exc)  # one comes with a commit at the latest
            return False
        return True

    def close(self) -> None:
        """Checkpoints, so that the file stands alone without its log, and closes. Idempotent."""
        self.instance.close()

    def _check_room(self, rows: Mapping[str, pa.Table]) -> None:
        self.disk.check_room(sum(table.get_total_buffer_size() for table in rows.values()))

    def _append(self, rows: Mapping[str, pa.Table]) -> None:
        for name, table in rows.items():
            self.instance.statements.store(name, table)


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
            Code.NOT_FOUND, f"no folder {path.parent} for the database", "create it, or give another --db"
        )
    served = read_address(path)
    if served is not None and is_of_this_process(served):
        # DuckDB would share one instance within a process: two writers on one file.
        raise RankmemError(
            Code.CONFLICT, f"{path} is served by this process at {served.address}", "close it first"
        )
    return Store(config)
