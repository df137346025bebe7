"""Deliver the spools on disk: the work behind ``rankmem ship DIR``.

Stage: the command's process. In: a spool, a session's folder or the root of all sessions, and an aggregator.
Out: a report. A session with a running shipper is left to it, unless the shipper cannot reach an aggregator
and no rank lives: then it hands them over. The folder of a closed session is removed with its last spool.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rankmem_agent.spool import folder, places
from rankmem_agent.spool.election import take_lock
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship import closing
from rankmem_ship.config import ShipConfig
from rankmem_ship.kept_details import FOLDER_NAME as EDGE_NAME
from rankmem_ship.kept_details import OPENING_NAME
from rankmem_ship.marks import FOLDER_NAME, read_mark
from rankmem_ship.shipper import Shipper
from rankmem_ship.status import WAITING, state_of

Progress = Callable[[int, int], None]
"""Called with (records acknowledged, records found) from time to time."""


@dataclass(slots=True, kw_only=True)
class DeliveryReport:
    """The result of :func:`deliver`."""

    spools_delivered: int = 0
    """Spools that are acknowledged to their end, and deleted."""
    spools_left: int = 0
    """Spools that stay on disk: their rank lives, time ran out, or they cannot be read or stored."""
    spools_set_aside: list[Path] = field(default_factory=list)
    """Those of them in the folder for spools that cannot be stored."""
    records: int = 0
    """Records acknowledged."""
    busy_sessions: list[Path] = field(default_factory=list)
    """Session folders that another shipper holds."""
    details_left: list[Path] = field(default_factory=list)
    """Folders with rows of events that were not delivered."""
    errors: list[RankmemError] = field(default_factory=list)
    """Why spools were left."""


def deliver(
    directory: Path,
    aggregator: str = "",
    timeout_s: float = 300.0,
    progress: Progress | None = None,
    credentials: Credentials | None = None,
) -> DeliveryReport:
    """Ship the spools in ``directory`` and report.

    Args:
        directory: one spool, the folder of a session, or the root of the sessions.
        aggregator: HOST:PORT; default: the one that each spool names.
        timeout_s: longest time for each session, in seconds.
        progress: called from time to time.
        credentials: for the aggregator; default: those named by each spool, for the one that it names.

    Raises:
        RankmemError: NOT_FOUND if there is no spool in the directory, DENIED if a folder cannot be written.
    """
    _settle(directory)
    sessions = find_spools(directory)
    for session_dir in _with_details(directory):
        sessions.setdefault(session_dir, [])
    if not sessions:
        raise RankmemError(
            Code.NOT_FOUND,
            f"there is no spool in {directory}",
            f"name {directory / FOLDER_NAME} for those that were set aside"
            if (directory / FOLDER_NAME).is_dir()
            else "name a spool, a session's folder or their root",
        )
    config = ShipConfig(aggregator=aggregator, credentials=credentials or Credentials())
    report = DeliveryReport()
    for session_dir, spools in sessions.items():
        lock_fd = _lock_of(session_dir)
        if lock_fd is None:
            report.busy_sessions.append(session_dir)
            report.spools_left += len(spools)
            continue
        try:
            _deliver_session(session_dir, spools, config, timeout_s, progress, report)
            _remove_if_empty(session_dir)
        finally:
            closing.remove_if_over(session_dir)
            os.close(lock_fd)
    return report


def _settle(directory: Path) -> None:
    """Place the recordings of processes that were killed before they were known to be ranks."""
    for pattern in ("*", "*/*"):
        for found in sorted(directory.absolute().glob(f"{pattern}/{folder.CANDIDATE_NAME}")):
            places.settle(found.parent.parent)


def _remove_if_empty(session_dir: Path) -> None:
    """Remove the folder for spools that were set aside once it is empty; its lock is held."""
    if session_dir.name == FOLDER_NAME and not folder.spools(session_dir):
        closing.remove_with_files(session_dir)  # the session's shipper may put one more there at any moment


def find_spools(directory: Path) -> dict[Path, list[Path]]:
    """The spools in a directory by session folder; those set aside only if it is their folder."""
    directory = directory.absolute()
    if (directory / "meta.json").exists():
        return {directory.parent: [directory]}
    found: dict[Path, list[Path]] = {}
    for pattern in ("*/meta.json", "*/*/meta.json"):
        for meta in sorted(directory.glob(pattern)):
            if meta.parent.parent.name == FOLDER_NAME and directory.name != FOLDER_NAME:
                continue
            found.setdefault(meta.parent.parent, []).append(meta.parent)
    return found


def _with_details(directory: Path) -> list[Path]:
    """The sessions' folders in a directory, or itself, that have rows of events of delivered spools."""
    found = [*directory.absolute().glob(f"{EDGE_NAME}/*/{OPENING_NAME}")]
    found += directory.absolute().glob(f"*/{EDGE_NAME}/*/{OPENING_NAME}")
    return sorted({opening.parents[2] for opening in found})


def _lock_of(session_dir: Path) -> int | None:
    try:
        lock_fd = take_lock(session_dir)
        if lock_fd is None and state_of(session_dir) == WAITING:
            lock_fd = closing.ask_for(session_dir)
        return lock_fd
    except OSError as exc:
        raise RankmemError(
            Code.DENIED,
            f"{session_dir} cannot be written: {exc.strerror}; what is stored is deleted there",
            "copy the folder to a place where you can write, and ship the copy",
        ) from exc


def _deliver_session(
    session_dir: Path,
    spools: list[Path],
    config: ShipConfig,
    timeout_s: float,
    progress: Progress | None,
    report: DeliveryReport,
) -> None:
    shipper = Shipper(session_dir, config, only=spools)
    shipper.scan()
    shipper.send_details()
    total = shipper.pending_records
    deadline_s = time.monotonic() + timeout_s
    while not (shipper.is_done and not shipper.keeps_details) and time.monotonic() < deadline_s:
        shipper.step()
        if progress is not None:
            progress(max(total - shipper.pending_records, 0), total)
        if shipper.is_done and not shipper.may_send_details:
            break
        if shipper.is_idle and not shipper.ranks_are_gone and shipper.sender and shipper.sender.connected:
            break  # all that is written is stored; the rank's own shipper does the rest
        shipper.wait()
    report.spools_delivered += shipper.num_delivered
    report.spools_left += len(spools) - shipper.num_delivered
    report.records += max(total - shipper.pending_records - shipper.records_set_aside, 0)
    aside = session_dir if session_dir.name == FOLDER_NAME else session_dir / FOLDER_NAME
    report.spools_set_aside += [aside / spool.name for spool in spools if read_mark(aside / spool.name)]
    report.errors += shipper.failures
    if shipper.is_done and any(session_dir.glob(f"{EDGE_NAME}/*/{OPENING_NAME}")):
        report.details_left.append(session_dir / EDGE_NAME)
    if not shipper.is_done and shipper.sender is not None and shipper.sender.error is not None:
        report.errors.append(shipper.sender.error)
    shipper.close("done" if shipper.is_done else "given_up")
