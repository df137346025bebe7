"""One shipper a host: who starts it, and how the lock that makes it the only one changes hands.

Stage: between trainer and shipper. Comes in: the folder of the session on this host. Goes out: a process
``python -m rankmem_ship SESSION_DIR``, or nothing where one runs. Called in the trainer once it is a
rank and again at exit (:mod:`rankmem_agent.preload.electing`), by ``rankmem run`` and ``rankmem ship``, and
in the shipper itself (:func:`take_lock`). Cost for the trainer: a fork and an exec. It never waits for the
shipper, leaves no zombie, and gives it none of the launcher's variables. Standard library only.

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from rankmem_agent.spool.descriptors import open_above
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
    {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    | {"RANKMEM_PRELOAD", "RANKMEM_CLAIMED", "RANKMEM_LAUNCH"}
)
_LAUNCHER_PREFIXES: Final = ("TORCHELASTIC_", "LOCAL_", "GROUP_", "ROLE_")
_SHELL: Final = "/bin/sh"
# nice is used where there is one. Linux may share processors between sessions first (autogroups), and the
# shipper has one of its own.
_NICELY: Final = (
    '{ echo "$0" >/proc/self/autogroup; } 2>/dev/null; '
    'if command -v nice >/dev/null; then exec nice -n "$0" "$@"; else exec "$@"; fi'
)


class Start(Protocol):
    """Starts a command detached from this process; in a session of its own, in "/", with nothing to read."""

    def __call__(
        self, command: Sequence[str], environment: Mapping[str, str], *, output_fd: int, kept_fd: int
    ) -> None:
        """Returns once it runs.

        Args:
            command: the path of the program first.
            environment: all of it.
            output_fd: where its output and errors go.
            kept_fd: the one other descriptor that it inherits.

        Raises:
            OSError, subprocess.SubprocessError: it could not be started.
        """


def start_by_shell(
    command: Sequence[str], environment: Mapping[str, str], *, output_fd: int, kept_fd: int
) -> None:
    """A :class:`Start`: a shell forks the command and ends, so that the command is a child of init's.

    The shell itself is a child of this process for 2 ms: a handler of SIGCHLD or a ``wait`` in another thread
    could meet its end.
    """
    subprocess.run(
        [_SHELL, "-c", '"$0" "$@" &', *command],
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
        env=environment,
        cwd="/",
        pass_fds=(kept_fd,),  # and none of the trainer's others: close_fds
        start_new_session=True,
        timeout=START_TIMEOUT_S,
        check=True,
    )


def elect(session_dir: Path, start: Start = start_by_shell) -> bool:
    """Starts the host's shipper of a session unless one runs; True if this call started it.

    Args:
        session_dir: the folder of the session on this host; absolute.
        start: how.

    Raises:
        OSError, subprocess.SubprocessError: the lock or the log cannot be opened, or the process cannot be
            started.
    """
    lock_fd = take_lock(session_dir)
    if lock_fd is None:
        return False
    try:
        _start(session_dir, lock_fd, start)
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
        lock_fd = _opened(path)
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_fd)
            return None
        except OSError:
            os.close(lock_fd)
            raise
        if _is_file(lock_fd, path):
            return lock_fd
        os.close(lock_fd)  # who held it has removed it with the folder: the next one to come holds another
        lock_fd = _opened(path)


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


def _opened(path: Path) -> int:
    return open_above(path, os.O_RDWR | os.O_CREAT)


def _is_file(descriptor: int, path: Path) -> bool:
    """True if ``descriptor`` is open on ``path``: the number alone could mean anything in another process."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _start(session_dir: Path, lock_fd: int, start: Start) -> None:
    environment = shipper_environment(os.environ) | {LOCK_FD_VARIABLE: str(lock_fd)}
    shipper = [sys.executable, "-P", "-m", "rankmem_ship", str(session_dir)]
    with open(session_dir / LOG_NAME, "ab") as log:
        command = [_SHELL, "-c", _NICELY, str(NICENESS), *shipper]
        start(command, environment, output_fd=log.fileno(), kept_fd=lock_fd)
