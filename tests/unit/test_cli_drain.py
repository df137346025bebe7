"""The wait for the last acknowledgement ends: delivered, at its limit, on request, or if none can deliver."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from rankmem_agent.config import AgentConfig
from rankmem_agent.spool import folder as spool_folder
from rankmem_agent.spool import launches, layout
from rankmem_agent.spool.exits import Exit
from rankmem_agent.spool.folder import candidates, create_candidate, spools
from rankmem_agent.spool.layout import ExitKind
from rankmem_agent.spool.places import Place, write_candidate
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_cli.run import drain, job
from rankmem_cli.run.child import SignalRelay
from rankmem_cli.show.status import ShipperState, shipper_state
from rankmem_ship.spool_reader.segments import open_control

LONG_S = 60.0
GONE_PID = 2**22 + 1  # above the largest pid that Linux gives


def spool(session_dir: Path, *, pid: int = GONE_PID) -> Path:
    """A spool with records that nobody has acknowledged, written by a process that is gone."""
    folder = session_dir / f"0-0-{pid}"
    folder.mkdir(parents=True)
    control = bytearray(layout.CONTROL_BYTES)
    control[12:16] = pid.to_bytes(4, "little")
    control[16:20] = int(layout.State.RUNNING).to_bytes(4, "little")
    (folder / "control").write_bytes(control)
    (folder / "meta.json").write_text("{}")
    return folder


class Shippers:
    """Stands for the election: what it is asked is counted, what it answers is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = 0
        self.one_runs = False
        self.on_start = lambda: None
        monkeypatch.setattr(drain, "elect", self.elect)
        monkeypatch.setattr(drain, "is_shipping", lambda folder: self.one_runs)
        monkeypatch.setattr(drain, "ELECT_EVERY_S", 0.0)

    def elect(self, session_dir: Path) -> bool:
        if self.one_runs:
            return False
        self.started += 1
        self.on_start()
        return True


def test_nothing_to_deliver_is_delivered_at_once(tmp_path: Path) -> None:
    assert drain.wait_delivered([tmp_path, tmp_path / "gone"], SignalRelay(), drain_s=LONG_S)


def test_the_wait_ends_at_its_limit(tmp_path: Path) -> None:
    spool(tmp_path)
    assert not drain.wait_delivered([tmp_path], SignalRelay(), drain_s=0.0)


def test_a_shipper_is_started_where_none_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = spool(tmp_path)
    shippers = Shippers(monkeypatch)
    shippers.on_start = lambda: (folder / "meta.json").unlink()
    assert drain.wait_delivered([tmp_path], SignalRelay(), drain_s=LONG_S)
    assert shippers.started == 1


def test_a_shipper_that_cannot_be_started_is_tried_again_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    spool(tmp_path)
    shippers = Shippers(monkeypatch)
    shippers.on_start = fail
    assert not drain.wait_delivered([tmp_path], SignalRelay(), drain_s=LONG_S)
    assert shippers.started == drain.ELECTIONS_MAX


def test_shippers_that_fail_again_and_again_are_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool(tmp_path)
    shippers = Shippers(monkeypatch)
    assert not drain.wait_delivered([tmp_path], SignalRelay(), drain_s=LONG_S)
    assert shippers.started == drain.ELECTIONS_MAX


def test_the_first_signal_is_answered_and_the_second_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spool(tmp_path)
    Shippers(monkeypatch).one_runs = True
    relay = SignalRelay()
    relay.num_stop_requests = 1
    monkeypatch.setattr(drain, "note", lambda text: setattr(relay, "num_stop_requests", 2))
    assert not drain.wait_delivered([tmp_path], relay, drain_s=LONG_S)


def test_a_rank_that_still_lives_is_not_waited_for(tmp_path: Path) -> None:
    spool(tmp_path, pid=os.getpid())
    assert drain.wait_delivered([tmp_path], SignalRelay(), drain_s=LONG_S)


def test_a_folder_that_goes_just_as_a_shipper_is_to_be_started_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_dir = tmp_path / "session"
    spool(session_dir)
    monkeypatch.setattr(drain, "ELECT_EVERY_S", 0.0)
    genuine = drain.elect

    def elect(folder: Path) -> bool:
        shutil.rmtree(session_dir)  # its shipper had delivered all, and the session was closed
        return genuine(folder)

    monkeypatch.setattr(drain, "elect", elect)
    assert drain.wait_delivered([session_dir], SignalRelay(), drain_s=LONG_S)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pending_records": "x"}'])
def test_an_incomplete_shipper_file_gives_no_state(tmp_path: Path, text: str) -> None:
    (tmp_path / "shipper.json").write_text(text)
    assert shipper_state(tmp_path) == ShipperState()


def test_the_shippers_state_is_read(tmp_path: Path) -> None:
    (tmp_path / "shipper.json").write_text(json.dumps({"pending_records": 7, "error": "no aggregator"}))
    assert shipper_state(tmp_path) == ShipperState(pending_records=7, error="no aggregator")


def test_the_folders_of_a_session_are_where_the_agent_puts_them(tmp_path: Path) -> None:
    config = AgentConfig.from_environment({"RANKMEM_SPOOL_DIR": str(tmp_path)})
    assert spool_folder.session_dirs("0123456789ab", config) == []
    (tmp_path / "0123456789ab").mkdir()
    assert spool_folder.session_dirs("0123456789ab", config) == [tmp_path / "0123456789ab"]
    by_default = AgentConfig.from_environment({"TMPDIR": str(tmp_path)})
    own = tmp_path / f"rankmem-{os.getuid()}" / "0123456789ab"
    own.mkdir(parents=True)
    assert spool_folder.session_dirs("0123456789ab", by_default) == [own]


def test_the_folders_of_a_session_are_also_found_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RANKMEM_AGGREGATOR", "whatever is set for something else")
    at_home = tmp_path / ".cache/rankmem/spool/0123456789ab"
    at_home.mkdir(parents=True)
    assert spool_folder.session_dirs_here("0123456789ab") == [at_home]


def _candidate(tmp_path: Path, process: str = "1-999999999999") -> tuple[Path, AgentConfig]:
    """A process that used tensors, and was killed before it was known to be a rank."""
    session_dir = tmp_path / "0123456789ab"
    path = create_candidate(session_dir)
    writer = PythonSpoolWriter(path, 16 << 20)
    writer.record(layout.Kind.EVENT)
    writer.abandon()
    place = Place(rank=0, world_size=1, local_rank=0, launch="plain", restart=0)
    facts = {"version": 1, "session": {"session_id": session_dir.name}, "rank": {}, "host": {}, "clock": {}}
    write_candidate(path, place, process, facts, counts=True)
    return session_dir, AgentConfig.from_environment({"RANKMEM_SPOOL_DIR": str(tmp_path)})


def test_a_process_that_was_killed_before_it_was_known_is_a_rank_while_the_command_still_runs(
    tmp_path: Path,
) -> None:
    session_dir, config = _candidate(tmp_path)
    shippers = drain.Shippers(session_dir.name, config)
    shippers.look()
    assert [each.name for each in spools(session_dir)] == ["0-0-1"]


def test_how_a_killed_process_ended_is_reported_in_what_it_recorded_before_it_was_known(
    tmp_path: Path,
) -> None:
    session_dir, config = _candidate(tmp_path, launches.process(os.getpid()))
    drain.record_exit(session_dir.name, config, os.getpid() + 1, Exit(kind=ExitKind.EXIT, code=3))
    drain.record_exit(session_dir.name, config, os.getpid(), Exit(kind=ExitKind.SIGNAL, code=9))
    (left,) = candidates(session_dir)
    _, control = open_control(left / "control")
    assert (int(control["exit_kind"][0]), int(control["exit_code"][0])) == (ExitKind.SIGNAL, 9)


def test_a_shipper_that_cannot_be_asked_to_leave_goes_on_and_the_run_says_how_to_deliver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(session_dir: Path) -> int | None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    spool(tmp_path)
    monkeypatch.setattr(drain, "ask_for", full)
    assert not job._give_up([tmp_path])
    assert f"Try: rankmem ship {tmp_path}" in capsys.readouterr().err
