"""However a training ends, `rankmem run` ends as it would, and what was recorded is there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from main_job import RANKMEM, RUN, TIMEOUT_S, TRAIN, call, environment, rows
from rankmem_agent.spool.election import take_lock
from repetitions import long_but

PLAIN = (sys.executable, str(TRAIN), "--steps", "2")


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        ("exit:3", 3, "exit 3"),
        ("kill", 137, "killed"),
        pytest.param("raise", 1, "exception", marks=pytest.mark.long),
    ],
)
def test_a_plain_script_is_rank_0_of_1_however_it_ends(
    tmp_path: Path, end: str, code: int, reason: str
) -> None:
    done = call((*RUN, "--", *PLAIN, "--end", end), tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stdout.count("loss") == 2
    assert ("the training failed" in done.stderr) == (end == "raise")
    (rank,) = rows(tmp_path, "ranks")
    assert (rank["rank"], rank["events_lost"], rank["end_reason"]) == (0, 0, reason)
    (peak,) = rows(tmp_path, "peak")
    blocks = rows(tmp_path, "live", "--rank", "0")
    assert sum(row["size_bytes"] for row in blocks) == peak["peak_requested_bytes"] > 1 << 20


def test_a_command_without_torch_is_left_alone(tmp_path: Path) -> None:
    script = "import sys; print(sys.stdin.read(), end=''); print('to stderr', file=sys.stderr); sys.exit(5)"
    done = call((*RUN, "--", sys.executable, "-c", script), tmp_path, text_in="through stdin\n")
    assert (done.returncode, done.stdout, done.stderr) == (5, "through stdin\n", "to stderr\n")


def test_arguments_after_the_command_are_the_commands_own(tmp_path: Path) -> None:
    script = "import sys; print(sys.argv[1:])"
    done = call((*RUN, sys.executable, "-c", script, "--db", "x", "--help", "--", "-v"), tmp_path)
    assert done.stdout == "['--db', 'x', '--help', '--', '-v']\n"


def test_a_command_that_does_not_exist_is_127_and_makes_no_database(tmp_path: Path) -> None:
    done = call((*RUN, "--", "no-such-program"), tmp_path)
    assert done.returncode == 127
    assert done.stderr.startswith("Error: no-such-program: command not found")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_executed_is_126(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a program")
    assert call((*RUN, "--", "./notes.txt"), tmp_path).returncode == 126


def test_a_database_that_is_none_is_said_before_the_training_starts(tmp_path: Path) -> None:
    (tmp_path / "rankmem.duckdb").write_text("this is not a database" * 1000)
    done = call((*RUN, "--", sys.executable, "-c", "print('ran')"), tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert "rankmem.duckdb" in done.stderr


@pytest.fixture
def _heeding_signals() -> Iterator[None]:
    """Children start with the signals' defaults, also where this run is in the background or under nohup.

    A shell starts background commands with SIGINT ignored, nohup with SIGHUP; children inherit that.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


COUNTS = """
import os, signal, sys
count = 0
def handle(got, frame):
    global count
    count += 1
    print("got", count, flush=True)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, handle)
if "alone" in sys.argv:
    os.setpgid(0, 0)
print("ready", flush=True)
while sys.stdin.readline():
    pass
print("all", count, flush=True)
sys.exit(7)
"""
"""Says each signal that it gets and, when its stdin ends, how many there were."""


@pytest.mark.usefixtures("_heeding_signals")
@pytest.mark.parametrize(
    "number",
    long_but([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP], signal.SIGTERM),
)
@pytest.mark.parametrize("how", ["process", "group", "every process", "group without the command"])
def test_a_signal_reaches_the_command_once_whomever_it_was_sent_to(
    tmp_path: Path, number: signal.Signals, how: str
) -> None:
    way = ["alone"] if how == "group without the command" else []
    with subprocess.Popen(
        (*RUN, "--", sys.executable, "-c", COUNTS, *way),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # no terminal: as under a scheduler
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for turn in (1, 2):  # one after the other: the second finds everything as the first did
            if how == "process":
                os.kill(process.pid, number)
            elif how == "every process":  # as Slurm does
                for pid in _members_of(process.pid):
                    os.kill(pid, number)
            else:
                os.killpg(process.pid, number)
            assert process.stdout.readline() == f"got {turn}\n"
            time.sleep(0.3)  # for what should not come: longer than it is forwarded after
        out, _ = process.communicate("", timeout=TIMEOUT_S)
    assert (process.returncode, out) == (7, "all 2\n")


def _members_of(group: int) -> list[int]:
    """The processes of a process group."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    members = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == group:
                members.append(pid)
    return members


def test_a_command_killed_by_a_signal_gives_the_shells_code(tmp_path: Path) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert call((*RUN, "--", sys.executable, "-c", script), tmp_path).returncode == 128 + signal.SIGTERM


@pytest.mark.usefixtures("_heeding_signals")
@pytest.mark.parametrize("how", ["key", "process"])
def test_an_interrupt_at_a_terminal_reaches_the_command_once(how: str, tmp_path: Path) -> None:
    script = """
import signal
count = 0
def handle(got, frame):
    global count
    count += 1
signal.signal(signal.SIGINT, handle)
print("ready", flush=True)
while not count:
    signal.pause()
signal.sigtimedwait([], 0.2)
print("got", count, flush=True)
"""
    controller, terminal = os.openpty()
    opener = (
        "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = (*RUN, "--", sys.executable, "-c", script)
    with subprocess.Popen(
        (sys.executable, "-c", opener, *command),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=terminal,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # opening the terminal then makes it the controlling one
    ) as process:
        os.close(terminal)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if how == "key":
            os.write(controller, b"\x03")
        else:
            os.kill(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=TIMEOUT_S)
    os.close(controller)
    assert (process.returncode, out) == (0, "got 1\n")


@pytest.mark.parametrize("shipper_drain_s", long_but(["", "300"], "300"))
def test_without_an_aggregator_the_spool_stays_and_ship_delivers_it_at_once(
    tmp_path: Path, shipper_drain_s: str
) -> None:
    """Also where the job's shipper would go on for minutes, as one does that was started again."""
    closed = "127.0.0.1:9"  # discard: nobody listens there
    command = (*RUN, "--aggregator", closed, "--drain-s", "0.5", "--", *PLAIN)
    done = call(command, tmp_path, RANKMEM_SHIP_DRAIN_S=shipper_drain_s)
    assert done.returncode == 0
    assert "Try: rankmem ship " in done.stderr
    folder = done.stderr.partition("Try: rankmem ship ")[2].splitlines()[0]
    shipped = call((*RANKMEM, "ship", folder, "--db", "late.duckdb"), tmp_path)
    assert shipped.returncode == 0, shipped.stderr
    (rank,) = rows(tmp_path, "ranks", "--db", "late.duckdb")
    assert (rank["complete"], rank["events_lost"]) == (True, 0)
    assert not Path(folder).exists(), "nothing is left of it, and nobody else will come"


def test_ship_says_who_else_is_at_work(tmp_path: Path) -> None:
    session_dir = tmp_path / "spool" / "0123456789ab"
    spool = session_dir / "0-0-1"
    spool.mkdir(parents=True)
    (spool / "meta.json").write_text("{}")
    lock_fd = take_lock(session_dir)
    assert lock_fd is not None
    try:
        done = call((*RANKMEM, "ship", str(session_dir), "--aggregator", "127.0.0.1:9"), tmp_path)
    finally:
        os.close(lock_fd)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: a shipper is at work on {session_dir}")
