"""Where events are missing no answer is called exact, and what is said of the true peak is true of it."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, store_logs, store_rows
from repetitions import seeds

pytestmark = pytest.mark.slow


def ask(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = connection.sql(query).to_arrow_table().to_pylist()
    return rows


def hole(rank: int, first: int, last: int, why: str = "spool_full", **more: object) -> dict[str, object]:
    whose = {"session_id": SESSION, "attempt": 0, "rank": rank}
    return whose | {
        "sequence_first": first, "sequence_last": last, "records": last - first + 1, "why": why,
        "noticed_ns": BASE_NS, **more,
    }  # fmt: skip


def true_and_recorded(seed: int, first: int, last: int) -> tuple[RankLog, RankLog]:
    """The same log twice: whole, and without the positions from first to last, as a shipper would pair it."""
    chosen = random.Random(seed)
    whole, recorded = RankLog(ended=SECOND_NS), RankLog(ended=SECOND_NS)
    alive: list[str] = []
    for seq in range(400):
        if alive and chosen.random() < 0.5:
            name = alive.pop(chosen.randrange(len(alive)))
            whole.free(name, at=seq * 1000)
            if first <= seq <= last:
                recorded.skip()
            elif name in recorded.allocations:
                recorded.free(name, at=seq * 1000)
            else:  # a block that was never seen
                recorded._event("free_completed", 0, 0, seq * 1000, "cpu")
        else:
            alive.append(f"block {seq}")
            size_bytes = chosen.randrange(1, 1000)
            whole.alloc(alive[-1], size_bytes, at=seq * 1000)
            if first <= seq <= last:
                recorded.skip()
            else:
                recorded.alloc(alive[-1], size_bytes, at=seq * 1000)
    return whole, recorded


@pytest.mark.parametrize("seed", seeds(12))
def test_the_true_peak_is_never_below_its_lower_bound(database: duckdb.DuckDBPyConnection, seed: int) -> None:
    chosen = random.Random(seed)
    first = chosen.randrange(0, 390)
    last = chosen.randrange(first, 399)
    whole, recorded = true_and_recorded(seed, first, last)
    store_logs(database, [recorded])
    store_rows(database, "gap", [hole(0, first, last)])
    true_peak = max(event["requested_bytes"] for event in whole.events)
    (told,) = ask(database, "FROM peak_bound")
    assert (told["is_exact"], told["at_most_bytes"]) == (False, None)
    assert told["at_least_bytes"] <= true_peak
    until = [event["requested_bytes"] for event in recorded.events if event["seq"] < first]
    assert told["at_least_bytes"] >= max(until, default=0) * (first % 64 == 0)
    (job,) = ask(database, f"FROM job_peak_bound('{SESSION}')")
    assert (job["is_exact"], job["order_is_certain"], job["highest_bytes"]) == (False, False, None)
    assert told["at_least_bytes"] <= job["at_least_bytes"] <= true_peak


def test_a_complete_rank_has_an_exact_peak(database: duckdb.DuckDBPyConnection) -> None:
    whole, _ = true_and_recorded(1, 0, 0)
    store_logs(database, [whole])
    (told,) = ask(database, "FROM peak_bound")
    peak = told["peak_requested_bytes"]
    assert (told["is_exact"], told["at_least_bytes"], told["at_most_bytes"]) == (True, peak, peak)
    (job,) = ask(database, f"FROM job_peak_bound('{SESSION}')")
    assert (job["is_exact"], job["order_is_certain"]) == (True, True)
    assert job["at_least_bytes"] == job["lowest_bytes"] == job["highest_bytes"] == peak


def test_a_peak_before_the_first_hole_is_the_least_that_it_was(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog(ended=SECOND_NS)
    log.totals("cpu", [(10, 90), (20, 40)])
    log.skip(62)
    log.totals("cpu", [(30, 200)])
    store_logs(database, [log])
    store_rows(database, "gap", [hole(0, 2, 63)])
    (told,) = ask(database, "FROM peak_bound")
    assert (told["peak_requested_bytes"], told["at_least_bytes"]) == (200, 90), "200 may be too high"


@pytest.mark.parametrize(
    ("why", "more", "least"),
    [
        ("agent_off", {"to_end": True}, 200),
        ("other_database", {}, 200),
        ("ring_overwritten", {}, 90),
        ("hooks_off", {"to_end": True, "what": "steps"}, 200),
    ],
)
def test_what_makes_no_later_total_too_high_leaves_the_peak_as_the_least(
    database: duckdb.DuckDBPyConnection, why: str, more: dict[str, object], least: int
) -> None:
    log = RankLog(ended=SECOND_NS)
    log.totals("cpu", [(10, 90)])
    log.skip(63)
    log.totals("cpu", [(30, 200)])
    store_logs(database, [log])
    store_rows(database, "gap", [hole(0, 1, 63, why, **more)])
    (told,) = ask(database, "FROM peak_bound")
    assert (told["at_least_bytes"], told["is_exact"]) == (least, why == "hooks_off")


def test_an_unexplained_difference_leaves_no_bound(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog(ended=SECOND_NS)
    log.totals("cpu", [(10, 90)])
    store_logs(database, [log])
    database.execute("UPDATE rank_info SET unexplained_bytes = 8, complete = false")
    (told,) = ask(database, "FROM peak_bound")
    assert (told["is_exact"], told["at_least_bytes"], told["at_most_bytes"]) == (False, None, None)
    (job,) = ask(database, f"FROM job_peak_bound('{SESSION}')")
    assert (job["is_exact"], job["at_least_bytes"]) == (False, 0)


def test_of_the_job_s_peak_each_rank_counts_as_far_as_it_is_certain(
    database: duckdb.DuckDBPyConnection,
) -> None:
    whole, torn = RankLog(ended=SECOND_NS), RankLog(rank=1, ended=SECOND_NS)
    whole.totals("cpu", [(10, 100)])
    torn.totals("cpu", [(20, 50)])
    torn.skip(63)
    torn.totals("cpu", [(30, 70)])
    store_logs(database, [whole, torn])
    store_rows(database, "gap", [hole(1, 1, 63)])
    (job,) = ask(database, f"FROM job_peak_bound('{SESSION}')")
    assert (job["job_peak_bytes"], job["at_least_bytes"]) == (170, 100)
    database.execute("UPDATE rank_info SET world_size = 3")
    database.execute("DELETE FROM gap")
    (job,) = ask(database, f"FROM job_peak_bound('{SESSION}')")
    assert (job["is_exact"], job["at_least_bytes"]) == (False, 170), "a rank that never reported adds to it"


def test_what_is_lost_are_records_and_so_many_events_at_most(database: duckdb.DuckDBPyConnection) -> None:
    logs = [RankLog(rank=rank, ended=SECOND_NS) for rank in range(2)]
    for log in logs:
        log.totals("cpu", [(10, 90)])
    store_logs(database, logs)
    store_rows(database, "gap", [hole(0, 1, 40), hole(1, 1, 1, "ring_overwritten")])
    assert ask(database, "SELECT rank, records_lost, events_lost FROM rank_overview ORDER BY rank") == [
        {"rank": 0, "records_lost": 40, "events_lost": 40},
        {"rank": 1, "records_lost": None, "events_lost": None},
    ]
    sentences = ask(database, "SELECT records, sentence FROM incompleteness ORDER BY rank")
    assert sentences[0]["sentence"].startswith("40 records (at most as many events) are missing")
    assert sentences[1]["records"] is None
    assert sentences[1]["sentence"].startswith("an unknown number of events are missing")
    assert ask(database, "SELECT complete FROM peak_by_rank") == [{"complete": False}] * 2


def test_an_imported_recording_that_may_be_incomplete_is_marked(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog(ended=SECOND_NS, complete=False)
    log.totals("cpu", [(10, 90)])
    store_logs(database, [log])
    assert ask(database, "FROM incompleteness") == []
    database.execute("UPDATE session SET source = 'kineto'")
    (told,) = ask(database, "FROM incompleteness")
    assert (told["why"], told["is_bytes"]) == ("partial", None)
    assert "does not show whether it holds every event" in told["sentence"]
    (told,) = ask(database, "FROM peak_bound")
    assert (told["is_exact"], told["at_least_bytes"], told["at_most_bytes"]) == (None, 90, None)
    (job,) = ask(database, f"FROM job_peak_bound('{SESSION}')")
    assert (job["is_exact"], job["order_is_certain"], job["at_least_bytes"]) == (None, True, 90)
