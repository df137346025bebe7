"""How much of one spool goes out at once: less after a connection that brought nothing, more after success.

Stage: shipper process, on the loop's thread. A path may die whenever so many bytes have gone through one
connection (a middlebox, a quota, a tunnel that is torn down): batches that are larger never arrive, however
often they are sent. So each connection that broke before anything was stored makes batches a quarter, and at
last there is one small batch on the way. What is stored within one connection makes them larger again.
"""

from __future__ import annotations

from typing import Final

BATCH_RECORDS: Final = 32_768
"""A batch is cut at this many records: half a MiB usually. Half as many cost a twentieth more of the
shipper's time; twice as many pass a message's limit, and are paired once more in halves (measured)."""
LANE_BATCHES_MAX: Final = 32
"""Unacknowledged batches of one spool: 16 MiB usually, half of the window. With 8, four ranks never had
enough under way for the aggregator's large groups, which take two thirds of the CPU of small ones."""
NARROWEST: Final = 4
"""Times that batches become a quarter: to 128 records, 40 kB, with one on the way. Most of that are the
schemas of the tables, so a path that dies within less brings nothing."""
WIDER_AFTER: Final = 16
"""Batches stored over one connection after which they become four times as large, and more."""


class Pace:
    """How long the batches of one spool are, and how many wait for their acknowledgement."""

    def __init__(self) -> None:
        self._narrowed = 0
        self._stored = 0  # batches, over this connection and at this width
        self._brought_any = False

    @property
    def batch_records(self) -> int:
        """A batch is cut at this many records."""
        return max(BATCH_RECORDS >> (2 * self._narrowed), 1)

    @property
    def batches_max(self) -> int:
        """Batches that may wait for their acknowledgement."""
        return LANE_BATCHES_MAX >> (self._narrowed + 1) if self._narrowed else LANE_BATCHES_MAX

    def opened(self) -> None:
        """A connection begins."""
        self._stored, self._brought_any = 0, False

    def stored(self, num_batches: int) -> None:
        """So many batches were acknowledged."""
        self._stored += num_batches
        self._brought_any |= num_batches > 0
        if self._stored >= WIDER_AFTER and self._narrowed:
            self._narrowed -= 1
            self._stored = 0

    @property
    def brought_any(self) -> bool:
        """Whether something was stored over this connection."""
        return self._brought_any

    def broke(self) -> bool:
        """A connection broke that brought nothing, although something was sent: True if less is sent now."""
        if self._narrowed == NARROWEST:
            return False
        self._narrowed += 1
        return True
