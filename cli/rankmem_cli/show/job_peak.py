"""The job's peak in detail: shares, what held it, and how certain it is.

Stage: render. In: the answers of the named queries about the job's peak. Out: tables on stdout and the lines
between them on stderr. Computes only percentages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from rankmem_aggregator.quantity_text import counted
from rankmem_aggregator.query.not_here import is_not_here
from rankmem_cli.show import columns
from rankmem_cli.show.completeness import at_least_text, note_incompleteness, note_kernels, show_answer
from rankmem_cli.show.progress import show_progress
from rankmem_cli.show.render import Format, head, note, show_table
from rankmem_cli.show.session import SessionFacts
from rankmem_cli.show.units import age_text, bytes_text, offset_text, utc_text
from rankmem_protos.clock import distance_ns, has_clock
from rankmem_protos.devices import by_weight
from rankmem_protos.errors import RankmemError

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.query.queries import Queries
    from rankmem_aggregator.query.types import BlockBy

RANKS_SHOWN: Final = 16
"""Shares in the overview, largest first; --by rank has all."""
GROUPS_SHOWN: Final = 10
"""Enough for all categories; of the operators the largest matter."""


def print_job_peak(queries: Queries, facts: SessionFacts) -> None:
    """Writes the overview: the instant, its certainty, each rank's share, categories, operators."""
    with show_progress("querying"):
        try:
            shares = queries.job_peak(facts.session_id)
        except RankmemError as exc:
            if not is_not_here(exc):
                raise
            _note_interval(queries, facts, exc)
            return
        bounds, unknown = _bounds(queries, facts, shares)
    note(facts.title())
    if not bounds and unknown is None:
        note_kernels(facts)
    for bound in sorted(bounds, key=lambda bound: by_weight(bound["device_type"], bound["job_peak_bytes"])):
        _note_bound(bound, facts.started_ns)
    if unknown is not None:
        _note_without_bounds(facts, shares, unknown)
    elif not bounds and queries.peak(facts.session_id).num_rows:
        note(
            "no sum over the ranks: no two ranks share a clock; "
            f"{facts.given.complete('rankmem peak')} shows each rank separately"
        )
        note_incompleteness(queries, facts)
        return
    shown = head(shares, None, output=Format.TABLE, table_rows=RANKS_SHOWN)
    show_table(shown, columns.job_peak_shares())
    for by in ("category", "operator"):
        if not _print_held(queries, facts, by, shares):
            break
    note_incompleteness(queries, facts)


def _bounds(
    queries: Queries, facts: SessionFacts, shares: pa.Table
) -> tuple[list[dict[str, Any]], RankmemError | None]:
    """The rows of job_peak_bound, or the error where events that it needs are on their hosts."""
    try:
        return queries.job_peak_bound(facts.session_id, shares=shares).to_pylist(), None
    except RankmemError as exc:
        if not is_not_here(exc):
            raise
        return [], exc


def _note_without_bounds(facts: SessionFacts, shares: pa.Table, why: RankmemError) -> None:
    """Notes the peak alone."""
    peaks = {row["device_type"]: row["job_peak_bytes"] for row in shares.to_pylist()}
    for device_type, peak in peaks.items():
        note(f"{device_type}: {bytes_text(peak)}")
    note(f"  what the hosts' clocks leave open is not known: {why.message}")
    note(f"  {facts.given.complete(why.hint)}")


def _note_interval(queries: Queries, facts: SessionFacts, why: RankmemError) -> None:
    """Notes what summaries alone say of the peak, and how its events are brought."""
    note(facts.title())
    for row in queries.job_peak_interval(facts.session_id).to_pylist():
        low, high = bytes_text(row["reached_bytes"]), bytes_text(row["bound_bytes"])
        ranks = counted(row["num_ranks"], "rank")
        print(f"{row['device_type']}: between {low} and {high} on {ranks}")
    note(f"not exact: {why.message}")
    note(facts.given.complete(why.hint))


def show_part(queries: Queries, facts: SessionFacts, by: str, *, output: Format) -> None:
    """Writes a single answer in any format: each rank's share, or what held the memory."""
    with show_progress("querying"):
        if by == "rank":
            rows, shown = queries.job_peak(facts.session_id), columns.job_peak(facts.started_ns)
        else:
            rows = queries.job_peak_held(facts.session_id, by=cast("BlockBy", by))
            shown = columns.job_peak_held(by)
    show_answer(queries, facts, rows, shown, output=output)


def _print_held(queries: Queries, facts: SessionFacts, by: str, shares: pa.Table) -> bool:
    """Writes what held the memory by a grouping; returns False where blocks of a rank are on their host."""
    note("")
    note(f"held at that instant, by {by}:")
    try:
        with show_progress("querying"):
            rows = queries.job_peak_held(facts.session_id, by=cast("BlockBy", by), shares=shares)
    except RankmemError as exc:
        if not is_not_here(exc):
            raise
        note(f"not known: {exc.message}")
        note(facts.given.complete(exc.hint))
        return False
    show_table(rows.slice(0, GROUPS_SHOWN), columns.job_peak_held(by))
    if rows.num_rows > GROUPS_SHOWN:
        again = facts.given.complete(f"rankmem job-peak --by {by}")
        note(f"… and {rows.num_rows - GROUPS_SHOWN} more: {again}")
    return True


def _note_bound(bound: dict[str, Any], started_ns: int | None) -> None:
    """Notes the instant, the gap to the sum of the peaks, and the uncertainty of the clocks."""
    peak, at, total = bound["job_peak_bytes"], bound["job_peak_ns"], bound["sum_of_peaks_bytes"]
    offset = offset_text(distance_ns(at, started_ns))
    ranks = counted(bound["num_ranks"], "rank")
    utc = f" ({utc_text(at)} UTC)" if has_clock(at) else ""
    note(f"{bound['device_type']}: {bytes_text(peak)} on {ranks} at {offset}{utc}")
    gap = bytes_text(bound["gap_bytes"]) + (f" ({bound['gap_bytes'] / peak:.1%})" if peak else "")
    if bound["gap_bytes"]:
        note(f"  the ranks' own peaks add up to {bytes_text(total)}, {gap} more")
    else:
        note("  the ranks' own peaks add up to the same: all ranks peaked at this instant")
    note(f"  {_clocks(bound)}")
    if bound.get("is_exact") is False:
        least = at_least_text(bound["at_least_bytes"])
        note(f"  not exact, because events or ranks are missing (see below): {least}")


def _clocks(bound: dict[str, Any]) -> str:
    error_ns = bound["clock_error_ns"]
    if not has_clock(bound["job_peak_ns"]):
        return "one rank, recorded without times: its events are in recording order"
    if error_ns is None:
        return "the hosts' clocks were never compared: the order of events on different hosts is unknown"
    is_exact = bound.get("is_exact") is not False  # None: unknown; absent from an older aggregator's answer
    if error_ns == 0:
        return f"one clock: the order of all {'' if is_exact else 'recorded '}events is certain"
    clocks = f"the hosts' clocks agree to {age_text(error_ns)}"
    if not is_exact:
        return f"{clocks}, for the recorded events"
    if bound["order_is_certain"]:
        return f"{clocks}, and no other host has an event within that time: the answer is certain"
    low, high = bytes_text(bound["lowest_bytes"]), bytes_text(bound["highest_bytes"])
    return f"{clocks}: depending on other hosts' events in that time, the sum was between {low} and {high}"
