"""A device's fragmentation over time: of a bounded number of instants, each as ``/segments`` has it.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.page.answers.segments import device_of, state_rows
from rankmem_aggregator.page.device_state import DeviceLog
from rankmem_aggregator.page.parameters import DEVICE, RANK, TIME, check_range, parameter
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute

INSTANTS: Final = 96
"""At which fragmentation is computed, and failures: each looks at all blocks."""
FAILURES_MAX: Final = 32
"""Of the range, the earliest: each is looked at like an instant."""
ROWS_MAX: Final = 200_000
"""Blocks, and actions on segments, that are read for fragmentation over time; what came later is left out."""
LOOKS_MAX: Final = 4_000_000
"""Blocks times instants: half a second. Beyond that fewer instants are looked at."""

_CURVE: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("time_ns", pa.int64()),
        ("reserved_bytes", pa.int64()),
        ("used_bytes", pa.int64()),
        ("unused_bytes", pa.int64()),
        ("largest_free_bytes", pa.int64()),
        ("fragmentation", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentationAsked:
    """Parameters of ``/fragmentation``."""

    rank: int = parameter(RANK, "global rank")
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)
    from_ns: int | None = parameter(TIME, "begin, ns since the session's start", name="from", default=None)
    until_ns: int | None = parameter(TIME, "end", name="to", default=None)


def fragmentation(reading: Reading, asked: FragmentationAsked) -> pa.Table:
    """Fragmentation at instants spread evenly over a range of the log, at its peak and at its failures.

    Columns: seq, time_ns (since the session's start), reserved_bytes, used_bytes (rounded up), unused_bytes,
    largest_free_bytes, fragmentation (NULL where nothing is unused). Facts: failures (their seqs); cut_seq,
    the event from which on nothing was read, where there is more than ``rows_max``.
    """
    if asked.from_ns is not None or asked.until_ns is not None:
        check_range(asked.from_ns, asked.until_ns)
    track = reading.track(asked.rank, asked.attempt, asked.device)
    known = bool(reading.ask("has_segments", **device_of(track))["known"][0].as_py())
    facts: dict[str, Any] = {
        "source": "allocation_record, memory_event, older_segment",
        "rank": track.rank,
        "attempt": track.attempt,
        "device": track.device,
        "peak_seq": track.peak_seq,
        "knows_segments": known,
    }
    if not known:  # events and blocks need not be read
        reading.show("has_segments", **device_of(track))
        return reading.answer(_CURVE.empty_table(), exact=True, events=0, failures=[], cut_seq=None, **facts)
    instants = reading.ask(
        "instants",
        **device_of(track),
        offset_ns=track.offset_ns,
        from_ns=reading.absolute(asked.from_ns),
        until_ns=reading.absolute(asked.until_ns),
        num_instants=INSTANTS,
        num_failures=FAILURES_MAX,
        peak_seq=track.peak_seq,
    )
    parts = state_rows(reading, track, instants["seq"].to_pylist(), ROWS_MAX + 1)
    cut_seq = int(parts["seq"][ROWS_MAX].as_py()) if parts.num_rows > ROWS_MAX else None
    if cut_seq is not None:  # what was made before it is there, so what came before it is exact
        parts = parts.slice(0, ROWS_MAX)
        instants = instants.filter(pc.less(instants["seq"], cut_seq))
    instants = _fewer(instants, LOOKS_MAX // max(1, parts.num_rows), track.peak_seq)
    log = DeviceLog(parts, track.device)
    seqs = instants["seq"].to_pylist()
    states = [log.state_after(seq) for seq in seqs]
    rows = reading.relative(instants, "time_ns")
    found = pa.table(
        [
            rows["seq"],
            rows["time_ns"],
            [each.reserved_bytes for each in states],
            [each.reserved_bytes - each.unused_bytes for each in states],
            [each.unused_bytes for each in states],
            [each.largest_hole_bytes for each in states],
            [each.fragmentation for each in states],
        ],
        schema=_CURVE,
    )
    events = int(instants["events"][0].as_py()) if seqs else 0
    failures = instants.filter(instants["is_failure"])["seq"].to_pylist()
    exact = cut_seq is None and len(seqs) >= events
    return reading.answer(
        found, exact=exact, events=events, failures=failures, cut_seq=cut_seq, rows_max=ROWS_MAX, **facts
    )


def _fewer(instants: pa.Table, most: int, peak_seq: int) -> pa.Table:
    """At most so many of them, evenly, but for the peak, the failures and both ends."""
    if instants.num_rows <= most:
        return instants
    seqs = instants["seq"].to_numpy()
    kept = instants["is_failure"].to_numpy() | (seqs == peak_seq)
    kept[np.linspace(0, len(seqs) - 1, max(2, most - int(kept.sum()))).astype(int)] = True
    return instants.filter(pa.array(kept))


ROUTES: Final = (SessionRoute(path="/fragmentation", parameters=FragmentationAsked, answer=fragmentation),)
