"""``rankmem ship``: delivers what a job left in its spools.

Stage: the verb's process. In comes a folder, out goes a report on stderr; an aggregator of our own writes
where a database is named. ``rankmem_ship`` delivers.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankmem_cli.args.options import Target
from rankmem_cli.run.destination import open_destination
from rankmem_cli.show.render import note
from rankmem_cli.show.units import count_text
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.deliver import DeliveryReport, Progress, deliver


def deliver_folder(
    folder: Path, *, aggregator: str | None, db: Path | None, credentials: Credentials, timeout_s: float
) -> None:
    """Delivers every spool below ``folder`` and reports the result.

    Args:
        folder: a spool, a session's folder, or the root of many.
        aggregator: HOST:PORT; None: where each spool was meant to go.
        db: a database to deliver into instead.
        credentials: for the aggregator.
        timeout_s: longest time for each session, in seconds.

    Raises:
        RankmemError: there are no spools, or some are left.
    """
    if db is not None and aggregator is not None:
        raise RankmemError(
            Code.INVALID, f"both --db {db} and --aggregator {aggregator} are given", "give one of them"
        )
    with _progress() as progress:
        if db is None:
            report = deliver(
                folder,
                aggregator or "",
                timeout_s=timeout_s,
                progress=progress,
                credentials=credentials,
            )
        else:
            with open_destination(Target(db=db, credentials=credentials)) as destination:
                report = deliver(
                    folder,
                    destination.address,
                    timeout_s=timeout_s,
                    progress=progress,
                    credentials=destination.credentials,
                )
    _report(report, folder)


def _report(report: DeliveryReport, folder: Path) -> None:
    if report.records or report.spools_delivered:
        note(f"rankmem: {count_text(report.records)} records of {report.spools_delivered} spools are stored")
    for error in report.errors:
        note(f"rankmem: {error}")
    if report.busy_sessions:
        raise RankmemError(
            Code.CONFLICT,
            f"a shipper is at work on {', '.join(str(folder) for folder in report.busy_sessions)}",
            "wait until it has finished; shipper.json there shows its progress",
        )
    for spool in report.spools_set_aside:
        note(f"rankmem: {spool.name} cannot be stored there; it is kept in {spool}")
    if report.spools_left == len(report.spools_set_aside) > 0:
        raise RankmemError(
            Code.INVALID,
            f"{report.spools_left} spools cannot be stored, and are set aside",
            f"rankmem ship --db FILE {shlex.quote(str(report.spools_set_aside[0]))} for another database",
        )
    if report.details_left:
        raise RankmemError(
            Code.UNAVAILABLE,
            f"events that stayed on this host are still in {report.details_left[0]}",
            "give the aggregator of the lake that has their summaries: --aggregator HOST:PORT",
        )
    if report.spools_left:
        raise RankmemError(
            Code.UNAVAILABLE,
            f"{report.spools_left} spools in {folder} are not delivered",
            "give an aggregator that answers with --aggregator HOST:PORT, or a database with --db FILE",
        )


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on stderr where it is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("delivering", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
