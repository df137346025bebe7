"""Steps that were not observed since they were known: how many they are, and what is said of their blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from constructed import BASE_NS, SESSION, RankLog, empty_database, store_logs, store_rows
from rankmem_aggregator import connect
from rankmem_aggregator.query.missing import is_exact, lines, missing_of
from rankmem_aggregator.sql import query_text
from rankmem_aggregator.store import schema
from rankmem_cli.main import app

pytestmark = pytest.mark.slow

COUNTS = ("template_blocks", "prefix_blocks", "evidence_blocks", "steady_misses", "audit_differences")
EVIDENCE = (
    "some blocks are known by what was read at their allocation (a phase, a forward call or a category may "
    "be missing); allocation.attribution tells which (RANKMEM_STEADY); byte figures are exact"
)


def stored(
    connection: duckdb.DuckDBPyConnection,
    counts: list[tuple[int, ...] | None],
    changes: list[tuple[int, str, str]],
    *,
    num_steps: int = 10,
) -> None:
    """Ranks of so many steps that change alike what they observe: (step, outcome, detail)."""
    logs, rows = [], []
    for rank, known in enumerate(counts):
        log = RankLog(rank=rank, host_uid=f"host-{rank // 2}", ended=1000)
        log.coordinates = {} if known is None else dict(zip(COUNTS, known, strict=True))
        for step in range(num_steps):
            log.totals("cpu", [(10 * step, 50), (10 * step + 1, 1)])
            for at, outcome, detail in changes if known is not None else ():
                if at == step:
                    place = {"session_id": SESSION, "attempt": 0, "rank": rank, "order_id": 0, "step": at}
                    place |= {"seq": log.events[-1]["seq"] + 1, "time_ns": BASE_NS}
                    rows.append(place | {"outcome": outcome, "detail": detail})
                    log.skip()
            log.step_ends(step, at=10 * step + 5)
        logs.append(log)
    store_logs(connection, logs)
    store_rows(connection, "control_change", rows)


def missing(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    found = connection.sql(query_text("incompleteness"), params={"session": SESSION})
    rows: list[dict[str, Any]] = found.to_arrow_table().to_pylist()
    return rows


def test_steps_are_counted_by_where_observing_ends_and_begins(database: duckdb.DuckDBPyConnection) -> None:
    changes = [(3, "auto", "steady"), (5, "auto", "full"), (6, "auto", "steady"), (8, "missed", "full")]
    stored(database, [(70, 0, 3, 1, 0), None], changes)
    assert database.sql("SELECT * EXCLUDE (session_id, attempt) FROM rank_steady").fetchall() == [
        (0, 10, 4, 70, 0, 3, 1, 0)
    ], "3, 4, 6 and 7: step 8 was observed from its middle on"
    for view in ("rank_overview", "rank_status"):
        asked = f"SELECT num_steps, steady_steps, template_blocks, steady_misses FROM {view} ORDER BY rank"
        assert database.sql(asked).fetchall() == [(10, 4, 70, 1), (None,) * 4], view


def test_steady_steps_that_go_on_count_up_to_the_last_that_ended(database: duckdb.DuckDBPyConnection) -> None:
    stored(database, [(70, 0, 0, 0, 0)], [(3, "auto", "steady")])
    assert database.sql("SELECT num_steps, steady_steps FROM rank_steady").fetchall() == [(10, 7)]
    database.execute("DELETE FROM step WHERE step > 1")
    assert database.sql("SELECT num_steps, steady_steps FROM rank_steady").fetchall() == [(2, 0)]


def test_nothing_is_said_of_blocks_known_by_whole_steps(database: duckdb.DuckDBPyConnection) -> None:
    stored(database, [(70, 0, 0, 1, 0), None], [(3, "auto", "steady")])
    assert missing(database) == []
    assert database.sql("SELECT was_reduced, complete FROM session_overview").fetchall() == [(False, True)]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((70, 0, 3, 1, 0), EVIDENCE),
        ((70, 4, 0, 0, 0), "some blocks are known by the beginning of a step alone; "),
        (
            (70, 4, 3, 0, 0),
            "the beginning of a step alone, or by what was read at their allocation (a phase, ",
        ),
        (
            (70, 0, 0, 0, 1),
            "in 1 place of a step, another operator, module, phase or stack was observed than ",
        ),
        ((70, 0, 3, 1, 2), 'later ones have "a or b" or none; some blocks are known by what was read '),
    ],
)
def test_what_is_not_known_for_sure_is_one_line(
    database: duckdb.DuckDBPyConnection, counts: tuple[int, ...], said: str
) -> None:
    stored(database, [counts], [(3, "auto", "steady")])
    rows = missing(database)
    (line,) = lines(rows)
    assert line.startswith("rank 0: ")
    assert said in line
    assert line.endswith("; allocation.attribution tells which (RANKMEM_STEADY); byte figures are exact")
    assert is_exact(rows) is True
    assert database.sql("SELECT is_exact FROM peak_bound").fetchall() == [(True,)]


def test_differences_of_a_host_are_one_line(database: duckdb.DuckDBPyConnection) -> None:
    stored(database, [(70, 0, 0, 0, n) for n in (1200, 34, 5)], [(3, "auto", "steady")])
    first, second = lines(missing(database))
    assert first.startswith("ranks 0, 1: in 1,234 places of a step, another operator, module, ")
    assert second.startswith("rank 2: in 5 places of a step, ")


def test_each_answer_says_it_and_status_has_the_counts(tmp_path: Path) -> None:
    path = tmp_path / "mem.duckdb"
    with empty_database(str(path)) as connection:
        stored(connection, [(70, 0, 3, 1, 0)], [(3, "auto", "steady")])
    with connect(path) as queries:
        for answer in (queries.ops(), queries.modules(), queries.peak()):
            assert missing_of(answer) == [f"rank 0: {EVIDENCE}"]
    for verb in ("ops", "modules", "status"):
        done = CliRunner().invoke(app, [verb, "--db", str(path)], catch_exceptions=False)
        assert f"rank 0: {EVIDENCE}\n" in done.stderr, verb
        assert ("70 blocks are known by template" in done.stderr) == (verb == "status"), verb


def test_a_file_of_an_older_version_has_no_such_steps(tmp_path: Path) -> None:
    path = tmp_path / "mem.duckdb"
    with empty_database(str(path)) as connection:
        stored(connection, [None], [])
        for name in COUNTS:
            connection.execute(f"ALTER TABLE rank_info DROP COLUMN {schema.quoted(name)}")
        connection.execute("UPDATE rankmem_meta SET schema_version = 16")
    with connect(path) as queries:
        assert queries.sql("FROM rank_steady").num_rows == 0
        assert queries.ranks()["template_blocks"].to_pylist() == [None]
        assert queries.incompleteness().num_rows == 0
