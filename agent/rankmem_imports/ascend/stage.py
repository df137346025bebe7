"""Sorts a recording: totals by time, without sums; operators' times; samples.

Stage: readers, after the files and before the log; the process of ``rankmem import``. In: a ``Source``;
out: its totals in the order of their times (on disk), the releases and allocations of its operators in the
order of theirs. Files hold the process's samples first and then the totals of all components merged;
whatever their order, sorting is stable, so that rows of one time stay as they stood.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rankmem_imports.ascend.rows import (
    CHUNK_ROWS,
    MODULE,
    OPERATOR,
    RECORD,
    SAMPLE,
    UNKNOWN,
    Names,
    Source,
    as_rows,
    with_sizes,
)
from rankmem_imports.files.array_file import ArraySpool
from rankmem_ship.pairing.state import Array

APP: Final = "APP"
"""The component whose rows are the process's total; not an allocator's."""
COMPONENT_NAMES: Final = {
    "PTA": "pytorch",
    "GE": "ge",
    "MindSpore": "mindspore",
    "WORKSPACE": "workspace",
}
"""Our name for each of theirs; any other is written in lower case."""
ALLOC, RELEASED, ACTIVE_RELEASED = range(3)
"""The three times in an operator's row."""


def component_of(text: str) -> str:
    """Our name of a component."""
    return COMPONENT_NAMES.get(text, text.lower())


def is_sum(text: str) -> bool:
    """Whether a component is the sum of others, as PTA+GE is."""
    return "+" in text


class Totals:
    """The rows of MEMORY_RECORD but for APP, by time; from the operators' rows where there are none."""

    def __init__(self, source: Source) -> None:
        self.has_parts = False
        """Whether there are components that are not sums."""
        self.has_active = False
        """Whether active bytes are stated anywhere."""
        self.num_unattributed = 0
        """Records left out, as their component has no name: it may be the sum of others."""
        self.separate: list[Array] = []
        """MODULE: components that state reserved bytes and nothing else."""
        self.samples = np.concatenate([np.empty(0, SAMPLE), *source.samples()])
        with_sizes(self.samples, source.path, "app", "used")
        apps: list[Array] = []
        self._spool = ArraySpool(RECORD)
        self._spool.extend(self._noting(self._without_apps(source, apps)))
        if not self._spool.length:
            self._spool.extend(self._noting(_totals_by_operators(source)))
            self.has_parts = True
        self._add_apps(apps)
        self.samples = self.samples[np.argsort(self.samples["time_ns"], kind="stable")]
        time_ns = self._spool.column("time_ns", CHUNK_ROWS)
        in_order = bool((time_ns[1:] >= time_ns[:-1]).all())
        self._order = None if in_order else np.argsort(time_ns, kind="stable")
        times = [time_ns, self.samples["time_ns"]]
        known = [some for some in times if len(some)]
        self.first_ns = min((int(some.min()) for some in known), default=None)
        self.last_ns = max((int(some.max()) for some in known), default=None)

    def __len__(self) -> int:
        return self._spool.length

    def chunks(self) -> Iterator[Array]:
        """RECORD by time, some at a time; all rows of one instant come together."""
        held = np.empty(0, RECORD)
        for start in range(0, len(self), CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, len(self))
            places = None if self._order is None else self._order[start:stop]
            some = self._spool.read(start, stop) if places is None else self._spool.pick(places)
            some = np.concatenate([held, some])
            if stop < len(self):
                cut = int(np.searchsorted(some["time_ns"], some["time_ns"][-1], "left"))
                some, held = some[:cut], some[cut:]
            if len(some):
                yield some

    def _noting(self, chunks: Iterator[Array]) -> Iterator[Array]:
        for rows in chunks:
            self.has_active = self.has_active or bool((rows["active"] != UNKNOWN).any())
            yield rows

    def _add_apps(self, apps: list[Array]) -> None:
        """Adds the records of the process that are not among the samples."""
        names = ["time_ns", "app", "device"]
        known = set(self.samples[names].tolist())
        new = (some[[row not in known for row in some[names].tolist()]] for some in apps)
        self.samples = np.concatenate([self.samples, *new])

    def _without_apps(self, source: Source, apps: list[Array]) -> Iterator[Array]:
        for rows in source.records():
            with_sizes(rows, source.path, "allocated", "reserved", "active")
            self.num_unattributed += int(np.count_nonzero(rows["component"] < 0))
            rows = rows[rows["component"] >= 0]
            app = source.names.components.number(APP)
            is_app = rows["component"] == app
            is_separate = ~is_app & (rows["allocated"] == UNKNOWN)
            if is_separate.any():
                self.separate.append(
                    as_rows(
                        MODULE, {n: rows[is_separate][n] for n in MODULE.names or ()}, int(is_separate.sum())
                    )
                )
            if is_app.any():
                found = rows[is_app]
                columns = {"time_ns": found["time_ns"], "app": found["reserved"], "device": found["device"]}
                apps.append(as_rows(SAMPLE, columns, len(found)))
            rows = rows[~is_app & ~is_separate]
            if len(rows) and not self.has_parts:
                texts = source.names.components.texts
                self.has_parts = any(not is_sum(texts[number]) for number in np.unique(rows["component"]))
            yield rows


class Operators:
    """The rows of OP_MEMORY, and their times in order."""

    def __init__(self, source: Source) -> None:
        self.spool = ArraySpool(OPERATOR)
        self.spool.extend(_sized(source))
        times = np.concatenate(
            [self._times(name) for name in ("allocated_ns", "released_ns", "active_released_ns")]
        )
        order = np.argsort(times, kind="stable")
        order = order[int(np.count_nonzero(times == UNKNOWN)) :].astype(
            np.int32 if len(times) < 2**31 else np.int64
        )
        self.times = times[order]
        """Of all allocations and releases, ascending."""
        self._order = order

    def __len__(self) -> int:
        return self.spool.length

    def between(self, start: int, stop: int) -> tuple[Array, Array]:
        """Of a slice of ``times``: the operator's place, and which of its times it is."""
        order = self._order[start:stop].astype(np.int64)
        length = max(len(self), 1)
        return order % length, order // length

    def _times(self, name: str) -> Array:
        return self.spool.column(name, CHUNK_ROWS)


def _sized(source: Source) -> Iterator[Array]:
    """Rows of operators, none larger than a device; a negative size marks a release."""
    for rows in source.operators():
        sizes = as_rows(SAMPLE, {"used": np.abs(rows["size"])}, len(rows))
        with_sizes(sizes, source.path, "used")
        yield rows


def _totals_by_operators(source: Source) -> Iterator[Array]:
    """Totals at each allocation and release in operators' rows, for a recording without records."""
    operators = Operators(source)
    if not len(operators):
        return
    component = source.names.components.number("PTA")
    cann = source.names.components.number("GE")
    running: dict[tuple[int, int], Array] = {}
    for start in range(0, len(operators.times), CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, len(operators.times))
        places, kinds = operators.between(start, stop)
        rows = operators.spool.pick(places)
        stated = np.where((kinds == ALLOC)[:, None], rows["at_alloc"], rows["at_release"])
        stated[kinds == ACTIVE_RELEASED] = UNKNOWN
        of_cann = rows["at_alloc"][:, 2] == UNKNOWN
        has_stream = bool((rows["stream"] != UNKNOWN).any())
        columns = {
            "time_ns": operators.times[start:stop],
            "stream": rows["stream"],
            "component": np.where(of_cann & has_stream, cann, component).astype(np.int32),
            "device": rows["device"],
        }
        made = as_rows(RECORD, columns, len(rows))
        _fill(made, stated, np.abs(rows["size"]), kinds, running)
        has_active = (rows["at_alloc"][:, 2] != UNKNOWN) | (rows["at_release"][:, 2] != UNKNOWN)
        made["active"][~has_active] = UNKNOWN
        yield made


def _fill(
    made: Array, stated: Array, sizes: Array, kinds: Array, running: dict[tuple[int, int], Array]
) -> None:
    """Sets the totals: as stated, or else from the last ones and the size."""
    for number in range(len(made)):
        key = (int(made["device"][number]), int(made["component"][number]))
        last = running.get(key)
        now = stated[number].copy()
        size, kind = int(sizes[number]), int(kinds[number])
        if last is None:
            last = np.where(now == UNKNOWN, 0, now)
        change = (size, 0, size) if kind == ALLOC else (-size, 0, 0) if kind == RELEASED else (0, 0, -size)
        replayed = np.maximum(last + np.array(change), 0)
        now = np.where(now == UNKNOWN, replayed, now)
        running[key] = now
        made["allocated"][number], made["reserved"][number], made["active"][number] = now


def sums_of(components: Names) -> dict[int, frozenset[str]]:
    """Of each component that is a sum: our names of those it is made of."""
    return {
        number: frozenset(component_of(part) for part in text.split("+"))
        for number, text in enumerate(components.texts)
        if is_sum(text)
    }
