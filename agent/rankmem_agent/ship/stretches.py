"""What was read of one spool and not sent yet, cut into stretches: one becomes one batch.

Stage: shipper process, between spool reader and pairing. In: what the reader gives; out: a stretch, once it
is long enough, a beat has come, or the log has ended. It moves the reader's cursor and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from rankmem_agent.ship.envelope import Stretch
from rankmem_agent.spool.reader import Chunk, Gap, SpoolReader

BATCH_RECORDS: Final = 32_768
"""A batch is cut at this many records: half a MiB usually. Half as many cost a twentieth more of the
shipper's time; twice as many pass a message's limit, and are paired once more in halves (measured)..."""
BEAT_S: Final = 0.5
"""... or at the next beat, the same for all lanes, so that one commit takes them all: a cut and a commit cost
some 20 ms of CPU however little is in them, and an event should be seen within a second."""
BEAT_SLACK_S: Final = BEAT_S / 4
"""What came this shortly before a beat waits for the one after: no scraps behind a full batch."""
QUICK_RECORDS_PER_S: Final = 24_000
"""Of a lane. From so many on the half of a beat counts, too: beside them a cut costs little, and the time
that many records take to be paired and stored adds to the wait."""


class Stretches:
    """The stretches of one spool, one behind the other.

    Args:
        reader: the spool.
        sequence_next: where the first one begins; it may lie before the reader's cursor if ``parts`` fill the
            way between.
        parts: what comes before the reader's cursor.
    """

    def __init__(self, reader: SpoolReader, sequence_next: int = 0, parts: Sequence[Gap] = ()) -> None:
        self.sequence_next = sequence_next
        """Where the next one begins."""
        self._reader = reader
        self._parts: list[Chunk | Gap] = list(parts)
        self._num_records = len(parts)
        self._since_s = time.monotonic()

    def next(self, *, at_beats: bool = True) -> Stretch | None:
        """The next stretch if it is due; None: nothing yet. Nothing follows one that is final.

        Args:
            at_beats: also a short one, when a beat has come; otherwise it waits until it is full or the last.
        """
        self._fill()
        if not self._is_due(at_beats):
            return None
        # Asked again: with a full batch in hand the log may end behind it, and that is the next batch's.
        final = self._num_records < BATCH_RECORDS and self._reader.is_finished()
        last = self._reader.next_seq if final else self._parts[-1].sequence_last
        stretch = Stretch(
            sequence_first=self.sequence_next, sequence_last=last, parts=self._parts, final=final
        )
        self.sequence_next = last + 1
        self._parts, self._num_records = [], 0
        return stretch

    def _fill(self) -> None:
        while self._num_records < BATCH_RECORDS:
            part = self._reader.read(BATCH_RECORDS - self._num_records)
            if part is None:
                return
            if not self._parts:
                self._since_s = time.monotonic()
            self._parts.append(part)
            self._num_records += len(part.records) if isinstance(part, Chunk) else 1

    def _is_due(self, at_beats: bool) -> bool:
        if self._num_records >= BATCH_RECORDS or self._reader.is_finished():
            return True
        if not at_beats or not self._parts:
            return False
        now_s = time.monotonic()
        is_quick = self._num_records >= QUICK_RECORDS_PER_S * (now_s - self._since_s)
        return now_s >= _beat_after(self._since_s, 0.5 if is_quick else 1.0)


def _beat_after(time_s: float, beats: float) -> float:
    """The first beat, or part of one, that a time of CLOCK_MONOTONIC does not come shortly before."""
    beat_s = beats * BEAT_S
    return ((time_s + beats * BEAT_SLACK_S) // beat_s + 1) * beat_s
