"""A session's bytes, added up by plain loops over the rows of its tables: the reference for every answer.

Stage: tests. In: a database file; out: of each device of each rank the bytes after every event, the blocks,
and what each group of them held. It reads the tables memory_event, allocation_record, allocation_end and
category_change, and shares no view, macro or statement with what it measures; only the line of a stack is
the view's. A group is a name, "none" or "before the recording".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb

GROUPINGS: Final = (
    "operator", "module", "line", "category", "phase", "step", "annotation", "stream", "component",
)  # fmt: skip
OLDER: Final = "before the recording"
NONE: Final = "none"
BEFORE: Final = -1
"""Position of what was there before the first event."""

Row = dict[str, Any]


class Whose(NamedTuple):
    """A device of a rank of an attempt."""

    attempt: int
    rank: int
    device: str

    @property
    def device_type(self) -> str:
        return self.device.split(":")[0]


@dataclass(slots=True)
class Block:
    """A block's life, in positions of the log."""

    size_bytes: int
    begin: int
    requested: int | None
    freed: int | None
    is_older: bool
    groups: dict[str, str]
    meanings: list[tuple[int, str]] = field(default_factory=list)
    """From which position on it meant what; the first from its beginning."""

    def group(self, by: str, seq: int) -> str:
        """The group of the block after an event."""
        if by != "category":
            return self.groups[by]
        return [meaning for since, meaning in self.meanings if since <= seq][-1]

    def is_alive(self, seq: int) -> bool:
        """Whether the block is alive after an event."""
        return self.begin <= seq and (self.freed is None or self.freed > seq)


@dataclass(slots=True)
class Track:
    """A device's log."""

    events: list[tuple[int, int, int]] = field(default_factory=list)
    """(seq, time_ns, requested bytes after it)."""
    blocks: list[Block] = field(default_factory=list)

    def older_bytes(self) -> int:
        """The bytes held before the first event."""
        return sum(block.size_bytes for block in self.blocks if block.is_older)

    def peak_bytes(self) -> int:
        """The highest bytes held, at the start or after any event."""
        return max([self.older_bytes(), *(held for _, _, held in self.events)])

    def held_at(self, time_ns: int) -> int:
        """The bytes held after all events up to a time."""
        place = bisect_right(self.events, time_ns, key=lambda event: event[1])
        return self.events[place - 1][2] if place else self.older_bytes()

    def groups_after(self, seq: int, by: str) -> dict[str, int]:
        """The bytes of each group after an event."""
        held: dict[str, int] = defaultdict(int)
        for block in self.blocks:
            if block.is_alive(seq):
                held[block.group(by, seq)] += block.size_bytes
        return dict(held)

    def changes(self, by: str) -> list[tuple[int, str, int]]:
        """(seq, group, bytes) of each coming and going of bytes in a group, in order."""
        found = []
        for block in self.blocks:
            turns = block.meanings if by == "category" else [(block.begin, block.groups[by])]
            turns = [turn for turn in turns if block.freed is None or turn[0] < block.freed]
            for place, (since, group) in enumerate(turns):
                found.append((max(since, block.begin), group, block.size_bytes))
                ended = turns[place + 1][0] if place + 1 < len(turns) else block.freed
                if ended is not None:
                    found.append((max(ended, block.begin), group, -block.size_bytes))
        return sorted(found, key=lambda change: (change[0], change[2]))

    def group_peaks(self, by: str) -> dict[str, int]:
        """The highest bytes of each group after any event."""
        held: dict[str, int] = defaultdict(int)
        peaks: dict[str, int] = defaultdict(int)
        changes = self.changes(by)
        for place, (seq, group, change) in enumerate(changes):
            held[group] += change
            if place + 1 == len(changes) or changes[place + 1][0] != seq:
                for name, bytes_ in held.items():
                    peaks[name] = max(peaks[name], bytes_)
        return dict(peaks)

    def peak_until_requested(self) -> int:
        """The most that was held where a block counts until its free is requested."""
        changes = []
        for block in self.blocks:
            changes.append((block.begin, 0, block.size_bytes))
            gone = block.requested if block.requested is not None else block.freed
            if gone is not None:
                changes.append((gone, 1, -block.size_bytes))
        return highest(change for _, _, change in sorted(changes))


class Account:
    """All devices of a session."""

    def __init__(self, database: Path, session_id: str | None = None) -> None:
        self.tracks: dict[Whose, Track] = defaultdict(Track)
        with duckdb.connect(str(database), read_only=True) as connection:
            self._ask = connection
            self.session_id = (
                session_id or _rows(connection, "SELECT max(session_id) AS id FROM session")[0]["id"]
            )
            self._read_events()
            self._read_blocks()
            self.ended_ns = {
                (row["attempt"], row["rank"]): row["ended_ns"]
                for row in self._of_session("SELECT attempt, rank, ended_at_ns AS ended_ns FROM rank_info")
            }
        self.tracks = {
            whose: self.tracks[whose] for whose in sorted(self.tracks) if self.tracks[whose].events
        }

    def highest(self) -> dict[Whose, Track]:
        """Of each rank's device the attempt in which it stood highest, the latest among equals."""
        best: dict[tuple[int, str], Whose] = {}
        for whose, track in self.tracks.items():
            key = whose.rank, whose.device
            if key not in best or track.peak_bytes() >= self.tracks[best[key]].peak_bytes():
                best[key] = whose
        return {whose: self.tracks[whose] for whose in best.values()}

    def job_peaks(self) -> dict[str, int]:
        """Of each type of device the highest sum over ranks: events merged, a process's until its end."""
        found = {}
        for device_type in {whose.device_type for whose in self.tracks}:
            moves = []
            for whose, track in self.tracks.items():
                if whose.device_type != device_type:
                    continue
                before = track.older_bytes()
                moves.append(((track.events[0][1], whose.attempt, whose.rank, BEFORE), before))
                for seq, time_ns, held in track.events:
                    moves.append(((time_ns, whose.attempt, whose.rank, seq), held - before))
                    before = held
                ended_ns = self.ended_ns.get((whose.attempt, whose.rank))
                if ended_ns is not None:
                    end = max(ended_ns, track.events[-1][1])
                    moves.append(((end, whose.attempt, whose.rank, 2**63), -before))
            found[device_type] = highest(change for _, change in sorted(moves))
        return found

    def _of_session(self, statement: str) -> list[Row]:
        return _rows(self._ask, f"{statement} WHERE session_id = $id", id=self.session_id)

    def _read_events(self) -> None:
        told = "SELECT attempt, rank, device, seq, time_ns, requested_bytes AS held FROM memory_event"
        for row in sorted(self._of_session(told), key=lambda row: int(row["seq"])):
            if row["held"] is not None:
                self.tracks[_whose(row)].events.append((row["seq"], row["time_ns"], row["held"]))

    def _read_blocks(self) -> None:
        lines = {row["stack_id"]: row["line"] for row in _rows(self._ask, "SELECT stack_id, line FROM stack")}
        ends: dict[tuple[Whose, int], Row] = defaultdict(dict)
        for row in self._of_session("SELECT * FROM allocation_end"):
            ends[_whose(row), row["allocation_id"]] |= {k: v for k, v in row.items() if v is not None}
        turns: dict[tuple[Whose, int], list[tuple[int, int, str]]] = defaultdict(list)
        for row in self._of_session("SELECT * FROM category_change"):
            turns[_whose(row), row["allocation_id"]].append((row["seq"], row["time_ns"], row["category"]))
        for row in self._of_session("SELECT * FROM allocation_record"):
            key = _whose(row), row["allocation_id"]
            said = {k: v for k, v in row.items() if v is not None}
            self.tracks[key[0]].blocks.append(_block(ends[key] | said, lines, sorted(turns[key])))


def _block(row: Row, lines: dict[int, str | None], turns: list[tuple[int, int, str]]) -> Block:
    is_older = row["preexisting"]
    begin = max(row["allocation_id"], BEFORE)

    def group(value: object) -> str:
        return str(value) if value is not None else OLDER if is_older else NONE

    def meaning(category: str) -> str:
        return OLDER if is_older and category == "unknown" else category

    stack = row.get("forward_stack_id", row.get("stack_id"))
    groups = {by: group(row.get(by)) for by in GROUPINGS if by != "category"}
    return Block(
        size_bytes=row["size_bytes"],
        begin=begin,
        requested=row.get("free_requested_seq"),
        freed=row.get("freed_seq"),
        is_older=is_older,
        groups=groups | {"line": group(None if stack is None else lines.get(stack))},
        meanings=[
            (begin, meaning(row.get("category", "unknown"))),
            *((max(seq, begin), meaning(category)) for seq, _, category in turns),
        ],
    )


def highest(changes: Iterable[int]) -> int:
    """The highest sum of changes from the first on, at least 0."""
    return max(_sums(changes), default=0)


def _sums(changes: Iterable[int]) -> Iterator[int]:
    held = 0
    for change in changes:
        held += change
        yield held


def _whose(row: Row) -> Whose:
    return Whose(row["attempt"], row["rank"], row["device"])


def _rows(connection: duckdb.DuckDBPyConnection, statement: str, **asked: Any) -> list[Row]:
    rows: list[Row] = connection.sql(statement, params=asked or None).to_arrow_table().to_pylist()
    return rows
