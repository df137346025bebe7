"""What ``rankmem run`` says when the training has ended: a few lines on stderr.

Stage: render. In come the answers of the named queries, out goes text: each rank's peak, how far the ranks
are apart, the job's peak, what held the memory of the worst rank, whether an allocation failed, whether
anything is missing, where it is.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from rankmem_cli.show import columns
from rankmem_cli.show.completeness import note_incompleteness
from rankmem_cli.show.not_recorded import placeholder
from rankmem_cli.show.render import note, show_table
from rankmem_cli.show.session import SessionFacts, session_facts
from rankmem_cli.show.units import bytes_text, count_text, offset_text, safe_text
from rankmem_protos.clock import distance_ns

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.query.queries import Queries

RANKS_SHOWN: Final = 8
"""Rows of the table: the highest. Hundreds would push the training's own last lines off the screen."""
OPERATORS_SHOWN: Final = 3
NEVER_SEEN: Final = ("never reported", "never came", "awaited")
"""States of ranks that sent nothing (view rank_missing); the second is an older aggregator's."""


def print_summary(queries: Queries, session_id: str, shown: str, *, is_delivered: bool = True) -> None:
    """Writes the summary of a session to stderr.

    Args:
        queries: where it is stored.
        session_id: the session.
        shown: the flag with which a reading verb finds it.
        is_delivered: False where some of it is still on this host's disk: then nothing is called complete.
    """
    facts = session_facts(queries, session_id)
    ranks = queries.ranks(session_id)
    peaks = _of_highest_attempt(queries.peak(session_id))
    note("")
    note(_headline(facts, ranks, is_delivered=is_delivered))
    if peaks.num_rows == 0:
        note("no allocator events were recorded")
    else:
        _print_peaks(queries, facts, peaks, is_delivered=is_delivered)
    for line in _failures(queries, facts, shown):
        note(line)
    note_incompleteness(queries, facts)
    if peaks.num_rows:
        note(f"more: rankmem peak | ops | live | sql {shown}")


def _print_peaks(queries: Queries, facts: SessionFacts, peaks: pa.Table, *, is_delivered: bool) -> None:
    shown = columns.summary(facts.started_ns, is_delivered=is_delivered)
    show_table(peaks.slice(0, RANKS_SHOWN), shown, file=sys.stderr)
    if peaks.num_rows > RANKS_SHOWN:
        note(f"… and {peaks.num_rows - RANKS_SHOWN} more: rankmem peak")
    rows = peaks.to_pylist()
    for device_type in dict.fromkeys(row["device_type"] for row in rows):
        _print_device_type(queries, facts, [row for row in rows if row["device_type"] == device_type])


def _failures(queries: Queries, facts: SessionFacts, shown: str) -> list[str]:
    """The allocations that failed, in a line that leads to their answer; none where none did."""
    failed = queries.oom(facts.session_id).to_pylist()
    if not failed:
        return []
    first = failed[0]
    ranks = sorted({row["rank"] for row in failed})
    since = distance_ns(first["time_ns"], facts.started_ns)
    asked = f"{bytes_text(first['size_bytes'])} on {safe_text(first['device'])} at {offset_text(since)}"
    number = _plural(len(failed), "allocation")
    which = f"{_some(ranks)}, {asked}" if len(failed) == 1 else f"{_some(ranks)}; the first asked for {asked}"
    return [f"out of memory: {number} failed ({which}): rankmem oom {shown}".rstrip()]


def _of_highest_attempt(peaks: pa.Table) -> pa.Table:
    """Each rank and device once: on the attempt in which it stood highest."""
    return peaks.filter(peaks["is_rank_peak"])


def _headline(facts: SessionFacts, ranks: pa.Table, *, is_delivered: bool) -> str:
    absent = sorted({row["rank"] for row in ranks.to_pylist() if row["state"] in NEVER_SEEN})
    rows = [row for row in ranks.to_pylist() if row["state"] not in NEVER_SEEN]
    events = sum(row["events"] or 0 for row in rows)
    losses = [row["events_lost"] for row in rows]
    total = None if None in losses else sum(losses)
    # What is lost are records, of which an event is one: so many events at most.
    at_most = "at most " if total else ""
    lost = "an unknown number of events" if total is None else f"{at_most}{count_text(total)}"
    incomplete = sorted(row["rank"] for row in rows if row["complete"] is not True)
    name = f" {facts.name}" if facts.name else ""
    told = "" if is_delivered else " so far, not all is stored yet"
    told += ", all complete" if is_delivered and not incomplete and not absent else ""
    told += f", incomplete: {_some(incomplete)}" if incomplete else ""
    told += f", never reported: {_some(absent)}" if absent else ""
    return (
        f"rankmem: session {facts.session_id}{name}, {_plural(len({row['rank'] for row in rows}), 'rank')}, "
        f"{count_text(events)} events, {lost} lost{told}"
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
        _print_job_peak(queries, facts, highest["device_type"])
    held = queries.ops(
        facts.session_id, at="peak", rank=highest["rank"], device=highest["device"]
    ).to_pylist()
    unnamed = placeholder(facts, "operators")
    largest = [
        f"{safe_text(row['operator'] or unnamed)} {bytes_text(row['live_bytes_at_peak'])}"
        for row in held[:OPERATORS_SHOWN]
    ]
    note(f"held at the peak of rank {highest['rank']}: {', '.join(largest)}")


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


def _plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _some(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:RANKS_SHOWN])
    return f"rank {shown}" + (" …" if len(ranks) > RANKS_SHOWN else "")
