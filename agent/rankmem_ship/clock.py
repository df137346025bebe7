"""The host's clock against the aggregator's, from the shipper's own exchanges.

Stage: shipper process. Each exchange has four times, as in NTP: sent and got back here, received and
replied there. Half the round trip bounds the error, so the exchange with the smallest round trip in a
window is the estimate. Here the clock is CLOCK_MONOTONIC, which no one sets: a step of the host's clock
moves no estimate. Rows are in a rank's host time (its log's base plus monotonic), so the base is taken off.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from rankmem_ship.pairing.upserts import ClockEstimate

WINDOW_NS: Final = 60_000_000_000
"""Exchanges older than this no longer count: clocks drift apart by some microseconds a second."""
DRIFT_PPM: Final = 20
"""How fast two hosts' clocks may drift apart; an old exchange's bound grows by it."""
PROBE_INTERVAL_S: Final = 10.0
PROBES_AT_ONCE: Final = 4
"""One of four finds the queues empty; more only add cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The result of one probe."""

    at_ns: int
    """CLOCK_MONOTONIC when the reply came."""
    offset_ns: int
    """Aggregator's clock minus our monotonic one."""
    error_ns: int
    """Half the round trip."""


class ClockOffset:
    """Collects exchanges; estimates the offset from the best of the window."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque()
        self._probed_s = float("-inf")

    def num_probes_due(self, now_s: float) -> int:
        """How many probes are to be sent now (CLOCK_MONOTONIC); they count as sent."""
        if now_s - self._probed_s < PROBE_INTERVAL_S:
            return 0
        self._probed_s = now_s
        return PROBES_AT_ONCE

    def add(self, *, sent_ns: int, received_ns: int, replied_ns: int, got_ns: int) -> None:
        """Take in one exchange: sent and got are CLOCK_MONOTONIC here, the others the aggregator's time."""
        round_trip_ns = (got_ns - sent_ns) - (replied_ns - received_ns)
        if round_trip_ns < 0 or got_ns < sent_ns:
            return  # a reply that came before its probe is no measurement
        offset_ns = ((received_ns - sent_ns) + (replied_ns - got_ns)) // 2
        exchange = Exchange(at_ns=got_ns, offset_ns=offset_ns, error_ns=(round_trip_ns + 1) // 2)
        self._exchanges.append(exchange)
        while self._exchanges[0].at_ns < got_ns - WINDOW_NS:
            self._exchanges.popleft()

    def forget(self) -> None:
        """Drop all exchanges: another aggregator, with another clock, is probed at once."""
        self._exchanges.clear()
        self._probed_s = float("-inf")

    def estimate(self, base_ns: int, now_ns: int) -> ClockEstimate | None:
        """The best estimate for host time = monotonic + ``base_ns``; None before the first exchange."""
        if not self._exchanges:
            return None
        bounds = [(e.error_ns + (now_ns - e.at_ns) * DRIFT_PPM // 1_000_000, e) for e in self._exchanges]
        error_ns, best = min(bounds, key=lambda bound: bound[0])
        return ClockEstimate(offset_ns=best.offset_ns - base_ns, error_ns=error_ns)
