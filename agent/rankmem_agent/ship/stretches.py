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
"""A batch is cut at this many records: half a MiB usually. Twice as many save a tenth of the shipper's time,
half as many cost a third more (measured)..."""
BEAT_S: Final = 0.5
"""... or at the next beat, the same for all lanes, so that one commit takes them all: a cut and a commit cost
some 20 ms of CPU however little is in them, and an event should be seen within a second."""
BEAT_SLACK_S: Final = BEAT_S / 4
"""What came this shortly before a beat waits for the one after: no scraps behind a full batch."""


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
        return (
            at_beats and bool(self._parts) and time.monotonic() >= _beat_after(self._since_s + BEAT_SLACK_S)
        )


def _beat_after(time_s: float) -> float:
    """The first beat after a time of CLOCK_MONOTONIC."""
    return (time_s // BEAT_S + 1) * BEAT_S
