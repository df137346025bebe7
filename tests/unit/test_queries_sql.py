"""The .sql files: each says its question, answers in its order, and the examples of the guide run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import duckdb
import pytest

from constructed import RankLog, empty_database, store_logs
from guide import guide_database, shown
from rankmem_aggregator.lake.aspects import BOUNDS
from rankmem_aggregator.lake.seeded import SUMMANDS
from rankmem_aggregator.sql import (
    head_of,
    mindstudio_names,
    mindstudio_text,
    query_names,
    query_text,
    scatter_of,
    view_names,
    view_text,
    without_texts,
)
from rankmem_aggregator.store.reading_instance import needed_names
from rankmem_protos.errors import Code, RankmemError

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "docs" / "sql.md"
EXAMPLES = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    log = RankLog()
    log.alloc("weights", 100, at=10, operator="aten::empty", stack_id=1)
    log.alloc("activation", 50, at=20, operator="aten::mm", stack_id=1)
    log.free("activation", at=30)
    with empty_database() as connection:
        store_logs(connection, [log])
        yield connection


@pytest.fixture(scope="module")
def job() -> Iterator[duckdb.DuckDBPyConnection]:
    with guide_database() as connection:
        yield connection


def test_every_view_file_is_installed(database: duckdb.DuckDBPyConnection) -> None:
    folder = Path(str(resources.files("rankmem_aggregator.sql"))) / "views"
    found = database.sql(
        "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main' "
        "UNION ALL SELECT DISTINCT function_name FROM duckdb_functions() "
        "WHERE NOT internal AND schema_name = 'main' AND function_type LIKE '%macro'"
    ).fetchall()
    assert {path.stem for path in folder.rglob("*.sql")} <= {name for (name,) in found}


def test_a_view_is_installed_after_those_that_it_reads() -> None:
    order = view_names()
    for earlier, later in (
        ("utc_of", "rank_overview"),
        ("rank_span", "held_at"),
        ("job_peak", "job_peak_held"),
    ):
        assert order.index(earlier) < order.index(later)


@pytest.mark.parametrize("name", view_names())
def test_a_view_has_its_question_its_columns_and_a_comment(name: str) -> None:
    text = view_text(name)
    head = head_of(text)
    assert head.question.endswith(("?", "Exact."))
    assert head.columns
    assert re.search(rf"CREATE OR REPLACE (VIEW|MACRO) {name}\b", text)
    assert re.search(rf"COMMENT ON (VIEW|MACRO|MACRO TABLE) {name} IS", text)


def test_the_columns_that_a_head_names_are_those_of_the_view(database: duckdb.DuckDBPyConnection) -> None:
    values = {"of_rank": "0", "of_points": "[{attempt: 0, rank: 0, device: '', seq: 0}]", "at_ns": "0"}
    whole = [
        name
        for name in view_names()
        if "all columns" not in view_text(name) and "one value" not in view_text(name)
    ]
    for name in whole:
        named = [
            column.strip()
            for line in head_of(view_text(name)).columns
            for column in line.partition(":")[0].split(" (")[0].split(",")
        ]
        needed = re.search(r"MACRO \w+\((.*?)\) AS", view_text(name), re.DOTALL)
        given = [p.strip() for p in needed[1].split(",") if ":=" not in p] if needed else []
        arguments = f"({', '.join(values.get(parameter, repr('')) for parameter in given)})" if needed else ""
        shown = database.sql(f"SELECT * FROM {name}{arguments}").columns
        assert sorted(named) == sorted(shown), name


@pytest.mark.parametrize("name", query_names())
def test_a_query_has_its_question_and_orders_its_answer(name: str) -> None:
    head = head_of(query_text(name))
    assert head.question
    assert head.columns
    last_clause = query_text(name).rpartition("ORDER BY")[2]
    assert last_clause.rstrip().endswith(";")
    assert "FROM" not in last_clause
    named = {line.partition(" ")[0] for line in head.parameters}
    assert named == set(re.findall(r"\$(\w+)", query_text(name)))


def test_each_file_says_how_an_engine_answers_it() -> None:
    texts = {name: view_text(name) for name in view_names()}
    texts |= {name: mindstudio_text(name) for name in mindstudio_names()}
    for name, text in (*texts.items(), *((name, query_text(name)) for name in query_names())):
        read = needed_names(without_texts(text))
        is_alone = name in BOUNDS  # it sees less than the session has: one process says what
        assert (scatter_of(text) == "time") == ("group_peak" in read and not is_alone), name
        assert (scatter_of(text) == "sums") == (name in {*SUMMANDS, "module_at_peak"}), name
        if scatter_of(text) == "hosts":  # ranks of other hosts would change these
            assert not read & {"rank_group", "session_overview", "host_overview"}, name
    with pytest.raises(RankmemError, match="says Scatter: 'by rank'"):
        scatter_of("-- Question: which?\n-- Scatter: by rank\nSELECT 1;")


def test_the_guide_asks_twenty_questions() -> None:
    asked = re.findall(r"^### (\d+)\. .*\?$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert asked == [str(number) for number in range(1, 21)]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_guide_answers_what_it_shows(job: duckdb.DuckDBPyConnection, example: str) -> None:
    answer = shown(job, example)
    assert answer.count("\n") > 1  # more than the names of the columns
    assert f"```sql\n{example}```\n\n```text\n{answer}```\n" in GUIDE.read_text(encoding="utf-8"), (
        "run: make docs"
    )


def test_an_unknown_query_is_refused_by_name() -> None:
    with pytest.raises(RankmemError, match=r"no nonsense\.sql") as caught:
        query_text("nonsense")
    assert caught.value.code is Code.NOT_FOUND


def test_views_may_be_installed_twice(database: duckdb.DuckDBPyConnection) -> None:
    from rankmem_aggregator.sql import install_views

    install_views(database)
    assert database.sql("SELECT * FROM peak_by_rank").to_arrow_table().num_rows == 1
