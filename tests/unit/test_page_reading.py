"""What an answer of the page carries besides its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from constructed import RankLog
from page_answers import Answers
from page_story import write_logs
from rankmem_aggregator.query.missing import missing_of


@pytest.mark.parametrize(("ended", "times"), [(100, 1), (None, 2)])
def test_what_is_missing_is_found_once_for_a_session_that_ended_and_again_for_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: int | None, times: int
) -> None:
    log = RankLog(ended=ended, complete=ended is None)
    log.alloc("b", 100, at=10)
    write_logs(tmp_path / "job.duckdb", [log])
    answers = Answers(tmp_path / "job.duckdb")
    asked: list[str] = []
    find = answers.queries._missing

    def counted(full_id: str) -> Any:
        asked.append(full_id)
        return find(full_id)

    monkeypatch.setattr(answers.queries, "_missing", counted)
    found = []
    for _ in range(2):
        answers.queries._known_missing = ("", 0.0, [])  # a second later
        found.append(missing_of(answers.ask("gaps")))
    answers.close()
    assert len(asked) == times
    assert found[0] == found[1]
