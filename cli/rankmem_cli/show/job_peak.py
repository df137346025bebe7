"""The job's peak taken apart: shares, what held it, and how sure it is.

Stage: render. In come the answers of the named queries about the job's peak, out go tables on stdout and, on
stderr, the lines between them. Computes nothing but percentages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rankmem_cli.show import columns
from rankmem_cli.show.completeness import at_least_text, note_incompleteness, note_kernels, show_answer
from rankmem_cli.show.progress import show_progress
from rankmem_cli.show.render import Format, head, note, show_table
from rankmem_cli.show.session import SessionFacts
from rankmem_cli.show.units import age_text, bytes_text, offset_text, utc_text
from rankmem_protos.clock import distance_ns, has_clock
from rankmem_protos.devices import by_weight

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.query.queries import Queries
    from rankmem_aggregator.query.types import BlockBy

RANKS_SHOWN: Final = 16
"""Shares in the overview: the largest; --by rank has all."""
GROUPS_SHOWN: Final = 10
"""Categories are nine and what is older; of operators the largest tell most."""


def print_job_peak(queries: Queries, facts: SessionFacts) -> None:
    """Writes the overview: the instant, how sure it is, each rank's share, categories, operators."""
    with show_progress("asking"):
        shares = queries.job_peak(facts.session_id)
        bounds = queries.job_peak_bound(facts.session_id, shares=shares).to_pylist()
    note(facts.title())
    if not bounds:
        note_kernels(facts)
    for bound in sorted(bounds, key=lambda bound: by_weight(bound["device_type"], bound["job_peak_bytes"])):
        _say(bound, facts.started_ns)
    if not bounds and queries.peak(facts.session_id).num_rows:
        note("no sum over the ranks: no two of them have times on one clock; rankmem peak has each by itself")
        note_incompleteness(queries, facts)
        return
    shown = head(shares, None, output=Format.TABLE, table_rows=RANKS_SHOWN)
    show_table(shown, columns.job_peak_shares())
    for by in ("category", "operator"):
        _print_held(queries, facts, by, shares)
    note_incompleteness(queries, facts)


def show_part(queries: Queries, facts: SessionFacts, by: str, *, output: Format) -> None:
    """Writes one of its answers alone, in any format: each rank's share, or what held it."""
    with show_progress("asking"):
        if by == "rank":
            rows, shown = queries.job_peak(facts.session_id), columns.job_peak(facts.started_ns)
        else:
            rows = queries.job_peak_held(facts.session_id, by=_by(by))
            shown = columns.job_peak_held(by)
    show_answer(queries, facts, rows, shown, output=output)


def _print_held(queries: Queries, facts: SessionFacts, by: str, shares: pa.Table) -> None:
    with show_progress("asking"):
        rows = queries.job_peak_held(facts.session_id, by=_by(by), shares=shares)
    note("")
    note(f"held then, by {by}:")
    show_table(rows.slice(0, GROUPS_SHOWN), columns.job_peak_held(by))
    if rows.num_rows > GROUPS_SHOWN:
        note(f"… and {rows.num_rows - GROUPS_SHOWN} more: rankmem job-peak --by {by}")


def _say(bound: dict[str, Any], started_ns: int | None) -> None:
    """The instant, the gap to the sum of the peaks, and what the clocks leave open."""
    peak, at, total = bound["job_peak_bytes"], bound["job_peak_ns"], bound["sum_of_peaks_bytes"]
    offset = offset_text(distance_ns(at, started_ns))
    utc = f" ({utc_text(at)} UTC)" if has_clock(at) else ""
    ranks = "1 rank" if bound["num_ranks"] == 1 else f"{bound['num_ranks']} ranks"
    note(f"{bound['device_type']}: {bytes_text(peak)} on {ranks} at {offset}{utc}")
    gap = bytes_text(bound["gap_bytes"]) + (f" ({bound['gap_bytes'] / peak:.1%})" if peak else "")
    if bound["gap_bytes"]:
        note(f"  the ranks' own peaks add up to {bytes_text(total)}, {gap} more")
    else:
        note("  the ranks' own peaks add up to the same: all stood highest then")
    note(f"  {_clocks(bound)}")
    if bound.get("is_exact") is False:
        note(
            f"  not exact, for events or ranks are missing (below): {at_least_text(bound['at_least_bytes'])}"
        )


def _clocks(bound: dict[str, Any]) -> str:
    error_ns = bound["clock_error_ns"]
    if not has_clock(bound["job_peak_ns"]):
        return "one rank, recorded without times: its events are in the order of the recording"
    if error_ns is None:
        return "the hosts' clocks were never compared: the order of events on different hosts is open"
    is_exact = bound.get("is_exact") is not False  # None: nobody knows; an older one does not say
    if error_ns == 0:
        return f"one clock: the order of all events {'' if is_exact else 'that were recorded '}is certain"
    clocks = f"the hosts' clocks agree to {age_text(error_ns)}"
    if not is_exact:
        return f"{clocks}, of the events that were recorded"
    if bound["order_is_certain"]:
        return f"{clocks}, and no other host has an event so close: the answer is certain"
    low, high = bytes_text(bound["lowest_bytes"]), bytes_text(bound["highest_bytes"])
    return f"{clocks}: with other hosts' events within that, the sum then was between {low} and {high}"


def _by(by: str) -> BlockBy:
    return by  # type: ignore[return-value]
