"""A recorded job: aggregator, training, last acknowledgement, summary, in this order.

Stage: ``rankmem run`` and ``rankmem demo``. In: a command and a target. Out: the training's exit code. A
failure of rankmem after the training has started is reported on stderr and affects neither the training nor
its exit code.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rankmem_agent import facts
from rankmem_agent.config import AgentConfig
from rankmem_agent.launchers import task_of
from rankmem_agent.preload import launch
from rankmem_agent.session_ids import given_id, id_of_launch, make_session_id, on_several_hosts
from rankmem_agent.spool import election, places
from rankmem_agent.spool import folder as spool_folder
from rankmem_cli import errors
from rankmem_cli.args.options import Target
from rankmem_cli.run import child, drain, other_runs
from rankmem_cli.run.destination import Destination, open_destination
from rankmem_cli.run.failing_stderr import stderr_may_fail
from rankmem_cli.run.interpreter import option_at_fault
from rankmem_cli.show.render import note
from rankmem_cli.show.status import set_aside_lines, shipper_state
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship import closing

DRAIN_S_DEFAULT: Final = 120.0
"""Catching up takes seconds; an unreachable aggregator must not hold the job's nodes for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to run and how to record it."""

    command: tuple[str, ...]
    target: Target
    session: str | None = None
    """The id that all hosts of the job use; None: ``RANKMEM_SESSION``, else derived, else new."""
    name: str | None = None
    spool_dir: Path | None = None
    """Root of the spools; None: the agent chooses."""
    drain_s: float = DRAIN_S_DEFAULT
    environment: dict[str, str] = field(default_factory=dict)
    """Variables for the command, which override those that are set."""
    folder: Path | None = None
    """The command's working folder; None: the current one."""


Report = Callable[[Destination, str, bool], None]
"""Called with the destination, the session's id and whether everything is stored, while the aggregator
still runs."""


@stderr_may_fail()
def run_job(job: Job, report: Report, *, is_last: bool = False) -> int:
    """Runs the command under the preload, waits until its events are stored, reports.

    Args:
        is_last: after it this process does nothing but exit with the command's code.

    Returns:
        The command's exit code; 126 or 127 if it cannot be run, as in shells.

    Raises:
        RankmemError: the database cannot be opened; the command was not started.
    """
    if shutil.which(job.command[0]) is None:
        return _cannot_run(job.command[0])
    session_id = _session_id(job)
    _warn_of_interpreter(job.command)
    with child.SignalRelay(is_last=is_last) as relay, ExitStack() as opened:
        destination = opened.enter_context(open_destination(job.target))
        environment = launch.environment(
            _base(job),
            session_id=session_id,
            aggregator=destination.address,
            credentials=destination.credentials,
            name=job.name,
            spool_dir=job.spool_dir,
        )
        try:
            config = AgentConfig.from_environment(environment)
            look = _until_it_fails(drain.Shippers(session_id, config).look)
            record_exit = _until_it_fails(functools.partial(drain.record_exit, session_id, config))
            code = relay.run(job.command, environment, job.folder, look, record_exit)
        except OSError as error:
            print(f"Error: cannot run {job.command[0]}: {error.strerror}", file=sys.stderr)
            return child.CANNOT_EXECUTE
        # The training has ended and its exit code stands: a failure from here on is only reported.
        for step in (
            lambda: _finish(job, session_id, environment, relay, destination, report),
            lambda: other_runs.wait_for_other_recorders(destination, relay, job.drain_s),
            opened.close,
        ):
            errors.boundary(step, verbose=lambda: False)
    return code


def _until_it_fails(work: Callable[..., None]) -> Callable[..., None]:
    """``work`` for use beside the training: its first failure is reported, after which it does nothing."""
    has_failed = False

    def do(*arguments: Any) -> None:
        nonlocal has_failed
        if not has_failed:
            has_failed = errors.boundary(lambda: work(*arguments), verbose=lambda: False) != 0

    return do


def _session_id(job: Job) -> str:
    """The session's id; warns where the job's other hosts will have a different one."""
    given = job.session or os.environ.get("RANKMEM_SESSION")
    session_id = given_id(given) if given else id_of_launch(job.command, os.environ)
    task = task_of(os.environ)
    is_task = task is not None and task.num_tasks > 1
    are_here = task is not None and task.is_one_host
    if session_id is None and is_task and are_here:
        session_id = facts.id_of_process(os.getppid())  # derived from the launcher, for this host
    if on_several_hosts(job.command) or (is_task and not are_here):
        if session_id is None:
            note(
                "rankmem: no session id is shared with the job's other hosts: this host is a separate session"
            )
            note("Try: rankmem run --session ID, the same on all hosts and different for every job")
        if job.target.aggregator is None:
            note(f"rankmem: this host records into its own {job.target.db}, separate from the other hosts")
            note("Try: rankmem run --aggregator HOST:PORT, the same on all hosts")
    return session_id or make_session_id()


def _warn_of_interpreter(command: Sequence[str]) -> None:
    """Warns if the command's Python will not load the agent."""
    option = option_at_fault(command)
    if option is not None:
        note(f"rankmem: python {option} does not load rankmem: this command is not recorded")
        instead = "" if option == "-S" else f", or: rankmem run -- python {option} -m rankmem_agent SCRIPT"
        note(f"Try: leave out {option}{instead}")


def _base(job: Job) -> dict[str, str]:
    """The command's variables; the shipper stops when the wait ends, and ``rankmem ship`` takes over."""
    return {"RANKMEM_SHIP_DRAIN_S": f"{job.drain_s:g}"} | dict(os.environ) | job.environment


def report_summary(
    destination: Destination, session_id: str, is_delivered: bool, *, finds: bool = True
) -> None:
    """Prints the summary at the end of ``rankmem run``; ``finds``: with the first finding of all insights."""
    from rankmem_aggregator.query.open import open_queries
    from rankmem_cli.run.first_finding import finding_line
    from rankmem_cli.show.summary import print_summary

    with open_queries(destination.address, destination.credentials) as queries:
        try:
            known = queries.sessions()["session_id"].to_pylist()
        except RankmemError as exc:
            if exc.code is not Code.DENIED:
                raise
            note("rankmem: recorded; no summary, because the token may write but not read")
            return
        if session_id not in known:
            # Where all is delivered, the agent switched itself off and reported why.
            note("rankmem: nothing was recorded" if is_delivered else "rankmem: nothing is stored yet")
            return
        given = replace(destination.given, session=session_id)
        print_summary(queries, session_id, given, is_delivered=is_delivered)
        line = other_runs.line_about_others(
            session_id,
            queries.ranks(session_id).to_pylist(),
            facts.host_uid(),
            facts.process_started_ns(os.getpid()),
        )
        if line is not None:
            note(line)
        if finds:
            note(finding_line(queries, session_id, given))


def report_nothing(destination: Destination, session_id: str, is_delivered: bool) -> None:
    """For ``--quiet``."""


def _finish(
    job: Job,
    session_id: str,
    environment: Mapping[str, str],
    relay: child.SignalRelay,
    destination: Destination,
    report: Report,
) -> None:
    """Waits for the last acknowledgement and reports; a launcher's first task reports for all its tasks."""
    folders = spool_folder.session_dirs(session_id, AgentConfig.from_environment(environment))
    # Without a folder, either no rank attached (a command without torch is left alone, and so is its stderr)
    # or another task of the job, the last to end, has removed it.
    if not folders and not (
        other_runs.is_one_of_several()
        and other_runs.is_reporter()
        and other_runs.is_known(destination, session_id)
    ):
        return
    for folder in folders:
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # the wait tries again
            if places.settle(folder):  # for ranks that were killed before they trained
                election.elect(folder)
        with contextlib.suppress(OSError):  # a full disk: the folder stays once it is empty
            closing.close(folder)
    is_delivered = drain.wait_delivered(folders, relay, drain_s=job.drain_s) or _give_up(folders)
    if destination.ends_with_run and not destination.has_other_recorders():  # whose ranks live too
        is_delivered &= not _note_living(folders, destination)
    for line in set_aside_lines(folders):
        note(f"rankmem: {line}")
    is_reported = report is not report_nothing and other_runs.is_reporter()
    if is_reported and (is_delivered or _answers(destination)):
        if other_runs.is_one_of_several():
            other_runs.wait_for_tasks(destination, session_id, relay)
        report(destination, session_id, is_delivered)
    for folder in folders:
        closing.remove_unless_shipping(folder)


def _give_up(folders: Sequence[Path]) -> bool:
    """Stops the shippers and reports what is left and how to deliver it; True if nothing is left."""
    before = {folder: shipper_state(folder).error for folder in folders}
    held = [folder for folder in folders if not drain.release(folder)]
    # A shipper writes the reason as it stops; after a short wait it has written none before.
    why = {folder: shipper_state(folder).error or before[folder] for folder in folders}
    left = [folder for folder in folders if drain.undelivered(folder)]
    for folder in left:
        note("rankmem: some records are not stored yet" + (f": {why[folder]}" if why[folder] else ""))
        after = "  (after its shipper, which is still running, has ended)" if folder in held else ""
        note(f"Try: rankmem ship {shlex.quote(str(folder))}{after}")
    return not left


def _note_living(folders: Sequence[Path], destination: Destination) -> bool:
    """Reports ranks that outlive the command, and so the aggregator; whether there are any."""
    left = [folder for folder in folders if drain.living(folder)]
    for folder in left:
        note("rankmem: processes of the command still run: what they record from now on stays on this host")
        where = f"{shlex.quote(str(folder))} {destination.given.text('run')}"
        note(f"Try: rankmem ship {where}  (after they have ended)")
    return bool(left)


def _answers(destination: Destination) -> bool:
    """Whether the aggregator, which did not take everything, answers: waiting for one that is gone would hold
    the job's nodes for minutes."""
    from rankmem_aggregator.query.open import open_queries

    with open_queries(destination.address, destination.credentials) as queries:
        try:
            queries.aggregator_state()
        except RankmemError as exc:
            if exc.code is not Code.DENIED:
                note(f"rankmem: no summary: {exc.message}")
                if exc.hint:
                    note(f"Try: {exc.hint}")
                return False
    return True


def _cannot_run(program: str) -> int:
    path = Path(program)
    exists = os.sep in program and path.exists()
    why = "not executable" if exists else "command not found"
    print(f"Error: {program}: {why}", file=sys.stderr)
    print("Try: rankmem run -- torchrun --nproc-per-node 2 train.py", file=sys.stderr)
    return child.CANNOT_EXECUTE if exists else child.NOT_FOUND
