"""Peaks, bytes and curves by group, against a replay that adds up all living blocks anew after each event."""

from __future__ import annotations

from typing import Any

import duckdb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constructed import BASE_NS, SESSION, RankLog, clear, store_logs

Groups = dict[str | None, int]
CATEGORIES = ("activation", "gradient", "parameter", "unknown")
OLDER = "before the recording"


def rows(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: Any) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = connection.sql(sql, params=parameters or None).to_arrow_table().to_pylist()
    return answer


def category_after(log: RankLog, block: dict[str, Any], seq: int) -> str:
    """What a block means after an event: the last that was said of it by then."""
    category: str = block.get("category", "unknown")
    said = [
        c
        for c in log.changes
        if c["allocation_id"] == block["allocation_id"] and c["device"] == block["device"]
    ]
    for change in sorted(said, key=lambda change: change["seq"]):
        if change["seq"] <= seq:
            category = change["category"]
    return category


def held_after(log: RankLog, seq: int, by: str, device: str = "cpu") -> Groups:
    """What each group of blocks holds after an event."""
    freed = {end["allocation_id"]: end["freed_seq"] for end in log.endings}
    held: Groups = {}
    for block in log.allocations.values():
        end = block.get("freed_seq", freed.get(block["allocation_id"]))
        if block["device"] != device or block["allocation_id"] > seq or (end is not None and end <= seq):
            continue
        name = group_after(log, block, seq, by)
        held[name] = held.get(name, 0) + block["size_bytes"]
    return held


def group_after(log: RankLog, block: dict[str, Any], seq: int, by: str) -> str | None:
    """The group of a block after an event; of a block that is older one of its own unless it is known."""
    name = category_after(log, block, seq) if by == "category" else block.get(by)
    if block["preexisting"] and name in (None, "unknown"):
        return OLDER
    return None if name is None else str(name)


def seqs_of(log: RankLog) -> list[int]:
    """-1, every event and every change of meaning."""
    return sorted({-1} | {e["seq"] for e in log.events} | {max(c["seq"], -1) for c in log.changes})


def summits(log: RankLog, by: str) -> dict[str | None, tuple[int, int]]:
    """group -> (its own peak, the first seq after which it stood so high)."""
    best: dict[str | None, tuple[int, int]] = {}
    for seq in seqs_of(log):
        for name, held in held_after(log, seq, by).items():
            if name not in best or held > best[name][0]:
                best[name] = (held, seq)
    return best


@st.composite
def logs(draw: st.DrawFn) -> RankLog:
    """Blocks come, change what they mean, and go; times may tie, some are older than the recording."""
    log = RankLog(offset_ns=draw(st.sampled_from([0, -5, 10**9])))
    sizes = st.integers(1, 50)
    streams, phases = st.sampled_from([None, 0, 7]), st.sampled_from(["forward", "backward"])
    for number in range(draw(st.integers(0, 2))):
        log.preexisting(f"older {number}", draw(sizes), category=draw(st.sampled_from(CATEGORIES)))
    alive, now = list(log.allocations), 0
    for number in range(draw(st.integers(1, 14))):
        now += draw(st.sampled_from([0, 1, 10**9]))
        what = draw(st.sampled_from(["alloc", "alloc", "free", "means", "always meant"]))
        if what == "alloc" or not alive:
            name = f"block {number}"
            columns = {
                "category": draw(st.sampled_from(CATEGORIES)),
                "stream": draw(streams),
                "phase": draw(phases),
            }
            log.alloc(name, draw(sizes), at=now, **columns)
            alive.append(name)
            continue
        name = draw(st.sampled_from(alive))
        if what == "free":
            alive.remove(name)
            log.free(name, at=now, told_later=draw(st.booleans()))
            continue
        block = log.allocations[name]["allocation_id"]
        always = what == "always meant"
        if not (always and any(c["allocation_id"] == block and c["seq"] == block for c in log.changes)):
            log.means(name, draw(st.sampled_from(CATEGORIES)), at=now, since_alloc=always)
    return log


BY = st.sampled_from(["category", "stream", "phase", "component"])
MANY = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


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
