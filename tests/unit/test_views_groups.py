"""Peaks, bytes and curves by group, against a replay that adds up all living blocks anew after each event."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constructed import BASE_NS, SESSION, RankLog, clear, store_logs
from group_oracle import BY, held_after, logs, rows, seqs_of, summits
from repetitions import examples

pytestmark = pytest.mark.slow

MANY = examples(0.8)


@MANY
@given(log=logs(), by=BY)
def test_peaks_by_group_equal_a_replay(database: duckdb.DuckDBPyConnection, log: RankLog, by: str) -> None:
    clear(database)
    store_logs(database, [log])
    if not log.events:
        return
    top = max(log.events, key=lambda event: (event["requested_bytes"], -event["seq"]))
    expected = {
        name: (held_after(log, top["seq"], by).get(name, 0), *summit)
        for name, summit in summits(log, by).items()
    }
    answer = rows(database, "SELECT * FROM peak_by_group($id, $by)", id=SESSION, by=by)
    found = {
        r["group_name"]: (r["bytes_at_rank_peak"], r["peak_bytes"], r["peak_seq"])
        for r in answer
        if r["peak_bytes"]
    }
    assert found == expected
    assert sum(r["bytes_at_rank_peak"] for r in answer) == top["requested_bytes"]


@MANY
@given(log=logs(), by=BY)
def test_a_curve_by_group_is_right_after_every_event(
    database: duckdb.DuckDBPyConnection, log: RankLog, by: str
) -> None:
    clear(database)
    store_logs(database, [log])
    points = rows(database, "SELECT * FROM curve_by_group($id, 0, $by) ORDER BY seq", id=SESSION, by=by)
    assert len({(p["group_name"], p["seq"]) for p in points}) == len(points)
    for seq in seqs_of(log):
        last = {p["group_name"]: p["bytes"] for p in points if p["seq"] <= seq}
        assert {name: held for name, held in last.items() if held} == held_after(log, seq, by)


@MANY
@given(log=logs(), by=BY)
def test_what_is_held_after_any_event_equals_a_replay(
    database: duckdb.DuckDBPyConnection, log: RankLog, by: str
) -> None:
    clear(database)
    store_logs(database, [log])
    answer = rows(
        database,
        "SELECT point_seq, group_name, live_bytes FROM held_at_points($id, $by, "
        "(SELECT list({attempt: 0, rank: 0, device: 'cpu', seq: seq}) "
        "FROM unnest($seqs::BIGINT[]) AS s (seq)))",
        id=SESSION,
        by=by,
        seqs=seqs_of(log),
    )
    for seq in seqs_of(log):
        found = {r["group_name"]: r["live_bytes"] for r in answer if r["point_seq"] == seq}
        assert found == held_after(log, seq, by)


@MANY
@given(several=st.lists(logs(), min_size=1, max_size=3), data=st.data())
def test_what_every_rank_held_at_an_instant_equals_its_last_event_by_then(
    database: duckdb.DuckDBPyConnection, several: list[RankLog], data: st.DataObject
) -> None:
    clear(database)
    ranked = []
    for rank, log in enumerate(several):
        for row in [*log.events, *log.allocations.values(), *log.endings, *log.changes]:
            row["rank"] = rank
        log.rank, log.host_uid = rank, f"host-{rank}"
        ranked.append(log)
    store_logs(database, ranked, cuts=data.draw(st.lists(st.integers(0, 15), max_size=3)))
    times = [e["time_ns"] + log.offset_ns + d for log in ranked for e in log.events for d in (-1, 0, 1)] or [
        BASE_NS
    ]
    at = data.draw(st.sampled_from(times))
    expected = {}
    for log in ranked:
        before = [e for e in log.events if e["time_ns"] + log.offset_ns <= at]
        if before:
            expected[log.rank] = (before[-1]["requested_bytes"], before[-1]["seq"])
    answer = rows(database, "SELECT * FROM held_at($id, $at)", id=SESSION, at=at)
    assert {r["rank"]: (r["requested_bytes"], r["seq"]) for r in answer} == expected


def test_a_gradient_that_was_an_activation_counts_as_what_it_was_then(
    database: duckdb.DuckDBPyConnection,
) -> None:
    log = RankLog()
    log.alloc("block", 100, at=10, category="activation")
    log.alloc("other", 50, at=20, category="temporary")
    log.free("other", at=30)
    log.means("block", "gradient", at=40)
    log.free("block", at=50)
    store_logs(database, [log])
    answer = rows(database, "SELECT * FROM peak_by_group($id, 'category') ORDER BY group_name", id=SESSION)
    assert [
        (r["group_name"], r["bytes_at_rank_peak"], r["peak_bytes"], r["peak_time_ns"] - BASE_NS)
        for r in answer
    ] == [("activation", 100, 100, 10), ("gradient", 0, 100, 40), ("temporary", 50, 50, 20)]
    assert rows(database, "SELECT category FROM allocation ORDER BY allocation_id") == [
        {"category": "gradient"},
        {"category": "temporary"},
    ]
    at_peak = rows(
        database,
        "SELECT group_name, live_bytes_at_peak, allocated_bytes FROM held_at_peak($id, 'category') "
        "ORDER BY group_name",
        id=SESSION,
    )
    assert [tuple(row.values()) for row in at_peak] == [
        ("activation", 100, 0),
        ("gradient", 0, 100),
        ("temporary", 50, 50),
    ]


def test_an_address_reused_without_a_free_is_no_double_count(database: duckdb.DuckDBPyConnection) -> None:
    # The alloc shows that the old block was gone: it is freed with the very seq at which the new one begins.
    log = RankLog()
    log.alloc("old", 100, at=10, stream=0)
    seq = log.alloc("new", 80, at=20, stream=0)
    log.allocations["old"] |= {"freed_seq": seq, "freed_ns": BASE_NS + 20}
    log.events[-1]["requested_bytes"] = 80
    store_logs(database, [log])
    answer = rows(database, "SELECT peak_bytes, peak_seq FROM peak_by_group($id, 'stream')", id=SESSION)
    assert answer == [{"peak_bytes": 100, "peak_seq": 0}]
