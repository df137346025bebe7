"""The shipper's own status: shipper.json for programs, repeated faults for the log.

Stage: shipper process. ``shipper.json`` is renamed into place, so a reader sees it whole.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Final

from rankmem_agent.spool.whole_file import write_whole

STATUS_NAME: Final = "shipper.json"
WAITING: Final = "waiting"
"""The state of a shipper that cannot reach an aggregator."""
STATUS_INTERVAL_S: Final = 1.0
REPEAT_S: Final = 60.0
"""The same fault is logged at most once in this time, with its count."""


class StatusFile:
    """Keeps shipper.json of a session's folder up to date."""

    def __init__(self, session_dir: Path) -> None:
        self._path = session_dir / STATUS_NAME
        self._written_s = 0.0
        self._last: dict[str, object] = {}

    def write(
        self, state: str, pending_records: int, aggregator: str, error: str, *, now: bool = False
    ) -> None:
        """Write the file if something changed and a second has passed, or ``now``.

        Args:
            state: shipping, waiting (no aggregator), draining, done or given_up.
        """
        current: dict[str, object] = {
            "pid": os.getpid(),
            "state": state,
            "pending_records": pending_records,
            "aggregator": aggregator,
            "error": error,
        }
        passed_s = time.monotonic() - self._written_s
        if not now and (passed_s < STATUS_INTERVAL_S or current == self._last):
            return
        self._last, self._written_s = current, time.monotonic()
        with contextlib.suppress(OSError):  # a full disk must not stop the shipping that empties it
            write_whole(self._path, json.dumps(current | {"updated_ns": time.time_ns()}).encode())


def state_of(session_dir: Path) -> str:
    """The last state that the shipper wrote; empty if it wrote none."""
    try:
        return str(json.loads((session_dir / STATUS_NAME).read_text("utf-8"))["state"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


class Faults:
    """Repeated faults, each logged at most once a minute, with its count."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._logged: dict[str, tuple[float, int]] = {}

    def log(self, key: str, message: str) -> None:
        """Log the fault unless it was logged recently; then only count it."""
        now_s = time.monotonic()
        logged_s, count = self._logged.get(key, (-REPEAT_S, 0))
        if now_s - logged_s < REPEAT_S:
            self._logged[key] = (logged_s, count + 1)
            return
        again = f" ({count} more since)" if count else ""
        self._logger.warning("%s%s", message, again)
        self._logged[key] = (now_s, 0)
