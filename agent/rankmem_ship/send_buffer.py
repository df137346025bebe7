"""The batches of one lane that are packed and not sent: full ones wait for the beat.

Stage: shipper process, between pairing and stream, on the loop's thread. In: packed batches, and the beats.
Out: one batch after the other, in order. It looks at no spool and at no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from rankmem_ship.envelope import Envelope

SHORT_BATCHES_MAX: Final = 2
"""Unacknowledged batches above which none is cut short: behind a slow aggregator batches become larger, not
more, and a large one costs it little more. With 1,000 ranks each waited for 36 s, mostly for its own."""
HELD_BATCHES_MAX: Final = 2
"""Full batches that wait for the beat, so that one commit takes them with what follows: 1 MiB usually. With
more at hand the oldest goes: there is a backlog, or 240,000 records a second."""


class Outgoing:
    """Packed batches, oldest first; begins as if a beat had come."""

    def __init__(self) -> None:
        self._packed: deque[Envelope] = deque()
        self._released = 0  # of _packed: these wait no longer
        self._cut_due = True  # a beat came, and what is read was not cut yet
        self._sent_since_beat = 0

    def __iter__(self) -> Iterator[Envelope]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def beat(self) -> None:
        """All of it may go, and what is read is to be cut."""
        if not self._cut_due:
            self._cut_due, self._sent_since_beat = True, 0
        self._released = len(self._packed)

    def may_cut(self, num_unacked: int) -> bool:
        """Whether something short may be cut now, with so many batches on the wire."""
        return self._cut_due and num_unacked - self._sent_since_beat < SHORT_BATCHES_MAX

    def put(self, envelopes: Iterable[Envelope], *, is_short: bool) -> None:
        """Adds what was packed; behind something short, nothing waits for the beat that came."""
        self._packed.extend(envelopes)
        if is_short:
            self.all_is_cut()

    def all_is_cut(self) -> None:
        """Nothing is left to be cut for the beat that came."""
        self._cut_due, self._released = False, len(self._packed)

    @property
    def wants_more(self) -> bool:
        """Nothing can be taken yet, and something more may be packed."""
        if self._released or self._cut_due:
            return not self._packed
        return len(self._packed) <= HELD_BATCHES_MAX

    def take(self) -> Envelope | None:
        """The next batch to be sent; None: none, or all wait for the beat."""
        if self.wants_more:
            return None
        self._released = max(self._released - 1, 0)
        self._sent_since_beat += 1
        return self._packed.popleft()

    def keep_behind(self, last_sequence: int) -> None:
        """Drops what another way has brought to the aggregator; the rest may go at once."""
        self._packed = deque(e for e in self._packed if e.message.sequence_last > last_sequence)
        self.beat()

    def clear(self) -> None:
        """Drops all: it will be packed anew, and cut at once."""
        self._packed.clear()
        self.beat()
