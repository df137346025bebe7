"""The log of an Ascend recording: every record an event, with its action, its block and the device's totals.

Stage: readers; the process of ``rankmem import``. In: totals by time and operators' times (``stage``); out:
slices of events with the device's totals after each. A device holds what all its components hold, also
WORKSPACE, which MindStudio draws separately; a component's own totals are the sum of the changes at its own
events, so views give them back exactly. Samples and steps have positions in the same log, by their time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rankmem_imports.ascend.blocks import AttributedBlocks, UnattributedBlocks
from rankmem_imports.ascend.match import Actions, AllocationEvents, match
from rankmem_imports.ascend.rows import UNKNOWN, Vocabulary
from rankmem_imports.ascend.stage import ALLOC, RELEASED, Operators, Totals, component_of, sums_of
from rankmem_ship.pairing.state import ABSENT, Array

ACTIONS: Final = ("alloc", "free_requested", "free_completed", "unknown")
"""Of an event, by its number here."""
_ALLOC, _REQUESTED, _COMPLETED, _UNKNOWN = range(4)
FIGURES: Final = ("allocated", "reserved", "active", "held")
"""The columns of totals; held: until a block is freed, so active where that is stated, else allocated;
after a release that states the total from before it, without its block."""
_HELD: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Events in log order, and what lies between them."""

    seq: Array
    time_ns: Array
    device: Array
    component: Array
    stream: Array
    action: Array
    """Place in ACTIONS."""
    size: Array
    """UNKNOWN where no block is known."""
    block: Array
    """allocation_id."""
    has_block: Array
    totals: Array
    """(n, 4), FIGURES of the device after the event."""
    is_event: Array
    """True for all."""
    extras: Array
    """Places of the samples and steps that lie here, in the order of their times."""
    extra_seq: Array
    seq_last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Facts on each event, filled in step by step."""

    action: Array
    size: Array
    block: Array
    has_block: Array
    is_attributed: Array
    """It belongs to an operator's row."""
    is_older: Array
    """It frees a block with a row that is older than the recording."""
    effect: Array
    """The expected change of its component's bytes."""

    @classmethod
    def nothing(cls, length: int) -> Known:
        """Nothing known of this many events."""
        return cls(
            action=np.full(length, _UNKNOWN),
            size=np.full(length, UNKNOWN),
            block=np.full(length, ABSENT),
            has_block=np.zeros(length, np.bool_),
            is_attributed=np.zeros(length, np.bool_),
            is_older=np.zeros(length, np.bool_),
            effect=np.zeros(length, np.int64),
        )


@dataclass(slots=True)
class Discrepancies:
    """Counts of where a recording contradicts itself."""

    sums: int = 0
    sums_that_differ: int = 0
    changes_that_differ: int = 0
    events_without_record: int = 0
    unexplained_bytes: int = 0


@dataclass(slots=True)
class AscendLog:
    """Reads the log once."""

    totals: Totals
    operators: Operators
    names: Vocabulary
    extra_times: Array
    """Of samples and steps, ascending."""
    discrepancies: Discrepancies = field(default_factory=Discrepancies)
    named: AttributedBlocks = field(init=False)
    unattributed: UnattributedBlocks = field(init=False)
    events: int = 0
    _last: dict[tuple[int, int], Array] = field(default_factory=dict)
    """Figures of each component in its last record."""
    _replay: dict[tuple[int, int], Array] = field(default_factory=dict)
    """The same, with held as the log has it."""
    _seq: int = 0
    _next_time: int = 0
    _extra: int = 0

    def __post_init__(self) -> None:
        self.named = AttributedBlocks(len(self.operators))
        self.unattributed = UnattributedBlocks(-2 - len(self.operators))

    def slices(self) -> Iterator[LogSlice]:
        """All of it, some at a time."""
        sums = sums_of(self.names.components) if self.totals.has_parts else {}
        for rows in self.totals.chunks():
            is_sum = np.isin(rows["component"], list(sums))
            before = dict(self._last)
            events = rows[~is_sum]
            if len(events):
                yield self._log_slice(events)
            self._compare(rows, is_sum, before, sums)
        if len(self.extra_times) > self._extra:
            yield self._extras_alone()
        self.discrepancies.events_without_record += len(self.operators.times) - self._next_time

    def _log_slice(self, events: Array) -> LogSlice:
        own = own_figures(events)
        change, is_first = self._changes(events, own)
        seq, extras, extra_seq = self._positions(events["time_ns"], is_first)
        known = self._known(events, seq, np.where(is_first, UNKNOWN, change[:, _HELD]))
        replayed, moved = self._replayed(events, own, known, is_first)
        totals = self._device_totals(events, replayed, lambda number: True, self._replay)
        for number in np.flatnonzero(is_first):
            key = (int(events["device"][number]), int(events["component"][number]))
            held = int(own[number, _HELD] - known.effect[number])
            self.unattributed.begin(key, held, int(seq[number]) - 1, int(events["time_ns"][number]))
        for number in np.flatnonzero(known.is_older):
            key = (int(events["device"][number]), int(events["component"][number]))
            self.unattributed.take_older(key, int(known.size[number]))
        self._count_discrepancies(known, is_first, moved)
        self._explain(events, known, is_first, moved, change[:, 0], seq)
        self._remember(self._last, events, own)
        self._remember(self._replay, events, replayed)
        self.events += len(events)
        return LogSlice(
            seq=seq,
            time_ns=events["time_ns"],
            device=events["device"],
            component=events["component"],
            stream=events["stream"],
            action=known.action,
            size=known.size,
            block=known.block,
            has_block=known.has_block,
            totals=totals,
            is_event=np.ones(len(events), np.bool_),
            extras=extras,
            extra_seq=extra_seq,
            seq_last=self._seq - 1,
        )

    def _known(self, events: Array, seq: Array, change: Array) -> Known:
        """Matches the events with operators' rows."""
        start, end_ns = self._next_time, int(events["time_ns"][-1])
        self._next_time = start + int(np.searchsorted(self.operators.times[start:], end_ns, "right"))
        allocations, places, completes, is_older, is_alone = events_of(self.operators, start, self._next_time)
        actions = Actions(
            time_ns=events["time_ns"], device=events["device"], allocated=events["allocated"], change=change
        )
        allocation = match(actions, allocations)
        at = np.flatnonzero(allocation != ABSENT)
        one, place = allocation[at], places[allocation[at]]
        is_open = np.ones(len(places), np.bool_)
        is_open[one] = False
        # Without the second time the totals show whether the block was freed.
        fell = (allocations.kind[one] == RELEASED) & is_alone[one] & (change[at] == -allocations.size[one])
        action = np.where(
            completes[one] | fell, _COMPLETED, np.where(allocations.kind[one] == ALLOC, _ALLOC, _REQUESTED)
        )
        # Both times of an end may be one instant, with one record: host memory has no streams to wait for.
        ends = {
            (int(places[n]), int(allocations.time_ns[n])): n
            for n in np.flatnonzero(is_open & (allocations.kind > RELEASED))
        }
        at_once = np.zeros(len(at), np.bool_)
        for number in np.flatnonzero(action == _REQUESTED) if ends else ():
            end = ends.get((int(place[number]), int(events["time_ns"][at[number]])))
            if end is not None:
                at_once[number], is_open[end] = True, False
        action[at_once] = _COMPLETED
        self.named.requested_seq[place[at_once]] = seq[at[at_once]]
        self.discrepancies.events_without_record += int(np.count_nonzero(is_open))
        for kind, stated in (
            (_ALLOC, self.named.allocated_seq),
            (_REQUESTED, self.named.requested_seq),
            (_COMPLETED, self.named.freed_seq),
        ):
            stated[place[action == kind]] = seq[at[action == kind]]
        self.named.component[place] = events["component"][at]
        known = Known.nothing(len(events))
        known.action[at], known.size[at] = action, allocations.size[one]
        known.block[at] = self.named.ids(place, is_older[one])
        known.has_block[at] = known.block[at] != ABSENT
        known.is_attributed[at] = True
        known.is_older[at] = is_older[one] & (action == _COMPLETED)
        known.effect[at] = np.select(
            [action == _ALLOC, action == _COMPLETED], [known.size[at], -known.size[at]], 0
        )
        return known

    def _count_discrepancies(self, known: Known, is_first: Array, change: Array) -> None:
        differs = known.is_attributed & ~is_first & (change != known.effect)
        self.discrepancies.changes_that_differ += int(np.count_nonzero(differs))
        self.discrepancies.unexplained_bytes += int((known.effect - change)[differs].sum())

    def _replayed(self, events: Array, own: Array, known: Known, is_first: Array) -> tuple[Array, Array]:
        """The figures with held after each event, and by how much it changed.

        The graph engine's releases state the total from before them, until its next record: there the block
        counts, so that the blocks alive add up to held; allocated stays the component's own figure.
        """
        held, moved = own[:, _HELD].copy(), np.zeros(len(own), np.int64)
        for key, at in self._by_key(events):
            before = int(self._replay[key][_HELD]) if key in self._replay else UNKNOWN
            previous = np.append(before, held[at[:-1]])
            releases = known.is_attributed[at] & ~is_first[at] & (known.effect[at] < 0)
            if (releases & (previous == held[at])).any():
                for number in np.flatnonzero(releases):
                    last = held[at[number - 1]] if number else before
                    if held[at[number]] == last:
                        held[at[number]] += known.effect[at[number]]
            moved[at] = np.diff(held[at], prepend=0 if before == UNKNOWN else before)
        return np.concatenate([own[:, :_HELD], held[:, None]], axis=1), moved

    def _explain(
        self, events: Array, known: Known, is_first: Array, change: Array, allocated: Array, seq: Array
    ) -> None:
        """Adds blocks for changes of held, or else of allocated alone, that belong to no operator's row."""
        for number in np.flatnonzero(~known.is_attributed & ~is_first):
            event, moved = events[number], int(change[number])
            key = (int(event["device"]), int(event["component"]))
            where = (abs(moved), int(seq[number]), int(event["time_ns"]), int(event["stream"]))
            if moved:
                make = self.unattributed.allocate if moved > 0 else self.unattributed.free
                known.block[number] = make(key, *where)
                known.action[number] = _ALLOC if moved > 0 else _COMPLETED
                known.size[number], known.has_block[number] = abs(moved), True
            elif allocated[number] < 0:
                known.action[number], known.size[number] = _REQUESTED, -int(allocated[number])

    def _changes(self, events: Array, own: Array) -> tuple[Array, Array]:
        """Changes of each component's figures at its own events; and whether an event is its first."""
        change, is_first = np.zeros_like(own), np.zeros(len(events), np.bool_)
        for key, at in self._by_key(events):
            last = self._last.get(key)
            is_first[at[0]] = last is None
            change[at[1:]] = own[at[1:]] - own[at[:-1]]
            change[at[0]] = own[at[0]] - last if last is not None else 0
        return change, is_first

    def _remember(self, last: dict[tuple[int, int], Array], events: Array, own: Array) -> None:
        for key, at in self._by_key(events):
            last[key] = own[at[-1]]

    def _by_key(self, events: Array) -> Iterator[tuple[tuple[int, int], Array]]:
        for device in np.unique(events["device"]):
            for component in np.unique(events["component"][events["device"] == device]):
                at = np.flatnonzero((events["device"] == device) & (events["component"] == component))
                yield (int(device), int(component)), at

    def _device_totals(
        self, events: Array, own: Array, counts: Callable[[int], bool], last: dict[tuple[int, int], Array]
    ) -> Array:
        """The sum over all components that count, after each event on its device."""
        totals = np.zeros_like(own)
        for device in np.unique(events["device"]):
            at = np.flatnonzero(events["device"] == device)
            component = events["component"][at]
            keys = {key for key in last if key[0] == device} | {(int(device), int(c)) for c in component}
            for key in keys:
                if not counts(key[1]):
                    continue
                place = np.maximum.accumulate(np.where(component == key[1], np.arange(len(at)), ABSENT))
                entry = last.get(key, np.zeros(own.shape[1], np.int64))
                totals[at] += np.where((place == ABSENT)[:, None], entry, own[at[np.maximum(place, 0)]])
        return totals

    def _compare(
        self,
        rows: Array,
        is_sum: Array,
        before: dict[tuple[int, int], Array],
        sums: dict[int, frozenset[str]],
    ) -> None:
        """Counts the recording's sums that differ from the sum of their components."""
        for number, parts in sums.items():
            if not (rows["component"] == number).any():
                continue
            own = own_figures(rows)
            own[is_sum] = 0
            totals = self._device_totals(rows, own, self._part_of(parts), before)
            at = np.flatnonzero(rows["component"] == number)
            stated = own_figures(rows[at])
            self.discrepancies.sums += len(at)
            self.discrepancies.sums_that_differ += int(
                (stated[:, :_HELD] != totals[at][:, :_HELD]).any(axis=1).sum()
            )

    def _part_of(self, parts: frozenset[str]) -> Callable[[int], bool]:
        texts = self.names.components.texts
        return lambda number: component_of(texts[number]) in parts

    def _positions(self, time_ns: Array, is_first: Array) -> tuple[Array, Array, Array]:
        """seq of the events, one left free before a component's first; the samples and steps up to the last
        of them, and their seq."""
        start = self._extra
        self._extra = start + int(np.searchsorted(self.extra_times[start:], time_ns[-1], "right"))
        times = self.extra_times[start : self._extra]
        free = np.cumsum(is_first)
        seq = self._seq + np.arange(len(time_ns)) + free + np.searchsorted(times, time_ns, "right")
        before = np.searchsorted(time_ns, times, "left")
        extra_seq = self._seq + np.arange(len(times)) + before + np.append(0, free)[before]
        self._seq += len(time_ns) + len(times) + int(free[-1])
        return seq, np.arange(start, self._extra), extra_seq

    def _extras_alone(self) -> LogSlice:
        start, self._extra = self._extra, len(self.extra_times)
        extras = np.arange(start, self._extra)
        extra_seq = self._seq + np.arange(len(extras))
        self._seq += len(extras)
        none = np.zeros(0, np.int64)
        return LogSlice(
            seq=none, time_ns=none, device=none, component=none, stream=none, action=none, size=none,
            block=none, has_block=none.astype(np.bool_), is_event=none.astype(np.bool_),
            totals=np.zeros((0, len(FIGURES)), np.int64),
            extras=extras, extra_seq=extra_seq, seq_last=self._seq - 1,
        )  # fmt: skip


def own_figures(records: Array) -> Array:
    """FIGURES of the component itself after each record: (n, 4)."""
    stated = np.stack([records["allocated"], records["reserved"], records["active"]], axis=1)
    stated = np.where(stated == UNKNOWN, 0, stated)
    return np.concatenate([stated, np.maximum(stated[:, :1], stated[:, 2:])], axis=1)


def events_of(
    operators: Operators, start: int, stop: int
) -> tuple[AllocationEvents, Array, Array, Array, Array]:
    """A slice of the operators' times as allocation events; their places, whether they free the block,
    whether it is older than the recording, and whether the second time of its end is missing."""
    places, kinds = operators.between(start, stop)
    rows = operators.spool.pick(places)
    is_older = (rows["allocated_ns"] == UNKNOWN) | (rows["size"] < 0)
    kinds = np.where(is_older & (kinds == ALLOC), RELEASED, kinds)
    stated = np.where((kinds == ALLOC)[:, None], rows["at_alloc"], rows["at_release"])
    active = np.where(is_older, rows["at_release"][:, 2], rows["at_alloc"][:, 2])
    is_alone = rows["active_released_ns"] == UNKNOWN
    allocations = AllocationEvents(
        time_ns=operators.times[start:stop],
        kind=kinds,
        device=rows["device"],
        size=np.abs(rows["size"]),
        allocated=np.where(kinds > RELEASED, UNKNOWN, stated[:, 0]),
    )
    completes = (kinds > RELEASED) | ((kinds == RELEASED) & is_alone & (active == UNKNOWN))
    return allocations, places, completes, is_older, is_alone
