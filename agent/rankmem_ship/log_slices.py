"""What was read of one spool and not sent yet, cut into stretches: one becomes one batch.

Stage: shipper process, between spool reader and pairing. In: what the reader gives; out: a stretch, once it
is long enough, a beat has come, or the log has ended. It moves the reader's cursor and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankmem_ship.envelope import Stretch
from rankmem_ship.pace import Pace
from rankmem_ship.spool_reader.reader import Chunk, Gap, SpoolReader


class Stretches:
    """The stretches of one spool, one behind the other.

    Args:
        reader: the spool.
        sequence_next: where the first one begins; it may lie before the reader's cursor if ``parts`` fill the
            way between.
        parts: what comes before the reader's cursor.
        pace: how long a stretch is; default: as long as they are.
    """

    def __init__(
        self,
        reader: SpoolReader,
        sequence_next: int = 0,
        parts: Sequence[Gap] = (),
        pace: Pace | None = None,
    ) -> None:
        self.sequence_next = sequence_next
        """Where the next one begins."""
        self._reader = reader
        self._parts: list[Chunk | Gap] = list(parts)
        self._num_records = len(parts)
        self._pace = pace or Pace()

    def next(self, *, at_beat: bool = True) -> Stretch | None:
        """The next stretch if it is due; None: nothing yet. Nothing follows one that is final.

        Args:
            at_beat: also a short one; otherwise it waits until it is full or the last.
        """
        self._fill()
        full = self._num_records >= self._pace.batch_records
        if not full and not self._reader.is_finished() and not (at_beat and self._parts):
            return None
        # Asked again: with a full batch in hand the log may end behind it, and that is the next batch's.
        final = not full and self._reader.is_finished()
        last = self._reader.next_seq if final else self._parts[-1].sequence_last
        stretch = Stretch(
            sequence_first=self.sequence_next,
            sequence_last=last,
            parts=self._parts,
            final=final,
            full=full,
        )
        self.sequence_next = last + 1
        self._parts, self._num_records = [], 0
        return stretch

    def _fill(self) -> None:
        while (room := self._pace.batch_records - self._num_records) > 0:
            part = self._reader.read(room)
            if part is None:
                return
            self._parts.append(part)
            self._num_records += len(part.records) if isinstance(part, Chunk) else 1
