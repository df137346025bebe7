"""Which rows of events came after their summaries: each stretch of a log is stored once, in any order.

Stage: ingest. In: batches with ``details``, which a shipper kept on its host; out: store it, or acknowledge
it as known. Where a spool's stretches are is in the table ``availability``; this has the first positions of
those that are here. What is tentative becomes stored after the commit that carries it. One thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from rankmem_aggregator.ingest.batch import IncomingBatch
from rankmem_aggregator.ingest.detail_checks import HERE
from rankmem_aggregator.ingest.sequence import Verdict
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import AVAILABILITY


class StoredDetails:
    """The stretches of each spool that came, as far as they were looked up."""

    def __init__(self) -> None:
        self._stored: dict[str, set[int]] = {}
        self._tentative: dict[str, set[int]] = {}

    def knows(self, spool_id: str) -> bool:
        """Whether what is stored of a spool was looked up."""
        return spool_id in self._stored

    def learn(self, spool_id: str, firsts: Iterable[int]) -> None:
        """What is stored of a spool: the first positions of its stretches."""
        self._stored[spool_id] = set(firsts)

    def judge(self, batch: IncomingBatch, reached: int) -> Verdict:
        """Whether a stretch is new.

        Args:
            batch: with details.
            reached: the last position of the spool that is stored, or will be with it.

        Raises:
            RankmemError: CONFLICT for a stretch without its summary.
        """
        if batch.sequence_last > reached:
            raise RankmemError(
                Code.CONFLICT,
                f"rows of [{batch.sequence_first}, {batch.sequence_last}] of spool {batch.spool.spool_id} "
                f"came before their summary: {reached} is stored",
                "send the summary first",
            )
        spool_id, first = batch.spool.spool_id, batch.sequence_first
        if first in self._stored.get(spool_id, ()) or first in self._tentative.get(spool_id, ()):
            return Verdict.KNOWN
        if batch.rows[AVAILABILITY.name]["place"][0].as_py() == HERE:
            self._tentative.setdefault(spool_id, set()).add(first)
        return Verdict.STORE

    def is_stored(self, batch: IncomingBatch) -> bool:
        """Whether a stretch is committed."""
        return batch.sequence_first in self._stored.get(batch.spool.spool_id, ())

    def commit(self) -> None:
        """What was tentative is stored."""
        for spool_id, firsts in self._tentative.items():
            self._stored.setdefault(spool_id, set()).update(firsts)
        self._tentative.clear()

    def forget(self, spool_id: str) -> None:
        """What is tentative of a spool is not stored; what is stored is to be looked up again."""
        self._stored.pop(spool_id, None)
        self._tentative.pop(spool_id, None)
