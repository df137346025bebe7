"""The log of one spool in slices: each becomes one batch, or several where it is too large for a message.

Stage: shipper process, between spool reader and pairing. In: the reader's chunks and gaps; out: a slice once
it is full, a short one is allowed, or the log has ended. It moves the reader's cursor and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from rankmem_agent.spool.exits import Exit
from rankmem_agent.spool.layout import Kind
from rankmem_ship.pairing.upserts import ClockEstimate
from rankmem_ship.spool_reader.reader import Chunk, Gap, SpoolReader


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Consecutive records of one log, read and not yet sent."""

    sequence_first: int
    sequence_last: int
    parts: Sequence[Chunk | Gap]
    final: bool = False
    ended_ns: int | None = None
    exited: Exit | None = None
    wrote_end: bool = False
    clock: ClockEstimate | None = None
    full: bool = False
    """Cut because it was long enough, not for a flush or the log's end."""


class LogSlices:
    """The consecutive slices of one log.

    Args:
        reader: the spool.
        sequence_next: where the first slice begins; it may lie before the reader's cursor if ``parts`` fill
            the range between.
        parts: what comes before the reader's cursor.
    """

    def __init__(self, reader: SpoolReader, sequence_next: int = 0, parts: Sequence[Gap] = ()) -> None:
        self._sequence_next = sequence_next
        self._reader = reader
        self._parts: list[Chunk | Gap] = list(parts)
        self._num_records = len(parts)
        self._is_at_detail = False
        """What comes next is a DETAIL record, with which a slice begins."""

    def next(self, max_records: int, *, allow_short: bool) -> LogSlice | None:
        """The next slice; None if it is not complete yet. Nothing follows a final one.

        Args:
            max_records: a slice with so many records is full; a gap counts as one.
            allow_short: return what there is; otherwise only a slice that is full or final.
        """
        self._fill(max_records)
        full = self._is_at_detail or self._num_records >= max_records
        if not full and not self._reader.is_finished() and not (allow_short and self._parts):
            return None
        # Asked again: with a full batch in hand the log may end behind it, and that is the next batch's.
        final = not full and self._reader.is_finished()
        last = self._reader.next_seq if final else self._parts[-1].sequence_last
        log_slice = LogSlice(
            sequence_first=self._sequence_next,
            sequence_last=last,
            parts=self._parts,
            final=final,
            full=full,
        )
        self._sequence_next = last + 1
        self._parts, self._num_records, self._is_at_detail = [], 0, False
        return log_slice

    def _fill(self, max_records: int) -> None:
        while not self._is_at_detail and (room := max_records - self._num_records) > 0:
            part = self._reader.read(room)
            if part is None:
                return
            if self._parts and isinstance(part, Chunk) and part.records["kind"][0] == Kind.DETAIL:
                self._reader.cursor, self._is_at_detail = part.sequence_first, True
                return
            self._parts.append(part)
            self._num_records += _weight(part)


def halve(log_slice: LogSlice) -> tuple[LogSlice, LogSlice] | None:
    """Two slices that together are this one; None if it holds a single record or gap."""
    weight = sum(_weight(part) for part in log_slice.parts)
    if weight < (1 if log_slice.final else 2):
        return None
    first, second = _split(log_slice.parts, (weight + 1) // 2)
    border = first[-1].sequence_last
    return (
        LogSlice(sequence_first=log_slice.sequence_first, sequence_last=border, parts=first, full=True),
        dataclasses.replace(log_slice, sequence_first=border + 1, parts=second),
    )


def _weight(part: Chunk | Gap) -> int:
    return len(part.records) if isinstance(part, Chunk) else 1


def _split(parts: Sequence[Chunk | Gap], weight: int) -> tuple[list[Chunk | Gap], list[Chunk | Gap]]:
    """The first ``weight`` records (a gap counts as one), and the rest."""
    first: list[Chunk | Gap] = []
    for index, part in enumerate(parts):
        if weight == 0:
            return first, list(parts[index:])
        if isinstance(part, Chunk) and len(part.records) > weight:
            begin, records = part.sequence_first, part.records
            first.append(Chunk(sequence_first=begin, records=records[:weight]))
            rest = Chunk(sequence_first=begin + weight, records=records[weight:])
            return first, [rest, *parts[index + 1 :]]
        first.append(part)
        weight -= _weight(part)
    return first, []
