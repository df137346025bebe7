"""What makes a process a rank, and which one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.hooks.guard import Guard
from rankmem_agent.preload.candidate import Candidate, Evidence
from rankmem_agent.preload.evidence import Group
from rankmem_agent.preload.rank_detection import DetectedRank
from rankmem_agent.spool import folder
from rankmem_agent.spool.launches import process, take
from rankmem_agent.spool.meta import read_meta

META: dict[str, Any] = {
    "version": 1,
    "session": {"session_id": "1ng35yz7rzsj"},
    "rank": {"pid": os.getpid()},
    "host": {},
    "clock": {"monotonic_ns": 1, "realtime_ns": 2},
}
NUMBERED = {"rank": 5, "world_size": 8, "local_rank": 1, "key": "RANK/5/8/1/0/29500/none"}


class FakeRecording:
    """A spool that is a folder alone."""

    has_heartbeat = True

    def __init__(self) -> None:
        self.opened: Path | None = None
        self.tensors = True
        self.much = True

    def look_for_steady_steps(self) -> None: ...

    def publish(self, spool_dir: Path) -> None:
        assert self.opened is not None
        os.rename(self.opened, spool_dir)

    def has_recorded(self) -> bool:
        return self.tensors

    def has_recorded_much(self) -> bool:
        return self.much


class Case:
    """A candidate in ``folder``, and what became of it."""

    def __init__(self, session_dir: Path, *, is_worker: bool = False, **detected: Any) -> None:
        self.dir = session_dir
        self.told: list[str] = []
        self.recording = FakeRecording()
        self.detected = DetectedRank(**detected)
        recording: Any = self.recording
        self.candidate = Candidate(
            self.detected,
            Guard(self.detected.rank),
            recording,
            session_dir,
            is_worker=is_worker,
            published=lambda: self.told.append("published"),
            refused=lambda: self.told.append("refused"),
        )
        self.recording.opened = self.candidate.spool_dir
        self.candidate.describe(META)

    def gives(self, *evidence: Evidence, group: Group | None = None) -> tuple[int, int, int] | None:
        """Attempt, rank and world size that the evidence gave, if any."""
        for each in evidence:
            self.candidate.gives(each, group)
        if not self.candidate.is_published:
            return None
        meta = read_meta(self.candidate.spool_dir)
        return meta.attempt, meta.rank, meta.rank_row["world_size"]


@pytest.fixture
def another() -> Iterator[str]:
    """A living process that started after this one."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield process(child.pid)
        child.communicate(b"\n")


def _group(rank: int, world_size: int) -> Group:
    return Group(rank=rank, world_size=world_size, rendezvous="29500")


def test_nobody_ships_a_candidate_until_it_trains(tmp_path: Path) -> None:
    case = Case(tmp_path)
    assert folder.spools(tmp_path) == []
    assert case.gives(Evidence.STEP) == (0, 0, 1)
    assert folder.spools(tmp_path) == [case.candidate.spool_dir]
    assert folder.candidates(tmp_path) == []
    assert case.told == ["published"]


@pytest.mark.parametrize("evidence", [Evidence.GIVEN, Evidence.STEP, Evidence.BUSY, Evidence.EXIT])
def test_a_launcher_s_numbers_are_those_of_its_worker(evidence: Evidence, tmp_path: Path) -> None:
    assert Case(tmp_path, **NUMBERED).gives(evidence) == (0, 5, 8)


@pytest.mark.parametrize(
    ("detected", "group", "place"),
    [
        ({}, _group(3, 4), (3, 4)),
        ({}, _group(0, 1), (0, 1)),
        (NUMBERED, _group(5, 8), (5, 8)),
        (NUMBERED, _group(2, 8), (2, 8)),  # in another order than the launcher's
        (NUMBERED, _group(13, 16), (13, 16)),  # a task of srun that starts several ranks
        (NUMBERED, _group(1, 2), (5, 8)),  # a group among the launcher's workers
        (NUMBERED, _group(0, 1), (5, 8)),
    ],
)
def test_a_process_group_s_numbers_win_unless_it_is_smaller_than_the_launch(
    detected: dict[str, Any], group: Group, place: tuple[int, int], tmp_path: Path
) -> None:
    assert Case(tmp_path, **detected).gives(Evidence.GROUP, group=group) == (0, *place)


def test_a_worker_of_multiprocessing_is_a_rank_by_training_alone(tmp_path: Path) -> None:
    case = Case(tmp_path, is_worker=True)
    assert case.gives(Evidence.BUSY, Evidence.EXIT) is None
    assert case.gives(Evidence.GROUP, group=_group(1, 2)) == (0, 1, 2)


@pytest.mark.parametrize("name", ["LOCAL_RANK", "WORLD_SIZE"])
def test_a_script_that_a_process_group_will_number_is_no_rank_for_being_busy(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(name, "2")
    case = Case(tmp_path)
    assert case.gives(Evidence.BUSY) is None
    assert case.gives(Evidence.GROUP, group=_group(1, 2)) == (0, 1, 2)


def test_a_script_without_tensors_is_none_at_its_end(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.recording.tensors = False
    assert case.gives(Evidence.EXIT) is None
    case.candidate.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_script_whose_child_trained_is_none_at_its_end(tmp_path: Path, another: str) -> None:
    case = Case(tmp_path)
    take(tmp_path, "group 2 29500", 0, 0, another)
    assert case.gives(Evidence.EXIT) is None


def test_a_child_that_used_tensors_is_none_at_its_end(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.detected.is_child = True
    assert case.gives(Evidence.EXIT) is None


@pytest.mark.parametrize("evidence", [Evidence.BUSY, Evidence.EXIT])
@pytest.mark.parametrize("numbers", [{}, NUMBERED])
def test_tensors_are_used_only_where_a_block_was_recorded(
    evidence: Evidence, numbers: dict[str, Any], tmp_path: Path
) -> None:
    case = Case(tmp_path, **numbers)
    case.recording.tensors = False
    assert case.gives(evidence) is None
    assert case.told == []


def test_a_child_that_is_busy_is_none_until_it_trains(tmp_path: Path) -> None:
    case = Case(tmp_path, **NUMBERED)
    case.detected.is_child = True
    assert case.gives(Evidence.BUSY) is None
    assert case.gives(Evidence.STEP) == (0, 5, 8)


def test_a_script_that_is_busy_after_its_child_trained_is_none(tmp_path: Path, another: str) -> None:
    case = Case(tmp_path)
    take(tmp_path, "group 2 29500", 0, 0, another)
    assert case.gives(Evidence.BUSY) is None


def test_a_rank_that_cannot_be_published_leaves_no_empty_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path)

    def full(_: Path) -> None:
        raise OSError("no room")

    monkeypatch.setattr(case.recording, "publish", full)
    with pytest.raises(OSError, match="no room"):
        case.candidate.gives(Evidence.STEP)
    assert [each.name for each in tmp_path.glob("*/")] == [case.candidate.spool_dir.name]


def test_a_process_that_trains_beside_its_rank_is_refused_and_says_so(
    tmp_path: Path, another: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from rankmem_agent import facts

    case = Case(tmp_path)
    take(tmp_path, facts.launch(case.detected), 0, 0, another)
    assert case.gives(Evidence.BUSY) is None
    assert case.told == []
    assert case.gives(Evidence.STEP, Evidence.STEP) is None
    assert case.told == ["refused"]
    assert capsys.readouterr().err.count("is not recorded") == 1
    assert list(tmp_path.glob("*/")) == []


def test_a_rank_known_before_its_process_group_learns_its_world(tmp_path: Path) -> None:
    case = Case(tmp_path)
    assert case.gives(Evidence.BUSY) == (0, 0, 1)
    assert case.candidate.gives(Evidence.GROUP, _group(0, 4)) == {"world_size": 4}
    assert case.candidate.gives(Evidence.GROUP, _group(0, 4)) is None
    assert take(tmp_path, "group 4 29500", 0, 1, process(1), joins_the_dead=False) == 0  # the same attempt


def test_a_rank_that_its_process_group_numbers_otherwise_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path)
    case.gives(Evidence.STEP)
    assert case.candidate.gives(Evidence.GROUP, _group(2, 4)) is None
    assert "recorded as rank 0 of 1" in capsys.readouterr().err


@pytest.mark.parametrize("below", ["worker", "child"])
def test_an_inference_below_another_process_says_that_it_is_not_recorded(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path, is_worker=below == "worker")
    case.detected.is_child = below == "child"
    case.candidate.ran_a_model = lambda: True
    assert case.gives(Evidence.BUSY, Evidence.EXIT) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert "ran a model and is not recorded" in line
    assert "init_process_group" in line


@pytest.mark.parametrize(("ran", "much"), [(True, False), (False, True)])
def test_what_another_process_starts_for_a_little_work_is_silent(
    ran: bool, much: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path, is_worker=True)
    case.candidate.ran_a_model = lambda: ran
    case.recording.much = much
    assert case.gives(Evidence.EXIT) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ran", [True, False])
def test_of_two_inferences_beside_each_other_the_one_that_falls_away_says_so(
    ran: bool, tmp_path: Path, another: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path)
    case.candidate.ran_a_model = lambda: ran
    case.recording.much = False
    take(tmp_path, "the other's", 0, 0, another, trains=False)
    assert case.gives(Evidence.EXIT) is None
    said = capsys.readouterr().err
    assert ("started later" in said, said.count("not recorded")) == (ran, int(ran))
