"""The wait at the end: the last rank of a host stays until its spools are acknowledged, or a limit passes.

Stage: trainer, at the interpreter's exit, after END. Comes in: the control pages of the session's spools on
this host. Goes out: nothing; it only delays. Needed where the shipper would not outlive the ranks: Slurm
and Kubernetes kill what is left when the job step or the container ends. ``rankmem run`` waits itself and
switches this off (``RANKMEM_DRAIN_S=0``). What the limit cuts off stays on disk for ``rankmem ship``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Final

from rankmem_agent.preload import electing
from rankmem_agent.spool import election, folder, layout, life
from rankmem_agent.spool.layout import State

POLL_S: Final = 0.02
_FIELDS: Final = {field.name: field for field in layout.CONTROL_FIELDS}


def wait(session_dir: Path, own: Path, *, timeout_s: float) -> bool:
    """True when every spool of the session on this host is acknowledged; False when there was no need to wait
    for it, or it took too long.

    Args:
        own: this rank's spool, which has ended.
        timeout_s: longest wait in seconds; 0: none.
    """
    if timeout_s <= 0 or any(is_alive(spool) for spool in folder.spools(session_dir) if spool != own):
        return False
    deadline_s = time.monotonic() + timeout_s
    pause = threading.Event()
    with contextlib.suppress(KeyboardInterrupt):  # the user has waited long enough
        while pending_records(session_dir) > 0:
            if time.monotonic() > deadline_s:
                return False
            if not election.is_shipping(session_dir):
                electing.elect(session_dir)  # it died; the new one goes on where that one was
            pause.wait(POLL_S)
        return True
    return False


def is_alive(spool_dir: Path) -> bool:
    """True while the process that writes a spool runs and has not ended its log."""
    control = _control(spool_dir)
    pid = _value(control, "pid")
    if _value(control, "state") == State.ENDED or pid == 0:
        return False
    held = life.is_held(spool_dir)
    if held is not None:
        return held
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def pending_records(session_dir: Path) -> int:
    """Records of the session's spools on this host that are not acknowledged; deleted spools have none."""
    total = 0
    for spool in folder.spools(session_dir):
        control = _control(spool)
        total += max(0, _value(control, "next_seq") - _value(control, "acked_seq"))
    return total


def _control(spool_dir: Path) -> bytes:
    """The control page as it is now; all zero where the spool has just been deleted."""
    try:
        return (spool_dir / "control").read_bytes().ljust(layout.CONTROL_BYTES, b"\0")
    except FileNotFoundError:
        return bytes(layout.CONTROL_BYTES)


def _value(control: bytes, name: str) -> int:
    field = _FIELDS[name]
    return int.from_bytes(control[field.offset : field.offset + layout.TYPE_BYTES[field.ctype]], "little")
