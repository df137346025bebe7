"""Waits for the last acknowledgement after the training has ended.

Stage: ``rankmem run``, between the child's exit and the summary. In: the session's spool folders. Out:
whether all of them are in the database. Runs in the main thread; the host's shipper, a separate process,
delivers, and is restarted if it was killed (Slurm and Kubernetes kill what a job step leaves behind).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rankmem_agent.config import AgentConfig
from rankmem_agent.preload.drain import is_alive
from rankmem_agent.spool import folder as spool_folder
from rankmem_agent.spool.election import elect, is_shipping
from rankmem_agent.spool.exits import Exit, write_exit
from rankmem_agent.spool.folder import candidates, spools
from rankmem_agent.spool.launches import process
from rankmem_agent.spool.life import process_of
from rankmem_agent.spool.places import settle
from rankmem_agent.spool.reelection import Reelection
from rankmem_cli.run.child import SignalRelay
from rankmem_cli.show.progress import show_progress
from rankmem_cli.show.render import note
from rankmem_cli.show.status import ShipperState, shipper_state
from rankmem_cli.show.units import count_text
from rankmem_ship.closing import ask_for

POLL_S: Final = 0.05
"""Between two looks at the folder: imperceptible at the end of a run, and no load."""
ELECT_EVERY_S: Final = 2.0
"""Between two attempts to start a shipper, which takes about half a second."""
ELECTIONS_MAX: Final = 3
"""Shippers started here at most: if this many ended and left spools, another would not deliver them."""


def wait_delivered(session_dirs: Sequence[Path], relay: SignalRelay, *, drain_s: float) -> bool:
    """Waits until every spool of the session on this host is acknowledged and gone.

    Args:
        session_dirs: the session's folders on this host.
        relay: a second stop signal ends the wait.
        drain_s: maximum wait, in seconds.

    Returns:
        True if nothing is left.
    """
    deadline = time.monotonic() + drain_s
    elections = _Elections()
    warned = 0
    with show_progress("rankmem: delivering") as update:
        while waiting := [folder for folder in session_dirs if undelivered(folder)]:
            now = time.monotonic()
            if now >= deadline or relay.num_stop_requests > 1 or not elections.keep_shipping(waiting, now):
                return False
            if relay.num_stop_requests > warned:
                warned = relay.num_stop_requests
                note("rankmem: the training has ended; delivering its records (interrupt again to stop)")
            update(_progress_text(shipper_state(waiting[0]), deadline - now))
            relay.stop_requested.clear()
            relay.stop_requested.wait(POLL_S)
    return True


def undelivered(session_dir: Path) -> list[Path]:
    """The spools of a session that are not fully acknowledged, except those whose rank is still alive."""
    return [spool for spool in spools(session_dir) if not is_alive(spool)]


def living(session_dir: Path) -> list[Path]:
    """The spools of a session whose rank is still alive, asked once the command has ended."""
    return [spool for spool in spools(session_dir) if is_alive(spool)]


def release(session_dir: Path) -> bool:
    """Stops the shipper and leaves the rest to ``rankmem ship``; False if it goes on: for a live rank, or
    because it cannot be asked (a full disk, too many open files)."""
    try:
        lock_fd = ask_for(session_dir)
    except FileNotFoundError:  # it delivered everything meanwhile and removed the folder
        return True
    except OSError:
        return False
    if lock_fd is None:
        return False
    os.close(lock_fd)
    return True


class _Elections:
    """Keeps a shipper running, but does not restart one that fails repeatedly."""

    def __init__(self) -> None:
        self._next = time.monotonic() + ELECT_EVERY_S
        self._held = 0

    def keep_shipping(self, session_dirs: Sequence[Path], now: float) -> bool:
        """False once ELECTIONS_MAX shippers have ended with spools left."""
        if now < self._next:
            return True
        self._next = now + ELECT_EVERY_S
        try:
            if self._held >= ELECTIONS_MAX:
                return any(_if_there(is_shipping, folder) for folder in session_dirs)
            started = [_if_there(elect, folder) for folder in session_dirs]  # does nothing where one runs
            self._held += any(started)
        except (OSError, subprocess.SubprocessError):  # no more processes or files: as one that ended at once
            self._held += 1
        return True


def _if_there(ask: Callable[[Path], bool], session_dir: Path) -> bool:
    """The result of ``ask``; False if the shipper has delivered everything and removed the folder."""
    try:
        return ask(session_dir)
    except FileNotFoundError:
        if session_dir.exists():
            raise
        return False


class Shippers:
    """Restarts a killed shipper while the command runs.

    Ranks do so themselves at the end of a step; a rank without steps depends on this.
    """

    def __init__(self, session_id: str, config: AgentConfig) -> None:
        self._session_id = session_id
        self._config = config
        self._of: dict[Path, Reelection] = {}

    def look(self) -> None:
        """Checks the shippers if a check is due. Never raises."""
        for folder in spool_folder.session_dirs(self._session_id, self._config):
            with contextlib.suppress(OSError):
                settle(folder)
            self._of.setdefault(folder, Reelection(folder)).look()


def record_exit(session_id: str, config: AgentConfig, pid: int, exited: Exit) -> None:
    """Records in a process's spool how it ended, if the process itself could not. Never raises."""
    ended = process(pid)
    for folder in spool_folder.session_dirs(session_id, config):
        for spool in (*spools(folder), *candidates(folder)):
            # By its unique name: a live rank in another container may have the same pid.
            if process_of(spool) == ended:
                with contextlib.suppress(OSError):
                    write_exit(spool, exited)


def _progress_text(state: ShipperState, left_s: float) -> str:
    pending = "" if state.pending_records is None else f" {count_text(state.pending_records)} records"
    why = f" ({state.error})" if state.error else ""
    return f"rankmem: delivering{pending}, at most {left_s:.0f} s more{why}"
