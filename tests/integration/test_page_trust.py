"""What is missing is told as the view has it, and each hole lies where the log has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from constructed import BASE_NS, SESSION, RankLog, empty_database, store_logs, store_rows
from page_server import PageClient, served_page
from rankmem_aggregator import connect
from rankmem_aggregator.page.reading import facts_of
from rankmem_aggregator.query.missing import missing_of

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks; rank 1 lost positions 5 to 104, and was switched off at 8 s."""
    found = tmp_path_factory.mktemp("trust") / "gap.duckdb"
    logs = []
    for rank in range(2):
        log = RankLog(rank=rank, ended=10 * SECOND, complete=rank == 0, offset_ns=rank * 500)
        for i in range(5):
            log.alloc(f"a{i}", 1 << 20, at=(1 + i) * SECOND // 2)
        if rank:
            log.skip(100)
        for i in range(5):
            log.alloc(f"b{i}", 1 << 20, at=5 * SECOND + i * SECOND // 2)
        logs.append(log)
    of_rank = {"session_id": SESSION, "attempt": 0, "rank": 1}
    hole = of_rank | {"sequence_first": 5, "sequence_last": 104, "records": 100, "why": "spool_full"}
    end = of_rank | {
        "sequence_first": 110, "sequence_last": 110, "records": 0, "why": "agent_off", "to_end": True,
        "noticed_ns": BASE_NS + 8 * SECOND,
    }  # fmt: skip
    with empty_database(str(found)) as connection:
        store_logs(connection, logs)
        store_rows(connection, "gap", [hole, end])
    return found


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[PageClient]:
    with served_page(path) as served:
        yield served


def test_a_hole_lies_between_the_events_on_either_side_of_it(client: PageClient) -> None:
    answer = client.ask(f"s/{SESSION}/gaps")
    assert facts_of(answer)["cut"] is False
    hole, end = answer.to_pylist()
    assert (hole["rank"], hole["why"], hole["records"]) == (1, "spool_full", 100)
    assert (hole["from_ns"], hole["until_ns"]) == (5 * SECOND // 2 + 500, 5 * SECOND + 500)
    assert (end["why"], end["records"]) == ("agent_off", None)
    assert (end["from_ns"], end["until_ns"]) == (8 * SECOND + 500, 10 * SECOND + 500)


def test_of_too_many_holes_the_first_are_shown_and_it_is_said(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankmem_aggregator.page.answers.trust.GAPS_MAX", 1)
    with served_page(path) as served:
        answer = served.ask(f"s/{SESSION}/gaps")
    assert answer["why"].to_pylist() == ["spool_full"]
    assert facts_of(answer)["cut"] is True


def test_a_hole_at_the_beginning_of_a_later_attempt_is_not_hatched_before_it(tmp_path: Path) -> None:
    found = tmp_path / "again.duckdb"
    first = RankLog(rank=0, ended=4 * SECOND)
    again = RankLog(rank=0, attempt=1, started=6 * SECOND, ended=10 * SECOND)
    first.alloc("a", 1 << 20, at=SECOND)
    again.skip(100)
    again.alloc("b", 1 << 20, at=8 * SECOND)
    gap = {"session_id": SESSION, "attempt": 1, "rank": 0, "sequence_first": 0, "sequence_last": 99}
    with empty_database(str(found)) as connection:
        store_logs(connection, [first, again])
        store_rows(connection, "gap", [gap | {"records": 100, "why": "spool_full"}])
    with served_page(found) as served:
        heat = served.ask(f"s/{SESSION}/heat", from_=0, to=10 * SECOND - 1, bins=10, device_type="cpu")
    assert heat["gaps"].to_pylist() == [[6, 8]]


def test_what_is_missing_equals_the_clients_answer(client: PageClient, path: Path) -> None:
    told = client.ask(f"s/{SESSION}/missing")
    with connect(path) as queries:
        expected = queries.incompleteness(SESSION).to_pylist()
    assert {row["sentence"] for row in told.to_pylist()} == {row["sentence"] for row in expected}
    assert told.num_rows == len(expected) >= 2


def test_every_answer_over_the_gap_carries_it(client: PageClient) -> None:
    for route in ("gaps", "clocks", "delivery", "missing", "job"):
        answer = client.ask(f"s/{SESSION}/{route}")
        assert answer.schema.metadata[b"complete"] == b"False", route
        assert missing_of(answer), route


def test_delivery_and_clocks_equal_the_views(client: PageClient, path: Path) -> None:
    delivery = {row["rank"]: row for row in client.ask(f"s/{SESSION}/delivery").to_pylist()}
    assert (delivery[0]["complete"], delivery[1]["complete"]) == (True, False)
    assert (delivery[0]["is_exact"], delivery[1]["is_exact"]) == (True, False)
    with connect(path) as queries:
        for row in queries.status(SESSION).to_pylist():
            assert delivery[row["rank"]]["records_lost"] == row["records_lost"]
            assert delivery[row["rank"]]["events"] == row["events"]
    assert client.ask(f"s/{SESSION}/clocks")["error_ns"].to_pylist() == [1000]


def test_the_panels_statements_give_their_rows(client: PageClient, path: Path) -> None:
    for route in ("gaps", "clocks", "delivery", "missing"):
        answer = client.ask(f"s/{SESSION}/{route}")
        with connect(path) as queries:
            assert queries.sql(facts_of(answer)["sql"]).num_rows == answer.num_rows
