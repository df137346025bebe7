"""Where a job's events go: an aggregator that runs already, or one of this command's own.

Stage: ``rankmem run``, before and after the training. In comes a place, out goes the HOST:PORT that the
shipper is told. The aggregator of its own is a process beside the training, with a bound on its memory, kept
alive from here; it opens before the training starts, so that a locked database is said before anything runs.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankmem_agent.launchers import task_of
from rankmem_agent.spool.election import NICENESS
from rankmem_cli.args.options import Target
from rankmem_cli.run import recorders
from rankmem_cli.show.render import note
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.store.address import ServerAddress
    from rankmem_aggregator.supervision.supervisor import Supervisor

OPENS_WITHIN_S: Final = 20.0
"""For another task of the job to open the database that both want: imports, and a file that is closed."""
_LOOK_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where to ship, and how the user names it afterwards."""

    address: str
    """HOST:PORT."""
    shown: str
    """The flag that a reading verb needs; empty where the default finds it."""
    credentials: Credentials = field(default_factory=Credentials)
    """What the aggregator is shown."""
    has_other_recorders: Callable[[], bool] = lambda: False
    """Whether other runs of this host record into the database that this process holds."""


@contextmanager
def open_destination(place: Target) -> Iterator[Destination]:
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
    assert place.db is not None  # a Target has one of the two
    shown = f"--db {place.db}"
    has_other_recorders = functools.partial(recorders.are_registered, place.db)
    holder, supervisor = _served_or_opened(place.db)
    if supervisor is not None:
        try:
            yield Destination(
                address=supervisor.address, shown=shown, has_other_recorders=has_other_recorders
            )
        finally:
            supervisor.close()
    elif holder is not None:
        note(f"rankmem: {place.db} is held by the aggregator at {holder.address}; recording into it")
        asked = place.credentials.only(tls=holder.tls, token=holder.token)
        with recorders.register(place.db):
            yield Destination(address=holder.address, shown=shown, credentials=asked)


def _served_or_opened(database_path: Path) -> tuple[ServerAddress | None, Supervisor | None]:
    """Where another process has the database, or else an aggregator of this one.

    Several runs that start at once (one for each rank) want the same file: one of them opens it.
    """
    from rankmem_aggregator.config import AggregatorConfig
    from rankmem_aggregator.supervision.supervisor import Supervisor

    deadline = time.monotonic() + OPENS_WITHIN_S
    pause = threading.Event()
    while True:
        holder = served_at(database_path)
        if holder is not None:
            return holder, None
        supervisor = Supervisor(
            AggregatorConfig.embedded(database_path),
            is_embedded=True,
            niceness=NICENESS,  # it yields to the training as the shipper does
            report=lambda text: note(f"rankmem: {text}"),
        )
        try:
            supervisor.start()
        except RankmemError as exc:
            is_one_of_several = (task := task_of(os.environ)) is not None and task.num_tasks > 1
            if exc.code is not Code.CONFLICT or not is_one_of_several or time.monotonic() > deadline:
                raise
        else:
            return None, supervisor
        pause.wait(_LOOK_EVERY_S)


def served_at(database_path: Path) -> ServerAddress | None:
    """The aggregator on this host that holds the file now; None if nobody does."""
    from rankmem_aggregator.store.address import read_address

    entry = read_address(database_path)
    return entry if entry is not None and entry.host_name == socket.gethostname() else None
