"""Where a job's events go: an aggregator that runs already, or one embedded in this process.

Stage: ``rankmem run``, before and after the training. In comes a place, out goes the HOST:PORT that the
shipper is told. The embedded aggregator's threads live in this process, beside the wait for the child;
it opens before the training starts, so that a locked database is said before anything runs.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankmem_agent.ship.election import NICENESS
from rankmem_cli.options import Place
from rankmem_cli.render import note
from rankmem_protos.credentials import Credentials

if TYPE_CHECKING:
    from rankmem_aggregator.address import ServerAddress

CLOSE_TIMEOUT_S: Final = 30.0
"""For the last commit and the checkpoint, which rewrites what the log holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where to ship, and how the user names it afterwards."""

    address: str
    """HOST:PORT."""
    shown: str
    """The flag that a reading verb needs; empty where the default finds it."""
    credentials: Credentials = field(default_factory=Credentials)
    """What the aggregator is shown."""


@contextmanager
def open_destination(place: Place) -> Iterator[Destination]:
    """The aggregator at the place; an embedded one lives as long as the context.

    Raises:
        RankmemError: the database cannot be opened.
    """
    if place.aggregator is not None:
        place.credentials.check()
        yield Destination(
            address=place.aggregator, shown=f"--aggregator {place.aggregator}", credentials=place.credentials
        )
        return
    assert place.db is not None  # a Place has one of the two
    shown = f"--db {place.db}"
    holder = served_at(place.db)
    if holder is not None:
        note(f"rankmem: {place.db} is held by the aggregator at {holder.address}; recording into it")
        asked = place.credentials.only(tls=holder.tls, token=holder.token)
        yield Destination(address=holder.address, shown=shown, credentials=asked)
        return
    from rankmem_aggregator import server
    from rankmem_aggregator.config import AggregatorConfig

    config = AggregatorConfig.embedded(place.db)
    # A thread's niceness is its own on Linux and goes to the threads it starts: the aggregator's yield to the
    # training like the shipper, the command that this process starts does not.
    with ThreadPoolExecutor(max_workers=1, initializer=_yield_to_training) as opener:
        aggregator = opener.submit(server.open, config).result()
    try:
        yield Destination(address=aggregator.address, shown=shown)
    finally:
        aggregator.close(CLOSE_TIMEOUT_S)


def _yield_to_training() -> None:
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)


def served_at(database_path: Path) -> ServerAddress | None:
    """The aggregator on this host that holds the file now; None if nobody does."""
    from rankmem_aggregator.address import read_address

    entry = read_address(database_path)
    return entry if entry is not None and entry.host_name == socket.gethostname() else None
