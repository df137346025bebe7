"""How much memory an allocator loses to fragmentation, and which of its settings would give it back.

Stage: query, in the reader's process. In: a way to ask named queries. Out: an ``Answer``.

**What is lost** is not what is reserved and unused: most of that is a cache, which the allocator gives back
before a request fails. live: bytes in blocks, as the allocator rounds them. needed: the smallest device on
which the recording runs, found by replays within 16 MiB. stuck = needed - the highest live. cache = the
highest reserved - needed. A setting saves needed(now) - needed(setting).

**How sure.** Every answer first replays the recording under its own settings and compares every allocation
with what was recorded; if the bytes reserved differ, nothing is told.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.insights import fragmentation_text as text
from rankmem_aggregator.insights.answer import Answer, Ask, cannot_tell
from rankmem_aggregator.insights.lives import Trace
from rankmem_aggregator.insights.packing import intervals, live_peak_bytes, packed_bytes
from rankmem_aggregator.insights.reading import EVENTS_MAX, CannotTell, TracedDevice, read_trace
from rankmem_aggregator.insights.replays import NEEDED_WITHIN_BYTES, Check, check, needed_bytes, run
from rankmem_aggregator.insights.settings import Settings

TRIED: Final = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:8",
)
"""Beside the recording's own. garbage_collection_threshold acts only with a memory fraction set."""
DIFFERENCE_SHARE_MAX: Final = 0.01
"""Of the highest reserved: by more than this the model of other than the default settings may not miss it."""
ADDRESS_SHARE_LEAST: Final = 0.5
"""Of the addresses, where reserved differs at all: with fewer the settings were not at work, or not these."""
FINDING_SHARE: Final = 0.02
"""Of what is needed now: a setting that saves at least this, and two steps of the search, is a finding."""
OLDER_SHARE: Final = 0.042
"""Of what is needed now: with blocks older than the recording a saving below this may come of their assumed
places, which moved reserved by -3.7 to +0.5 % where that was measured."""

SCHEMA: Final = pa.schema(
    [
        ("settings", pa.string()),
        ("is_current", pa.bool_()),
        ("reserved_peak_bytes", pa.int64()),
        ("needed_bytes", pa.int64()),
        ("saved_bytes", pa.int64()),
        ("reserved_change_bytes", pa.int64()),
        ("live_peak_bytes", pa.int64()),
        ("is_measured", pa.bool_()),
    ]
)
"""The rows of the answer, the least needed first. settings: as in PYTORCH_CUDA_ALLOC_CONF, empty for the
default; saved_bytes and reserved_change_bytes: against the current ones; is_measured: whether the model of
these settings was held against recordings of such a device, beside PyTorch's own allocator on a simulated
one."""


def fragmentation_of(
    ask: Ask,
    session_id: str,
    *,
    rank: int | None,
    attempt: int | None = None,
    device: str | None = None,
    events_max: int = EVENTS_MAX,
) -> Answer:
    """What one device of a rank loses to fragmentation. Args as :func:`~.reading.read_trace`."""
    try:
        traced = read_trace(ask, session_id, rank=rank, attempt=attempt, device=device, events_max=events_max)
        found = check(traced.trace)
        _refuse(traced, found)
    except CannotTell as reason:
        return cannot_tell("fragmentation", session_id, str(reason), SCHEMA)
    return answer_of(session_id, traced, found)


def answer_of(session_id: str, traced: TracedDevice, found: Check) -> Answer:
    """The answer for a trace whose check has passed."""
    trace = traced.trace
    rows = _rows(traced)
    current = next(row for row in rows if row["is_current"])
    figures: dict[str, Any] = {
        "attempt": traced.attempt,
        "rank": traced.rank,
        "device": traced.device,
        "settings": trace.settings.text(),
        "recorded_reserved_peak_bytes": found.recorded_peak_bytes,
        "live_peak_bytes": current["live_peak_bytes"],
        "needed_bytes": current["needed_bytes"],
        "needed_within_bytes": NEEDED_WITHIN_BYTES,
        "cache_bytes": max(found.recorded_peak_bytes - current["needed_bytes"], 0),
        "stuck_bytes": current["needed_bytes"] - current["live_peak_bytes"],
        "packed_bytes": packed_bytes(intervals(trace, trace.settings)),
        "num_allocations": found.num_allocations,
        "num_same_address": found.num_same_address,
        "reserved_difference_bytes": found.reserved_difference_bytes,
        "num_older": trace.num_older,
        "num_unknown_frees": trace.num_unknown_frees,
        "num_failed": traced.num_failed,
        "largest_failed_bytes": traced.largest_failed_bytes,
    }
    best = _best(rows, current)
    may_be_of_older = (
        best is not None
        and trace.num_older > 0
        and best["saved_bytes"] < current["needed_bytes"] * OLDER_SHARE
    )
    return Answer(
        question="fragmentation",
        session_id=session_id,
        verdict="finding" if best is not None else "fine",
        certainty="suspected" if may_be_of_older else "predicted",
        sentence=text.sentence(traced.name, figures, best),
        error=text.error(figures, best, may_be_of_older=may_be_of_older),
        rows=pa.Table.from_pylist(rows, schema=SCHEMA),
        figures=figures,
        notes=(*text.unused(trace), *text.notes(figures, rows)),
        next_commands=text.next_commands(figures, best),
    )


def _refuse(traced: TracedDevice, found: Check) -> None:
    """Raises CannotTell where the replay is not the recording."""
    is_default = not traced.trace.settings.text()
    allowed = 0 if is_default else found.recorded_peak_bytes * DIFFERENCE_SHARE_MAX
    is_elsewhere = found.num_same_address < ADDRESS_SHARE_LEAST * found.num_allocations
    if found.reserved_difference_bytes > (0 if is_elsewhere else allowed):
        raise CannotTell(text.differs(traced.name, found))


def tried_with(trace: Trace) -> list[Settings]:
    """The settings to try; where expandable segments were set to no effect, none with these."""
    found = [trace.settings.changed(one) for one in TRIED]
    return [one for one in found if not (trace.lacks_expandable and one.expandable_segments)]


def _rows(traced: TracedDevice) -> list[dict[str, Any]]:
    """A row for each setting, the least needed first."""
    own = traced.trace.settings
    tried = dict.fromkeys((own, *tried_with(traced.trace)))
    rows = [_row(traced, settings, is_current=settings == own) for settings in tried]
    current = rows[0]
    for row in rows:
        row["saved_bytes"] = current["needed_bytes"] - row["needed_bytes"]
        row["reserved_change_bytes"] = row["reserved_peak_bytes"] - current["reserved_peak_bytes"]
    return sorted(rows, key=lambda row: (row["needed_bytes"], row["reserved_peak_bytes"], row["settings"]))


def _row(traced: TracedDevice, settings: Settings, *, is_current: bool) -> dict[str, Any]:
    outcome = run(traced.trace, settings)
    return {
        "settings": settings.text(),
        "is_current": is_current,
        "reserved_peak_bytes": outcome.reserved_peak_bytes,
        "needed_bytes": needed_bytes(traced.trace, settings, outcome),
        "live_peak_bytes": live_peak_bytes(intervals(traced.trace, settings)),
        "is_measured": settings.is_measured(),
    }


def _best(rows: list[dict[str, Any]], current: dict[str, Any]) -> dict[str, Any] | None:
    """The row of the setting that saves most, if that is worth a finding."""
    best = max(rows, key=lambda row: row["saved_bytes"])
    least = max(current["needed_bytes"] * FINDING_SHARE, 2 * NEEDED_WITHIN_BYTES)
    return best if best["saved_bytes"] >= least else None
