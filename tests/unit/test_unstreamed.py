"""No answer of ours can wait for itself: DuckDB makes our CTEs whole before they are read."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import rankmem_aggregator
import rankmem_aggregator.sql as sql_of_ours
from constructed import SESSION, RankLog, empty_database, store_logs
from rankmem_aggregator.lake.cutting import Cut
from rankmem_aggregator.lake.slices import BUCKETS
from rankmem_aggregator.page.answers.inefficient import KINDS
from rankmem_aggregator.sql import (
    mindstudio_names,
    mindstudio_text,
    optional_of,
    page_names,
    page_text,
    query_names,
    query_text,
    view_names,
    view_text,
)
from rankmem_aggregator.summaries.one_pass import DUE

pytestmark = pytest.mark.slow

STREAMED = "PIPELINE_DEPENDENT"
"""How DuckDB 2.0's EXPLAIN marks a CTE whose rows may go on to its readers while it is made."""
TWO_READERS = (
    "WITH pair AS MATERIALIZED (FROM range(2)) "
    "SELECT count(*) FROM pair AS a INNER JOIN pair AS b USING (range)"
)
ARGUMENTS = {
    "of_session": SESSION,
    "of_group": "host",
    "of_rank": 0,
    "of_attempt": 0,
    "of_device": "cuda:0",
    "at_ns": 1,
}


POINT = [{"attempt": 0, "rank": 0, "device": "cpu", "offset_ns": 0, "seq": 3}]
ASKED: dict[str, object] = {
    "session": SESSION, "attempt": 0, "rank": 0, "device": "cpu", "device_type": "cpu", "offset_ns": 0,
    "points": json.dumps(POINT), "instants": "[1, 3]", "ranks": "0", "value": "host-1", "step": 0,
    "figure": "requested", "graph": "1", "stacks": "[1, 2]", "part": "", "of": "host", "sort": "size_bytes",
    "pick": '{"operator": ["aten::mm"]}', "actions": "alloc,free", "after_text": "a", "until_ns": 2**62,
    **{f"word_{number}": "aten" for number in range(1, 5)},
}  # fmt: skip
"""Parameters of the page's statements; others are a 1, one that may be absent also NULL."""
CHOICES: dict[str, tuple[str, ...]] = {
    "by": ("category", "line", "stream", "module", "operator"),
    "which": ("alive", "made", "freed", "touching", "kept"),
    "kind": ("all", "rank", "host", "pp"),
}
"""Where a value chooses what a statement does, DuckDB plans that part alone: each is tried."""


def compared_with(text: str) -> dict[str, tuple[str, ...]]:
    """The words that a text compares parameters with, and another one, by parameter."""
    found: dict[str, set[str]] = {}
    for name, words in re.findall(r"\$(\w+)(?:::\w+)? (?:=|<>|IN) \(?('\w+'(?:, '\w+')*)", text):
        found.setdefault(name, {"another"}).update(re.findall(r"\w+", words))
    return {name: tuple(sorted(words | set(CHOICES.get(name, ())))) for name, words in found.items()}


def page_parameters(name: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Texts of a statement of the page, with values for each."""
    text = re.sub(r"--.*", "", page_text(name))
    names = [*re.findall(r"\$(\w+)", text), *optional_of(name)]
    optional = set(re.findall(r"\$(\w+)(?:::\w+)? IS (?:NOT )?NULL", text)) | optional_of(name)
    choices = CHOICES | compared_with(text) | ({"kind": KINDS} if name == "inefficient" else {})
    chosen = [[(each, value) for value in choices[each]] for each in choices if each in names]
    for made in itertools.product(*chosen):
        for absent in (True, False) if optional else (False,):
            known = {each: None if absent and each in optional else ASKED.get(each, 1) for each in names}
            given = {**known, **dict(made)}
            short = page_text(name, frozenset(each for each in optional_of(name) if given[each] is None))
            yield short, {each: given[each] for each in re.findall(r"\$(\w+)", re.sub(r"--.*", "", short))}


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    first, second = RankLog(rank=0), RankLog(rank=1, host_uid="host-1")
    for log in (first, second):
        log.alloc("weights", 100, at=10, operator="aten::empty")
        log.alloc("activation", 50, at=20, operator="aten::mm")
        log.free("activation", at=30)
    with empty_database() as connection:
        store_logs(connection, [first, second])
        yield connection


def plan(connection: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, object]) -> str:
    ((_, text),) = connection.execute(f"EXPLAIN {sql}", parameters or None).fetchall()
    return str(text)


def streamed(connection: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, object]) -> set[str]:
    """The CTEs that are streamed and read: none of what the parameters leave out of the plan."""
    ((_, text),) = connection.execute(f"EXPLAIN (FORMAT json) {sql}", parameters or None).fetchall()
    found: set[str] = set()

    def names(node: dict[str, Any]) -> set[str]:
        below = set().union(*map(names, node["children"]))
        facts = node["extra_info"]
        if facts.get("Execution Mode") == STREAMED and "CTE_SCAN" in below:
            found.add(facts["CTE Name"])
        return below | {node["name"].strip()}

    for node in json.loads(text):
        names(node)
    return found


def test_a_cte_with_two_readers_is_streamed_without_the_row_that_forbids_it(
    database: duckdb.DuckDBPyConnection,
) -> None:
    assert STREAMED in plan(database, TWO_READERS, {})
    assert streamed(database, TWO_READERS, {}) == {"pair"}
    assert STREAMED not in plan(database, f"{TWO_READERS} CROSS JOIN unstreamed", {})


@pytest.mark.parametrize("name", query_names())
def test_a_named_query_streams_no_cte(database: duckdb.DuckDBPyConnection, name: str) -> None:
    names = set(re.findall(r"\$(\w+)", query_text(name)))
    for by in ("category", "stream") if "by" in names else (None,):
        known: dict[str, object] = {"session": SESSION, "by": by}
        assert STREAMED not in plan(database, query_text(name), {p: known.get(p) for p in names}), by


@pytest.mark.parametrize("name", page_names())
def test_a_statement_of_the_page_streams_no_cte(database: duckdb.DuckDBPyConnection, name: str) -> None:
    for text, given in page_parameters(name):
        assert not streamed(database, text, given), given


@pytest.mark.parametrize(
    "name", [name for name in mindstudio_names() if "one value" not in mindstudio_text(name)]
)
def test_a_view_of_mindstudios_streams_no_cte(database: duckdb.DuckDBPyConnection, name: str) -> None:
    check_view(database, f"mindstudio.{name}", mindstudio_text(name))


@pytest.mark.parametrize("name", [name for name in view_names() if "one value" not in view_text(name)])
def test_a_view_streams_no_cte(database: duckdb.DuckDBPyConnection, name: str) -> None:
    check_view(database, name, view_text(name))


def check_view(database: duckdb.DuckDBPyConnection, name: str, text: str) -> None:
    signature = re.search(r"MACRO [\w.]+\((.*?)\) AS TABLE", text, re.DOTALL)
    if signature is None:
        assert STREAMED not in plan(database, f"FROM {name}", {})
        return
    needed = [p.strip() for p in signature[1].split(",") if ":=" not in p]
    values = {p: ARGUMENTS[p] for p in needed if p in ARGUMENTS}
    asked = ", ".join(f"${p}" if p in values else "NULL" for p in needed)
    assert STREAMED not in plan(database, f"FROM {name}({asked})", values)


STATEMENTS = [
    f"{folder.name}/{file.name}"
    for folder in (Path(sql_of_ours.__file__).parent / name for name in ("exports", "prune", "summaries"))
    for file in sorted(folder.glob("*.sql"))
    if file.stem not in {"mindstudio_tables", "skyline_tables", "write_parquet"}  # they write files
]


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_of_an_export_or_of_the_aggregator_streams_no_cte(
    database: duckdb.DuckDBPyConnection, name: str
) -> None:
    text = (Path(sql_of_ours.__file__).parent / name).read_text()
    bare = re.sub(r"--.*", "", text)
    optional = set(re.findall(r"\$(\w+)(?:::\w+)? IS (?:NOT )?NULL", bare))
    database.register("due", DUE.empty_table())
    database.execute("CREATE OR REPLACE TEMP TABLE summary_due AS FROM due")
    for absent in (set(), optional):
        given = {
            each: None if each in absent else ASKED.get(each, 1) for each in re.findall(r"\$(\w+)", bare)
        }
        assert STREAMED not in plan(database, text, given), absent


def test_a_cut_lake_streams_no_cte(database: duckdb.DuckDBPyConnection) -> None:
    for segments in (1, 4):
        cut = Cut(
            session_id=SESSION,
            places="[]",
            host_uids=(("host-0",), ("host-1",)),
            ranks=((0, 0), (1, 1)),
            begin_ns=0,
            width_ns=10,
            segments=segments,
            part_rows=1,
        )
        opening = cut.opening()
        assert STREAMED not in plan(database, opening.statement, dict(opening.parameters))
    database.execute("CREATE TEMP VIEW slice_event AS FROM memory_event")
    database.execute("CREATE TEMP TABLE slice_offset AS SELECT 0 AS attempt, 0 AS rank, 5 AS offset_ns")
    database.execute(
        "CREATE TEMP TABLE slice_edge AS SELECT 0 AS attempt, 0 AS rank, 'cpu' AS device, 0 AS seq, "
        "0 AS time_ns, 0 AS at_ns, 0 AS requested_bytes"
    )
    values = {
        "$session": f"'{SESSION}'",
        "$from": "5",
        "$until": "25",
        "$held": "0",
        "$rows": "FROM memory_bucket",
    }
    sliced = BUCKETS.replace("memory_bucket", "sliced")
    for name, value in values.items():
        sliced = sliced.replace(name, value)
    assert STREAMED not in plan(database, sliced, {})
    assert STREAMED in plan(database, sliced.replace("CROSS JOIN unstreamed", ""), {})


def test_statements_within_python_that_name_a_cte_are_known_here() -> None:
    package = Path(rankmem_aggregator.__file__).parent
    found = {path.name for path in package.rglob("*.py") if re.search(r"\bWITH \w+ AS\b", path.read_text())}
    assert found == {"cutting.py", "slices.py", "packing.py"}, "those of packing.py have one reader"
