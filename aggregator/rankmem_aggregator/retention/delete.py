"""Deletes whole sessions from an open database, in steps between which ingest goes on.

Stage: store, in the writer's thread, which owns the write connection. In: ids of sessions that are over;
out: their rows deleted, and rows that nothing refers to any more (stacks, hosts, clock offsets) with them.
The first step hides a session from every query, the next ones delete its rows in slices, the last one cleans
and packs. If the process is killed between two steps, the next one goes on: ``pruned_spool`` has the
tombstones, with the work that is left. They also keep how far each log was stored, so that a shipper that
returns late restores nothing.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from rankmem_aggregator.retention.limits import NS_PER_DAY
from rankmem_aggregator.sql import statement_text
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.schema import INGEST_PROGRESS, PRUNED_SPOOL, STACK
from rankmem_aggregator.store.store import Store
from rankmem_protos.tables import (
    DEVICE_INFO,
    RANK_INFO,
    SESSION,
    STACK_FRAME,
    Table,
)

logger = logging.getLogger(__name__)

SLICE_ROWS: Final = 4_000_000
"""Rows scanned in a step: 20 ms of CPU and 32 MB of log for a million deleted, measured 5 ms and 8 MB."""
REMEMBERED_DAYS: Final = 30.0
"""How long tombstones are kept. A spool that is shipped later becomes a session again, with a gap."""

_AT_ONCE: Final = (SESSION, RANK_INFO, DEVICE_INFO, INGEST_PROGRESS)
"""Tables by which a session is found: their rows are deleted in the first step."""
_IN_SLICES: Final = tuple(
    table
    for table in schema.ALL_TABLES.values()
    if "session_id" in table.column_names() and table not in (*_AT_ONCE, PRUNED_SPOOL)
)


class Pruner:
    """Deletes one session after another; all of it in the writer's thread.

    Args:
        store: the open database.
        clock_ns: the wall clock.
    """

    def __init__(self, store: Store, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._store = store
        self._clock_ns = clock_ns
        self._slices: Iterator[tuple[Table, int, int]] | None = None
        left = store.read("SELECT DISTINCT session_id FROM pruned_spool WHERE has_rows ORDER BY session_id")
        self._left = deque(left["session_id"].to_pylist())

    @property
    def is_busy(self) -> bool:
        """Whether rows of a session are left to delete."""
        return bool(self._left)

    def tombstone(self, session_id: str) -> None:
        """The first step: once it is committed no query finds the session, and no batch of it is taken.

        Raises:
            duckdb.Error, DiskLowError: nothing of it is done.
        """
        with self._store.transaction() as connection:
            connection.execute(
                statement_text("prune", "bury"), {"session": session_id, "now_ns": self._clock_ns()}
            )
            for table in _AT_ONCE:
                connection.execute(schema.delete_statement(table), {"session": session_id})
        self._left.append(session_id)

    def step(self) -> None:
        """Deletes the next slice of the session that was tombstoned first.

        Raises:
            duckdb.Error, DiskLowError: as :meth:`tombstone`; call again later.
        """
        session_id = self._left[0]
        if self._slices is None:
            self._slices = self._slices_of(session_id)
        piece = next(self._slices, None)
        try:
            if piece is None:
                self._finish(session_id)
            else:
                self._delete(session_id, *piece)
        except BaseException:
            self._slices = None  # determined again
            raise

    def clean(self) -> None:
        """Deletes rows that nothing refers to any more, and old tombstones; while not busy.

        Raises:
            duckdb.Error, DiskLowError: nothing of it is done.
        """
        remembered_ns = int(REMEMBERED_DAYS * NS_PER_DAY)
        with self._store.transaction() as connection:
            unreferenced = statement_text("prune", "unreferenced_stacks")
            connection.execute(f"CREATE OR REPLACE TEMP TABLE unreferenced AS {unreferenced}")
            for table in (STACK, STACK_FRAME):
                connection.execute(
                    f"DELETE FROM {schema.quoted(table.name)} "
                    "WHERE stack_id IN (SELECT stack_id FROM unreferenced)"
                )
            connection.execute("DROP TABLE unreferenced")
            connection.execute(statement_text("prune", "hosts"))
            connection.execute(statement_text("prune", "clock_offsets"))
            connection.execute("UPDATE pruned_spool SET has_rows = false WHERE has_rows")
            connection.execute(
                statement_text("prune", "remembered"), {"before_ns": self._clock_ns() - remembered_ns}
            )

    def _slices_of(self, session_id: str) -> Iterator[tuple[Table, int, int]]:
        """Ranges of rowid that hold all its rows, the last first.

        A checkpoint between two slices may move rows down: in this order only scanned ones.
        """
        for table in _IN_SLICES:
            least, most = self._store.rows_between(table, session_id)
            for upto in range(most + 1, least, -SLICE_ROWS):
                yield table, max(least, upto - SLICE_ROWS), upto

    def _delete(self, session_id: str, table: Table, least: int, upto: int) -> None:
        with self._store.transaction() as connection:
            connection.execute(
                schema.delete_statement(table, in_slice=True),
                {"session": session_id, "least": least, "upto": upto},
            )

    def _finish(self, session_id: str) -> None:
        """Deletes all rows again: a scan of every table that as a rule finds none."""
        with self._store.transaction() as connection:
            for table in _IN_SLICES:
                connection.execute(schema.delete_statement(table), {"session": session_id})
        self._slices = None
        self._left.popleft()
        logger.info("session %s is deleted", session_id)
