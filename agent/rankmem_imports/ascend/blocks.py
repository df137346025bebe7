"""The blocks of an Ascend recording: those in operators' rows, and those that only the totals show.

Stage: readers, while the log is read; the process of ``rankmem import``. A change of a component's total
that no operator's row explains is a block nonetheless: a rise is an allocation, a fall gives back the
latest such block of that size, or else one older than the recording. What of a component's first total was
never given back stands as one block of the rest. It counts from that total on, because the device's totals
do: of the device's first component from the beginning, of a later one from a position before its first
event, which is its id, and from that event's time. Blocks that have ended wait on disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from rankmem_imports.ascend.rows import CHUNK_ROWS, UNKNOWN
from rankmem_imports.files.array_file import ArraySpool
from rankmem_ship.pairing.state import ABSENT, Array

BLOCK: Final = np.dtype(
    [
        ("allocation_id", "<i8"),
        ("allocated_ns", "<i8"),
        ("freed_ns", "<i8"),
        ("freed_seq", "<i8"),
        ("size", "<i8"),
        ("stream", "<i8"),
        ("component", "<i4"),
        ("device", "<i4"),
        ("is_older", "?"),
    ]
)
"""A block without an operator; UNKNOWN in its ends while it lives, and in its beginning where it was always
there."""

Key = tuple[int, int]
"""Device and component."""


class UnattributedBlocks:
    """Blocks that only totals show."""

    def __init__(self, first_older_id: int) -> None:
        """Args: first_older_id: of blocks older than the recording; below 0, the next ones are lower."""
        self.num_older = 0
        self.num_made = 0
        self._next_older = first_older_id
        self._open: dict[tuple[Key, int], list[tuple[int, int, int]]] = defaultdict(list)
        self._ended = ArraySpool(BLOCK)
        self._waiting: list[tuple[int, ...]] = []
        self._base: dict[Key, int] = {}
        self._begun: dict[Key, tuple[int, int] | None] = {}

    def begin(self, key: Key, held: int, seq: int, time_ns: int) -> None:
        """A component held this much before its first event.

        Args:
            seq: a position before that event that nothing else has: the rest's, if it is not the first
                component of its device.
            time_ns: of that event.
        """
        is_first = not any(device == key[0] for device, _ in self._begun)
        self._base[key], self._begun[key] = held, None if is_first else (seq, time_ns)

    def take_older(self, key: Key, size: int) -> None:
        """Subtracts initial bytes that a block with a row of its own accounts for."""
        self._base[key] = self._base.get(key, 0) - size

    def allocate(self, key: Key, size: int, seq: int, time_ns: int, stream: int) -> int:
        """Adds the block of a rise; returns its id."""
        self.num_made += 1
        self._open[key, size].append((seq, time_ns, stream))
        return seq

    def free(self, key: Key, size: int, seq: int, time_ns: int, stream: int) -> int:
        """Ends a block by a fall; returns its id."""
        device, component = key
        of_size = self._open.get((key, size))
        if of_size:
            made_seq, made_ns, made_on = of_size.pop()
            self._end((made_seq, made_ns, time_ns, seq, size, made_on, component, device, False))
            return made_seq
        self.num_older += 1
        self.take_older(key, size)
        older = self._older_id()
        self._end((older, UNKNOWN, time_ns, seq, size, stream, component, device, True))
        return older

    def rests(self) -> dict[Key, int]:
        """Bytes that each component held throughout; below 0 where more was freed."""
        return self._base

    def chunks(self) -> Iterator[Array]:
        """BLOCK, after the log's end."""
        for (key, size), blocks in self._open.items():
            for seq, time_ns, stream in blocks:
                self._end((seq, time_ns, UNKNOWN, UNKNOWN, size, stream, key[1], key[0], False))
        for (device, component), rest in self._base.items():
            if rest > 0:
                begun = self._begun[device, component] or (self._older_id(), UNKNOWN)
                self._end((*begun, UNKNOWN, UNKNOWN, rest, UNKNOWN, component, device, True))
        self._flush()
        for start in range(0, self._ended.length, CHUNK_ROWS):
            yield self._ended.read(start, min(start + CHUNK_ROWS, self._ended.length))

    def _older_id(self) -> int:
        self._next_older -= 1
        return self._next_older + 1

    def _end(self, block: tuple[int, ...]) -> None:
        self._waiting.append(block)
        if len(self._waiting) == CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            rows: Any = np.array(self._waiting, BLOCK)
            self._ended.extend([rows])
            self._waiting.clear()


class AttributedBlocks:
    """Positions and components of the blocks in operators' rows; by the row's place."""

    def __init__(self, length: int) -> None:
        self.allocated_seq = np.full(length, ABSENT)
        self.requested_seq = np.full(length, ABSENT)
        self.freed_seq = np.full(length, ABSENT)
        self.component = np.full(length, ABSENT, np.int32)

    def ids(self, places: Array, is_older: Array) -> Array:
        """allocation_id of each; ABSENT where its allocation has no record."""
        ids: Array = np.where(is_older, -2 - places, self.allocated_seq[places])
        return ids
