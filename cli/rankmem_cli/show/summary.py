"""The summary of ``rankmem run`` after the training has ended: a few lines on stderr.

Stage: render. In: the answers of the named queries. Out: text with each rank's peak, the spread of the
peaks, the job's peak, what held the memory of the highest rank, failed allocations, steps that were not
observed, missing data, and where it is stored.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rankmem_aggregator.quantity_text import counted
from rankmem_aggregator.query.not_here import is_not_here
from rankmem_cli.show import columns
from rankmem_cli.show.completeness import note_incompleteness
from rankmem_cli.show.not_recorded import placeholder
from rankmem_cli.show.render import note, show_table
from rankmem_cli.show.session import SessionFacts, session_facts
from rankmem_cli.show.steady import steady_lines
from rankmem_cli.show.units import bytes_text, count_text, offset_text, safe_text
from rankmem_protos.clock import distance_ns
from rankmem_protos.errors import RankmemError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from rankmem_aggregator.query.next_commands import GivenOptions
    from rankmem_aggregator.query.queries import Queries

RANKS_SHOWN: Final = 8
"""Rows of the table, highest first: hundreds would push the training's own output off the screen."""
OPERATORS_SHOWN: Final = 3
NEVER_SEEN: Final = ("never reported", "never came", "awaited")
"""States of ranks that sent nothing (view rank_missing); the second is from an older aggregator."""


def print_summary(
    queries: Queries, session_id: str, given: GivenOptions, *, is_delivered: bool = True
) -> None:
    """Writes the summary of a session to stderr.

    Args:
        queries: where it is stored.
        session_id: the session.
        given: the options with which a reading verb finds it.
        is_delivered: False if some of it is still on this host's disk; then nothing counts as complete.
    """
    facts = replace(session_facts(queries, session_id), given=given)
    ranks = queries.ranks(session_id)
    peaks = _of_highest_attempt(queries.peak(session_id))
    note("")
    note(_headline(facts, ranks, is_delivered=is_delivered))
    if peaks.num_rows == 0:
        note("no allocator events were recorded")
    else:
        _print_peaks(queries, facts, peaks, is_delivered=is_delivered)
    for line in [*_failures(queries, facts), *steady_lines(ranks)]:
        note(line)
    note_incompleteness(queries, facts)
    if peaks.num_rows:
        note(f"more: {given.complete('rankmem ops')}; other questions: rankmem --help")


def _print_peaks(queries: Queries, facts: SessionFacts, peaks: pa.Table, *, is_delivered: bool) -> None:
    shown = columns.summary(facts.started_ns, is_delivered=is_delivered)
    show_table(peaks.slice(0, RANKS_SHOWN), shown, file=sys.stderr)
    if peaks.num_rows > RANKS_SHOWN:
        note(f"… and {peaks.num_rows - RANKS_SHOWN} more: {facts.given.complete('rankmem peak')}")
    rows = peaks.to_pylist()
    for device_type in dict.fromkeys(row["device_type"] for row in rows):
        _print_device_type(queries, facts, [row for row in rows if row["device_type"] == device_type])


def _failures(queries: Queries, facts: SessionFacts) -> list[str]:
    """The allocations that failed, in a line that names the command for details; none if none failed."""
    failed = queries.oom(facts.session_id).to_pylist()
    if not failed:
        return []
    first = failed[0]
    ranks = sorted({row["rank"] for row in failed})
    since = distance_ns(first["time_ns"], facts.started_ns)
    asked = f"{bytes_text(first['size_bytes'])} on {safe_text(first['device'])} at {offset_text(since)}"
    number = counted(len(failed), "allocation")
    which = f"{_some(ranks)}, {asked}" if len(failed) == 1 else f"{_some(ranks)}; the first asked for {asked}"
    return [f"out of memory: {number} failed ({which}): {facts.given.complete('rankmem oom')}"]


def _of_highest_attempt(peaks: pa.Table) -> pa.Table:
    """Each rank and device once, with the attempt of its highest peak."""
    return peaks.filter(peaks["is_rank_peak"])


def _headline(facts: SessionFacts, ranks: pa.Table, *, is_delivered: bool) -> str:
    absent = sorted({row["rank"] for row in ranks.to_pylist() if row["state"] in NEVER_SEEN})
    rows = [row for row in ranks.to_pylist() if row["state"] not in NEVER_SEEN]
    events = sum(row["events"] or 0 for row in rows)
    losses = [row["events_lost"] for row in rows]
    total = None if None in losses else sum(losses)
    # Lost records are counted, and not all records are events.
    at_most = "at most " if total else ""
    lost = "an unknown number of events" if total is None else f"{at_most}{count_text(total)}"
    incomplete = sorted(row["rank"] for row in rows if row["complete"] is not True)
    name = f" {facts.name}" if facts.name else ""
    state = "" if is_delivered else " so far, not everything is stored yet"
    state += ", all complete" if is_delivered and not incomplete and not absent else ""
    state += f", incomplete: {_some(incomplete)}" if incomplete else ""
    state += f", never reported: {_some(absent)}" if absent else ""
    return (
        f"rankmem: session {facts.session_id}{name}, {counted(len({row['rank'] for row in rows}), 'rank')}, "
        f"{count_text(events)} events, {lost} lost{state}"
    )


def _print_device_type(queries: Queries, facts: SessionFacts, rows: list[dict[str, Any]]) -> None:
    highest, lowest = rows[0], rows[-1]
    top, bottom = highest["peak_requested_bytes"], lowest["peak_requested_bytes"]
    if len(rows) > 1:
        apart = f" ({(top - bottom) / top:.1%} of the highest)" if top else ""
        note(
            f"spread over {len(rows)}: {bytes_text(top - bottom)} between rank {highest['rank']} and rank "
            f"{lowest['rank']}{apart}"
        )
        _unless_not_here(facts, "job's peak", lambda: _print_job_peak(queries, facts, highest["device_type"]))
    held_at = f"held at the peak of rank {highest['rank']}"
    _unless_not_here(facts, held_at, lambda: _print_held(queries, facts, highest, held_at))


def _unless_not_here(facts: SessionFacts, what: str, print_it: Callable[[], None]) -> None:
    """Says what is not known where events that it needs are still on their hosts."""
    try:
        print_it()
    except RankmemError as exc:
        if not is_not_here(exc):
            raise
        note(f"{what}: not known: {exc.message}")
        note(f"Try: {facts.given.complete(exc.hint)}")


def _print_held(queries: Queries, facts: SessionFacts, highest: dict[str, Any], held_at: str) -> None:
    held = queries.ops(
        facts.session_id, at="peak", rank=highest["rank"], device=highest["device"]
    ).to_pylist()
    unnamed = placeholder(facts, "operators")
    largest = [
        f"{safe_text(row['operator'] or unnamed)} {bytes_text(row['live_bytes_at_peak'])}"
        for row in held[:OPERATORS_SHOWN]
    ]
    note(f"{held_at}: {', '.join(largest)}")


def _print_job_peak(queries: Queries, facts: SessionFacts, device_type: str) -> None:
    shares = [
        row for row in queries.job_peak(facts.session_id).to_pylist() if row["device_type"] == device_type
    ]
    if not shares:
        return
    at = shares[0]["job_peak_ns"]
    offset = offset_text(distance_ns(at, facts.started_ns))
    peak = bytes_text(shares[0]["job_peak_bytes"])
    note(f"job's peak ({device_type}, all ranks at one instant): {peak} at {offset}")


def _some(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:RANKS_SHOWN])
    return f"rank {shown}" + (" …" if len(ranks) > RANKS_SHOWN else "")
