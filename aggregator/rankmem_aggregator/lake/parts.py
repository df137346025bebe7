"""The parts of a lake that tasks answer about: some ranks of a session, or all of them in a slice of time.

Stage: the contract between a reader and the tasks of its engine. Pure values; nothing here opens a file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rankmem_aggregator.lake.layout import WHOLE, DataFile

FOREVER_NS: Final = 1 << 62
"""Beyond every time: the first slice begins at minus this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPart:
    """Some ranks of a session: all attempts of each, and with a host all its ranks."""

    session_id: str
    ranks: tuple[int, ...]
    """Ordered. With ``is_rest`` these are left out, and all others are in."""
    is_rest: bool
    """Whether it has the rows of ranks that are not known: one part has."""
    host_uids: frozenset[str]
    """Its hosts."""

    def __str__(self) -> str:
        spans = ", ".join(
            f"{first}" if first == last else f"{first}-{last}" for first, last in ranges(self.ranks)
        )
        return (
            f"{'all ranks but' if self.is_rest else 'ranks'} {spans or 'none'} of session {self.session_id}"
        )

    def condition(self) -> str:
        """Which rows of a table with ranks are in the part, as SQL."""
        spans = " OR ".join(f"rank BETWEEN {first} AND {last}" for first, last in ranges(self.ranks))
        return f"NOT ({spans or 'false'})" if self.is_rest else f"({spans or 'false'})"

    def has_file(self, file: DataFile) -> bool:
        """Whether a file may hold rows of the part. Unknown ranks are in the first group of hosts."""
        if file.host_uids is None or (self.is_rest and file.hosts in (0, WHOLE)):
            return True
        return not self.host_uids.isdisjoint(json.loads(file.host_uids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A device of a rank where a slice begins or ends: what it held, and by which event."""

    attempt: int
    rank: int
    device: str
    requested_bytes: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePart:
    """All ranks of a session in a slice of the common clock."""

    session_id: str
    number: int
    from_ns: int
    until_ns: int
    segments: tuple[int, int]
    """The first and the last segment of the lake's files."""
    offsets: tuple[tuple[int, int, int], ...]
    """attempt, rank, offset_ns of each rank whose clock is not the common one."""
    openings: tuple[Track, ...]
    """What was there before, of each device that lives on where the slice begins."""
    held: tuple[Track, ...]
    """The same where it ends."""

    def __str__(self) -> str:
        return f"slice {self.number} of session {self.session_id}"

    def has_file(self, file: DataFile) -> bool:
        """Whether a file may hold rows of the slice."""
        if file.table_name == "allocation_record":  # what is older than the recording, of its first segment
            return file.segment in (WHOLE, 0)
        first, last = self.segments
        # A row of memory_bucket is in the segment in which it begins, and lasts less than a segment.
        return file.segment == WHOLE or first - (file.table_name == "memory_bucket") <= file.segment <= last


def ranges(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Ordered numbers as the first and the last of each run."""
    found: list[tuple[int, int]] = []
    for rank in ranks:
        if found and found[-1][1] == rank - 1:
            found[-1] = found[-1][0], rank
        else:
            found.append((rank, rank))
    return found
