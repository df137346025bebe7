"""Who writes a spool lives as long as it holds the lock on it, wherever its process is seen from."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankmem_agent.preload import drain
from rankmem_agent.spool import folder, launches, life, places
from rankmem_agent.spool.layout import Kind
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from spool_synthetic import SyntheticSpool, reader_of

ELSEWHERE = "4194305-1"
"""A process that this PID namespace cannot have: its number is above the highest."""
WRITER = """
import os, subprocess, sys
from pathlib import Path
from rankmem_agent.spool.python_writer import PythonSpoolWriter
writer = PythonSpoolWriter(Path(sys.argv[1]), 16 << 20)
"""


def _writer(path: Path) -> PythonSpoolWriter:
    """A spool of a process that is not to be seen from here, written here."""
    facts = SyntheticSpool(path=path.with_name("facts"), alive=False)
    writer = PythonSpoolWriter(path, 16 << 20)
    shutil.copy(facts.path / "meta.json", path / "meta.json")
    return writer


def _start(tmp_path: Path, then: str) -> subprocess.Popen[str]:
    """A process that writes a spool, and what it does then; its first line has been read."""
    command = [sys.executable, "-c", WRITER + then, str(tmp_path / "s")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_writer_whose_process_is_not_to_be_seen_lives_while_it_holds_its_lock(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "s")
    reader = reader_of(tmp_path / "s")
    assert not reader.writer_is_gone()
    assert not reader.is_finished()
    writer.record(Kind.EVENT)
    writer.abandon()
    reader = reader_of(tmp_path / "s")
    assert reader.writer_is_gone()


def test_a_spool_without_a_lock_is_asked_for_by_its_process(tmp_path: Path) -> None:
    dead = SyntheticSpool(path=tmp_path / "dead")
    lives = SyntheticSpool(path=tmp_path / "lives", alive=True)
    assert life.is_held(dead.path) is life.is_held(lives.path) is None
    assert reader_of(dead.path).writer_is_gone()
    assert not reader_of(lives.path).writer_is_gone()


def test_a_copy_of_a_spool_has_no_lock(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "s")
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    assert life.is_held(tmp_path / "s")
    assert life.is_held(tmp_path / "copy") is None
    os.rename(tmp_path / "s", tmp_path / "moved")
    assert life.is_held(tmp_path / "moved")
    writer.abandon()
    assert life.is_held(tmp_path / "moved") is False


def test_a_folder_without_a_control_page_has_no_lock(tmp_path: Path) -> None:
    assert life.is_held(tmp_path) is None
    (tmp_path / "control").write_bytes(b"short")
    assert life.is_held(tmp_path) is None


def test_a_writer_that_cannot_be_asked_about_now_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _writer(tmp_path / "s").abandon()

    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(life.os, "open", refused)
        held = life.is_held(tmp_path / "s")
    assert held
    monkeypatch.setattr(life.fcntl, "flock", refused)
    assert life.is_held(tmp_path / "s")


def test_a_file_system_without_locks_leaves_the_control_page_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "_refuses", lambda descriptor: False)
    writer = PythonSpoolWriter(tmp_path / "s", 16 << 20)
    monkeypatch.undo()
    assert life.is_held(tmp_path / "s") is None
    writer.abandon()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_lets_go(tmp_path: Path, number: signal.Signals) -> None:
    process = _start(tmp_path, "print(flush=True); sys.stdin.read()")
    assert life.is_held(tmp_path / "s")
    process.send_signal(number)
    process.communicate()
    assert life.is_held(tmp_path / "s") is False


def test_a_process_that_leaves_at_once_lets_go(tmp_path: Path) -> None:
    process = _start(tmp_path, "print(flush=True); sys.stdin.read(1); os._exit(3)")
    assert life.is_held(tmp_path / "s")
    process.communicate("x")
    assert life.is_held(tmp_path / "s") is False


@pytest.mark.parametrize(
    "child",
    [
        "os.fork() or (print('child', flush=True), sys.stdin.read(), os._exit(0))",
        "subprocess.Popen(['sh', '-c', 'echo child; exec cat']); ",
    ],
)
def test_a_child_that_outlives_its_parent_does_not_hold_the_lock(tmp_path: Path, child: str) -> None:
    process = _start(tmp_path, f"{child}\nsys.stderr.flush(); os.kill(os.getpid(), 9)")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert life.is_held(tmp_path / "s") is False
    process.communicate()


def test_a_process_that_goes_on_as_another_program_lets_go_and_is_waited_for(tmp_path: Path) -> None:
    process = _start(tmp_path, "os.execvp('sh', ['sh', '-c', 'echo; exec cat'])")
    assert life.is_held(tmp_path / "s") is False
    ticks = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
    facts = SyntheticSpool(path=tmp_path / "facts")
    meta = (facts.path / "meta.json").read_text().replace(facts.spool_id, f"s-0-0-{process.pid}-{ticks}")
    (tmp_path / "s" / "meta.json").write_text(meta)
    assert not reader_of(tmp_path / "s").writer_is_gone(), "how it ends is told later"
    process.communicate()
    assert reader_of(tmp_path / "s").writer_is_gone()


def test_the_last_rank_of_a_host_is_told_by_locks(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "0-0-4194305")
    (tmp_path / "0-0-4194305" / "control").open("r+b").close()
    assert drain.is_alive(tmp_path / "0-0-4194305")
    writer.abandon()
    assert not drain.is_alive(tmp_path / "0-0-4194305"), "its control page names this process, which lives"


def _candidate(session_dir: Path) -> tuple[Path, PythonSpoolWriter]:
    path = session_dir / "candidate-4194305"
    writer = PythonSpoolWriter(path, 16 << 20)
    writer.record(Kind.EVENT)
    place = places.Place(rank=0, world_size=2, local_rank=0, launch="torchrun", restart=0)
    places.write_candidate(path, place, ELSEWHERE, {}, counts=False)
    return path, writer


def test_a_candidate_of_another_container_is_not_removed_while_it_lives(tmp_path: Path) -> None:
    path, writer = _candidate(tmp_path)
    assert not places.settle(tmp_path)
    assert folder.candidates(tmp_path) == [path]
    writer.abandon()
    places.settle(tmp_path)
    assert folder.candidates(tmp_path) == []


def test_a_folder_that_another_container_is_still_making_is_not_removed_while_its_maker_lives(
    tmp_path: Path,
) -> None:
    path = tmp_path / "candidate-4194305"
    writer = PythonSpoolWriter(path, 16 << 20)
    assert folder.unfinished(tmp_path) == [path]
    places.settle(tmp_path)
    assert path.exists()
    writer.abandon()
    places.settle(tmp_path)
    assert not path.exists()


def test_a_rank_of_another_container_keeps_its_place(tmp_path: Path) -> None:
    _, writer = _candidate(tmp_path)
    assert launches.take(tmp_path, "torchrun", 0, 0, ELSEWHERE) == 0
    own = launches.process(os.getpid())
    assert launches.take(tmp_path, "torchrun", 0, 0, own) is None
    assert launches.is_held(tmp_path, "torchrun", 0)
    writer.abandon()
    assert not launches.is_held(tmp_path, "torchrun", 0)
    assert launches.take(tmp_path, "torchrun", 0, 0, own) == 1


def test_a_candidate_of_the_same_number_in_another_container_keeps_its_folder(tmp_path: Path) -> None:
    path = folder.create_candidate(tmp_path)
    writer = PythonSpoolWriter(path, 16 << 20)
    other = folder.create_candidate(tmp_path)
    assert other != path
    assert (path / "control").exists()
    writer.abandon()
    assert folder.create_candidate(tmp_path) == path, "what it left before an exec goes"
