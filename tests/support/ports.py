"""Ports for servers of the tests that are started later, or again."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
CHOSEN_OF: Final = 8_000


def free_port() -> int:
    """A port that is free now, below those that the kernel gives to connections: none takes it meanwhile."""
    lowest_given = int(_RANGE.read_text().split()[0])
    lowest = max(1_024, lowest_given - CHOSEN_OF)
    chance = random.SystemRandom()
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            # A kernel that gives away all ports has to choose.
            probe.bind(("127.0.0.1", chance.randrange(lowest, lowest_given) if lowest < lowest_given else 0))
            return int(probe.getsockname()[1])
