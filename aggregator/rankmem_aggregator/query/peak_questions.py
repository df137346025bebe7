"""The questions about the job's peak: exact where the events that decide it are here, else an interval.

Stage: query, in the reader's process. In: a session; out: Arrow tables. Where events are on their hosts
(``RANKMEM_EDGE``), the search runs twice, with what ranks held at least and at most in place of what is not
here (``lake.not_here``): where both give the same, it is the peak, whatever else is missing.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa

from rankmem_aggregator.query.fetching import stretches_at_peak
from rankmem_aggregator.query.insight_questions import InsightQuestions
from rankmem_aggregator.query.not_here import is_not_here, peak_not_here
from rankmem_aggregator.query.types import BlockBy
from rankmem_protos.errors import RankmemError
from rankmem_protos.groupings import grouping_of

SHARE_COLUMNS: Final = (
    "device_type", "job_peak_bytes", "job_peak_ns", "attempt", "rank", "device", "requested_bytes", "seq",
    "clock_error_ns",
)  # fmt: skip
"""The columns of job_peak that the other questions about the job's peak need."""


class PeakQuestions(InsightQuestions):
    """The questions of ``rankmem job-peak``."""

    def job_peak(self, session: str | None = None) -> pa.Table:
        """The instant of the highest sum over all ranks, by device type, with each rank's share.

        Exact where nothing is missing and the clocks leave nothing open: :meth:`job_peak_bound`.

        Columns: those of the macro ``job_peak``; ``job_peak_bytes`` and ``job_peak_ns`` repeat in every row.

        Raises:
            RankmemError: NOT_FOUND where events that can decide it are on their hosts, or gone:
                :meth:`job_peak_interval` has its bounds.
        """
        full_id = self.session_id(session)
        try:
            return self._answer("job_peak", session=full_id)
        except RankmemError as exc:
            if not is_not_here(exc):
                raise
            summits = [] if self._is_partly_here(full_id) else stretches_at_peak(self.sql, full_id, None)
            if summits:
                raise peak_not_here(full_id, summits, self.aggregator) from exc
            lowest = self._answer("job_peak_lowest", session=full_id)
            if lowest.equals(self._ask("job_peak_highest", session=full_id)):
                return lowest
            deciding = stretches_at_peak(self.sql, full_id, lowest)
            raise peak_not_here(full_id, deciding, self.aggregator) from exc

    def job_peak_interval(self, session: str | None = None) -> pa.Table:
        """Between which bounds the job's peak lies, by summaries and the events that are here.

        Columns: those of the macro ``job_peak_interval``, which reads summaries alone.
        """
        full_id = self.session_id(session)
        rows = self._answer("job_peak_interval", session=full_id)
        if not self._is_partly_here(full_id):
            return rows
        try:
            lowest, highest = (
                {row["device_type"]: row for row in self._ask(name, session=full_id).to_pylist()}
                for name in ("job_peak_lowest", "job_peak_highest")
            )
        except RankmemError as exc:
            if not is_not_here(exc):
                raise
            return rows  # an older aggregator, which knows no bounds but these
        found = [
            row
            | {
                "reached_bytes": lowest[row["device_type"]]["job_peak_bytes"],
                "bound_bytes": highest[row["device_type"]]["job_peak_bytes"],
                "bound_ns": highest[row["device_type"]]["job_peak_ns"],
                "bound_utc": highest[row["device_type"]]["job_peak_utc"],
            }
            for row in rows.to_pylist()
            if row["device_type"] in lowest and row["device_type"] in highest
        ]
        return pa.Table.from_pylist(found, schema=rows.schema)

    def _is_partly_here(self, full_id: str) -> bool:
        """Whether some of the events that stayed on hosts came, and some did not.

        Otherwise a search for bounds finds little more than summaries say, or the peak.
        """
        (counted,) = self._ask("stretches_counted", session=full_id).to_pylist()
        return bool(0 < counted["here"] < counted["stretches"])

    def job_peak_bound(self, session: str | None = None, *, shares: pa.Table | None = None) -> pa.Table:
        """How certain the job's peak is, by device type; columns: those of the macro ``job_peak_bound``.

        device_type, job_peak_bytes, job_peak_ns, job_peak_utc, num_ranks, sum_of_peaks_bytes, gap_bytes,
        clock_error_ns, lowest_bytes, highest_bytes, order_is_certain, is_exact, at_least_bytes.

        Args:
            shares: the answer of :meth:`job_peak`, which takes most of the time to compute again.

        Raises:
            RankmemError: as :meth:`job_peak`; also of events that are as near as the clocks differ.
        """
        full_id = self.session_id(session)
        try:
            return self._answer("job_peak_bound", session=full_id, shares=text_of(shares))
        except RankmemError as exc:
            if not is_not_here(exc):
                raise
            known = self.job_peak(full_id) if shares is None else shares
            missing = stretches_at_peak(self.sql, full_id, known, is_known=True)
            if missing:
                raise peak_not_here(full_id, missing, self.aggregator) from exc
            return self._answer("job_peak_bound_here", session=full_id, shares=text_of(known))

    def job_peak_held(
        self, session: str | None = None, *, by: BlockBy = "category", shares: pa.Table | None = None
    ) -> pa.Table:
        """What held the job's memory at its peak; columns: those of the macro ``job_peak_held``.

        device_type, group_name, live_bytes, live_allocations, largest_bytes, num_ranks; the largest first.

        Args:
            shares: the answer of :meth:`job_peak`, which takes most of the time to compute again.

        Raises:
            RankmemError: NOT_FOUND where not all events of a rank are here: a block that is alive may be as
                old as its log.
        """
        grouping_of(by, "job-peak")
        return self._answer("job_peak_held", session=self.session_id(session), by=by, shares=text_of(shares))


def text_of(shares: pa.Table | None) -> str | None:
    """Rows of job_peak as the text of a list for ``of_shares``: a parameter on the wire cannot be a list."""
    if shares is None:
        return None
    return json.dumps(shares.select(SHARE_COLUMNS).to_pylist())
