"""One shipper a host: who starts it, and how the lock that makes it the only one changes hands.

Stage: between trainer and shipper. Comes in: the folder of the session on this host. Goes out: a process
``python -m rankmem_agent.ship SESSION_DIR``, or nothing where one runs. Called in the trainer when the agent
attaches and again at exit, and in the shipper itself (:func:`take_lock`). Cost for the trainer: a
fork and an exec. It never waits for the shipper, never leaves a zombie or a child that the user's own
``wait`` could meet, and gives it none of the launcher's variables. Standard library only.

``shipper.lock`` is held by flock, which belongs to the open file, not to the process: the trainer that got
it lets the shipper inherit the descriptor (``RANKMEM_SHIPPER_LOCK_FD``) and closes its own, so the lock
is never free in between and a second rank never starts a second shipper. It ends with the shipper, however
that dies.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rankmem_protos.credentials import CLIENT_VARIABLES, Credentials

LOCK_NAME: Final = "shipper.lock"
LOG_NAME: Final = "shipper.log"
LOCK_FD_VARIABLE: Final = "RANKMEM_SHIPPER_LOCK_FD"
NICENESS: Final = 5
"""The shipper yields to the training where they share processors."""
START_TIMEOUT_S: Final = 10.0
"""For the shell that puts the shipper in the background; it takes about 2 ms."""
_PRELOAD_SITE: Final = str(Path(__file__).resolve().parents[1] / "preload" / "site")
_LAUNCHER_VARIABLES: Final = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANKMEM_PRELOAD",
        "RANKMEM_CLAIMED",
        "RANKMEM_LAUNCH",
    }
)
_LAUNCHER_PREFIXES: Final = ("TORCHELASTIC_", "LOCAL_", "GROUP_", "ROLE_")
# The shell forks the command and ends: the shipper is nobody's child but init's. nice is used where it is.
# Linux may share processors between sessions first (autogroups), and this is a new one.
_BACKGROUND: Final = (
    '{ echo "$0" >/proc/self/autogroup; } 2>/dev/null; '
    'if command -v nice >/dev/null; then nice -n "$0" "$@" & else "$@" & fi'
)


def elect(session_dir: Path) -> bool:
    """Starts the host's shipper of a session unless one runs; True if this call started it.

    Args:
        session_dir: the folder of the session on this host; absolute.

    Raises:
        OSError: the lock or the log cannot be opened, or the process cannot be started.
    """
    lock_fd = take_lock(session_dir)
    if lock_fd is None:
        return False
    try:
        _start(session_dir, lock_fd)
    finally:
        os.close(lock_fd)  # the shipper's copy keeps the lock
    return True


def take_lock(session_dir: Path) -> int | None:
    """A descriptor that holds ``shipper.lock``, or None where another process holds it.

    In a shipper started by :func:`elect` it is the inherited one; the variable that names it is removed from
    the environment, so that the shipper's children do not take the number for theirs. Keep it open
    as long as the lock shall be held; it is closed on exec.
    """
    inherited = os.environ.pop(LOCK_FD_VARIABLE, "")
    path = session_dir / LOCK_NAME
    if inherited.isdecimal() and _is_file(int(inherited), path):
        lock_fd = int(inherited)
        os.set_inheritable(lock_fd, False)
    else:
        lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock_fd)
        return None
    except OSError:
        os.close(lock_fd)
        raise
    return lock_fd


def is_shipping(session_dir: Path) -> bool:
    """True while some process holds the session's lock on this host."""
    lock_fd = take_lock(session_dir)
    if lock_fd is None:
        return True
    os.close(lock_fd)
    return False


def shipper_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The trainer's environment without what would make the shipper look like a rank or use a device."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _LAUNCHER_VARIABLES and not name.startswith(_LAUNCHER_PREFIXES)
    }
    paths = [
        os.path.abspath(path)  # its working directory is another one
        for path in environment.get("PYTHONPATH", "").split(os.pathsep)
        if path and os.path.realpath(path) != _PRELOAD_SITE
    ]
    kept.pop("PYTHONPATH", None)
    for name in CLIENT_VARIABLES & kept.keys():
        kept.pop(name)
    kept |= Credentials.from_environment(environment).environment()  # absolute: its working directory differs
    if paths:
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    return kept | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def _is_file(descriptor: int, path: Path) -> bool:
    """True if ``descriptor`` is open on ``path``: the number alone could mean anything in another process."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _start(session_dir: Path, lock_fd: int) -> None:
    environment = shipper_environment(os.environ) | {LOCK_FD_VARIABLE: str(lock_fd)}
    command = [sys.executable, "-P", "-m", "rankmem_agent.ship", str(session_dir)]
    with open(session_dir / LOG_NAME, "ab") as log:
        subprocess.run(
            ["/bin/sh", "-c", _BACKGROUND, str(NICENESS), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd="/",
            pass_fds=(lock_fd,),  # and none of the trainer's others: close_fds
            start_new_session=True,
            timeout=START_TIMEOUT_S,
            check=True,
        )
