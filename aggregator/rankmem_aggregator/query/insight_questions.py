"""The questions that are judged: what leaks, what is lost, what changed, what fits, what would help.

Stage: query, in the reader's process. In: the arguments of a question. Out: an
:class:`~rankmem_aggregator.insights.answer.Answer`, of ``insights``, with what is missing from the session.
``insights`` are imported when they are asked: a reader of figures does not wait for numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rankmem_aggregator.query.asking import Asking, each_once
from rankmem_aggregator.query.missing import and_later, is_complete, missing_of
from rankmem_aggregator.query.types import BlockBy
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.groupings import grouping_of

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.insights.answer import Answer
    from rankmem_aggregator.insights.diff_limits import Limit
    from rankmem_aggregator.insights.lives import Trace

NO_END: Final = "the run has no end: it may still go on, and higher"


class InsightQuestions(Asking):
    """The questions of ``rankmem diagnose`` and of the verbs that it names."""

    def why_oom(
        self,
        session: str | None = None,
        *,
        rank: int | None = None,
        failure: int = 1,
        events_max: int | None = None,
    ) -> Answer:
        """Why an allocation failed, and whether a setting of the allocator would have helped.

        Args:
            session: see :meth:`session_id`.
            rank: failures of this rank alone.
            failure: which row of :meth:`oom`, from 1.
            events_max: a device with more is not replayed; None: 2 million.

        Returns:
            An answer whose rows are settings, the least needed first; columns: ``insights.oom.SCHEMA``.

        Raises:
            RankmemError: NOT_FOUND if fewer allocations failed.
        """
        from rankmem_aggregator.insights.oom import oom_of
        from rankmem_aggregator.insights.reading import EVENTS_MAX

        full_id = self.session_id(session)
        most = EVENTS_MAX if events_max is None else events_max
        answer = oom_of(self._ask, full_id, rank=rank, number=failure, events_max=most)
        return self._over(answer, full_id, rank)

    def leaks(self, session: str | None = None, *, rank: int | None = None) -> Answer:
        """What leaks, at which line, how fast, and when the device will be full.

        Returns:
            An answer whose rows are the lines that grow, the fastest first, then those that stopped; columns:
            ``insights.leaks.SCHEMA``. ``figures["devices"]`` has each device whose lines leak, with the sum
            of their rates and in how many steps it is full. It cannot tell below ten steps.
        """
        from rankmem_aggregator.insights.leaks import leaks_of

        full_id = self.session_id(session)
        answer = leaks_of(self._ask, full_id, rank=rank)
        return self._over(answer, full_id, rank)

    def imbalance(self, session: str | None = None, *, by: BlockBy = "category") -> Answer:
        """Which ranks stand out from their peers, and what they hold more, each rank at its own peak.

        Args:
            session: see :meth:`session_id`.
            by: what the parts of a difference are.

        Returns:
            An answer whose rows are the levels and ranks that stand out; columns:
            ``insights.imbalance.SCHEMA``. It cannot tell below eight ranks.
        """
        from rankmem_aggregator.insights.imbalance import imbalance_of

        grouping_of(by, "imbalance")
        full_id = self.session_id(session)
        answer = imbalance_of(self._ask, full_id, by=by)
        return self._over(answer, full_id)

    def diff(
        self,
        base: str,
        head: str | None = None,
        *,
        base_in: Asking | None = None,
        limits: Mapping[str, Limit] | None = None,
    ) -> Answer:
        """What of a session got worse since another one, at equal input.

        Args:
            base: the session before the change; see :meth:`session_id`.
            head: the one after it.
            base_in: where ``base`` is; None: here. Its session may be None then, the newest.
            limits: by figure (peak, held, allocated) how much worse it may get
                (``insights.diff_limits.Limit``).

        Returns:
            An answer, a finding where head is worse, whose rows are figures and then parts of the rank that
            changed most for the worse; columns: ``insights.diff.SCHEMA``. It cannot tell below five steps,
            where ranks are incomplete, and where inputs do not overlap.
        """
        from rankmem_aggregator.insights.diff import SCHEMA, diff_of
        from rankmem_aggregator.insights.diff_steps import Recorded

        def recorded(queries: Asking, session: str | None) -> Recorded:
            full_id = queries.session_id(session)
            known = queries.with_missing(SCHEMA.empty_table(), full_id)
            return Recorded(
                ask=queries._ask,
                session_id=full_id,
                complete=is_complete(known),
                missing=tuple(missing_of(known) or ()),
            )

        of_head = recorded(self, head)
        answer = diff_of(recorded(base_in or self, base), of_head, limits)
        return answer.over(self._with_gaps(answer.rows, of_head.session_id))

    def fragmentation(
        self,
        session: str | None = None,
        *,
        rank: int | None = None,
        attempt: int | None = None,
        device: str | None = None,
        events_max: int | None = None,
    ) -> Answer:
        """What a device loses to fragmentation, and what settings of the allocator would give back.

        Args:
            session: see :meth:`session_id`.
            rank: global rank; None: the one that got highest.
            attempt: which start of the workers; None: the one with its highest peak.
            device: type and index; None: the one on which it got highest.
            events_max: a device with more is not replayed; None: 2 million.

        Returns:
            An answer whose rows are settings, the least needed first; columns:
            ``insights.fragmentation.SCHEMA``. It cannot tell where the replay is not the recording.
        """
        from rankmem_aggregator.insights.fragmentation import fragmentation_of
        from rankmem_aggregator.insights.reading import EVENTS_MAX

        full_id = self.session_id(session)
        most = EVENTS_MAX if events_max is None else events_max
        answer = fragmentation_of(
            self._ask, full_id, rank=rank, attempt=attempt, device=device, events_max=most
        )
        return self._over(answer, full_id, rank, attempt=attempt, device=device)

    def ledger(
        self,
        session: str | None = None,
        *,
        rank: int | None = None,
        device: str | None = None,
        num_instants: int = 0,
    ) -> Answer:
        """What holds a device's memory, seen from outside: the ranks' allocators and what lies beyond them.

        Args:
            session: see :meth:`session_id`.
            rank: one that has the device; None: the fullest device of the session.
            device: type and index; None: the rank's fullest.
            num_instants: rows of so many instants, at most, between the device's first sample and its last;
                0: of the fullest instant, which the sentence is about in both cases.

        Returns:
            An answer whose rows are the parts of what is used, each measured, derived or unknown; columns:
            ``insights.ledger.SCHEMA``. It cannot tell without samples of the processes.
        """
        from rankmem_aggregator.insights.ledger import ledger_of

        full_id = self.session_id(session)
        answer = ledger_of(self._ask, full_id, rank=rank, device=device, num_instants=num_instants)
        return self._over(answer, full_id, rank, device=device)

    def fit(
        self,
        session: str | None = None,
        *,
        batch: Sequence[int | str] = (),
        length: Sequence[int | str] = (),
        recorded: Sequence[int] = (),
        in_bytes: int | None = None,
        as_device: str | None = None,
        rank: int | None = None,
        attempt: int | None = None,
        device: str | None = None,
        others: Sequence[str | Asking] = (),
    ) -> Answer:
        """What a training step would hold and need at another batch or length, and whether that fits.

        Args:
            session: see :meth:`session_id`.
            batch, length: sizes that are asked for, one of the two; numbers, or multiples of the largest
                recorded size such as "2x". Without any: twice and four times that.
            recorded: the batches or lengths of the recorded sizes, the smallest first.
            in_bytes: memory of the device; None: of the recorded one.
            as_device: "cuda" for what a CPU's recording would need there.
            rank, attempt, device: as for :meth:`fragmentation`.
            others: recordings at other sizes: sessions of the same target, or the newest session of another.

        Returns:
            An answer whose rows are sizes; columns: ``insights.fit.SCHEMA``. It cannot tell where the steps
            do not run the same program.

        Raises:
            RankmemError: INVALID for sizes or a device that are none.
        """
        from rankmem_aggregator.insights.fit import Request, fit_of

        if batch and length:
            raise RankmemError(Code.INVALID, "a batch and a length at once are not predicted", "ask for one")
        full_id = self.session_id(session)
        sources = [(self._ask, full_id)]
        for other in others:
            asked = self if isinstance(other, str) else other
            sources.append((asked._ask, asked.session_id(other if isinstance(other, str) else None)))
        request = Request(
            what="length" if length else "batch",
            wanted=[str(each) for each in batch or length],
            recorded=recorded,
            in_bytes=in_bytes,
            as_device=as_device,
            rank=rank,
            attempt=attempt,
            device=device,
        )
        answer = fit_of(sources, request)
        return self._over(answer, full_id, rank, attempt=attempt, device=device)

    def whatif(
        self,
        session: str | None = None,
        *,
        fit_bytes: int | None = None,
        ranks: int | None = None,
        rank: int | None = None,
        attempt: int | None = None,
        device: str | None = None,
    ) -> Answer:
        """What remedies would save of the peak of a steady step: checkpoints, sharding, offload, chunks.

        Args:
            session: see :meth:`session_id`.
            fit_bytes: a device; the smallest set of remedies is looked for with which the step fits.
            ranks: over which is sharded; None: those of the job, or eight.
            rank, attempt, device: as for :meth:`fragmentation`.

        Returns:
            An answer whose rows are remedies, what saves most first; columns: ``insights.whatif.SCHEMA``.

        Raises:
            RankmemError: INVALID for fewer than two ranks.
        """
        from rankmem_aggregator.insights.whatif import Request, whatif_of

        full_id = self.session_id(session)
        request = Request(fit_bytes=fit_bytes, ranks=ranks, rank=rank, attempt=attempt, device=device)
        answer = whatif_of(self._ask, full_id, request)
        return self._over(answer, full_id, rank, attempt=attempt, device=device)

    def diagnose(
        self,
        session: str | None = None,
        *,
        events_max: int | None = None,
        within_s: float | None = None,
    ) -> Answer:
        """What all insights find, at most eight findings: failures first, then by bytes that the peak loses.

        Args:
            session: see :meth:`session_id`.
            events_max: a device with more is not replayed; None: 2 million.
            within_s: no further insight is asked after so many seconds; None: all are.

        Returns:
            An answer whose rows are the findings; columns: ``insights.diagnose.SCHEMA``. Its notes and
            ``figures["cannot_tell"]`` name the insights that cannot tell, with their reasons.
        """
        from rankmem_aggregator.insights.diagnose import SCHEMA, diagnose_of
        from rankmem_aggregator.insights.reading import EVENTS_MAX

        full_id = self.session_id(session)
        known = is_complete(self.with_missing(SCHEMA.empty_table(), full_id))
        with each_once(self):
            answer = diagnose_of(
                self._ask,
                full_id,
                is_complete=known,
                events_max=EVENTS_MAX if events_max is None else events_max,
                within_s=within_s,
            )
        return self._over(answer, full_id)

    def allocator_trace(
        self,
        rank: int,
        session: str | None = None,
        *,
        attempt: int | None = None,
        device: str | None = None,
    ) -> Trace:
        """What the allocator of a device was asked, for ``rankmem.replay``; args as :meth:`fragmentation`.

        Raises:
            RankmemError: UNSUPPORTED where it cannot be replayed, with the reason.
        """
        from rankmem_aggregator.insights.reading import CannotTell, read_trace

        try:
            full_id = self.session_id(session)
            return read_trace(self._ask, full_id, rank=rank, attempt=attempt, device=device).trace
        except CannotTell as reason:
            raise RankmemError(Code.UNSUPPORTED, str(reason), "rankmem ranks shows the devices") from reason

    def _over(
        self,
        answer: Answer,
        full_id: str,
        rank: int | None = None,
        *,
        attempt: int | None = None,
        device: str | None = None,
    ) -> Answer:
        """The answer with what is missing; an error where the session has no such rank, attempt or device."""
        self._of_rank(answer.rows, full_id, rank, attempt=attempt, device=device)
        return answer.over(self._with_gaps(answer.rows, full_id))

    def _with_gaps(self, rows: pa.Table, full_id: str) -> pa.Table:
        """Rows with what is missing from the session: also, while a rank has no end, what is to come."""
        known = self.with_missing(rows, full_id)
        runs_on = self.session_facts(full_id)["state"] == "running"
        return and_later(known, NO_END) if runs_on else known
