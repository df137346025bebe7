"""A process that the tap starts is nothing to the training: no SIGCHLD, nothing for a wait() of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.tap.build import build_tap
from rankmem_agent.tap.library import Tap

# What the started program says of itself, into the file that it gets as its output.
TELLS = """
import json, os, signal
told = {
    "pid": os.getpid(), "ppid": os.getppid(), "sid": os.getsid(0), "cwd": os.getcwd(),
    "env": dict(os.environ),
    "fds": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")},  # the listing's own is closed by now
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "status": open("/proc/self/status").read(),
}
print(json.dumps(told), flush=True)
"""

# Starts PROGRAM (argv[2]) while the user listens in every way there is; says what was heard.
LISTENS = """
import errno, os, signal, sys, threading, time
from pathlib import Path
from rankmem_agent.tap.build import build_tap
from rankmem_agent.tap.library import Tap
tap = Tap(build_tap())
heard = []
signal.signal(signal.SIGCHLD, lambda number, frame: heard.append("SIGCHLD"))
over = threading.Event()
def wait():
    while not over.is_set():
        try:
            heard.append(os.waitpid(-1, os.WNOHANG))
        except ChildProcessError:
            pass
waiting = threading.Thread(target=wait)
waiting.start()
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for _ in range(20):
    tap.start_unseen(["/bin/true"], {}, output_fd=out, kept_fd=out)
over.set()
waiting.join()
try:
    heard.append(os.waitpid(-1, 0))
except ChildProcessError:
    pass
children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
print(heard, children.read_text() if children.exists() else "")
"""


@pytest.fixture(scope="module")
def tap() -> Tap:
    return Tap(build_tap())


@pytest.fixture
def out(tmp_path: Path) -> Any:
    with open(tmp_path / "out", "w+b") as file:
        yield file


def _told(tap: Tap, out: Any, environment: dict[str, str]) -> dict[str, Any]:
    """What a Python that was started says; the file's lock, which it inherits, is free at its end."""
    import fcntl

    with open(out.name, "r+b") as same:
        fcntl.flock(same, fcntl.LOCK_EX)
        kept = fcntl.fcntl(same, fcntl.F_DUPFD, 10)  # clear of 0 to 2
        command = [sys.executable, "-IS", "-c", TELLS]
        tap.start_unseen(command, environment, output_fd=out.fileno(), kept_fd=kept)
        os.close(kept)
    fcntl.flock(out, fcntl.LOCK_EX)
    told: dict[str, Any] = json.loads(Path(out.name).read_text())
    return told


def test_neither_a_handler_nor_a_wait_of_the_training_meets_what_is_started(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LISTENS, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_it_has_a_session_descriptors_and_an_environment_of_its_own(tap: Tap, out: Any) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    others = [os.dup(reading) for _ in range(300)]  # so that the one it keeps has a high number
    told = _told(tap, out, {"ONE": "1", "NOT_TEXT": os.fsdecode(b"\xff")})
    for other in [writing, *others]:
        os.close(other)
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert told["ppid"] != os.getpid()
    assert told["sid"] not in (os.getsid(0), told["pid"])
    assert told["cwd"] == "/"
    assert {name: told["env"][name] for name in ("ONE", "NOT_TEXT")} == {"ONE": "1", "NOT_TEXT": "\udcff"}
    assert "PATH" not in told["env"]
    (kept,) = told["fds"].keys() - {"0", "1", "2"}
    assert int(kept) > len(others)
    assert [told["fds"][fd] for fd in ("0", "1", "2", kept)] == ["/dev/null", *[out.name] * 3]


def test_its_signals_are_as_a_program_expects_them(tap: Tap, out: Any) -> None:
    import signal

    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    ignored = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        told = _told(tap, out, {})
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGUSR2, ignored)
    assert told["blocked"] == []
    masks = dict(line.split(":\t") for line in told["status"].splitlines() if line.startswith("Sig"))
    own = dict(
        line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
    )
    inherited = int(own["SigIgn"], 16)  # such as SIGINT, where the tests run in a shell's background
    assert int(masks["SigIgn"], 16) & ~inherited == 1 << (signal.SIGUSR2 - 1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


@pytest.mark.parametrize("how", ["tap", "subprocess"])
def test_a_program_that_cannot_be_started_is_the_same_error_as_ever(how: str, tap: Tap, out: Any) -> None:
    missing = "/nowhere/program"
    start = partial(tap.start_unseen, output_fd=out.fileno(), kept_fd=out.fileno())
    with pytest.raises(FileNotFoundError) as raised:
        start([missing], {}) if how == "tap" else subprocess.run([missing], env={}, check=True)
    assert str(raised.value) == f"[Errno 2] No such file or directory: '{missing}'"
