"""The user's annotations in a memory snapshot, and metadata of allocations, as markers.

Stage: readers; the process of ``rankmem import``. In: a snapshot's events as records, and the annotations.
Out: the records with markers between them, in order of time. ``external_annotations`` (the profiler's
ranges) have a beginning and an end of their own. ``user_metadata``
(``torch.cuda.memory._set_memory_metadata``) stands at each event: its marker begins before the first alloc
that has it and ends before the first that has another. An ``annotate`` entry is a marker of no length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rankmem_agent.spool.layout import Action, Kind, MarkerKind
from rankmem_imports.replay import MemoryStrings
from rankmem_imports.torch_snapshot.trace import ANNOTATE, TIME_US_MAX, DeviceTrace
from rankmem_ship.pairing.state import Array
from rankmem_ship.spool_reader.segments import RECORD_DTYPE

ANNOTATIONS_MAX: Final = 10_000_000
"""A snapshot's ring of annotations is as long as its ring of events."""


def with_markers(
    records: Array, annotations: object, traces: Sequence[tuple[DeviceTrace, Array]], strings: MemoryStrings
) -> Array:
    """The records with markers between them.

    Args:
        records: of all devices, in order of time.
        annotations: the snapshot's ``external_annotations``.
        traces: of the devices, with the places of their records among all.
        strings: for the names.

    Raises:
        KeyError, TypeError, ValueError: the annotations are malformed.
    """
    made = _Made(strings)
    if isinstance(annotations, list):
        made.annotations(annotations[:ANNOTATIONS_MAX], records["time_ns"])
    made.metadata(traces, records)
    for trace, places in traces:
        made.labels(trace, places, records)
    if not made.places:
        return records
    rows = np.concatenate(made.rows)
    with_them: Array = np.insert(records, np.array(made.places), rows)
    return with_them


def first_annotation_ns(annotations: object) -> int:
    """When the first range of ``external_annotations`` began: the only time of a snapshot without
    events; 0 without one.

    Raises:
        AttributeError, TypeError, ValueError: the annotations are malformed.
    """
    found = annotations[:ANNOTATIONS_MAX] if isinstance(annotations, list) else []
    return min((_time_us(one) for one in found if 0 < _time_us(one) <= TIME_US_MAX), default=0) * 1000


def _time_us(annotation: dict[str, Any]) -> int:
    return int(annotation.get("time_us") or 0)


class _Made:
    """Markers, and before which record each stands."""

    def __init__(self, strings: MemoryStrings) -> None:
        self.places: list[int] = []
        self.rows: list[Array] = []
        self._strings = strings
        self._count = 0

    def annotations(self, annotations: list[Any], times_ns: Array) -> None:
        """Ranges by name; an end closes the one of its name that began last."""
        known = [one for one in annotations if 0 <= _time_us(one) <= TIME_US_MAX]
        open_ones: dict[str, list[int]] = {}
        for one in sorted(known, key=_time_us):
            time_ns, name = _time_us(one) * 1000, str(one["name"])
            if one["stage"] == "START":
                place = int(np.searchsorted(times_ns, time_ns, side="left"))
                number = self._begin(place, time_ns, name, MarkerKind.USER_SCOPE)
                open_ones.setdefault(name, []).append(number)
            elif open_ones.get(name):
                place = int(np.searchsorted(times_ns, time_ns, side="right"))
                self._end(place, time_ns, open_ones[name].pop())

    def metadata(self, traces: Sequence[tuple[DeviceTrace, Array]], records: Array) -> None:
        """Runs of allocs that have the same text."""
        if not any(entry.get("user_metadata") for trace, _ in traces for entry in trace.entries):
            return
        texts = sorted(
            (place, str(entry.get("user_metadata") or ""))
            for trace, places in traces
            for place, entry in zip(places.tolist(), trace.entries, strict=True)
            if records["action"][place] == Action.ALLOC
        )
        before, number = "", 0
        for place, text in texts:
            if text == before:
                continue
            time_ns = int(records["time_ns"][place])
            if before:
                self._end(place, time_ns, number)
            if text:
                number = self._begin(place, time_ns, text, MarkerKind.ANNOTATE)
            before = text

    def labels(self, trace: DeviceTrace, places: Array, records: Array) -> None:
        """Texts that single blocks were given, at the instant of the record before."""
        for number, entry in trace.ignored:
            text = entry.get("user_metadata")
            if entry["action"] == ANNOTATE and text:
                place = int(places[number - 1]) + 1 if number else 0
                time_ns = int(records["time_ns"][max(place - 1, 0)]) if len(records) else 0
                self._end(place, time_ns, self._begin(place, time_ns, str(text), MarkerKind.ANNOTATE))

    def _begin(self, place: int, time_ns: int, name: str, kind: MarkerKind) -> int:
        self._count += 1
        row = np.zeros(1, RECORD_DTYPE)
        row["kind"], row["action"], row["a"] = Kind.MARKER_BEGIN, kind, self._count
        row["time_ns"], row["e"] = time_ns, self._strings.intern(name)
        self._add(place, row)
        return self._count

    def _end(self, place: int, time_ns: int, number: int) -> None:
        row = np.zeros(1, RECORD_DTYPE)
        row["kind"], row["a"], row["time_ns"] = Kind.MARKER_END, number, time_ns
        self._add(place, row)

    def _add(self, place: int, row: Array) -> None:
        self.places.append(place)
        self.rows.append(row)
