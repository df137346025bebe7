"""Where a job's events go: an aggregator that is already running, or one that this command starts.

Stage: ``rankmem run``, before and after the training. In: a target. Out: the HOST:PORT for the shipper. The
command's own aggregator is a process beside the training, with bounded memory, restarted from here if it
dies; it opens before the training starts, so that a locked database is reported before anything runs.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankmem_agent.launchers import task_of
from rankmem_agent.spool.election import NICENESS
from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_cli.args.options import Target
from rankmem_cli.run import recorders
from rankmem_cli.show.render import note
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.store.address import ServerAddress
    from rankmem_aggregator.supervision.supervisor import Supervisor

OPENS_WITHIN_S: Final = 20.0
"""Time for another task of the same job to open the database: imports, and a file being closed."""
_LOOK_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where to ship, and how the user refers to it afterwards."""

    address: str
    """HOST:PORT."""
    given: GivenOptions
    """The options with which a reading verb finds it."""
    credentials: Credentials = field(default_factory=Credentials)
    """For the aggregator."""
    ends_with_run: bool = False
    """Whether the aggregator is this process's own, and ends with it."""
    has_other_recorders: Callable[[], bool] = lambda: False
    """Whether other runs on this host record into the database that this process holds."""


@contextmanager
def open_destination(target: Target) -> Iterator[Destination]:
    """The aggregator of the target; an embedded one lives as long as the context.

    Raises:
        RankmemError: the database cannot be opened.
    """
    if target.aggregator is not None:
        target.credentials.check()
        yield Destination(
            address=target.aggregator,
            given=_finding(target, "--aggregator", target.aggregator),
            credentials=target.credentials,
        )
        return
    assert target.db is not None  # a Target has one of the two
    given = _finding(target, "--db", str(target.db))
    has_other_recorders = functools.partial(recorders.are_registered, target.db)
    holder, supervisor = _holder_or_own(target.db)
    if supervisor is not None:
        try:
            yield Destination(
                address=supervisor.address,
                given=given,
                ends_with_run=True,
                has_other_recorders=has_other_recorders,
            )
        finally:
            supervisor.close()
    elif holder is not None:
        note(f"rankmem: the aggregator at {holder.address} holds {target.db}; recording through it")
        asked = target.credentials.only(tls=holder.tls, token=holder.token)
        with recorders.register(target.db):
            yield Destination(address=holder.address, given=given, credentials=asked)


def _finding(target: Target, name: str, value: str) -> GivenOptions:
    """The options that find the target again, which is named even where a default or the environment did."""
    others = (pair for pair in target.given.source if pair[0] != name)
    return replace(target.given, source=((name, value), *others))


def _holder_or_own(database_path: Path) -> tuple[ServerAddress | None, Supervisor | None]:
    """The address of the process that holds the database, or else a new aggregator of this one.

    Of several runs that start at once on the same file (one for each rank), one opens it.
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
            niceness=NICENESS,  # yields to the training, as the shipper does
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
    """The aggregator on this host that holds the file now; None if there is none."""
    from rankmem_aggregator.store.address import read_address

    entry = read_address(database_path)
    return entry if entry is not None and entry.host_name == socket.gethostname() else None
