"""The Python client on an aggregator of an older version: what it does not know is refused, with the reason.

The aggregator is today's, with the macros of the version before ``--by line`` of peaks and timelines: its
``block_change`` gives every block the line NULL, and there is no ``group_of_block``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guide import guide_database
from rankmem_aggregator import connect
from rankmem_aggregator import sql as sql_files
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.server import aggregator as server
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.groupings import GROUPINGS, Grouping

LINE_OF_TODAY = "LEFT JOIN stack AS s ON of_group = 'line' AND"


def older_text(name: str) -> str:
    """The text of a view or macro as the older version had it, as far as lines are concerned."""
    text = sql_files.view_text(name)
    if name == "block_change":
        assert LINE_OF_TODAY in text
        text = text.replace(LINE_OF_TODAY, "LEFT JOIN stack AS s ON false AND")
    return text.replace("group_of_block", "group_of_row")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    path: Path = tmp_path_factory.mktemp("older") / "guide.duckdb"
    patch = pytest.MonkeyPatch()
    texts = {name: older_text(name) for name in sql_files.view_names()}
    patch.setattr(sql_files, "view_text", texts.__getitem__)
    made = guide_database(str(path))
    made.execute("DROP MACRO IF EXISTS group_of_block")  # of the template, which another test may have made
    made.close()
    with server.open(AggregatorConfig(database_path=path, listen="127.0.0.1:0")) as running:
        patch.undo()
        with connect(running.address) as queries:
            yield queries


@pytest.mark.parametrize(
    ("question", "options"),
    [("peak_by", {}), ("timeline", {}), ("timeline", {"rank": "all"})],
    ids=["peak", "timeline", "timeline of all ranks"],
)
def test_lines_of_an_aggregator_that_does_not_know_them_are_refused(
    older: Queries, question: str, options: dict[str, Any]
) -> None:
    with pytest.raises(
        RankmemError, match="of an older version of rankmem, which cannot group by line"
    ) as no:
        getattr(older, question)(by="line", **options)
    assert no.value.code is Code.UNSUPPORTED
    assert older.target in no.value.message
    assert "rankmem export duckdb" in no.value.hint


def test_what_it_knows_it_answers_as_ever(older: Queries) -> None:
    assert set(older.ops(by="line")["line"].to_pylist()) != {None}
    for by in ("operator", "module", "category"):
        assert set(older.peak_by(by=by)["group_name"].to_pylist()) - {None}  # type: ignore[arg-type]


def test_a_copy_of_its_database_answers_by_line(older: Queries, tmp_path: Path) -> None:
    older.copy_to(tmp_path / "copy.duckdb")
    with connect(tmp_path / "copy.duckdb") as queries:
        assert set(queries.peak_by(by="line")["group_name"].to_pylist()) - {None}


def test_a_question_about_a_view_that_it_lacks_states_the_version(
    older: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rankmem_aggregator.query.asking.query_text", lambda name: "SELECT * FROM view_of_tomorrow"
    )
    with pytest.raises(RankmemError, match=r"of another version of rankmem: .*view_of_tomorrow") as no:
        older.sessions()
    assert no.value.code is Code.UNSUPPORTED


def test_a_key_that_comes_later_is_noticed_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    guide_database(str(tmp_path / "guide.duckdb")).close()
    monkeypatch.setitem(GROUPINGS, "colour", Grouping(name="colour"))
    with connect(tmp_path / "guide.duckdb") as today:
        with pytest.raises(RankmemError, match="cannot group by colour"):
            today.peak_by(by="colour")  # type: ignore[arg-type]
        with pytest.raises(RankmemError, match="peak cannot be grouped by shape"):
            today.peak_by(by="shape")  # type: ignore[arg-type]
        for ask in (today.ops, today.job_peak_held):
            with pytest.raises(RankmemError, match="cannot be grouped by shape"):
                ask(by="shape")  # type: ignore[operator]
