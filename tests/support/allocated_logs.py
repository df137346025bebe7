"""Logs of a device's allocator, as the slow model answers: events, segments, and what was there before.

Stage: tests. In: requests. Out: a :class:`~constructed.RankLog` and rows of older_segment.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from allocator_oracle import MIB, Oracle
from constructed import RankLog

DEVICE = "cuda:0"


@dataclass(slots=True)
class AllocatorLog:
    """An allocator whose recording begins with :meth:`start`, from the first request on or later."""

    oracle: Oracle = field(default_factory=Oracle)
    log: RankLog = field(default_factory=RankLog)
    older: list[dict[str, Any]] = field(default_factory=list)
    """Rows of older_segment."""
    requested: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each block alive: bytes and stream."""
    recording: bool = False
    now: int = 0
    count: int = 0

    def start(self, *, knows_sizes: bool = True) -> None:
        """Recording begins; ``knows_sizes``: a snapshot has the allocator's sizes of the blocks alive."""
        self.recording = True
        for (_, stream), pool in self.oracle.segments.items():
            for segment in pool:
                self.older.append(
                    {
                        "session_id": self.log.session_id, "attempt": 0, "rank": 0, "device": DEVICE,
                        "address": segment[0].address, "size_bytes": sum(piece.size for piece in segment),
                        "stream": stream, "seq": 0,
                    }
                )  # fmt: skip
                for piece in segment:
                    if piece.name is not None:
                        self.log.preexisting(
                            str(piece.name), self.requested[piece.name][0], device=DEVICE, stream=stream,
                            address=piece.address, block_bytes=piece.size if knows_sizes else None,
                        )  # fmt: skip

    def alloc(self, size: int, stream: int = 0) -> int | None:
        """A request; the block's name, None where there was no room."""
        before, self.count = self._segments(), self.count + 1
        address = self.oracle.malloc(self.count, size, stream)
        self._moved(before)
        if address is None:
            return None
        self.requested[self.count] = size, stream
        if self.recording:
            self.log.alloc(
                str(self.count), size, at=self._tick(), device=DEVICE, stream=stream, address=address
            )
            self._place(str(self.count), stream)
        return self.count

    def free(self, name: int) -> None:
        """A block is freed."""
        self.oracle.free(name)
        _, stream = self.requested.pop(name)
        if self.recording:
            self.log.free(str(name), at=self._tick())
            self._place(str(name), stream)

    def empty_cache(self) -> None:
        """The program empties the cache."""
        before = self._segments()
        self.oracle.empty_cache()
        self._moved(before)

    def at_random(self, seed: int, requests: int, *, size_max: int = 24 * MIB, streams: int = 2) -> None:
        """Requests and frees, small ones more often than large ones."""
        chance = random.Random(seed)
        for _ in range(requests):
            if self.requested and chance.random() < 0.47:
                self.free(chance.choice(sorted(self.requested)))
            elif chance.random() < 0.02:
                self.empty_cache()
            else:
                size = (
                    int(size_max ** chance.random()) if chance.random() < 0.5 else chance.randrange(size_max)
                )
                self.alloc(size + 1, chance.randrange(streams))

    def _place(self, name: str, stream: int) -> None:
        row = self.log.allocations[name]
        self.log.events[-1] |= {
            "address": row["address"],
            "stream": stream,
            "allocation_id": row["allocation_id"],
        }

    def _segments(self) -> dict[int, tuple[int, int]]:
        return {
            segment[0].address: (sum(piece.size for piece in segment), stream)
            for (_, stream), pool in self.oracle.segments.items()
            for segment in pool
        }

    def _moved(self, before: dict[int, tuple[int, int]]) -> None:
        if not self.recording:
            return
        after = self._segments()
        for action, gone in (
            ("segment_free", {a: v for a, v in before.items() if a not in after}),
            ("segment_alloc", {a: v for a, v in after.items() if a not in before}),
        ):
            for address, (size, stream) in gone.items():
                self.log.segment(action, address, size, at=self._tick(), device=DEVICE)
                self.log.events[-1]["stream"] = stream

    def _tick(self) -> int:
        self.now += 1000
        return self.now


def fragmented(older: int = 0) -> AllocatorLog:
    """A dozen segments of which a small block each holds all but 28 MiB, then requests for 29.

    Args:
        older: so many bytes are allocated before the recording begins.
    """
    log = AllocatorLog()
    if older:
        log.alloc(older)
    log.start()
    large = [log.alloc(30 * MIB) for _ in range(12)]
    fillers = []
    for name in large:
        assert name is not None
        log.free(name)
        log.alloc(2 * MIB)
        fillers.append(log.alloc(27 * MIB))
    for name in fillers:
        assert name is not None
        log.free(name)
    for _ in range(11):
        log.alloc(29 * MIB)
    return log
