"""When the summaries of groups are told, and when a telling is taken back.

Stage: ingest, in the writer's thread, between two groups and while no batch waits. In: what a group brought,
and the stored rows; out: passes over what has settled (see ``summary_pass``). A row that comes later and
belongs before the place up to which its rank was told (a tag that says what a block had meant all along, the
record of a block whose call went on for long) takes the whole telling of the rank back, in the transaction
that stores the row; it is told anew, later. So at any moment the summaries and what came after their place
are together exactly what is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.sql import statement_text
from rankmem_aggregator.store.recovery import TRANSIENT
from rankmem_aggregator.store.store import Store
from rankmem_aggregator.summaries.one_pass import DUE, NOTHING, Pass, Rank, ranks_of
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.summary_tables import SUMMARY_PROGRESS

logger = logging.getLogger(__name__)

DUE_POSITIONS: Final = 1 << 20
"""Of all ranks, since the last pass: so many events are read one by one in a second. A short training is told
when it is over, and costs nothing while it runs."""
PASS_POSITIONS: Final = 131_072
"""Of all ranks in a pass: under a tenth of a second, for which a batch may have to wait."""
RANK_POSITIONS: Final = 131_072
"""Of one rank in a pass."""
LEAST_POSITIONS: Final = 16_384
"""Of a rank that runs, for a pass to be worth its rows."""
STEPS_BACK: Final = 2
"""What blocks mean is known two steps later: gradients and optimizer state are seen at a step's end."""
EVENTS_BACK: Final = 1 << 20
"""Or, without steps, so many positions later."""
PATIENCE_MAX: Final = 32
"""Both are doubled when a telling is taken back, at most to so many times."""

_POSITIONS: Final = {
    "allocation_record": "allocation_id",
    "allocation_end": "freed_seq",
    "category_change": "seq",
}
"""The column that says to which place of the log a row belongs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryCounters:
    """What was done since the writer was made."""

    passes: int = 0
    taken_back: int = 0


class RankBatch(Protocol):
    """Rows of a range of one rank's log, about to be stored."""

    @property
    def rank_key(self) -> Rank:
        """The rank of the rows, as they are stored."""

    @property
    def rows(self) -> Mapping[str, pa.Table]:
        """By table name."""

    @property
    def num_positions(self) -> int:
        """Of the log."""

    @property
    def final(self) -> bool:
        """Whether no more rows follow."""


def _stored(store: Store) -> dict[Rank, int]:
    """How far each rank is told in the database."""
    told = store.read("SELECT session_id, attempt, rank, seq FROM summary_progress")
    return dict(zip(ranks_of(told), told["seq"].to_pylist(), strict=True))


class Summaries:
    """The summaries of a store; all of it in the writer's thread."""

    def __init__(self, store: Store) -> None:
        self.counters = SummaryCounters()
        self._store = store
        self._told: dict[Rank, int] = _stored(store)
        self._alive: dict[Rank, pa.Table] = {}
        self._taken_back: set[Rank] = set()
        self._patience = 1
        self._positions = DUE_POSITIONS  # something may have been left by the aggregator before
        self._is_on = True
        self._in_doubt = False  # a pass failed in its COMMIT, and may be stored all the same

    def take_back(self, batches: Sequence[RankBatch]) -> pa.Table:
        """The rows of summary_progress that have to be stored with these batches; none as a rule."""
        for batch in batches:
            if self._in_doubt or _least_position(batch.rows) <= self._told.get(batch.rank_key, NOTHING):
                self._taken_back.add(batch.rank_key)
            self._positions += batch.num_positions
            if batch.final:
                self._positions += DUE_POSITIONS
        names = ("session_id", "attempt", "rank")
        rows = [dict(zip(names, rank, strict=True)) for rank in sorted(self._taken_back)]
        return pa.Table.from_pylist(
            [row | {"seq": NOTHING, "final": False} for row in rows], schema=SUMMARY_PROGRESS.arrow_schema()
        )

    def commit(self) -> None:
        """What was taken back is stored."""
        for rank in self._taken_back:
            self._told[rank] = NOTHING
            self._alive.pop(rank, None)
        if self._taken_back:
            self._patience = min(2 * self._patience, PATIENCE_MAX)
            self._count(taken_back=len(self._taken_back))
        self._taken_back.clear()

    def forget(self, session_id: str) -> None:
        """The session is deleted, its rows of the summaries with it."""
        for kept in (self._told, self._alive):
            for rank in [rank for rank in kept if rank[0] == session_id]:
                del kept[rank]

    def rollback(self) -> None:
        """It is not."""
        self._taken_back.clear()

    def advance(self) -> bool:
        """Takes the next pass; False if nothing is due.

        A failure of the database is said once and ends the summaries of this process: what they do not cover
        is read event by event, so no answer depends on them.
        """
        if not self._is_on or self._positions < DUE_POSITIONS:
            return False
        try:
            self._look_again()
            due = self._due()
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
            logger.warning("no more summaries of groups, their peaks will take longer: %s", exc)
            return False
        self._moved(due, alive)
        return True

    def _look_again(self) -> None:
        """After a doubt: what is stored counts."""
        if self._in_doubt:
            self._told = _stored(self._store)
            self._alive.clear()
            self._in_doubt = False

    def _due(self) -> pa.Table:
        """The ranks of the next pass, numbered."""
        found = self._store.read(
            statement_text("summaries", "due"),
            {
                "steps_back": STEPS_BACK * self._patience,
                "events_back": EVENTS_BACK * self._patience,
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

    def _moved(self, due: pa.Table, alive: Mapping[Rank, pa.Table]) -> None:
        for rank, seq, final in zip(
            ranks_of(due), due["seq_upto"].to_pylist(), due["final"].to_pylist(), strict=True
        ):
            self._told[rank] = seq
            if final:
                self._alive.pop(rank, None)
            else:
                self._alive[rank] = alive[rank]
        self._count(passes=1)

    def _count(self, *, passes: int = 0, taken_back: int = 0) -> None:
        before = self.counters
        self.counters = SummaryCounters(
            passes=before.passes + passes, taken_back=before.taken_back + taken_back
        )


def _least_position(rows: Mapping[str, pa.Table]) -> int:
    """The first place of the log that rows of a batch belong to, of those that the summaries are made of."""
    least = [pc.min(rows[table][column]).as_py() for table, column in _POSITIONS.items() if table in rows]
    return min((position for position in least if position is not None), default=NUMBER_MAX)
