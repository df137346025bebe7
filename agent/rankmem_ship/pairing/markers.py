"""Markers: ranges that the user or the framework named, closed by their MARKER_END.

Stage: pairing; shipper process, pure functions over arrays. A marker's depth is the number of markers
open on its thread when it began. Its row goes out when it has ended, or at the end of the log. A marker may
be closed on another thread (a Work of torch.distributed); it was open on the one where it began. Where
records are missing it may have ended: from there on nothing lies within it; its end is known if that comes.

The annotation of an instant on a thread is the innermost range of the user's that is open there: made with
``rankmem_agent.annotate``, NVTX, or ``record_function`` under a name that is not torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_agent.spool.layout import Kind, MarkerKind
from rankmem_ship.pairing.state import ABSENT, MARKER_DTYPE, Array, joined, rows_at
from rankmem_ship.spool_reader.segments import named

OPEN_MARKERS_MAX: Final = 65_536
"""Markers open at once; a program that never closes its ranges loses the oldest, not the shipper's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """The markers of a batch."""

    table: Array
    """MARKER_DTYPE: open before or begun in the batch."""
    ended_ns: Array
    """int64, of each; ABSENT while open."""
    annotated: dict[int, tuple[Array, Array]]
    """By thread: places in the batch, ascending, the first -1; and the annotation's name from there on."""

    def still_open(self) -> Array:
        """The rows of the table that have not ended."""
        return rows_at(self.table, self.ended_ns == ABSENT)[-OPEN_MARKERS_MAX:]

    def annotations(self, threads: Array, places: Array) -> Array:
        """The name (string id, 0: none) of the annotation open on each thread at each place of the batch."""
        names = np.zeros(len(threads), np.uint32)
        for thread, (begins, tops) in self.annotated.items():
            own = np.flatnonzero(threads == thread)
            names[own] = tops[np.searchsorted(begins, places[own], side="right") - 1]
        return names


def follow_markers(
    open_markers: Array,
    records: Array,
    time_ns: Array,
    holes: Array,
    are_torchs_own: Callable[[Array], Array],
) -> Markers:
    """The markers open before a batch and begun in it, with their ends.

    Args:
        open_markers: MARKER_DTYPE, in order of their beginning.
        records: the batch's, RECORD_DTYPE; time_ns: their host times.
        holes: places in the batch before which records are missing, ascending.
        are_torchs_own: which names of user scopes (string ids) are no annotation.
    """
    kind = records["kind"]
    places = np.flatnonzero((kind == Kind.MARKER_BEGIN) | (kind == Kind.MARKER_END))
    if not len(places) and not len(open_markers):
        return Markers(table=open_markers, ended_ns=np.zeros(0, np.int64), annotated={})
    moves = named(rows_at(records, places), Kind.MARKER_BEGIN)
    begins = moves["kind"] == Kind.MARKER_BEGIN
    begun = np.zeros(int(begins.sum()), MARKER_DTYPE)
    begun["marker_id"], begun["started_ns"] = moves["marker_id"][begins], time_ns[places[begins]]
    begun["name"], begun["kind"] = moves["name"][begins], moves["marker_kind"][begins]
    begun["thread"] = moves["thread"][begins]
    table = joined([open_markers, begun])
    nest = _Nest(table, np.where(_are_annotations(table, are_torchs_own), table["name"], 0))
    for number in range(len(open_markers)):
        nest.begin(number, -1)
    number = len(open_markers)
    missing = holes.tolist()
    for place, is_begin, marker_id in zip(
        places.tolist(), begins.tolist(), moves["marker_id"].tolist(), strict=True
    ):
        while missing and missing[0] <= place:
            nest.doubt(missing.pop(0))
        if is_begin:
            table["depth"][number] = nest.begin(number, place)
            number += 1
        else:
            nest.end(marker_id, place, int(time_ns[place]))
    for place in missing:
        nest.doubt(place)
    table["in_doubt"] = nest.in_doubt
    return Markers(table=table, ended_ns=nest.ended_ns, annotated=nest.annotated())


def _are_annotations(table: Array, are_torchs_own: Callable[[Array], Array]) -> Array:
    kind = table["kind"]
    annotations: Array = (kind == MarkerKind.ANNOTATE) | (kind == MarkerKind.NVTX)
    scopes = np.flatnonzero(kind == MarkerKind.USER_SCOPE)
    annotations[scopes] = ~are_torchs_own(table["name"][scopes])
    return annotations


class _Nest:
    """The markers open on each thread, followed one move at a time: they are few compared with events.

    Args:
        table: MARKER_DTYPE; a marker's number is its place in it.
        annotation: of each, its name if it is the user's, else 0.
    """

    def __init__(self, table: Array, annotation: Array) -> None:
        self._ids = table["marker_id"].tolist()
        self._threads = table["thread"].tolist()
        self._annotation = annotation.tolist()
        self._open: dict[int, list[int]] = {}
        self._by_id: dict[int, int] = {}
        self._tops: dict[int, list[tuple[int, int]]] = {}
        self.in_doubt: list[bool] = table["in_doubt"].tolist()
        self.ended_ns = np.full(len(table), ABSENT)

    def begin(self, number: int, place: int) -> int:
        """Open a marker; returns its depth."""
        thread = self._threads[number]
        here = self._open.setdefault(thread, [])
        self._by_id[self._ids[number]] = number
        if self.in_doubt[number]:
            return len(here)
        here.append(number)
        if self._annotation[number] or thread not in self._tops:
            self._tops.setdefault(thread, [(-1, 0)]).append((place, self._annotation[number]))
        return len(here) - 1

    def doubt(self, place: int) -> None:
        """Records are missing there: every open marker may have ended."""
        for thread, here in self._open.items():
            if any(self._annotation[number] for number in here):
                self._tops[thread].append((place, 0))
            for number in here:
                self.in_doubt[number] = True
            here.clear()

    def end(self, marker_id: int, place: int, time_ns: int) -> None:
        """Close it, if it is open, wherever it stands among the others of its thread."""
        number = self._by_id.pop(marker_id, None)
        if number is None:
            return
        self.ended_ns[number] = time_ns
        if self.in_doubt[number]:
            return
        thread = self._threads[number]
        here = self._open[thread]
        if here[-1] == number:
            here.pop()
        else:
            here.remove(number)
        if self._annotation[number]:
            top = next((self._annotation[n] for n in reversed(here) if self._annotation[n]), 0)
            self._tops[thread].append((place, top))

    def annotated(self) -> dict[int, tuple[Array, Array]]:
        """See :class:`Markers`."""
        return {
            thread: (np.array([t[0] for t in tops], np.int64), np.array([t[1] for t in tops], np.uint32))
            for thread, tops in self._tops.items()
            if any(top for _, top in tops)
        }
