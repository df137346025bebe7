"""The page's answers about fitting: exact for constructed growth, open where something is not known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from constructed import BASE_NS, SESSION, RankLog, empty_database, store_logs, store_rows
from page_server import PageClient, served_page
from page_steps_story import device_row
from rankmem_aggregator import connect
from rankmem_protos.errors import Code, RankmemError

MIB = 1 << 20
GIB = 1 << 30
SECOND = 1_000_000_000
STEPS = 20
BEYOND = 300 * MIB
MARGIN = 256 * MIB

LEAK = {0: 0, 1: 64 * MIB, 2: 100 * MIB}
"""Bytes that each rank keeps of a step, above 2 GiB that it has and 1 GiB that a step needs."""
SIZE = {0: 4 * GIB, 1: 8 * GIB, 2: 5 * GIB}
"""Memory of their devices."""
RESERVED_MORE = 512 * MIB
"""What the allocator holds beyond the requested bytes."""


def training(rank: int) -> RankLog:
    log = RankLog(rank=rank, ended=2 * (STEPS + 1) * SECOND)
    device = f"cuda:{rank}"
    log.alloc("weights", 2 * GIB, at=1, device=device)
    for step in range(STEPS):
        begin = 2 * step * SECOND + 10
        log.alloc(f"need{step}", GIB, at=begin, device=device)
        log.free(f"need{step}", at=begin + SECOND)
        if LEAK[rank]:
            log.alloc(f"leak{step}", LEAK[rank], at=begin + SECOND + 1, device=device, operator="aten::clone")
        log.step_ends(step, at=begin + SECOND + 2)
    for event in log.events:
        event["reserved_bytes"] = event["requested_bytes"] + RESERVED_MORE
    return log


def sample(log: RankLog, **columns: Any) -> dict[str, Any]:
    return {
        "session_id": SESSION,
        "attempt": 0,
        "rank": log.rank,
        "device": f"cuda:{log.rank}",
        "seq": 10_000,
        "time_ns": BASE_NS + 10,
        **columns,
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fit") / "fit.duckdb"
    logs = [training(rank) for rank in LEAK]
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
        store_rows(
            connection, "device_info", [device_row(rank, f"cuda:{rank}", size) for rank, size in SIZE.items()]
        )
        store_rows(
            connection,
            "process_sample",
            [
                sample(log, app_reserved_bytes=log.events[-1]["reserved_bytes"] + BEYOND, device_free_bytes=7)
                for log in logs
            ],
        )
    return path


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[PageClient]:
    with served_page(path) as served:
        yield served


def ask(client: PageClient, **parameters: Any) -> dict[int, dict[str, Any]]:
    return {row["rank"]: row for row in client.ask(f"s/{SESSION}/fit", **parameters).to_pylist()}


def not_known(client: PageClient, **parameters: Any) -> list[str]:
    return list(client.facts(f"s/{SESSION}/fit", **parameters)["not_known"])


def test_constructed_growth_is_told_to_the_byte_and_to_the_step(client: PageClient) -> None:
    rows = ask(client)
    for rank, leak in LEAK.items():
        row = rows[rank]
        peak = 3 * GIB + (STEPS - 1) * leak
        top = max(peak, 2 * GIB + STEPS * leak)  # what is held after the last step may be the highest
        usable = SIZE[rank] - BEYOND - MARGIN
        assert row["usable_bytes"] == usable
        assert row["peak_bytes"] == top
        rates = [row[f"{name}bytes_per_step"] for name in ("", "low_", "high_")]
        assert rates == ([leak] * 3 if leak else [None] * 3)
        assert row["growth"] == ("grows" if leak else None), "below sixty steps it may still be a cache"
        assert row["left_bytes"] == usable - top
        assert row["left_reserved_bytes"] == usable - top - RESERVED_MORE
        assert row["beyond_bytes"] == BEYOND
        assert row["step_ns"] == 2 * SECOND
        if not leak:
            assert row["steps_left"] is None
            continue
        # Step by step: the peak of the k-th step to come is one leak higher each.
        fits = next(k for k in range(10_000) if peak + (k + 1) * leak > usable)
        reserved = next(k for k in range(10_000) if peak + (k + 1) * leak + RESERVED_MORE > usable)
        assert row["steps_left"] == row["steps_left_low"] == row["steps_left_high"] == fits
        assert row["steps_left_reserved"] == reserved
        assert row["time_left_ns"] == fits * 2 * SECOND
    assert not_known(client) == []


def test_what_grows_and_when_it_is_full_is_what_rankmem_leaks_says(client: PageClient, path: Path) -> None:
    with connect(path) as queries:
        said = queries.leaks(SESSION)
    rows = ask(client)
    first = rows[said.figures["full_rank"]]
    for name in ("steps_left", "steps_left_low", "steps_left_high", "usable_bytes"):
        assert first[name] == said.figures[name]
    assert first["steps_left"] == min(row["steps_left"] for row in rows.values() if row["growth"])
    for line in said.rows.to_pylist():
        assert rows[line["rank"]]["bytes_per_step"] == line["bytes_per_step"]


def test_a_size_to_try_says_which_ranks_would_not_fit_and_by_how_much(client: PageClient) -> None:
    rows = ask(client, size_gib=4.5)
    usable = int(4.5 * GIB) - BEYOND - MARGIN
    tops = {rank: 3 * GIB + (STEPS - 1) * leak for rank, leak in LEAK.items()}
    assert {rank: row["left_bytes"] for rank, row in rows.items()} == {
        rank: usable - top for rank, top in tops.items()
    }
    assert {rank: row["verdict"] for rank, row in rows.items()} == {0: "fits", 1: "short", 2: "short"}
    tight = ask(client, size_gib=4)
    assert tight[0]["left_bytes"] > 0 > tight[0]["left_reserved_bytes"]
    assert tight[0]["verdict"] == "tight"
    assert tight[1]["steps_left"] == 0


def test_headroom_is_that_of_rank_now(client: PageClient, path: Path) -> None:
    with connect(path) as queries:
        expected = {row["rank"]: row["headroom_bytes"] for row in queries.top(SESSION).to_pylist()}
    assert {rank: row["headroom_bytes"] for rank, row in ask(client).items()} == expected
    assert None not in expected.values()


def test_the_statement_shown_gives_what_the_answer_is_made_from(client: PageClient, path: Path) -> None:
    facts = client.facts(f"s/{SESSION}/fit")
    with connect(path) as queries:
        shown = queries.sql(facts["sql"]).to_pylist()
    rows = ask(client)
    for row in shown:
        for name in ("peak_bytes", "reserved_peak_bytes", "beyond_bytes", "device_total_bytes", "step_ns"):
            assert rows[row["rank"]][name] == row[name]


def one_rank(tmp_path: Path, log: RankLog, size: int | None = None) -> Path:
    path = tmp_path / "one.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
        if size:
            store_rows(connection, "device_info", [device_row(0, "cuda:0", size)])
    return path


def test_cpu_has_no_size_of_its_own_and_says_so(tmp_path: Path) -> None:
    log = RankLog()
    log.alloc("x", GIB, at=10)
    with served_page(one_rank(tmp_path, log)) as client:
        (row,) = ask(client).values()
        assert (row["verdict"], row["left_bytes"], row["reserved_peak_bytes"]) == ("unknown", None, None)
        told = not_known(client)
        assert any("share its memory" in sentence for sentence in told)
        assert any("grows is not known: no steps were recorded" in sentence for sentence in told)
        assert ask(client, size_gib=2)[0]["left_bytes"] == GIB, (
            "of the host all is usable, as for rankmem fit"
        )


def test_an_unknown_size_and_no_samples_are_said(tmp_path: Path) -> None:
    log = RankLog()
    log.alloc("x", GIB, at=10, device="cuda:0")
    for step in range(5):
        log.alloc(f"y{step}", 10, at=20 + 10 * step, device="cuda:0")
        log.step_ends(step, at=25 + 10 * step)
    with served_page(one_rank(tmp_path, log)) as client:
        (row,) = ask(client).values()
        assert (row["usable_bytes"], row["growth"], row["beyond_bytes"]) == (None, None, None)
        told = " ".join(not_known(client))
        for part in ("size of the device", "allocator reserved", "beyond the allocator", "5 steps recorded"):
            assert part in told
        with pytest.raises(RankmemError, match="no devices of type npu") as refused:
            ask(client, device_type="npu")
        assert refused.value.code is Code.NOT_FOUND


def test_what_was_not_sampled_is_not_known_and_not_nothing(tmp_path: Path) -> None:
    log = RankLog()
    log.alloc("x", GIB, at=10, device="cuda:0")
    log.events[-1]["reserved_bytes"] = 2 * GIB
    with served_page(one_rank(tmp_path, log, 8 * GIB)) as client:
        (row,) = ask(client).values()
        assert (row["reserved_peak_bytes"], row["beyond_bytes"]) == (2 * GIB, None)
        assert any("was not sampled for any rank" in sentence for sentence in not_known(client))


@pytest.mark.parametrize("size", ["0", "-1", "nan", "inf", "1e400", "x"])
def test_a_size_that_is_none_is_refused(client: PageClient, size: str) -> None:
    with pytest.raises(RankmemError, match="size_gib") as refused:
        ask(client, size_gib=size)
    assert refused.value.code is Code.INVALID


def test_a_session_without_events_has_no_rows(tmp_path: Path) -> None:
    with served_page(one_rank(tmp_path, RankLog())) as client:
        assert ask(client) == {}
