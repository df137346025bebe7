"""Where a job's events go: an aggregator that runs already, or one of this command's own.

Stage: ``rankmem run``, before and after the training. In comes a place, out goes the HOST:PORT that the
shipper is told. The aggregator of its own is a process beside the training, with a bound on its memory, kept
alive from here; it opens before the training starts, so that a locked database is said before anything runs.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rankmem_agent.ship.election import NICENESS
from rankmem_cli.options import Place
from rankmem_cli.render import note
from rankmem_protos.credentials import Credentials

if TYPE_CHECKING:
    from rankmem_aggregator.address import ServerAddress


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
    from rankmem_aggregator.config import AggregatorConfig
    from rankmem_aggregator.supervisor import Supervisor

    with Supervisor(
        AggregatorConfig.embedded(place.db),
        is_embedded=True,
        niceness=NICENESS,  # it yields to the training as the shipper does
        say=lambda text: note(f"rankmem: {text}"),
    ) as supervisor:
        yield Destination(address=supervisor.address, shown=shown)


def served_at(database_path: Path) -> ServerAddress | None:
    """The aggregator on this host that holds the file now; None if nobody does."""
    from rankmem_aggregator.address import read_address

    entry = read_address(database_path)
    return entry if entry is not None and entry.host_name == socket.gethostname() else None
