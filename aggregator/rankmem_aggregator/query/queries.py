"""The questions of readers: SQL and named queries, to a file or a running aggregator alike.

Stage: query, in the reader's process (command line, notebook, web page). In: a target, SQL or the arguments
of a question. Out: Arrow tables with the columns that the head of each ``.sql`` file lists; bytes and
nanoseconds as integers. The statements are in ``sql/questions.sql`` and ``sql/queries``; this module
only chooses among them. Never writes.

Times given and returned are nanoseconds since 1970-01-01 UTC on the session's common clock, which is the
aggregator's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.query.aggregator_state import AggregatorState
from rankmem_aggregator.query.peak_questions import PeakQuestions
from rankmem_aggregator.query.timeline import TimelineReader, TimelineRequest, chosen_ranks
from rankmem_aggregator.query.types import (
    At,
    BlockBy,
    By,
    CurveBy,
    Figure,
    PeakBy,
    Value,
)
from rankmem_protos.groupings import grouping_of


class Queries(PeakQuestions):
    """The interface of readers: what was recorded, and the judged questions of its base.

    As every :class:`~rankmem_aggregator.query.asking.Asking`, not safe for use by several threads at once.
    :meth:`incomplete_sessions` names the sessions that miss events.
    """

    def sessions(self) -> pa.Table:
        """All sessions, the newest first. Columns: those of the view ``session_overview``."""
        return self._ask("sessions")

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
            component, allocated_ns, age_ns, preexisting, attribution (by what operator, module, phase and
            stack are known; see allocation_record in docs/schema.md), like_id (allocation_id of the earlier
            block that they are those of).

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


def _reaching(rows: pa.Table, at_least_bytes: int) -> pa.Table:
    """The rows with a peak of at least so many bytes."""
    names = ("peak_requested_bytes", "peak_bytes", "peak_reserved_bytes")
    peaks = [rows[name] for name in names if name in rows.column_names]
    return rows.filter(pc.greater_equal(pc.max_element_wise(*peaks), at_least_bytes))
