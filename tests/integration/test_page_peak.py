"""The page's answers about the job's highest instant, beside the command line's and a sum made by hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import duckdb
import pytest

from constructed import BASE_NS, SESSION, RankLog, clear, empty_database, store_logs
from page_server import PageClient, served_page
from page_steps_story import make_story, story_logs
from rankmem_aggregator import connect
from rankmem_aggregator.query.types import BlockBy
from rankmem_protos.errors import Code, RankmemError


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("peak") / "story.duckdb"
    make_story(path)
    return path


@pytest.fixture(scope="module")
def client(story: Path) -> Iterator[PageClient]:
    with served_page(story) as served:
        yield served


def ask(client: PageClient, route: str, **parameters: Any) -> list[dict[str, Any]]:
    return list(client.ask(f"s/{SESSION}/{route}", **parameters).to_pylist())


def highest_sum() -> tuple[int, int, dict[int, int]]:
    """The highest sum over the story's ranks, when that was, and each rank's share: event by event."""
    events = sorted(
        (event["time_ns"], log.rank, event["seq"], event["requested_bytes"])
        for log in story_logs()
        for event in log.events
    )
    held: Counter[int] = Counter()
    best = (0, 0, dict(held))
    for time_ns, rank, _, total in events:
        held[rank] = total
        if held.total() > best[0]:
            best = held.total(), time_ns, dict(held)
    return best


def test_the_shares_are_those_of_a_sum_made_event_by_event(client: PageClient) -> None:
    total, time_ns, shares = highest_sum()
    answer = client.ask(f"s/{SESSION}/peak")
    facts = client.facts(f"s/{SESSION}/peak")
    assert {row["rank"]: row["requested_bytes"] for row in answer.to_pylist()} == shares
    assert facts["bound"]["job_peak_bytes"] == total
    assert facts["bound"]["job_peak_ns"] + int(facts["origin_ns"]) == time_ns


def test_shares_bound_and_sum_of_peaks_are_the_command_lines(client: PageClient, story: Path) -> None:
    rows = ask(client, "peak")
    facts = client.facts(f"s/{SESSION}/peak")
    with connect(story) as queries:
        shares = queries.job_peak(SESSION).to_pylist()
        (bound,) = queries.job_peak_bound(SESSION).to_pylist()
        peaks = {row["rank"]: row for row in queries.peak(SESSION).to_pylist()}
    assert [(row["rank"], row["requested_bytes"], row["seq"]) for row in rows] == [
        (row["rank"], row["requested_bytes"], row["seq"]) for row in shares
    ]
    for row in rows:
        assert row["peak_bytes"] == peaks[row["rank"]]["peak_requested_bytes"]
        assert row["peak_ns"] + int(facts["origin_ns"]) == peaks[row["rank"]]["peak_time_ns"]
    assert sum(row["peak_bytes"] for row in rows) == bound["sum_of_peaks_bytes"] > bound["job_peak_bytes"]
    bound.pop("job_peak_utc")
    bound["job_peak_ns"] -= int(facts["origin_ns"])
    assert facts["bound"] == bound
    assert facts["running"] is False


@pytest.mark.parametrize("by", get_args(BlockBy))
def test_what_all_ranks_held_is_the_command_lines(client: PageClient, story: Path, by: BlockBy) -> None:
    with connect(story) as queries:
        held = queries.job_peak_held(SESSION, by=by).to_pylist()
    rows = ask(client, "peak_held", by=by)
    assert [row["is_rest"] for row in rows] == [False] * len(held)
    columns = ("group_name", "live_bytes", "live_allocations", "largest_bytes", "num_ranks")
    assert [[row[name] for name in columns] for row in rows] == [
        [row[name] for name in columns] for row in held
    ]


@pytest.mark.parametrize("of", ["rank", "host", "pp", "tp", "dp", "cp"])
def test_bars_add_up_to_the_shares_of_their_ranks(client: PageClient, of: str) -> None:
    shares = ask(client, "peak")
    key = {"host": "host_name"}.get(of, of)
    expected: Counter[str | None] = Counter()
    for row in shares:
        expected[None if row[key] is None else str(row[key])] += row["requested_bytes"]
    found: Counter[str | None] = Counter()
    for row in ask(client, "peak_held", of=of, by="line"):
        found[row["of_name"]] += row["live_bytes"]
    assert found == expected


def test_groups_beyond_those_told_apart_are_one_row_of_each_bar(client: PageClient) -> None:
    whole = ask(client, "peak_held", of="pp", by="category")
    few = ask(client, "peak_held", of="pp", by="category", groups=2)
    kept = {name for name, _ in _most(whole, 2)}
    assert {row["group_name"] for row in few if not row["is_rest"]} == kept
    rest: Counter[str] = Counter()
    for row in whole:
        if row["group_name"] not in kept:
            rest[row["of_name"]] += row["live_bytes"]
    assert {row["of_name"]: row["live_bytes"] for row in few if row["is_rest"]} == rest


def test_the_statement_shown_gives_the_same_rows_by_itself(client: PageClient, story: Path) -> None:
    for route, parameters in (("peak", {}), ("peak_held", {"of": "host", "by": "module", "groups": 3})):
        answer = client.ask(f"s/{SESSION}/{route}", **parameters)
        facts = client.facts(f"s/{SESSION}/{route}", **parameters)
        with connect(story) as queries:
            rows = queries.sql(facts["sql"]).to_pylist()
        for row in rows:
            if "peak_ns" in row:
                row["peak_ns"] -= int(facts["origin_ns"])
        assert rows == answer.to_pylist()


def test_each_type_of_device_has_a_peak_of_its_own_accelerators_first(tmp_path: Path) -> None:
    log = RankLog(ended=100)
    log.alloc("host", 900, at=10, category="input")
    log.alloc("gpu", 100, at=20, device="cuda:0", category="parameter")
    with empty_database(str(tmp_path / "two.duckdb")) as connection:
        store_logs(connection, [log])
    with served_page(tmp_path / "two.duckdb") as client:
        facts = client.facts(f"s/{SESSION}/peak")
        assert (facts["device_types"], facts["device_type"]) == (["cuda", "cpu"], "cuda")
        assert facts["bound"]["job_peak_bytes"] == 100
        assert [row["live_bytes"] for row in ask(client, "peak_held", device_type="cpu")] == [900]
        with pytest.raises(RankmemError, match="no devices of type npu") as refused:
            client.ask(f"s/{SESSION}/peak", device_type="npu")
        assert refused.value.code is Code.NOT_FOUND


def test_a_rank_that_stood_highest_in_an_earlier_attempt_counts_with_that_peak(tmp_path: Path) -> None:
    first = RankLog(attempt=0, ended=50)
    first.alloc("much", 700, at=10)
    second = RankLog(attempt=1, started=60, ended=200)
    second.alloc("less", 300, at=70)
    other = RankLog(rank=1, attempt=1, started=60, ended=200)
    other.alloc("more", 500, at=80)
    with empty_database(str(tmp_path / "two.duckdb")) as connection:
        store_logs(connection, [first, second, other])
    with served_page(tmp_path / "two.duckdb") as client:
        rows = ask(client, "peak")
        held = {(row["attempt"], row["rank"]): (row["requested_bytes"], row["peak_bytes"]) for row in rows}
        assert held == {(1, 1): (500, 500), (1, 0): (300, 0), (0, 0): (0, 700)}
        assert client.facts(f"s/{SESSION}/peak")["bound"]["sum_of_peaks_bytes"] == 1200


def test_a_session_without_events_has_no_instant(tmp_path: Path) -> None:
    with empty_database(str(tmp_path / "none.duckdb")) as connection:
        store_logs(connection, [RankLog()])
    with served_page(tmp_path / "none.duckdb") as client:
        assert ask(client, "peak") == []
        assert client.facts(f"s/{SESSION}/peak")["bound"] is None
        assert ask(client, "peak_held") == []


def test_ranks_without_a_clock_are_in_no_sum_and_counted(tmp_path: Path) -> None:
    logs = []
    for rank, base in enumerate((0, 0, -BASE_NS, -BASE_NS)):
        log = RankLog(rank=rank, started=base, ended=base + 30)
        log.alloc("block", 100 + rank, at=base + 10)
        logs.append(log)
    with empty_database(str(tmp_path / "mixed.duckdb")) as connection:
        store_logs(connection, logs)
    with served_page(tmp_path / "mixed.duckdb") as client:
        assert [row["rank"] for row in ask(client, "peak")] == [1, 0]
        told = client.facts(f"s/{SESSION}/peak")
        assert (told["left_out"], told["bound"]["job_peak_bytes"]) == (2, 201)
    with empty_database(str(tmp_path / "without.duckdb")) as connection:
        store_logs(connection, logs[2:])
    with served_page(tmp_path / "without.duckdb") as client:
        told = client.facts(f"s/{SESSION}/peak")
        assert (told["left_out"], told["bound"]) == (2, None)
        assert client.facts(f"s/{SESSION}/peak_held")["left_out"] == 2


def test_the_instant_of_a_running_session_says_as_of_when_and_moves_with_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.duckdb"
    log = RankLog()
    log.alloc("first", 100, at=10)
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
    with served_page(path) as client:
        facts = client.facts(f"s/{SESSION}/peak")
        assert (facts["running"], facts["as_of_ns"], facts["bound"]["job_peak_bytes"]) == (True, 10, 100)
    log.alloc("second", 50, at=30)
    with duckdb.connect(str(path)) as connection:
        clear(connection)
        store_logs(connection, [log])
    with served_page(path) as client:
        facts = client.facts(f"s/{SESSION}/peak")
        assert (facts["as_of_ns"], facts["bound"]["job_peak_bytes"]) == (30, 150)


def _most(rows: list[dict[str, Any]], count: int) -> list[tuple[str, int]]:
    totals: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        totals[row["group_name"]] += row["live_bytes"]
    return sorted(totals.items(), key=lambda item: -item[1])[:count]
