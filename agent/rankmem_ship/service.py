"""The shipper's life: take the lock, ship, drain, leave.

Stage: shipper process. It leaves when every spool found is acknowledged and none came for a while; or the
last rank is dead, and the drain limit has passed or another process asks for the spools: then they stay on
disk for ``rankmem ship DIR``. Leaving is safe at any time: a rank that starts later starts a shipper, and one
that came while this one was leaving is found by a last look after the lock is released. The first signal
drains (what is written now is shipped), the second stops.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

from rankmem_agent.spool.election import take_lock
from rankmem_ship import closing
from rankmem_ship.config import ShipConfig
from rankmem_ship.shipper import Shipper

logger = logging.getLogger(__name__)

SIGNALLED_DRAIN_S: Final = 20.0
"""After a first signal: most resource managers kill 30 s after it."""


class Service:
    """One shipper process for one session folder.

    Args:
        session_dir: folder of the session on this host.
        config: its configuration.
    """

    def __init__(self, session_dir: Path, config: ShipConfig) -> None:
        self._dir = session_dir
        self._config = config
        self._signals = 0
        self._signalled_s = 0.0
        self._stop = threading.Event()
        self._shipper: Shipper | None = None

    def run(self) -> int:
        """Ship until nothing is left; returns 0 if all was delivered (or another process ships), 1 if not."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        code = 0
        while (lock_fd := take_lock(self._dir)) is not None:
            closing.forget_asked(self._dir)
            shipper = self._shipper = Shipper(self._dir, self._config)
            try:
                code = self._ship(shipper)
            finally:
                shipper.close("done" if code == 0 else "given_up")
                removed = closing.remove_if_over(self._dir)
                os.close(lock_fd)
            if removed:
                break
            # A rank that came while we held the lock started no shipper of its own.
            if code or self._signals or not shipper.has_new_spools:
                break
        return code

    def _ship(self, shipper: Shipper) -> int:
        began_s = quiet_s = time.monotonic()
        gone_s: float | None = None
        while not self._stop.is_set():
            shipper.step()
            now_s = time.monotonic()
            if not shipper.is_done:
                quiet_s = now_s
            gone_s = (gone_s or now_s) if shipper.ranks_are_gone else None
            if self._is_over(shipper, now_s - quiet_s, now_s - began_s):
                return 1 if shipper.failures else 0
            if gone_s is not None and not shipper.is_done and now_s - gone_s > self._config.drain_s:
                logger.error("giving up: %d records stay in %s", shipper.pending_records, self._dir)
                return 1
            if gone_s is not None and not shipper.is_done and closing.is_asked(self._dir):
                logger.info("asked to stop: %d records stay in %s", shipper.pending_records, self._dir)
                return 1
            is_idle = shipper.is_idle and not shipper.is_sending_details
            if self._signals and (is_idle or now_s - self._signalled_s > SIGNALLED_DRAIN_S):
                return 0 if is_idle else 1
            shipper.wait(self._stop)
        return 1

    def _is_over(self, shipper: Shipper, quiet_s: float, age_s: float) -> bool:
        """Whether there was nothing to do for a while: longer at first, while the first rank starts."""
        if not shipper.is_done:
            return False
        if shipper.keeps_details and quiet_s < self._config.edge_stay_s:
            return False
        if closing.is_closed(self._dir):
            return True
        found_any = bool(shipper.num_delivered or shipper.uploads or shipper.failures)
        return quiet_s > self._config.grace_s if found_any else age_s > self._config.first_spool_s

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._signalled_s = time.monotonic()
        if self._signals > 1:
            self._stop.set()
        if self._shipper is not None:
            self._shipper.wake.set()
