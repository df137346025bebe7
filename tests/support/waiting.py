"""Waits for another process, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

DEADLINE_S: Final = 180.0
"""Longest wait for anything; a machine that others load takes a third of it."""


def until(what: str, condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Waits until a condition holds; fails after the deadline."""
    over_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < over_s, f"waited {deadline_s:.0f} s in vain: {what}"
        time.sleep(0.02)
