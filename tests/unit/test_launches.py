"""Two launches in one session never share an attempt."""

from __future__ import annotations

from pathlib import Path

from rankmem_agent.spool.launches import FILE_NAME, attempt_of


def test_the_first_launch_counts_its_restarts_from_0(tmp_path: Path) -> None:
    assert [attempt_of(tmp_path, "torchrun", restart) for restart in (0, 0, 1, 2)] == [0, 0, 1, 2]


def test_the_next_launch_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    attempt_of(tmp_path, "prepare", 0)
    assert [attempt_of(tmp_path, "torchrun", restart) for restart in (0, 1)] == [1, 2]
    assert attempt_of(tmp_path, "evaluate", 0) == 3
    assert attempt_of(tmp_path, "torchrun", 1) == 2


def test_a_file_cut_short_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"torchrun": [0')
    assert attempt_of(tmp_path, "torchrun", 0) == 0
