"""Which rows of events came after their summaries: each stretch of a log is stored once, in any order.

Stage: ingest. In: batches with ``details``, which a shipper kept on its host, and the batches that left
them there; out: store it, or acknowledge it as known, or refuse it. A log may have been cut more than once,
where a shipper lost its connection or was killed: of a cut whose summary is not the one that is stored
nothing is taken, or its events would count twice. Where a spool's stretches are is in the table
``availability``. What is tentative becomes stored after the commit that carries it. One thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from rankmem_aggregator.ingest.batch import IncomingBatch
from rankmem_aggregator.ingest.detail_checks import HERE
from rankmem_aggregator.ingest.sequence import Verdict
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import AVAILABILITY

Range = tuple[int, int]
"""First and last position of a stretch."""


class StoredDetails:
    """The stretches of spools that stayed on hosts, and those that came, as far as they were looked up."""

    def __init__(self) -> None:
        self._here: dict[str, set[Range]] = {}
        self._summaries: dict[str, set[Range]] = {}
        self._tentative_here: dict[str, set[Range]] = {}
        self._tentative_summaries: dict[str, set[Range]] = {}

    def knows(self, spool_id: str) -> bool:
        """Whether what is stored of a spool was looked up."""
        return spool_id in self._here

    def learn(self, spool_id: str, summaries: Iterable[Range], here: Iterable[Range]) -> None:
        """What is stored of a spool: the stretches that stayed on its host, and of these those that came."""
        self._summaries[spool_id], self._here[spool_id] = set(summaries), set(here)

    def learn_summaries(self, spool_id: str, summaries: Iterable[Range]) -> None:
        """The stretches that stayed on the host, as others have stored them since."""
        self._summaries.setdefault(spool_id, set()).update(summaries)

    def has_summary(self, batch: IncomingBatch) -> bool:
        """Whether a stretch is exactly one that stayed on the host, and whose summary is here."""
        at, spool_id = _range(batch), batch.spool.spool_id
        return at in self._summaries.get(spool_id, ()) or at in self._tentative_summaries.get(spool_id, ())

    def expect(self, batch: IncomingBatch) -> None:
        """A batch is to be stored; where it left rows on its host, they may come."""
        if AVAILABILITY.name in batch.rows and not batch.is_details:
            self._tentative_summaries.setdefault(batch.spool.spool_id, set()).add(_range(batch))

    def judge(self, batch: IncomingBatch, stored: int) -> Verdict:
        """Whether a stretch is new.

        Args:
            batch: with details.
            stored: the last position of the spool that is committed; all summaries up to it are known.

        Raises:
            RankmemError: CONFLICT for a stretch whose summary may still come; NOT_FOUND for one that no
                stored batch has left on its host.
        """
        spool_id, at = batch.spool.spool_id, _range(batch)
        if not self.has_summary(batch):
            raise _without_summary(spool_id, at, stored)
        if at in self._here.get(spool_id, ()) or at in self._tentative_here.get(spool_id, ()):
            return Verdict.KNOWN
        if batch.rows[AVAILABILITY.name]["place"][0].as_py() == HERE:
            self._tentative_here.setdefault(spool_id, set()).add(at)
        return Verdict.STORE

    def is_stored(self, batch: IncomingBatch) -> bool:
        """Whether a stretch is committed."""
        return _range(batch) in self._here.get(batch.spool.spool_id, ())

    def commit(self) -> None:
        """What was tentative is stored."""
        for tentative, stored in (
            (self._tentative_here, self._here),
            (self._tentative_summaries, self._summaries),
        ):
            for spool_id, found in tentative.items():
                if self.knows(spool_id):  # otherwise it is looked up with what came before
                    stored.setdefault(spool_id, set()).update(found)
            tentative.clear()

    def forget(self, spool_id: str) -> None:
        """What is tentative of a spool is not stored; what is stored is to be looked up again."""
        for known in (self._here, self._summaries, self._tentative_here, self._tentative_summaries):
            known.pop(spool_id, None)


def _range(batch: IncomingBatch) -> Range:
    return batch.sequence_first, batch.sequence_last


def _without_summary(spool_id: str, at: Range, stored: int) -> RankmemError:
    if at[1] > stored:
        return RankmemError(
            Code.CONFLICT,
            f"rows of [{at[0]}, {at[1]}] of spool {spool_id} came before their summary: {stored} is stored",
            "send the summary first",
        )
    return RankmemError(
        Code.NOT_FOUND,
        f"no batch [{at[0]}, {at[1]}] of spool {spool_id} that left its rows on its host is stored: "
        "these records are stored in batches of other ranges",
        "rows of other ranges are sent, or were; these would count twice",
    )
