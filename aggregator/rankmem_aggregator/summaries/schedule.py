"""When the summaries of groups are written, and when they are invalidated.

Stage: ingest, in the writer's thread, between two groups and while no batch waits. In: what a group brought,
and the stored rows; out: passes over what has settled (see ``one_pass``). A row that comes later and belongs
before the position up to which its rank is summarised (a tag with the category that a block had all along,
the record of a block whose call took long) invalidates all summaries of the rank, in the transaction that
stores the row; they are written again later. So at any moment the summaries and the rows after their
position are together exactly what is stored. The cells of memory_level are folded between the passes, with a
position of their own (see ``levels``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.sql import statement_text
from rankmem_aggregator.store.recovery import TRANSIENT
from rankmem_aggregator.store.store import Store
from rankmem_aggregator.summaries.levels import Levels
from rankmem_aggregator.summaries.one_pass import DUE, NOTHING, Pass, Rank, RankBatch, ranks_of
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.summary_tables import LEVEL_PROGRESS, SUMMARY_PROGRESS

logger = logging.getLogger(__name__)

DUE_POSITIONS: Final = 1 << 20
"""Of all ranks, since the last pass: so many events are read one by one in a second. A short training is
summarised when it is over, and costs nothing while it runs."""
PASS_POSITIONS: Final = 131_072
"""Of all ranks in a pass: under a tenth of a second, for which a batch may have to wait."""
RANK_POSITIONS: Final = 131_072
"""Of one rank in a pass."""
LEAST_POSITIONS: Final = 16_384
"""Of a running rank, for a pass to be worth its rows."""
STEPS_BACK: Final = 2
"""Categories are known two steps later: gradients and optimizer state are seen at a step's end."""
EVENTS_BACK: Final = 1 << 20
"""Or, without steps, so many positions later."""
PASSES_BETWEEN_LEVELS: Final = 32
"""Where passes are always due, cells of memory_level are folded after so many: some 4 M positions."""
DELAY_FACTOR_MAX: Final = 32
"""Both are doubled when summaries are invalidated, at most to so many times."""

_POSITIONS: Final = {
    "allocation_record": "allocation_id",
    "allocation_end": "freed_seq",
    "category_change": "seq",
}
"""The column with the position of the log that a row belongs to."""


def _stored_coverage(store: Store) -> dict[Rank, int]:
    """How far each rank is summarised in the database."""
    rows = store.read("SELECT session_id, attempt, rank, seq FROM summary_progress")
    return dict(zip(ranks_of(rows), rows["seq"].to_pylist(), strict=True))


class Summaries:
    """The summaries of a store; all of it in the writer's thread."""

    def __init__(self, store: Store) -> None:
        self.num_passes = 0
        self.num_invalidated = 0
        """Times that the summaries of a rank were."""
        self.levels = Levels(store)
        self._store = store
        self._covered: dict[Rank, int] = _stored_coverage(store)
        self._alive: dict[Rank, pa.Table] = {}
        self._invalidated: set[Rank] = set()
        self._delay_factor = 1
        self._positions = DUE_POSITIONS  # something may have been left by the aggregator before
        self._passes_since_levels = 0
        self._is_on = True
        self._in_doubt = False  # a pass failed in its COMMIT, and may be stored all the same

    def invalidate(self, batches: Sequence[RankBatch]) -> dict[str, pa.Table]:
        """The rows to be stored with these batches, by table: of ranks whose summaries they invalidate."""
        for batch in batches:
            if self._in_doubt or _least_position(batch.rows) <= self._covered.get(batch.rank_key, NOTHING):
                self._invalidated.add(batch.rank_key)
            self._positions += batch.num_positions
            if batch.final:
                self._positions += DUE_POSITIONS
        names = ("session_id", "attempt", "rank")
        rows = [dict(zip(names, rank, strict=True)) for rank in sorted(self._invalidated)]
        found = {
            SUMMARY_PROGRESS.name: pa.Table.from_pylist(
                [row | {"seq": NOTHING, "final": False} for row in rows],
                schema=SUMMARY_PROGRESS.arrow_schema(),
            ),
            LEVEL_PROGRESS.name: self.levels.invalidate(batches, in_doubt=self._in_doubt),
        }
        return {name: table for name, table in found.items() if table.num_rows}

    def commit(self) -> None:
        """The batches are stored, and with them what they invalidate."""
        for rank in self._invalidated:
            self._covered[rank] = NOTHING
            self._alive.pop(rank, None)
        if self._invalidated:
            self._delay_factor = min(2 * self._delay_factor, DELAY_FACTOR_MAX)
            self.num_invalidated += len(self._invalidated)
        self._invalidated.clear()
        self.levels.commit()

    def forget(self, session_id: str) -> None:
        """The session is deleted, its summaries with it."""
        self.levels.forget(session_id)
        for kept in (self._covered, self._alive):
            for rank in [rank for rank in kept if rank[0] == session_id]:
                del kept[rank]

    def rollback(self) -> None:
        """The batches are not stored."""
        self._invalidated.clear()
        self.levels.rollback()

    def advance(self) -> bool:
        """Takes the next pass, or folds cells; False if nothing is due.

        A failure of the database is logged once and ends the summaries of this process: what they do not
        cover is read event by event, so no answer depends on them.
        """
        if not self._is_on or self._positions < DUE_POSITIONS:
            return False
        try:
            self._read_coverage()
            due = self._due()
            if not due.num_rows or self._passes_since_levels >= PASSES_BETWEEN_LEVELS:
                self._passes_since_levels = 0
                if self.levels.advance():
                    return True
            if not due.num_rows:
                self._positions = 0
                return False
            with self._store.transaction() as connection:
                alive = Pass(connection=connection, due=due, alive=self._alive).run()
        except (*TRANSIENT, MemoryError) as exc:
            self._positions = 0  # not before more has come
            self._in_doubt = True
            logger.debug("no summaries now: %s", exc)
            return False
        except (duckdb.Error, pa.ArrowException) as exc:
            self._is_on = False
            logger.warning("no more summaries of groups: queries for their peaks take longer: %s", exc)
            return False
        self._finished(due, alive)
        return True

    def _read_coverage(self) -> None:
        """Where a pass is in doubt: what is stored counts."""
        if self._in_doubt:
            self._covered = _stored_coverage(self._store)
            self._alive.clear()
            self.levels.read_progress()
            self._in_doubt = False

    def _due(self) -> pa.Table:
        """The ranks of the next pass, numbered."""
        found = self._store.read(
            statement_text("summaries", "due"),
            {
                "steps_back": STEPS_BACK * self._delay_factor,
                "events_back": EVENTS_BACK * self._delay_factor,
                "of_pass": RANK_POSITIONS,
                "least": LEAST_POSITIONS,
            },
        )
        taken = length = 0
        for seq_from, seq_upto in zip(
            found["seq_from"].to_pylist(), found["seq_upto"].to_pylist(), strict=True
        ):
            taken, length = taken + 1, length + seq_upto - max(seq_from, -1)
            if length >= PASS_POSITIONS:
                break
        due = found.slice(0, taken)
        return due.add_column(0, "number", pa.array(range(taken), pa.int32())).cast(DUE)

    def _finished(self, due: pa.Table, alive: Mapping[Rank, pa.Table]) -> None:
        for rank, seq, final in zip(
            ranks_of(due), due["seq_upto"].to_pylist(), due["final"].to_pylist(), strict=True
        ):
            self._covered[rank] = seq
            if final:
                self._alive.pop(rank, None)
            else:
                self._alive[rank] = alive[rank]
        self.num_passes += 1
        self._passes_since_levels += 1


def _least_position(rows: Mapping[str, pa.Table]) -> int:
    """The first position of the log among the rows of a batch that summaries are made of."""
    least = [pc.min(rows[table][column]).as_py() for table, column in _POSITIONS.items() if table in rows]
    return min((position for position in least if position is not None), default=NUMBER_MAX)
