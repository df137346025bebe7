"""A candidate's log becomes a rank's, or nothing."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.spool import folder, places
from rankmem_agent.spool.launches import process, take
from rankmem_agent.spool.layout import CONTROL_FIELDS, Kind
from rankmem_agent.spool.meta import read_meta
from rankmem_agent.spool.places import Place
from rankmem_agent.spool.process_stat import process_start_ticks
from rankmem_agent.spool.python_writer import PythonSpoolWriter

PLACE = Place(rank=3, world_size=8, local_rank=1, launch="torchrun", restart=2)
FACTS = {
    "version": 1,
    "session": {"session_id": "1ng35yz7rzsj", "world_size": 1},
    "rank": {"session_id": "1ng35yz7rzsj", "rank": 0, "pid": 7},
    "host": {},
    "clock": {"monotonic_ns": 1, "realtime_ns": 2},
}
GONE_PID = 2**22 + 1
"""No process has it: the kernel counts to 2**22."""
DEAD = "1-999999999999"
"""A process that had the number of one that lives."""


def _candidate(session_dir: Path, by: str = DEAD, *, kind: Kind = Kind.EVENT, **said: Any) -> Path:
    path = folder.create_candidate(session_dir)
    writer = PythonSpoolWriter(path, 16 << 20)
    writer.record(kind)
    writer.abandon()
    places.write_candidate(path, PLACE, by, FACTS, **{"counts": True, **said})
    return path


def test_the_facts_of_a_place_name_session_attempt_rank_and_process() -> None:
    told = PLACE.facts(FACTS, 4, "77-5", 0)
    assert told["spool_id"] == told["rank"]["spool_id"] == "1ng35yz7rzsj-4-3-77-5"
    assert PLACE.facts(FACTS, 4, "77-5", 1)["spool_id"] == "1ng35yz7rzsj-4-3-77-5-1"
    assert told["session"]["world_size"] == told["rank"]["world_size"] == 8
    assert (told["rank"]["attempt"], told["rank"]["rank"], told["rank"]["local_rank"]) == (4, 3, 1)
    assert FACTS["rank"] == {"session_id": "1ng35yz7rzsj", "rank": 0, "pid": 7}


def test_what_a_killed_candidate_recorded_becomes_its_rank_s(tmp_path: Path) -> None:
    _candidate(tmp_path)
    assert places.settle(tmp_path)
    (spool,) = folder.spools(tmp_path)
    assert spool.name == "2-3-1"
    meta = read_meta(spool)
    assert (meta.attempt, meta.rank, meta.pid, meta.process_start_ticks) == (2, 3, 1, 999999999999)
    assert not (spool / folder.CANDIDATE_NAME).exists()
    assert not places.settle(tmp_path)


def test_a_killed_candidate_whose_events_may_be_missing_is_a_rank_too(tmp_path: Path) -> None:
    _candidate(tmp_path, kind=Kind.OFF)
    assert places.settle(tmp_path)


def test_a_candidate_that_lives_is_left_alone(tmp_path: Path) -> None:
    path = _candidate(tmp_path, process(os.getpid()))
    assert not places.settle(tmp_path)
    assert folder.candidates(tmp_path) == [path]


@pytest.mark.parametrize("said", [{"counts": False}, {"kind": Kind.CLOCK}])
def test_a_candidate_that_could_be_anything_or_used_no_tensor_is_removed(
    said: dict[str, Any], tmp_path: Path
) -> None:
    _candidate(tmp_path, **said)
    assert not places.settle(tmp_path)
    assert list(tmp_path.glob("*/")) == []


def test_a_candidate_whose_child_trained_is_removed(tmp_path: Path) -> None:
    _candidate(tmp_path, "1-5")
    take(tmp_path, "torchrun", 2, 3, process(os.getpid()))
    assert not places.settle(tmp_path)
    assert list(tmp_path.glob("*/")) == []


@pytest.mark.parametrize(("ended_later_s", "is_rank"), [(-1.0, True), (0.0, True), (60.0, False)])
def test_a_candidate_that_had_ended_as_the_next_process_began_is_no_wrapper_of_it(
    tmp_path: Path, ended_later_s: float, is_rank: bool
) -> None:
    """`bash -c "python evaluate.py; python train.py"`, and evaluate.py is killed."""
    path = _candidate(tmp_path, "1-5", has_heartbeat=True)
    take(tmp_path, "another script", 0, 0, process(os.getpid()))
    began_ns = process_start_ticks(os.getpid()) * 10**9 // os.sysconf("SC_CLK_TCK")
    slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    with (path / "control").open("r+b") as control:
        control.seek(next(field.offset for field in CONTROL_FIELDS if field.name == "heartbeat_ns"))
        control.write(int(began_ns - slept_ns + ended_later_s * 1e9).to_bytes(8, "little"))
    assert places.settle(tmp_path) == is_rank
    assert [read_meta(spool).attempt for spool in folder.spools(tmp_path)] == ([3] if is_rank else [])


def test_one_that_died_while_it_was_published_is_published(tmp_path: Path) -> None:
    path = _candidate(tmp_path, counts=False)
    PLACE.take(tmp_path, DEAD, trains=True)
    os.rename(path, tmp_path / "2-3-1")
    assert places.settle(tmp_path)
    assert json.loads((tmp_path / "2-3-1" / folder.META_NAME).read_text())["rank"]["attempt"] == 2


def test_a_folder_that_cannot_be_understood_is_left_alone(tmp_path: Path) -> None:
    path = _candidate(tmp_path)
    (path / folder.CANDIDATE_NAME).write_text("{")
    assert not places.settle(tmp_path)
    assert folder.candidates(tmp_path) == [path]


def test_a_candidate_that_somebody_else_settles_leaves_no_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _candidate(tmp_path)

    def rename(_: Path, to: Path) -> None:
        shutil.rmtree(path)  # the other was quicker
        raise FileNotFoundError(to)

    monkeypatch.setattr(places.os, "rename", rename)
    assert not places.settle(tmp_path)
    assert list(tmp_path.glob("*/")) == []


@pytest.mark.parametrize("name", ["candidate-{pid}", "0-3-{pid}", "0-3-{pid}-1"])
@pytest.mark.parametrize("lives", [True, False])
def test_a_folder_whose_maker_died_as_it_made_it_goes(name: str, lives: bool, tmp_path: Path) -> None:
    made = tmp_path / name.format(pid=os.getpid() if lives else GONE_PID)
    made.mkdir()
    if name.startswith("candidate"):
        (made / "control").touch()
    places.settle(tmp_path)
    assert made.exists() == lives


def test_a_log_without_its_facts_is_not_removed(tmp_path: Path) -> None:
    log = tmp_path / f"0-3-{GONE_PID}"
    log.mkdir()
    (log / "control").touch()
    places.settle(tmp_path)
    assert log.exists()


def test_what_cannot_be_settled_does_not_keep_the_others(tmp_path: Path) -> None:
    """Of a session whose folder somebody else could write to, nothing is believed."""
    left = _candidate(tmp_path / "open")
    _candidate(tmp_path / "ours")
    (tmp_path / "open").chmod(0o777)
    assert not places.settle(tmp_path / "open")
    assert left.exists()
    assert places.settle(tmp_path / "ours")
