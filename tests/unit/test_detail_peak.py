"""Ranks recorded in full and in summary by turns: whether their highest step is known in full is said."""

from __future__ import annotations

import duckdb
import pytest

from constructed import BASE_NS, RankLog, store_logs, store_rows

pytestmark = pytest.mark.slow


def stored(
    connection: duckdb.DuckDBPyConnection,
    ranks: list[list[int]],
    levels: dict[int, str],
    *,
    outcome: str = "auto",
) -> None:
    """Ranks whose steps stand so high; ``levels``: what is recorded from a step on, at first in full."""
    logs, changes = [], []
    for rank, heights in enumerate(ranks):
        log = RankLog(rank=rank, ended=1000)
        logs.append(log)
        for step, height in enumerate(heights):
            if step in levels:
                of_rank = {name: log.steps[0][name] for name in ("session_id", "attempt", "rank")}
                place = {"step": step, "seq": 1 + log.steps[-1]["seq"], "time_ns": BASE_NS}
                level = {"order_id": 0, "outcome": outcome, "detail": levels[step]}
                changes.append(of_rank | place | level)
                log.skip()
            log.totals("cpu", [(10 * step, height), (10 * step + 1, 1)])
            log.step_ends(step, at=10 * step + 5)
    store_logs(connection, logs)
    store_rows(connection, "control_change", changes)


def peaks(connection: duckdb.DuckDBPyConnection) -> list[tuple[object, ...]]:
    return connection.sql(
        "SELECT rank, peak_step, peak_bytes, is_full, full_step, full_bytes FROM detail_peak"
    ).fetchall()


def sentences(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """What is said of each rank: which steps, then the highest."""
    found = connection.sql(
        "SELECT sentence FROM incompleteness WHERE why = 'control' ORDER BY rank, sentence DESC"
    ).fetchall()
    return [sentence for (sentence,) in found]


def test_a_peak_that_came_once_is_said_with_the_highest_step_in_full(
    database: duckdb.DuckDBPyConnection,
) -> None:
    stored(database, [[50, 70, 60, 99, 60, 71, 60, 60]], {2: "summary", 5: "full", 7: "summary"})
    assert peaks(database) == [(0, 3, 99, False, 5, 71)]
    steps, highest = sentences(database)
    assert "were not recorded in steps 2 to 4, 7 on (detail auto): " in steps
    assert highest == (
        "its highest finished step, 3 (99 bytes on cpu), was not recorded in full: the highest that was is 5 "
        "(71 bytes)"
    )


def test_of_steps_that_stand_equally_high_one_in_full_is_named(database: duckdb.DuckDBPyConnection) -> None:
    stored(database, [[50, 70, 90, 90, 90, 90]], {2: "summary", 4: "full"})
    assert peaks(database) == [(0, 4, 90, True, 4, 90)]
    assert sentences(database)[1] == "its highest finished step, 4 (90 bytes on cpu), was recorded in full"


def test_where_no_step_is_in_full_none_is_named(database: duckdb.DuckDBPyConnection) -> None:
    stored(database, [[50, 70]], {1: "summary"}, outcome="applied")
    database.execute("DELETE FROM step_bucket WHERE step = 0")
    assert peaks(database) == [(0, 1, 70, False, None, None)]
    steps, highest = sentences(database)
    assert "(rankmem control)" in steps
    assert highest.endswith("was not recorded in full: none was")


def test_of_many_ranks_the_steps_are_one_line_and_the_highest_of_the_host_is_another(
    database: duckdb.DuckDBPyConnection,
) -> None:
    stored(database, [[50, height, height] for height in (80, 90, 85)], {1: "summary"})
    assert peaks(database) == [(1, 1, 90, False, 0, 50)]
    first, second, highest, third = sentences(database)
    assert first == second == third
    assert highest.startswith("its highest finished step, 1 (90 bytes on cpu), was not recorded in full: ")


def test_a_rank_that_was_recorded_in_full_throughout_has_no_row(database: duckdb.DuckDBPyConnection) -> None:
    stored(database, [[50, 70]], {})
    assert peaks(database) == []
    assert sentences(database) == []


def test_steps_that_were_not_observed_since_they_were_known_are_no_summary(
    database: duckdb.DuckDBPyConnection,
) -> None:
    stored(database, [[50, 70, 90, 60]], {1: "steady", 2: "summary", 3: "steady"})
    (steps, highest) = sentences(database)
    assert "were not recorded in steps 2 to 2 (detail auto): " in steps
    assert highest.endswith("was not recorded in full: the highest that was is 1 (70 bytes)")
