"""A profile of kernels in two passes: the ranges around each launch, then each kernel with their content.

Stage: readers, shared by nvprof and Nsight Systems; the process of ``rankmem import``. In: a source that
streams launches, ranges and kernels out of its database; out: rows of ``marker`` and ``kernel_launch``. The
first pass goes by thread and time, the second in the recording's order, which autograd's sequence numbers
follow. Held between them: for each kernel its launch and the numbers of its ranges, some 100 bytes; never
their texts.
"""

from __future__ import annotations

import functools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from rankmem_imports.kernels.pyprof_markers import Explained, Placing, explain, pruned, sequence_numbers
from rankmem_imports.kernels.rows import Kernel, kernel_row, parts_of, range_row
from rankmem_imports.kernels.sweep import Launch, Range, enclosing, with_depth
from rankmem_imports.recording import Identity, Part
from rankmem_ship.pairing.state import Array

BETWEEN_MAX: Final = 1_000
"""Markers looked at between two forward kernels, the last ones: longer ranges are work without a
device."""
TEXTS_KEPT: Final = 10_000
"""Texts of ranges and their content, kept from one kernel to the next: a launch's neighbours share them."""

NUMBERS_MAX: Final = 32 << 20
"""Ranges around all launches together, by number: 256 MiB. Where ranges are never closed, as by PyProf's
faulty wrappers, a launch lies in thousands; after so many only the INNERMOST of each are kept, and
counted."""
INNERMOST: Final = 32

NO_THREAD: Final = -1


class Launching(NamedTuple):
    """The call that launched a kernel; all None if the recording has none."""

    started_ns: int | None
    ended_ns: int | None
    process_id: int | None
    thread_id: int | None
    thread: int | None
    """The thread's number, from 0, ascending in the order of :meth:`KernelSource.ranges`."""


class TextRange(NamedTuple):
    """A range with its text."""

    span: Range
    text: str


class KernelSource(Protocol):
    """A database of kernels, launches and ranges. Each stream may be asked for more than once."""

    def launchings(self) -> Iterator[Launching]:
        """One for each kernel, in the order of :meth:`kernels`."""

    def ranges(self) -> Iterator[TextRange]:
        """All that have an end, by thread and start; ``depth`` is not filled in."""

    def text(self, number: int) -> str:
        """The text of a range."""

    def kernels(self) -> Iterator[Kernel]:
        """In the recording's order, without their launches."""

    def devices(self) -> Iterator[Mapping[str, Any]]:
        """Rows of device_info but for the rank."""


class KernelProfile:
    """The rows of one source."""

    def __init__(self, source: KernelSource) -> None:
        self._source = source
        self.unread = 0
        """Markers that look like PyProf's dictionaries but are not, counted once for each kernel."""
        self.num_kernels = 0
        self.without_launch = 0
        self.shortened = 0
        """Kernels whose outer ranges were left out."""

    def parts(self, identity: Identity, *, sequence_last: int = 0) -> Iterator[Part]:
        """Devices, markers, then kernels. They have no place in the log: they follow its last event,
        ``sequence_last``, and take positions of their own where they are many."""
        yield from parts_of("device_info", self._source.devices(), identity, sequence_last=sequence_last)
        yield from parts_of("marker", self._range_rows(), identity, sequence_last=sequence_last)
        yield from parts_of("kernel_launch", self._kernel_rows(), identity, sequence_last=sequence_last)

    def remarks(self, *, has_memory: bool = False) -> tuple[str, ...]:
        """The inexact parts of the profile, a sentence each."""
        found = []
        if not has_memory:
            found.append(
                f"{self.num_kernels} kernels, and nothing of the allocator: kernel_total has their time"
            )
        for count, what in (
            (self.without_launch, "kernels have no launch in the recording"),
            (self.unread, "markers around kernels are not Python literals and were not read"),
            (self.shortened, "kernels lie in so many ranges that only the inner ones were kept"),
        ):
            if count:
                found.append(f"{count} {what}")
        return tuple(found)

    def _range_rows(self) -> Iterator[Mapping[str, Any]]:
        texts: list[str] = []

        def spans() -> Iterator[Range]:
            for one in self._source.ranges():
                texts.append(one.text)
                yield one.span

        for span in with_depth(spans()):
            yield range_row(
                number=span.number,
                text=texts.pop(),
                depth=span.depth,
                thread=span.thread,
                started_ns=span.started_ns,
                ended_ns=span.ended_ns,
            )

    def _kernel_rows(self) -> Iterator[Mapping[str, Any]]:
        source = self._source
        launchings = Launchings(source.launchings())
        around = Around(launchings, source)
        self.shortened = around.shortened
        text = functools.lru_cache(TEXTS_KEPT)(source.text)
        explain_kept = functools.lru_cache(TEXTS_KEPT)(explain)
        placing, innermost = Placing(), 0
        for place, kernel in enumerate(source.kernels()):
            numbers = around.ranges_of(place)
            explained = explain_kept(tuple(text(number) for number in numbers))
            between: tuple[int, ...] = ()
            if numbers and explained.takes_between:
                near = around.autograd_between(launchings.thread[place], innermost, numbers[-1])
                between = sequence_numbers(pruned(text(number) for number in near))
                innermost = numbers[-1]
            self._count(explained, launchings, place)
            yield kernel_row(launchings.filled(kernel, place), explained, placing.place(explained), between)

    def _count(self, explained: Explained, launchings: Launchings, place: int) -> None:
        self.num_kernels += 1
        self.unread += explained.unread
        self.without_launch += launchings.thread[place] == NO_THREAD


class Launchings:
    """The launches of all kernels, as columns."""

    def __init__(self, launchings: Iterator[Launching]) -> None:
        columns = [array("q") for _ in Launching._fields]
        for launching in launchings:
            for column, value in zip(columns, launching, strict=True):
                column.append(NO_THREAD if value is None else value)
        as_arrays = [np.frombuffer(c, np.int64) if len(c) else np.zeros(0, np.int64) for c in columns]
        self.started_ns, self.ended_ns, self.process_id, self.thread_id, self.thread = as_arrays

    def in_order(self) -> Iterator[Launch]:
        """Those with a launch, by thread and start."""
        order: Array = np.lexsort((self.started_ns, self.thread))
        for place in order[np.searchsorted(self.thread[order], 0) :]:
            yield Launch(
                int(self.thread[place]), int(self.started_ns[place]), int(self.ended_ns[place]), int(place)
            )

    def filled(self, kernel: Kernel, place: int) -> Kernel:
        """The kernel with its launch."""
        if self.thread[place] == NO_THREAD:
            return kernel
        return replace(
            kernel,
            launched_ns=int(self.started_ns[place]),
            launch_ended_ns=int(self.ended_ns[place]),
            process_id=int(self.process_id[place]),
            thread_id=int(self.thread_id[place]),
            thread=int(self.thread[place]),
        )


class Around:
    """The ranges around each launch, and where autograd's markers are: numbers alone."""

    def __init__(self, launchings: Launchings, source: KernelSource) -> None:
        self._numbers = array("q")
        self._begins = np.zeros(len(launchings.thread), np.int64)
        self._lengths = np.zeros(len(launchings.thread), np.int64)
        self._autograd: dict[int, array[int]] = {}
        self.shortened = 0
        """Launches whose outer ranges were left out."""
        for launch, ranges in enclosing(launchings.in_order(), self._noting_autograd(source.ranges())):
            if len(self._numbers) > NUMBERS_MAX and len(ranges) > INNERMOST:
                ranges = ranges[-INNERMOST:]
                self.shortened += 1
            self._begins[launch.kernel] = len(self._numbers)
            self._lengths[launch.kernel] = len(ranges)
            self._numbers.extend(one.number for one in ranges)
        for thread, numbers in self._autograd.items():
            self._autograd[thread] = array("q", sorted(numbers))

    def ranges_of(self, place: int) -> Sequence[int]:
        """Numbers of the ranges around a kernel's launch, outermost first."""
        begin = int(self._begins[place])
        return self._numbers[begin : begin + int(self._lengths[place])]

    def autograd_between(self, thread: int, after: int, before: int) -> Sequence[int]:
        """Numbers of autograd's markers of a thread between two others, the last BETWEEN_MAX."""
        numbers = self._autograd.get(int(thread), array("q"))
        first, last = bisect_right(numbers, after), bisect_left(numbers, before)
        return numbers[max(first, last - BETWEEN_MAX) : max(first, last)]

    def _noting_autograd(self, ranges: Iterator[TextRange]) -> Iterator[Range]:
        for one in ranges:
            if ", seq = " in one.text:
                self._autograd.setdefault(one.span.thread, array("q")).append(one.span.number)
            yield one.span
