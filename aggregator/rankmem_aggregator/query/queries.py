"""The questions of readers: SQL and named queries, to a file or a running aggregator alike.

Stage: query, in the reader's process (command line, notebook, web page). In: a target, SQL or the arguments
of a question. Out: Arrow tables with the columns that the head of each ``.sql`` file lists; bytes and
nanoseconds as integers. The statements are in ``sql/questions.sql`` and ``sql/queries``; this module
only chooses among them. Never writes.

Times given and returned are nanoseconds since 1970-01-01 UTC on the session's common clock, which is the
aggregator's.
"""

from __future__ import annotations

import abc
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.query.aggregator_state import AggregatorState
from rankmem_aggregator.query.missing import with_missing
from rankmem_aggregator.query.older_version import check_groups, explained
from rankmem_aggregator.query.timeline import TimelineReader, TimelineRequest, chosen_ranks
from rankmem_aggregator.query.types import (
    At,
    BlockBy,
    By,
    CurveBy,
    Figure,
    Parameters,
    PeakBy,
    SessionId,
    Value,
)
from rankmem_aggregator.sql import query_text
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.groupings import grouping_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankmem_aggregator.insights.answer import Answer
    from rankmem_aggregator.insights.lives import Trace

SHARE_COLUMNS: Final = (
    "device_type", "job_peak_bytes", "job_peak_ns", "attempt", "rank", "device", "requested_bytes", "seq",
    "clock_error_ns",
)  # fmt: skip
"""The columns of job_peak that the other questions about the job's peak need."""


Row = dict[str, Any]


class Queries(abc.ABC):
    """The interface of readers. Not safe for use by several threads at once.

    An answer about a session has in its schema's metadata whether it is exact: ``complete`` ("False" where
    figures of bytes may be wrong, "None" where that is not known) and ``missing`` (a JSON list of lines,
    which ``query.missing.missing_of`` reads). A result of :meth:`sql` has not: it may be about any
    session; :meth:`incomplete_sessions` names those that miss events.
    """

    target: str
    """What was opened: the path or the address, for messages."""
    stale: str = ""
    """What the last answer may lack since a store is away, in a sentence; empty: nothing."""
    _known_missing: tuple[str, float, list[dict[str, Any]]] = ("", 0.0, [])
    """A session, when its missing data was last looked up (monotonic seconds), and that."""

    @abc.abstractmethod
    def sql(self, text: str, parameters: Parameters | None = None) -> pa.Table:
        """The result of one read-only statement.

        Args:
            text: SQL of DuckDB's dialect.
            parameters: values of ``$name`` in the statement.

        Raises:
            RankmemError: INVALID for SQL that does not run, DENIED for a statement that is not a read.
        """

    @abc.abstractmethod
    def stream(self, text: str, parameters: Parameters | None = None) -> Iterator[pa.RecordBatch]:
        """The same, batch by batch; at least one batch, which carries the schema even of an empty result."""

    @abc.abstractmethod
    def copy_to(self, out_path: Path) -> None:
        """Writes a consistent copy of the whole database, also while it is being written; whole or absent.

        Raises:
            RankmemError: CONFLICT if ``out_path`` is there, EXHAUSTED if it does not fit.
        """

    @abc.abstractmethod
    def interrupt(self) -> None:
        """Ends the statement that runs now, which raises EXHAUSTED or UNAVAILABLE; any thread may call it.

        It also refuses (UNAVAILABLE) the statements that follow, until :meth:`allow`: what asks several in a
        row is interrupted at any of them.
        """

    @abc.abstractmethod
    def allow(self) -> None:
        """Lets statements run again after :meth:`interrupt`; the thread that asks calls it."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the file or the connection; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def sessions(self) -> pa.Table:
        """All sessions, the newest first. Columns: those of the view ``session_overview``."""
        return self._ask("sessions")

    def session_id(self, session: str | None = None) -> str:
        """The full id of the session that a user means.

        Args:
            session: an id, the beginning of one, or a name (the newest of that name); None for the newest.

        Returns:
            A :class:`SessionId` as it was given; else what is looked up.

        Raises:
            RankmemError: NOT_FOUND where there is none, INVALID where a beginning fits several.
        """
        if isinstance(session, SessionId):
            return session
        matches = self._ask("session_match", session=session).to_pylist()
        return str(_the_session(matches, session, self.target)["session_id"])

    def session_row(self, session: str | None = None) -> dict[str, Any]:
        """The row of ``session_overview`` for the session that a user means.

        Its ``session_id`` is a :class:`SessionId`, so that further questions need not look it up. Arguments
        and errors are those of :meth:`session_id`.
        """
        row = _the_session(self._ask("session_row", session=session).to_pylist(), session, self.target)
        return {**row, "session_id": SessionId(row["session_id"])}

    def ranks(self, session: str | None = None) -> pa.Table:
        """The ranks of a session. Columns: those of the view ``rank_overview``."""
        return self._answer("ranks", session=self.session_id(session))

    def incompleteness(self, session: str | None = None) -> pa.Table:
        """What is missing from the session's ranks; no row where nothing is known to be.

        Columns: those of the view ``incompleteness``: session_id, attempt, rank, why, what, detail, since_ns,
        since_utc, records, is_bytes, sentence.
        """
        return self._missing(self.session_id(session))

    def _missing(self, full_id: str) -> pa.Table:
        try:
            return self._ask("incompleteness", session=full_id)
        except RankmemError as exc:
            # A file or an aggregator of an older version, which has no such view.
            if exc.code is not Code.UNSUPPORTED or "incompleteness" not in exc.message:
                raise
            return self._ask("incompleteness_older", session=full_id)

    def incomplete_sessions(self) -> pa.Table:
        """The sessions that are known to lack events, the newest first: session_id, num_ranks that do."""
        return self._ask("incomplete_sessions")

    def peak_bound(self, session: str | None = None) -> pa.Table:
        """Whether each rank's peak is exact, and how high it was at least where events are missing.

        Columns: those of the view ``peak_bound``: session_id, attempt, rank, device, device_type,
        peak_requested_bytes, is_exact, at_least_bytes, at_most_bytes (NULL where it cannot be derived).
        """
        return self._answer("peak_bound", session=self.session_id(session))

    def status(self, session: str | None = None, *, now_ns: int | None = None) -> pa.Table:
        """Each rank's lag and losses now. Columns: those of the view ``rank_status``, state, silent_ns.

        Args:
            session: see :meth:`session_id`.
            now_ns: the moment, ns on the common clock; None: now, on the machine of the database.
        """
        return self._answer("status", session=self.session_id(session), now_ns=now_ns)

    def top(self, session: str | None = None, *, now_ns: int | None = None) -> pa.Table:
        """What each rank holds on each device now, the highest first.

        Columns: those of the view ``rank_now``, headroom_share, age_ns.
        """
        return self._answer("top", session=self.session_id(session), now_ns=now_ns)

    def aggregator_state(self) -> AggregatorState | None:
        """The state of the aggregator that answers; None for a file that this process reads itself."""
        return None

    def hosts(self, session: str | None = None) -> pa.Table:
        """The hosts of a session. Columns: those of the view ``host_overview``."""
        return self._answer("hosts", session=self.session_id(session))

    def peak(
        self, session: str | None = None, *, rank: int | None = None, attempt: int | None = None
    ) -> pa.Table:
        """The high-water mark of each rank, attempt and device, the highest first.

        Columns: those of the view ``peak_by_rank``; ``is_rank_peak`` marks each rank's highest attempt.
        """
        full_id = self.session_id(session)
        return self._of_rank(self._answer("peak", session=full_id, rank=rank, attempt=attempt), full_id, rank)

    def peak_by(
        self,
        session: str | None = None,
        *,
        by: PeakBy,
        rank: int | None = None,
        at_least_bytes: int = 0,
    ) -> pa.Table:
        """Both figures of a group's peak: at the ranks' own peaks, and the group's own peak with its instant.

        Args:
            session: see :meth:`session_id`.
            by: the grouping. ``rank``: the answer is that of :meth:`peak`.
            rank: of this rank alone; without meaning for groups of ranks (host, device, dp, tp, pp, cp, ep).
            at_least_bytes: only those whose own peak, in blocks or in segments, reaches it.

        Returns:
            Of groups of ranks the columns of the macro ``peak_by_ranks``: group_name, device_type, num_ranks,
            peak_bytes, peak_time_ns, peak_time_utc, sum_of_peaks_bytes, highest_rank, highest_peak_bytes,
            lowest_rank, lowest_peak_bytes. Of groups within a rank those of ``peak_by_group``: attempt, rank,
            device, device_type, host_name, group_name, bytes_at_rank_peak, rank_peak_bytes, rank_peak_ns,
            peak_bytes, peak_time_ns, peak_time_utc, peak_seq; of stream and component also
            peak_reserved_bytes, peak_reserved_ns and is_sampled (the macro ``allocator_peak``). Of component
            there is also the group app: what the process holds beyond the allocators, NULL where that is not
            known; and what a recording samples (HCCL, RUNTIME, ...). Rows with is_sampled are in no sum.
        """
        grouping = grouping_of(by, "peak")
        full_id = self.session_id(session)
        if by == "rank":
            rows = self.peak(full_id, rank=rank)
        elif grouping.of == "ranks":
            rows = self._answer("peak_by_ranks", session=full_id, by=by)
        else:
            name = "peak_by_allocator" if grouping.of_allocator else "peak_by_group"
            rows = self._of_rank(self._answer(name, session=full_id, by=by, rank=rank), full_id, rank)
        return _reaching(rows, at_least_bytes) if at_least_bytes else rows

    def peak_by_host(self, session: str | None = None) -> pa.Table:
        """The highest rank of each host. Columns: those of the view ``peak_by_host``."""
        return self._answer("peak_by_host", session=self.session_id(session))

    def job_peak(self, session: str | None = None) -> pa.Table:
        """The instant of the highest sum over all ranks, by device type, with each rank's share.

        Exact where nothing is missing and the clocks leave nothing open: :meth:`job_peak_bound`.

        Columns: those of the macro ``job_peak``; ``job_peak_bytes`` and ``job_peak_ns`` repeat in every row.
        """
        return self._answer("job_peak", session=self.session_id(session))

    def job_peak_interval(self, session: str | None = None) -> pa.Table:
        """Between which bounds the job's peak lies, by summaries alone: its events may be on their hosts.

        Columns: those of the macro ``job_peak_interval``.
        """
        return self._answer("job_peak_interval", session=self.session_id(session))

    def job_peak_bound(self, session: str | None = None, *, shares: pa.Table | None = None) -> pa.Table:
        """How certain the job's peak is, by device type; columns: those of the macro ``job_peak_bound``.

        device_type, job_peak_bytes, job_peak_ns, job_peak_utc, num_ranks, sum_of_peaks_bytes, gap_bytes,
        clock_error_ns, lowest_bytes, highest_bytes, order_is_certain, is_exact, at_least_bytes.

        Args:
            shares: the answer of :meth:`job_peak`, which takes most of the time to compute again.
        """
        return self._answer("job_peak_bound", session=self.session_id(session), shares=_text_of(shares))

    def job_peak_held(
        self, session: str | None = None, *, by: BlockBy = "category", shares: pa.Table | None = None
    ) -> pa.Table:
        """What held the job's memory at its peak; columns: those of the macro ``job_peak_held``.

        device_type, group_name, live_bytes, live_allocations, largest_bytes, num_ranks; the largest first.

        Args:
            shares: the answer of :meth:`job_peak`, which takes most of the time to compute again.
        """
        grouping_of(by, "job-peak")
        return self._answer("job_peak_held", session=self.session_id(session), by=by, shares=_text_of(shares))

    def held_at(self, time_ns: int, session: str | None = None) -> pa.Table:
        """What every rank held at an instant; columns: those of the macro ``held_at``."""
        return self._answer("held_at", session=self.session_id(session), time_ns=time_ns)

    def steps(self, session: str | None = None, *, rank: int | None = None) -> pa.Table:
        """Peak, allocated bytes and growth of each step; columns: those of the macro ``step_total``.

        attempt, rank, device, device_type, step, started_ns, ended_ns, duration_ns, peak_bytes, peak_time_ns,
        end_bytes, allocated_bytes, num_allocations, peak_growth_bytes, end_growth_bytes, optimizers (list).
        """
        full_id = self.session_id(session)
        return self._of_rank(self._answer("steps", session=full_id, rank=rank), full_id, rank)

    def modules(self, session: str | None = None, *, rank: int | None = None) -> pa.Table:
        """The module tree with bytes at the peak, in the tree's order; columns: those of ``module_at_peak``.

        device_type, module (path; NULL: outside of modules), class, depth (0: a root), own_bytes, total_bytes
        (with all that is within it), own_allocations, num_ranks. ``rank`` None: all ranks added up, each at
        its own peak.
        """
        full_id = self.session_id(session)
        return self._of_rank(self._answer("modules", session=full_id, rank=rank), full_id, rank)

    def weights(self, session: str | None = None, *, rank: int | None = None) -> pa.Table:
        """The parameters of the model on each rank, the largest first; columns: those of ``weight_line``.

        session_id, attempt, rank, name, size_bytes, grad_size_bytes, dtype, shape, line, stack_id.
        """
        full_id = self.session_id(session)
        return self._of_rank(self._answer("weights", session=full_id, rank=rank), full_id, rank)

    def oom(self, session: str | None = None, *, rank: int | None = None) -> pa.Table:
        """The allocations that failed, the earliest first; columns: those of the view ``oom_overview``.

        session_id, attempt, rank, device, host_name, seq, time_ns, time_utc, size_bytes, device_free_bytes,
        device_total_bytes, requested_bytes, reserved_bytes, app_bytes, unused_bytes, largest_free_bytes,
        fragmentation (0 to 1; NULL where segments are not known), stream, operator, line, stack_id. What was
        alive: :meth:`oom_held`; what the other ranks held: :meth:`held_at` with its ``time_ns``.
        """
        full_id = self.session_id(session)
        return self._of_rank(self._answer("oom", session=full_id, rank=rank), full_id, rank)

    def oom_held(
        self,
        session: str | None = None,
        *,
        attempt: int,
        rank: int,
        device: str,
        seq: int,
        by: BlockBy = "category",
    ) -> pa.Table:
        """What was alive when an allocation failed; the arguments are columns of a row of :meth:`oom`.

        Returns:
            The columns of the macro ``held_at_points``: attempt, rank, device, device_type, point_seq,
            group_name, live_bytes, live_allocations, largest_bytes; the largest first.
        """
        grouping_of(by, "oom")
        full_id = self.session_id(session)
        return self._answer(
            "oom_held", session=full_id, by=by, attempt=attempt, rank=rank, device=device, seq=seq
        )

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
        self._of_rank(answer.rows, full_id, rank)
        return answer.over(self.with_missing(answer.rows, full_id))

    def timeline(
        self,
        session: str | None = None,
        *,
        by: CurveBy = "overall",
        figure: Figure | None = None,
        rank: int | Sequence[int] | Literal["all"] | None = None,
        attempt: int | None = None,
        device: str | None = None,
        from_ns: int | None = None,
        until_ns: int | None = None,
        points: int = 2000,
    ) -> pa.Table:
        """Memory over time as curves, thinned where they have more points than asked for.

        Args:
            by: ``overall``: of a rank's device the curves requested, allocated, active and reserved (the
                allocator's own, absent on cpu) and app_reserved (the whole process). ``job``: the sum over
                all ranks; ``rank``, ``host``, ``device`` or a parallel dimension: its parts. Anything else: a
                curve for each group of a rank's blocks; ``component`` has app too, what the process holds
                beyond the allocator.
            figure: requested bytes by default, for overall all. Streams and components have ``allocated``
                (requested bytes until their free is requested), ``active`` (until they are given back),
                ``reserved`` (their segments), and with ``all`` a curve for each; ranks together have the
                allocator's own.
            session: see :meth:`session_id`.
            rank: None: of ranks together all; else the one that stood highest, likewise attempt and device.
                Several, or ``"all"``: added up, whatever the grouping but overall. Long recordings are then
                read by the second, each part at its highest of it; groups of blocks without summaries
                (operator, module, line, step, annotation) are refused over 4 M events.
            attempt: which start of the workers.
            device: device type and index; of ranks together its type counts.
            from_ns: the beginning, on the common clock; None: the rank's own.
            until_ns: the end.
            points: of a curve, at most. One with no more shows every point; a longer one keeps the highest
                point of each range (see ``thinning``).

        Returns:
            time_ns, group, bytes: a point each, curve after curve in order of time; a value holds until the
            next point. The schema's metadata has device, figure, first_ns, last_ns; for one rank also
            attempt, rank and host_name, of ranks together num_ranks and num_hosts; ``stacked``: True if the
            curves add up to a whole; ``exact``: True if no point was left
            out of what was recorded.

        Raises:
            RankmemError: NOT_FOUND where there is no such rank, INVALID for too few points and for a figure
                that is not known of such groups, EXHAUSTED for too many events (see ``rank``).
        """
        request = TimelineRequest(
            by=by,
            figure=figure,
            ranks=chosen_ranks(rank),
            together=rank is not None and not isinstance(rank, int) and len(rank) != 1,
            attempt=attempt,
            device=device,
            from_ns=from_ns,
            until_ns=until_ns,
        )
        full_id = self.session_id(session)
        return self.with_missing(TimelineReader(self._ask, points).read(full_id, request).table(), full_id)

    def curve(self, rank: int, session: str | None = None, *, attempt: int | None = None) -> pa.Table:
        """A rank's memory second by second. Columns: those of the macro ``memory_curve``."""
        return self._answer("curve", session=self.session_id(session), rank=rank, attempt=attempt)

    def ops(
        self,
        session: str | None = None,
        *,
        by: By = "operator",
        at: At = "peak",
        rank: int | None = None,
        device: str | None = None,
    ) -> pa.Table:
        """What held the memory, by any grouping of blocks, the largest first.

        Args:
            session: see :meth:`session_id`.
            by: what a row is. Of backward's blocks ``line`` is that of the forward call. ``category``: what
                the bytes meant at the peak or instant; for bytes allocated, what they meant last.
            at: ``peak``: alive at the peak, each rank at its own, on its highest attempt; ``total``: the same
                rows ordered by what was allocated; an instant in ns: alive on all ranks then.
            rank: of this rank alone.
            device: of this device alone.

        Returns:
            device_type, a column named after ``by`` (of ``rank``: rank and operator), live_bytes_at_peak
            (live_bytes_at_time), live_allocations_at_peak (.._at_time), allocated_bytes, num_allocations,
            largest_bytes, num_ranks.

        Raises:
            RankmemError: NOT_FOUND for a rank or a device that the session does not have.
        """
        grouping_of(by, "ops")
        full_id = self.session_id(session)
        name, moment = ("ops_at_time", "time_ns") if isinstance(at, int) else ("ops_at_peak", "order")
        chosen: dict[str, Value] = {"session": full_id, "rank": rank, "device": device, moment: at}
        per_rank = by == "rank"
        group = "operator" if per_rank else by
        rows = self._ask(name, **chosen, by=group, per_rank=per_rank)
        rows = self._of_rank(rows, full_id, rank, device=device).rename_columns({"group_name": group})
        return self.with_missing(rows if per_rank else rows.drop_columns("rank"), full_id)

    def live(
        self,
        rank: int,
        session: str | None = None,
        *,
        at: Literal["peak"] | int = "peak",
        attempt: int | None = None,
        device: str | None = None,
    ) -> pa.Table:
        """The blocks of a rank alive at its peak or at an instant, the largest first.

        Args:
            rank: global rank.
            session: see :meth:`session_id`.
            at: the rank's own peak (exact by event), or an instant in ns.
            attempt: which start of the workers; None: the one with its highest peak, or the last
                that had started at the instant.
            device: of this device alone; None: all, each at its own peak.

        Returns:
            attempt, rank, device, allocation_id, address, size_bytes, operator, line, forward_line (of a
            block of backward), stack (list of "file:line function"), category, module, phase, step, stream,
            component, allocated_ns, age_ns, preexisting.

        Raises:
            RankmemError: NOT_FOUND for a rank, an attempt or a device that the session does not have.
        """
        full_id = self.session_id(session)
        chosen: dict[str, Value] = {"session": full_id, "rank": rank, "attempt": attempt, "device": device}
        if isinstance(at, int):
            rows = self._ask("live_at_time", **chosen, time_ns=at)
        else:
            rows = self._ask("live_at_peak", **chosen)
        return self.with_missing(self._of_rank(rows, full_id, rank, attempt=attempt, device=device), full_id)

    def stack(self, stack_id: int) -> pa.Table:
        """The frames of a stack, innermost first: ordering (from 0), file_path, line_number, function."""
        return self._ask("stack", stack_id=stack_id)

    def leaks(self, session: str | None = None, *, rank: int | None = None) -> Answer:
        """What leaks, at which line, how fast, and when the device will be full.

        Returns:
            An answer whose rows are the lines that grow, the fastest first, then those that stopped; columns:
            ``insights.leaks.SCHEMA``. It cannot tell below ten steps.
        """
        from rankmem_aggregator.insights.leaks import leaks_of

        full_id = self.session_id(session)
        answer = leaks_of(self._ask, full_id, rank=rank)
        self._of_rank(answer.rows, full_id, rank)
        return answer.over(self.with_missing(answer.rows, full_id))

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
        return answer.over(self.with_missing(answer.rows, full_id))

    def fragmentation(
        self,
        session: str | None = None,
        *,
        rank: int | None = None,
        attempt: int | None = None,
        device: str | None = None,
    ) -> Answer:
        """What a device loses to fragmentation, and what settings of the allocator would give back.

        Args:
            session: see :meth:`session_id`.
            rank: global rank; None: the one that got highest.
            attempt: which start of the workers; None: the one with its highest peak.
            device: type and index; None: the one on which it got highest.

        Returns:
            An answer whose rows are settings, the least needed first; columns:
            ``insights.fragmentation.SCHEMA``. It cannot tell where the replay is not the recording.
        """
        from rankmem_aggregator.insights.fragmentation import fragmentation_of

        full_id = self.session_id(session)
        answer = fragmentation_of(self._ask, full_id, rank=rank, attempt=attempt, device=device)
        self._of_rank(answer.rows, full_id, rank, attempt=attempt, device=device)
        return answer.over(self.with_missing(answer.rows, full_id))

    def ledger(
        self, session: str | None = None, *, rank: int | None = None, device: str | None = None
    ) -> Answer:
        """What holds a device's memory, seen from outside: the ranks' allocators and what lies beyond them.

        Args:
            session: see :meth:`session_id`.
            rank: one that has the device; None: the fullest device of the session.
            device: type and index; None: the rank's fullest.

        Returns:
            An answer whose rows are the parts of what is used, each measured, derived or unknown; columns:
            ``insights.ledger.SCHEMA``. It cannot tell without samples of the processes.
        """
        from rankmem_aggregator.insights.ledger import ledger_of

        full_id = self.session_id(session)
        answer = ledger_of(self._ask, full_id, rank=rank, device=device)
        self._of_rank(answer.rows, full_id, rank, device=device)
        return answer.over(self.with_missing(answer.rows, full_id))

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
        others: Sequence[str | Queries] = (),
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
        self._of_rank(answer.rows, full_id, rank, attempt=attempt, device=device)
        return answer.over(self.with_missing(answer.rows, full_id))

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
        self._of_rank(answer.rows, full_id, rank, attempt=attempt, device=device)
        return answer.over(self.with_missing(answer.rows, full_id))

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

    def _of_rank(
        self,
        rows: pa.Table,
        full_id: str,
        rank: int | None,
        *,
        attempt: int | None = None,
        device: str | None = None,
    ) -> pa.Table:
        """The rows; an error where there are none because the session has no such rank, attempt or device."""
        if rows.num_rows or (rank, attempt, device) == (None, None, None):
            return rows
        known = self.ranks(full_id).to_pylist()
        whose = f"session {full_id}"
        if rank is not None:
            known = [row for row in known if row["rank"] == rank]
            if not known:
                raise RankmemError(Code.NOT_FOUND, f"no rank {rank} in {whose}", "rankmem ranks")
            whose = f"rank {rank} of {whose}"
        if attempt is not None and attempt not in (row["attempt"] for row in known):
            raise RankmemError(Code.NOT_FOUND, f"no attempt {attempt} of {whose}", "rankmem ranks")
        devices = self._ask("peak", session=full_id, rank=rank, attempt=attempt)["device"].to_pylist()
        if device is not None and device not in devices:
            raise RankmemError(Code.NOT_FOUND, f"no events on device {device} in {whose}", "rankmem peak")
        return rows

    def _ask(self, name: str, **parameters: Value) -> pa.Table:
        try:
            answer = self.sql(query_text(name), parameters)
        except RankmemError as exc:
            raise explained(exc, self.target) from exc
        if "by" in parameters:
            by = str(parameters["by"])
            check_groups(answer, by, self.target, lambda: self._knows_group(by))
        return answer

    def _knows_group(self, by: str) -> bool:
        try:
            return bool(self._ask("knows_group", of_group=by)["knows"][0].as_py())
        except RankmemError as exc:
            if exc.code is not Code.UNSUPPORTED:
                raise
            return False

    def _answer(self, name: str, *, session: str, **parameters: Value) -> pa.Table:
        """The rows of a named query about a session, with what is missing from it in the metadata."""
        return self.with_missing(self._ask(name, session=session, **parameters), session)

    def with_missing(self, answer: pa.Table, full_id: str) -> pa.Table:
        """An answer about the session of this full id, with what is missing from it in the metadata."""
        of_session, asked_s, missing = self._known_missing
        if of_session != full_id or time.monotonic() - asked_s > MISSING_FRESH_S:
            asked_s, missing = time.monotonic(), self._missing(full_id).to_pylist()
            self._known_missing = full_id, asked_s, missing
        return with_missing(answer, missing, self.stale)


def _the_session(matches: Sequence[Row], session: str | None, target: str) -> Row:
    if not matches and session is None:
        raise RankmemError(Code.NOT_FOUND, f"no session in {target}", "record one: rankmem run -- COMMAND")
    if not matches:
        raise RankmemError(Code.NOT_FOUND, f"no session {session!r} in {target}", "rankmem sessions")
    best = [row for row in matches if row["match"] == matches[0]["match"]]
    is_beginning = best[0]["match"] == 2 and session is not None
    if is_beginning and len(best) > 1:
        ids = ", ".join(str(row["session_id"]) for row in best[:SESSIONS_NAMED_MAX])
        raise RankmemError(
            Code.INVALID, f"session {session!r} fits {len(best)}: {ids}", "give more of the id"
        )
    return best[0]


def _text_of(shares: pa.Table | None) -> str | None:
    """Rows of job_peak as the text of a list for ``of_shares``: a parameter on the wire cannot be a list."""
    if shares is None:
        return None
    return json.dumps(shares.select(SHARE_COLUMNS).to_pylist())


def _reaching(rows: pa.Table, at_least_bytes: int) -> pa.Table:
    """The rows with a peak of at least so many bytes."""
    names = ("peak_requested_bytes", "peak_bytes", "peak_reserved_bytes")
    peaks = [rows[name] for name in names if name in rows.column_names]
    return rows.filter(pc.greater_equal(pc.max_element_wise(*peaks), at_least_bytes))


MISSING_FRESH_S: Final = 1.0
"""What is missing travels with each answer and takes longer to find than a small answer: answers within this
time share it. Stored data is as old as that itself."""
SESSIONS_NAMED_MAX: Final = 5
"""Ids in a message about an ambiguous beginning: more do not help."""
