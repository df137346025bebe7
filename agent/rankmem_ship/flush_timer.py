"""When the spools of one shipper are flushed: all at once, so that one commit takes what each of them has.

Stage: shipper process, on the loop's thread; part of the send buffer. In: the time, and how many records wait
to be sent; out: whether a flush is due.
"""

from __future__ import annotations

from typing import Final

FLUSH_INTERVAL_S: Final = 0.65
"""From the first record after a flush to the next flush, where records come slowly. A cut and a commit cost
some 20 ms of CPU however little is in them, and an event should be seen within a second."""
RECORD_S: Final = 2.5e-6
"""What a record takes to be paired, sent and stored: each record that waits brings the flush forward by so
much. The interval is 0.52 s at 100,000 records a second, 0.37 s at 300,000."""
FLUSH_INTERVAL_LEAST_S: Final = 0.2
"""However fast records come: full batches do not wait for a flush for long, see
``send_buffer.HELD_BATCHES_MAX``."""


class FlushTimer:
    """The flushes of one shipper; starts to count at the first record."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def is_due(self, now_s: float, num_unsent: int) -> bool:
        """Whether it is time; the next interval then begins when a record waits again.

        Args:
            now_s: CLOCK_MONOTONIC.
            num_unsent: records that wait to be sent, over all spools.
        """
        if self._began_s is None:
            if not num_unsent:
                return False
            self._began_s = now_s
        if self.due_in_s(now_s, num_unsent) > 0:
            return False
        self._began_s = None
        return True

    def due_in_s(self, now_s: float, num_unsent: int) -> float:
        """Seconds to the next flush, if no more records come."""
        if self._began_s is None:
            return FLUSH_INTERVAL_S
        return self._began_s + max(FLUSH_INTERVAL_S - RECORD_S * num_unsent, FLUSH_INTERVAL_LEAST_S) - now_s
