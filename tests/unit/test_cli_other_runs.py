"""Several runs at once: recording into one database, and the line about other runs in the summary."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.spool import folder
from rankmem_cli.run import recorders
from rankmem_cli.run.other_runs import line_about_others
from rankmem_ship import closing

BEGAN_NS = 1_000


def test_a_look_for_other_recorders_does_not_remove_the_file_of_one_that_just_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "mem.duckdb"
    leaving, coming = contextlib.ExitStack(), contextlib.ExitStack()
    leaving.enter_context(recorders.register(database))
    genuine = os.open

    def opened(*of: Any, **how: Any) -> int:
        found = genuine(*of, **how)
        monkeypatch.setattr(os, "open", genuine)
        leaving.close()  # one recorder leaves, and the next one registers, just after the look began
        coming.enter_context(recorders.register(database))
        return found

    monkeypatch.setattr(os, "open", opened)
    assert recorders.are_registered(database)
    assert recorders.are_registered(database), "and it is still known"
    coming.close()
    assert not recorders.are_registered(database)


def test_a_database_has_recorders_while_a_run_records_into_it(tmp_path: Path) -> None:
    database = tmp_path / "mem.duckdb"
    assert not recorders.are_registered(database)
    with recorders.register(database):
        with recorders.register(database):
            assert recorders.are_registered(database)
        assert recorders.are_registered(database)
    assert not recorders.are_registered(database)
    assert os.listdir(tmp_path) == []


def test_a_run_that_cannot_take_the_lock_records_all_the_same(tmp_path: Path) -> None:
    database = tmp_path / "no such folder" / "mem.duckdb"
    with recorders.register(database):
        assert not recorders.are_registered(database)
    assert os.listdir(tmp_path) == []


def rank(attempt: int, host: str, started_ns: int, state: str = "exit", offset_ns: int = 0) -> dict[str, Any]:
    """A row of the query ``ranks``; ``started_ns`` by the host's clock."""
    on_common_clock = started_ns + offset_ns
    row = {"attempt": attempt, "host_uid": host, "started_ns": on_common_clock, "state": state}
    return row | {"clock_offset_ns": offset_ns}


ABSENT = {"attempt": 0, "host_uid": None, "started_ns": None, "state": "never came", "clock_offset_ns": None}


BEFORE = [rank(0, "a", 10), rank(1, "a", 20)]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([rank(0, "a", 1_001), rank(0, "b", 1_002), rank(1, "a", 1_009)], None),
        ([rank(0, "a", 10), ABSENT, rank(1, "a", 1_001)], "existed (attempt 0): this run is attempt 1"),
        ([*BEFORE, rank(2, "a", 1_001), rank(3, "a", 1_009)], "(attempts 0, 1): this run is attempts 2"),
        ([rank(0, "a", 1_001), rank(1, "b", 1_002)], "another run is also recording into session s"),
        ([rank(0, "a", 1_001, offset_ns=-500), rank(1, "a", 1_009, offset_ns=-500)], None),
        ([rank(0, "b", 10)], None),
        ([], None),
    ],
)  # fmt: skip
def test_a_summary_names_the_other_runs_of_its_session(
    ranks: list[dict[str, Any]], expected: str | None
) -> None:
    line = line_about_others("s", ranks, "a", BEGAN_NS)
    assert line is None if expected is None else expected in str(line)


def test_a_folder_in_which_another_run_makes_a_spool_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_dir = tmp_path / "session"
    session_dir.mkdir()
    closing.close(session_dir)
    looked = closing._has_spools

    def look(at: Path) -> bool:
        found = looked(at)
        (at / "candidate-7").mkdir()  # between the look and the removal
        return found

    monkeypatch.setattr(closing, "_has_spools", look)
    assert not closing.remove_if_over(session_dir)
    assert (session_dir / "candidate-7").is_dir()


def test_a_spool_is_made_though_its_session_s_folder_was_just_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_dir, made = tmp_path / "root" / "session", os.chmod
    removed: list[Path] = []

    def chmod(path: Path, mode: int) -> None:
        made(path, mode)
        if not removed:
            removed.append(path)
            session_dir.rmdir()

    monkeypatch.setattr(os, "chmod", chmod)
    path, start = folder.create_spool(session_dir, attempt=0, rank=1, pid=7)
    assert (path.name, start, path.is_dir(), removed) == ("0-1-7", 0, True, [session_dir])
