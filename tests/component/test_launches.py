"""Two launches in one session never share an attempt, and two processes never a rank."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmem_agent.spool.launches import FILE_NAME, has_successor, is_alive, is_held, process, take

ME = process(os.getpid())
PARENT = process(1)
"""Some older process that lives."""
ENDED = f"{os.getpid()}-1"
"""Another process that had our number."""


@pytest.fixture
def another() -> Iterator[str]:
    """A living process that started after this one."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield process(child.pid)
        child.communicate(b"\n")


def test_the_first_launch_counts_its_restarts_from_0(tmp_path: Path) -> None:
    assert [take(tmp_path, "torchrun", restart, 0, ME) for restart in (0, 0, 1, 2)] == [0, 0, 1, 2]


def test_the_next_launch_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    take(tmp_path, "prepare", 0, 0, ME)
    assert [take(tmp_path, "torchrun", restart, 0, ME) for restart in (0, 1)] == [1, 2]
    assert take(tmp_path, "evaluate", 0, 0, ME) == 3
    assert take(tmp_path, "torchrun", 1, 0, ME) == 2


def test_a_rank_has_one_living_process(tmp_path: Path) -> None:
    assert take(tmp_path, "torchrun", 0, 0, PARENT) == 0
    assert take(tmp_path, "torchrun", 0, 0, ME) is None
    assert take(tmp_path, "torchrun", 0, 1, ME) == 0


def test_who_comes_after_a_rank_that_has_ended_is_the_next_start(tmp_path: Path) -> None:
    assert take(tmp_path, "torchrun", 0, 0, ENDED) == 0
    assert take(tmp_path, "torchrun", 0, 0, ME) == 1
    assert take(tmp_path, "torchrun", 0, 0, ME) == 1


def test_ranks_that_a_launcher_numbers_may_end_before_the_others_begin(tmp_path: Path) -> None:
    assert take(tmp_path, "torchrun", 0, 0, ENDED) == 0
    assert take(tmp_path, "torchrun", 0, 1, ME) == 0


def test_a_process_group_s_ranks_are_there_together_or_of_another_start(tmp_path: Path) -> None:
    assert take(tmp_path, "group", 0, 0, ENDED, joins_the_dead=False) == 0
    assert take(tmp_path, "group", 0, 1, PARENT, joins_the_dead=False) == 1
    assert take(tmp_path, "group", 0, 0, ME, joins_the_dead=False) == 1


def test_who_trains_comes_before_who_only_used_tensors(tmp_path: Path) -> None:
    assert take(tmp_path, "plain", 0, 0, PARENT, trains=False) == 0
    assert take(tmp_path, "plain", 0, 0, "1-1", trains=False) is None
    assert take(tmp_path, "plain", 0, 0, ME) == 1
    assert take(tmp_path, "plain", 0, 0, ME, trains=False) == 1
    assert take(tmp_path, "plain", 0, 0, PARENT) == 0


def test_a_rank_is_held_by_a_living_process_that_trains(tmp_path: Path) -> None:
    assert not is_held(tmp_path, "plain", 0)
    take(tmp_path, "plain", 0, 0, ME, trains=False)
    assert not is_held(tmp_path, "plain", 0)
    take(tmp_path, "plain", 0, 0, ME)
    assert is_held(tmp_path, "plain", 0)
    assert not is_held(tmp_path, "plain", 1)
    take(tmp_path, "another", 0, 0, ENDED)
    assert not is_held(tmp_path, "another", 0)


def test_who_only_prepared_the_work_of_a_later_process_has_a_successor(tmp_path: Path, another: str) -> None:
    take(tmp_path, "plain", 0, 0, PARENT)
    assert not has_successor(tmp_path, "plain", 0, 0, ME)
    take(tmp_path, "torchrun", 1, 1, another)
    assert has_successor(tmp_path, "plain", 0, 0, ME)
    assert has_successor(tmp_path, "torchrun", 1, 1, ME)
    assert not has_successor(tmp_path, "torchrun", 1, 0, ME)  # another rank beside it
    assert not has_successor(tmp_path, "torchrun", 0, 1, ME)  # the same one after a restart
    assert not has_successor(tmp_path, "plain", 0, 0, another)


def test_a_process_that_nobody_waited_for_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = process(child.pid)
    assert is_alive(name)
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(name)
    child.wait()


def test_a_file_of_before_or_cut_short_is_read_or_begun_anew(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"torchrun": [0, 3]}')
    assert take(tmp_path, "next", 0, 0, ME) == 4
    (tmp_path / FILE_NAME).write_text('{"torchrun": [0')
    assert take(tmp_path, "torchrun", 0, 0, ME) == 0


def test_a_full_disk_does_not_make_who_has_which_place_forgotten(tmp_path: Path) -> None:
    for rank in range(3):
        assert take(tmp_path, "torchrun", 0, rank, ME) == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / FILE_NAME).stat().st_size + 5, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            take(tmp_path, "torchrun", 0, 3, ME)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert take(tmp_path, "torchrun", 0, 0, PARENT) is None
    assert take(tmp_path, "torchrun", 0, 3, ME) == 0
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
