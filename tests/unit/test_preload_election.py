"""One shipper a host: the lock is never free between the rank that starts it and the shipper itself."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.spool import election
from rankmem_agent.tap.build import build_tap
from rankmem_agent.tap.library import Tap

Elect = Callable[[Path], bool]

# A stand-in for the shipper: takes the lock over, tells what it sees, ends with the fifo.
SHIPPER = """
import json, os, sys
from pathlib import Path
from rankmem_agent.spool import election
session = Path(sys.argv[1])
lock = election.take_lock(session)
told = {"pid": os.getpid(), "ppid": os.getppid(), "lock": lock, "nice": os.nice(0), "sid": os.getsid(0),
        "fds": len(os.listdir("/proc/self/fd")), "env": sorted(os.environ), "cwd": os.getcwd(),
        "path": os.environ.get("PYTHONPATH", ""), "argv": sys.argv}
group = Path("/proc/self/autogroup")
told["group"] = int(group.read_text().split()[-1]) if group.exists() else None
(session / "told.new").write_text(json.dumps(told))
os.rename(session / "told.new", session / "told.json")
with open(session / "end") as end:  # a fifo: until the test closes it
    end.read()
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A session's folder in which ``elect`` starts the stand-in."""
    script = tmp_path / "shipper.py"
    script.write_text(SHIPPER)
    shim = tmp_path / "python"
    shim.write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} {script} "$@"\n')  # in place of -P -m NAME
    shim.chmod(0o755)
    monkeypatch.setattr(election.sys, "executable", str(shim))
    folder = tmp_path / "1ng35yz7rzsj"
    folder.mkdir()
    os.mkfifo(folder / "end")
    return folder


@pytest.fixture(params=["shell", "tap"])
def elect(request: Any) -> Elect:
    """An election by each way to start the shipper."""
    how = election.start_by_shell if request.param == "shell" else Tap(build_tap()).start_unseen
    return partial(election.elect, start=how)


def _told(session: Path) -> dict[str, object]:
    """What the shipper told, once it runs: opening the fifo waits for it."""
    with open(session / "end", "w"):
        told: dict[str, object] = json.loads((session / "told.json").read_text())
        assert election.is_shipping(session)
    return told


def _end(session: Path) -> None:
    """Waits until the shipper has ended: its lock is free then."""
    lock = os.open(session / election.LOCK_NAME, os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.close(lock)


def test_the_lock_goes_from_the_rank_to_the_shipper_and_ends_with_it(session: Path, elect: Elect) -> None:
    assert elect(session)
    assert election.is_shipping(session)  # at once: the shipper may not even run yet
    assert not elect(session)
    told = _told(session)
    assert told["lock"] is not None
    _end(session)
    assert not election.is_shipping(session)


def test_the_shipper_is_in_a_session_of_its_own_and_nobody_s_child_here(session: Path, elect: Elect) -> None:
    assert elect(session)
    told = _told(session)
    assert told["sid"] != os.getsid(0)
    assert told["ppid"] != os.getpid()
    assert told["nice"] == min(19, os.nice(0) + election.NICENESS)
    assert told["group"] in (None, election.NICENESS)  # what a session counts for beside others
    assert told["cwd"] == "/"
    with pytest.raises(ChildProcessError):
        os.waitpid(int(str(told["pid"])), os.WNOHANG)
    _end(session)


def test_the_shipper_inherits_no_descriptor_of_the_trainer_s_but_the_lock(
    session: Path, elect: Elect
) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)  # as a pipe after rankmem run would be
    assert elect(session)
    told = _told(session)
    os.close(writing)
    assert os.read(reading, 1) == b""  # end of file, although the shipper runs
    os.close(reading)
    assert int(str(told["fds"])) <= 5  # three, the lock, and the listing itself
    _end(session)


def test_the_shipper_gets_nothing_of_the_launcher(
    session: Path, elect: Elect, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Path(election.__file__).parents[1] / "preload/site"
    for name, value in {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "TORCHELASTIC_RUN_ID": "none",
        "RANKMEM_PRELOAD": "1",
        "RANKMEM_CLAIMED": "1 plain",
        "RANKMEM_SHIP_DRAIN_S": "5",
        "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}{os.pathsep}relative",
    }.items():
        monkeypatch.setenv(name, value)
    assert elect(session)
    told = _told(session)
    kept = told["env"]
    assert isinstance(kept, list)
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"} & set(kept)
    assert not {"RANKMEM_PRELOAD", "RANKMEM_CLAIMED", election.LOCK_FD_VARIABLE} & set(kept)
    assert "RANKMEM_SHIP_DRAIN_S" in kept
    paths = str(told["path"]).split(os.pathsep)
    assert str(site) not in paths
    assert os.path.abspath("relative") in paths
    _end(session)


def test_of_many_ranks_at_once_one_starts_a_shipper(session: Path, elect: Elect) -> None:
    start = threading.Barrier(8)
    started: list[bool] = []

    def rank() -> None:
        start.wait()
        started.append(elect(session))

    ranks = [threading.Thread(target=rank) for _ in range(8)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert sorted(started) == [False] * 7 + [True]
    _told(session)
    _end(session)


def test_a_descriptor_number_that_is_not_the_lock_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    monkeypatch.setenv(election.LOCK_FD_VARIABLE, str(other))
    lock = election.take_lock(tmp_path)
    assert lock is not None
    assert lock != other
    assert subprocess.run([sys.executable, "-c", "pass"], check=False).returncode == 0
    os.close(lock)
    os.close(other)


def test_a_lock_is_never_where_a_program_has_its_input(tmp_path: Path) -> None:
    kept = os.dup(0)
    os.close(0)
    try:
        lock = election.take_lock(tmp_path)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert lock is not None
    assert lock > 2
    os.close(lock)


def test_a_shipper_that_cannot_be_started_is_an_error_and_its_lock_is_free(
    session: Path, elect: Elect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "_SHELL", "/nowhere/sh")
    with pytest.raises(FileNotFoundError, match=r"\[Errno 2\] No such file or directory: '/nowhere/sh'"):
        elect(session)
    assert not election.is_shipping(session)
