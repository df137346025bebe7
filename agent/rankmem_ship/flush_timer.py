"""When the lanes of one shipper are cut and sent: together, so that one commit takes what all of them have.

Stage: shipper process, on the loop's thread. In: the time, and how many records wait to be sent; out: whether
a beat has come. It touches no lane.
"""

from __future__ import annotations

from typing import Final

BEAT_S: Final = 0.65
"""From the first record after a beat to the next one, where records come slowly. A cut and a commit cost some
20 ms of CPU however little is in them, and an event should be seen within a second."""
RECORD_S: Final = 2.5e-6
"""What a record takes to be paired, sent and stored: so much earlier the beat comes, for each that waits. A
beat is 0.52 s at 100,000 records a second, 0.37 s at 300,000."""
BEAT_LEAST_S: Final = 0.2
"""However fast records come: full batches do not wait for one for long, see ``outgoing.HELD_BATCHES_MAX``."""


class Beats:
    """The beats of one shipper; begins with one that waits for a first record."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def came(self, now_s: float, num_unsent: int) -> bool:
        """Whether it is time; the next beat then begins when a record waits again.

        Args:
            now_s: CLOCK_MONOTONIC.
            num_unsent: records that wait to be sent, over all lanes.
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
        """Seconds to the next beat, if no more records come."""
        if self._began_s is None:
            return BEAT_S
        return self._began_s + max(BEAT_S - RECORD_S * num_unsent, BEAT_LEAST_S) - now_s
