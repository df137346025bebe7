"""The life of a recorded job: the training's exit code stands, whatever fails beside it."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from rankmem_agent.spool import election, places
from rankmem_agent.spool import folder as spool_folder
from rankmem_aggregator.query import open as opening
from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_cli.args.options import Target
from rankmem_cli.run import child, drain, job
from rankmem_cli.run.destination import Destination
from rankmem_cli.run.job import Job, run_job
from rankmem_cli.show.render import console_for, note
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship import closing, marks

HERE = Destination(address="127.0.0.1:9", given=GivenOptions(source=(("--db", "x"),)))


class NoQueries:
    """Stands for an open aggregator."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def ends_with(code: int) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", f"raise SystemExit({code})")


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What happens around the training, in order; a session's folder with nothing left in it."""
    happened: list[str] = []

    @contextmanager
    def opened(place: Target) -> Iterator[Destination]:
        happened.append("open")
        yield HERE
        happened.append("close")

    def waited(*_: object, **__: object) -> bool:
        happened.append("wait")
        return True

    monkeypatch.setattr(job, "open_destination", opened)
    monkeypatch.setattr(spool_folder, "session_dirs", lambda session_id, config: [tmp_path])
    monkeypatch.setattr(drain, "wait_delivered", waited)
    return happened


def test_a_job_opens_runs_waits_reports_and_closes(life: list[str]) -> None:
    code = run_job(
        Job(command=ends_with(3), target=Target(db=Path("x"))),
        lambda destination, session_id, whole: life.append(
            f"report {destination.given.text()} {len(session_id)} {whole}"
        ),
    )
    assert code == 3
    assert life == ["open", "wait", "report --db x 12 True", "close"]


@pytest.mark.parametrize("error", [RankmemError(Code.UNAVAILABLE, "gone"), ValueError("a defect")])
def test_a_failing_report_does_not_change_the_exit_code(
    life: list[str], error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(destination: Destination, session_id: str, is_delivered: bool) -> None:
        raise error

    assert run_job(Job(command=ends_with(3), target=Target(db=Path("x"))), report) == 3
    assert str(error) in capsys.readouterr().err
    assert life[-1] == "close"


def test_an_aggregator_that_fails_to_close_does_not_change_the_exit_code(
    life: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def opened(place: Target) -> Iterator[Destination]:
        yield HERE
        raise OSError("disk full")

    monkeypatch.setattr(job, "open_destination", opened)
    assert run_job(Job(command=ends_with(4), target=Target(db=Path("x"))), job.report_nothing) == 4
    assert "disk full" in capsys.readouterr().err


def test_a_database_that_cannot_be_opened_stops_before_the_training(
    life: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def opened(place: Target) -> Iterator[Destination]:
        raise RankmemError(Code.CONFLICT, "locked")
        yield HERE

    monkeypatch.setattr(job, "open_destination", opened)
    touch = (sys.executable, "-S", "-c", f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(RankmemError, match="locked"):
        run_job(Job(command=touch, target=Target(db=Path("x"))), job.report_nothing)
    assert not (tmp_path / "ran").exists()


def test_a_command_that_attached_no_agent_is_not_reported(
    life: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_folder, "session_dirs", lambda session_id, config: [])
    run_job(Job(command=ends_with(0), target=Target(db=Path("x"))), lambda *_: life.append("report"))
    assert life == ["open", "close"]


def test_what_could_not_be_delivered_is_reported_with_the_command_that_does(
    life: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drain, "wait_delivered", lambda *_, **__: False)
    monkeypatch.setattr(drain, "undelivered", lambda folder: [folder])
    (tmp_path / "shipper.json").write_text('{"error": "no aggregator answers"}')
    run_job(Job(command=ends_with(0), target=Target(db=Path("x"))), job.report_nothing)
    err = capsys.readouterr().err
    assert "some records are not stored yet: no aggregator answers" in err
    assert f"Try: rankmem ship {tmp_path}" in err


def test_an_error_that_a_shipper_writes_only_as_it_stops_is_reported_too(
    life: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def release(folder: Path) -> bool:
        (folder / "shipper.json").write_text('{"error": "wrong CA (try: the right one)"}')
        return True

    monkeypatch.setattr(drain, "wait_delivered", lambda *_, **__: False)
    monkeypatch.setattr(drain, "undelivered", lambda folder: [folder])
    monkeypatch.setattr(drain, "release", release)
    run_job(Job(command=ends_with(0), target=Target(db=Path("x")), drain_s=0.0), job.report_nothing)
    assert "are not stored yet: wrong CA (try: the right one)" in capsys.readouterr().err


def test_why_there_is_no_summary_is_reported_with_what_to_do(
    life: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refusing(NoQueries):
        def aggregator_state(self) -> None:
            raise RankmemError(Code.UNAVAILABLE, "wrong CA", "give the right one")

    monkeypatch.setattr(drain, "wait_delivered", lambda *_, **__: False)
    monkeypatch.setattr(drain, "undelivered", lambda folder: [folder])
    monkeypatch.setattr(opening, "open_queries", lambda *_: Refusing())
    run_job(Job(command=ends_with(0), target=Target(db=Path("x"))), lambda *_: life.append("report"))
    assert "rankmem: no summary: wrong CA\nTry: give the right one\n" in capsys.readouterr().err
    assert "report" not in life


@pytest.mark.parametrize(("left", "whole"), [([Path("x")], False), ([], True)])
def test_what_was_not_delivered_is_reported_as_such(
    life: list[str], monkeypatch: pytest.MonkeyPatch, left: list[Path], whole: bool
) -> None:
    """Also where it was delivered after all, before the shipper left."""
    monkeypatch.setattr(drain, "wait_delivered", lambda *_, **__: False)
    monkeypatch.setattr(drain, "undelivered", lambda folder: left)
    monkeypatch.setattr(job, "_answers", lambda destination: True)
    reported: list[bool] = []
    command = Job(command=ends_with(0), target=Target(db=Path("x")))
    run_job(command, lambda destination, session_id, is_delivered: reported.append(is_delivered))
    assert reported == [whole]


@pytest.mark.parametrize(
    "error", [OSError("no room"), RankmemError(Code.DENIED, "refused"), ValueError("a defect")]
)
def test_a_failure_beside_the_training_is_reported_once_and_does_not_change_its_exit_code(
    life: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    error: Exception,
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def fail(*of: object) -> None:
        if "failed" not in life:
            gate.write_text("")  # the training ends
        life.append("failed")
        raise error

    monkeypatch.setattr(drain.Shippers, "look", fail)
    monkeypatch.setattr(drain, "record_exit", fail)
    monkeypatch.setattr(child, "MEANWHILE_EVERY_S", 0.01)
    waits = (sys.executable, "-S", "-c", f"open({str(gate)!r}).read(); raise SystemExit(3)")
    assert run_job(Job(command=waits, target=Target(db=Path("x"))), job.report_nothing) == 3
    assert life == ["open", "failed", "failed", "wait", "close"]
    assert capsys.readouterr().err.count(str(error)) == 2


def test_what_is_set_aside_is_reported_wherever_the_spools_are(
    life: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / marks.FOLDER_NAME / "0-0-1"
    kept.mkdir(parents=True)
    marks.write_mark(kept, marks.Mark(code=Code.INVALID, message="it is refused"))
    elsewhere = Job(command=ends_with(0), target=Target(db=Path("x")), spool_dir=tmp_path.parent)
    assert run_job(elsewhere, job.report_nothing) == 0
    again = f"rankmem ship {kept} retries it"
    assert f"spool 0-0-1 is set aside: it is refused; {again}" in capsys.readouterr().err


def test_a_disk_that_is_full_as_the_command_ends_does_not_stop_the_wait(
    life: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(closing, "close", fail)
    monkeypatch.setattr(election, "elect", fail)
    monkeypatch.setattr(places, "settle", lambda folder: True)
    assert (
        run_job(Job(command=ends_with(0), target=Target(db=Path("x"))), lambda *_: life.append("report")) == 0
    )
    assert life == ["open", "wait", "report", "close"]


@pytest.mark.parametrize(("ends_with_run", "whole"), [(True, False), (False, True)])
def test_a_rank_that_outlives_the_command_is_reported_where_the_aggregator_ends(
    life: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    ends_with_run: bool,
    whole: bool,
) -> None:
    @contextmanager
    def opened(place: Target) -> Iterator[Destination]:
        yield Destination(address=HERE.address, given=HERE.given, ends_with_run=ends_with_run)

    monkeypatch.setattr(job, "open_destination", opened)
    monkeypatch.setattr(drain, "living", lambda folder: [folder / "0-0-1"])
    monkeypatch.setattr(job, "_answers", lambda destination: True)
    reported: list[bool] = []
    command = Job(command=ends_with(0), target=Target(db=Path("x")))
    run_job(command, lambda destination, session_id, is_delivered: reported.append(is_delivered))
    assert reported == [whole]
    said = capsys.readouterr().err
    assert (f"Try: rankmem ship {tmp_path} --db x  (after they have ended)\n" in said) is ends_with_run


class Unread(io.StringIO):
    """Standard error that nobody reads."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def test_a_standard_error_that_nobody_reads_changes_nothing(
    life: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(destination: Destination, session_id: str, is_delivered: bool) -> None:
        note("the summary")
        console_for(sys.stderr).print("a table")  # rich ends the process where a pipe is broken
        life.append("report")
        raise RankmemError(Code.UNAVAILABLE, "gone")

    unread = Unread()
    monkeypatch.setattr(sys, "stderr", unread)
    assert run_job(Job(command=ends_with(3), target=Target(db=Path("x"))), report) == 3
    assert life == ["open", "wait", "report", "close"]
    assert sys.stderr is unread


@pytest.mark.parametrize(
    "stderr", [pytest.param("/dev/full", id="full"), pytest.param(None, id="nobody reads")]
)
def test_python_itself_ends_well_without_standard_error(stderr: str | None) -> None:
    if stderr is None:
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(stderr, os.O_WRONLY)
    says = (
        "import sys; from rankmem_cli.run.failing_stderr import stderr_may_fail\n"
        "with stderr_may_fail(): print('x', file=sys.stderr)"
    )
    with os.fdopen(writing, "wb") as unread:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        ended = subprocess.run(
            [sys.executable, "-c", says], env=environ, stderr=unread, check=False, timeout=60
        )
    assert ended.returncode == 0
