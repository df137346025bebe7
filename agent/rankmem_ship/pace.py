"""How much of one spool is sent at once: less after a connection that stored nothing, more after success.

Stage: shipper process, on the loop's thread; part of the send buffer. A path may die whenever so many bytes
have gone through one connection (a middlebox, a quota, a tunnel that is torn down): larger batches never
arrive, however often they are sent. So each connection that broke before anything was stored cuts batches to
a quarter, down to one small batch in flight. What is stored over one connection makes them larger again.
"""

from __future__ import annotations

from typing import Final

BATCH_RECORDS: Final = 32_768
"""A batch is cut at this many records: half a MiB usually. Half as many cost a twentieth more of the
shipper's time; twice as many pass a message's limit, and are paired once more in halves (measured)."""
SPOOL_BATCHES_MAX: Final = 32
"""Unacknowledged batches of one spool: 16 MiB usually, half of the window. With 8, four ranks never had
enough in flight for the aggregator's large groups, which take two thirds of the CPU of small ones."""
SHRINKS_MAX: Final = 4
"""Times that batches are cut to a quarter: to 128 records, 40 kB, with one in flight. Most of that are the
schemas of the tables, so a path that dies within less brings nothing."""
GROW_AFTER: Final = 16
"""Batches stored over one connection after which they become four times as large, and more."""


class Pace:
    """The size of one spool's batches, and how many of them may be in flight."""

    def __init__(self) -> None:
        self.stored_any = False
        """Whether something was stored over this connection."""
        self._num_shrinks = 0
        self._num_stored = 0  # batches, over this connection and at this size

    @property
    def batch_records(self) -> int:
        """A batch is cut at this many records."""
        return max(BATCH_RECORDS >> (2 * self._num_shrinks), 1)

    @property
    def in_flight_max(self) -> int:
        """Batches that may wait for their acknowledgement."""
        return SPOOL_BATCHES_MAX >> (self._num_shrinks + 1) if self._num_shrinks else SPOOL_BATCHES_MAX

    def connected(self) -> None:
        """A connection begins."""
        self._num_stored, self.stored_any = 0, False

    def stored(self, num_batches: int) -> None:
        """So many batches were acknowledged."""
        self._num_stored += num_batches
        self.stored_any |= num_batches > 0
        if self._num_stored >= GROW_AFTER and self._num_shrinks:
            self._num_shrinks -= 1
            self._num_stored = 0

    def shrink(self) -> bool:
        """Send less from now on; False if it is the least already."""
        if self._num_shrinks == SHRINKS_MAX:
            return False
        self._num_shrinks += 1
        return True
