"""Curves of ranks together and of the allocator's streams, against replays that add everything up anew."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, clear, store_logs, store_rows
from job_peak_oracle import end_of, jobs, merged
from repetitions import examples

pytestmark = pytest.mark.slow

MIB = 1 << 20
MANY = examples(0.6)
ASK_RANKS = """
SELECT group_name, time_ns, bytes
FROM curve_by_ranks(
    $session, $by, $kind,
    of_ranks := $ranks::INTEGER[], from_ns := $from_ns::BIGINT, until_ns := $until_ns::BIGINT
)
ORDER BY group_name, place
"""
Course = dict[str, dict[int, int]]
"""group -> instant -> bytes after all that happened at it."""


def rows(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(sql, parameters or None).fetchall()


def replayed(logs: list[RankLog], by: str, kind: str, ranks: list[int] | None) -> Course:
    """Every event of every rank in order of time; each group is added up anew after it."""
    last_attempt = max(log.attempt for log in logs)
    moves: list[tuple[int, str, tuple[int, int, str], int]] = []
    for log in logs:
        if ranks is not None and log.rank not in ranks:
            continue
        group = {"rank": f"rank {log.rank}", "job": "job", "host": f"name-of-{log.host_uid}"}[by]
        events = [event for event in log.events if event["device"].split(":")[0] == kind]
        for event in events:
            place = (log.attempt, log.rank, event["device"])
            moves.append((event["time_ns"] + log.offset_ns, group, place, event["requested_bytes"]))
        if log.attempt < last_attempt or log.ended is not None:
            for device in {event["device"] for event in events}:
                last = max(e["time_ns"] + log.offset_ns for e in events if e["device"] == device)
                end = max(end_of(log, logs), last)
                moves.append((end, group, (log.attempt, log.rank, device), 0))
    held: dict[str, dict[tuple[int, int, str], int]] = {}
    course: Course = {}
    for time_ns, group, place, total in sorted(moves, key=lambda move: move[0]):  # stable: a rank's own order
        held.setdefault(group, {})[place] = total
        course.setdefault(group, {})[time_ns] = sum(held[group].values())
    return course


def answered(connection: duckdb.DuckDBPyConnection, **chosen: Any) -> Course:
    course: Course = {}
    for group, time_ns, held in rows(connection, ASK_RANKS, session=SESSION, **chosen):
        course.setdefault(group, {})[time_ns] = held
    return course


@MANY
@given(
    logs=jobs(),
    cuts=st.lists(st.integers(0, 20), max_size=4),
    by=st.sampled_from(["rank", "host", "job"]),
    ranks=st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=2),
)
def test_ranks_together_are_the_sum_of_all_events_on_one_clock(
    connection: duckdb.DuckDBPyConnection,
    logs: list[RankLog],
    cuts: list[int],
    by: str,
    ranks: list[int] | None,
) -> None:
    clear(connection)
    store_logs(connection, logs, cuts=cuts)
    whole = {"by": by, "kind": "cuda", "ranks": ranks, "from_ns": None, "until_ns": None}
    assert answered(connection, **whole) == replayed(logs, by, "cuda", ranks)


@MANY
@given(
    logs=jobs(),
    cuts=st.lists(st.integers(0, 20), max_size=4),
    begin=st.floats(0, 1),
    length=st.floats(0, 1),
    by=st.sampled_from(["rank", "job"]),
)
def test_a_part_of_a_sum_begins_with_what_was_held(
    connection: duckdb.DuckDBPyConnection,
    logs: list[RankLog],
    cuts: list[int],
    begin: float,
    length: float,
    by: str,
) -> None:
    whole = replayed(logs, by, "cuda", None)
    instants = sorted({time_ns for course in whole.values() for time_ns in course})
    if not instants:
        return
    clear(connection)
    store_logs(connection, logs, cuts=cuts)
    from_ns = instants[int(begin * (len(instants) - 1))] + (0 if begin < 0.7 else 1)
    until_ns = from_ns + int(length * (instants[-1] - instants[0]))
    expected: Course = {}
    for group, course in whole.items():
        part = {time_ns: held for time_ns, held in course.items() if from_ns <= time_ns <= until_ns}
        before = [time_ns for time_ns in course if time_ns < from_ns]
        if before:
            part.setdefault(from_ns, course[max(before)])
        if part:
            expected[group] = part
    found = answered(connection, by=by, kind="cuda", ranks=None, from_ns=from_ns, until_ns=until_ns)
    assert found == expected


@MANY
@given(logs=jobs())
def test_the_highest_point_of_the_job_is_the_jobs_peak(
    connection: duckdb.DuckDBPyConnection, logs: list[RankLog]
) -> None:
    clear(connection)
    store_logs(connection, logs)
    for kind, (peak_bytes, peak_ns, _) in merged(logs).items():
        chosen = {"by": "job", "kind": kind, "ranks": None, "from_ns": None, "until_ns": None}
        course = rows(connection, ASK_RANKS, session=SESSION, **chosen)
        assert max(held for _, _, held in course) == peak_bytes
        assert next(time_ns for _, time_ns, held in course if held == peak_bytes) == peak_ns


def test_a_process_that_ends_with_an_event_has_had_that_event(connection: duckdb.DuckDBPyConnection) -> None:
    clear(connection)
    log = RankLog(ended=20)
    log.totals("cuda:0", [(10, 100)])
    log.skip(3)
    log.totals("cuda:1", [(20, 50)])
    store_logs(connection, [log])
    chosen = {"by": "job", "kind": "cuda", "ranks": None, "from_ns": None, "until_ns": None}
    course = [(t - BASE_NS, held) for _, t, held in rows(connection, ASK_RANKS, session=SESSION, **chosen)]
    assert course[:2] == [(10, 100), (20, 150)]
    assert course[-1] == (20, 0)


def test_by_the_second_no_rank_is_shown_lower_than_its_peak(connection: duckdb.DuckDBPyConnection) -> None:
    clear(connection)
    first, second = RankLog(rank=0), RankLog(rank=1)
    first.totals("cuda:0", [(10, 100), (20, 5), (1_500_000_000, 60)])
    second.totals("cuda:0", [(15, 30), (25, 90)])
    store_logs(connection, [first, second])
    ask = "FROM curve_by_ranks($id, 'rank', 'cuda', by_second := true)"
    assert rows(connection, f"SELECT group_name, time_ns - $base, bytes {ask}", id=SESSION, base=BASE_NS) == [
        ("rank 0", 10, 100),
        ("rank 0", 1_500_000_000, 60),
        ("rank 1", 25, 90),
    ]


@st.composite
def allocator_logs(draw: st.DrawFn) -> RankLog:
    """Blocks and segments of two streams; a free may wait for another stream, or never end."""
    log = RankLog(offset_ns=draw(st.sampled_from([0, -7])), attempt=draw(st.integers(0, 1)))
    for number in range(draw(st.integers(0, 2))):
        log.preexisting(f"older {number}", draw(st.integers(1, 9)), device="cuda:0", stream=0)
    alive, asked, segments, now = list(log.allocations), [], [], 0
    for number in range(draw(st.integers(1, 14))):
        now += draw(st.sampled_from([0, 1, 10**9]))
        what = draw(st.sampled_from(["alloc", "request", "complete", "segment", "unmap"]))
        stream = draw(st.sampled_from([0, 7]))
        if what == "segment" or (what == "unmap" and not segments):
            segments.append((draw(st.integers(1, 90)), stream))
            log.segment("segment_alloc", 1 << 40, segments[-1][0], at=now)
            log.events[-1]["stream"] = stream
        elif what == "unmap":
            size_bytes, stream = segments.pop()
            log.segment(draw(st.sampled_from(["segment_free", "segment_unmap"])), 1 << 40, size_bytes, at=now)
            log.events[-1]["stream"] = stream
        elif what == "alloc" or not (alive or asked):
            alive.append(f"block {number}")
            log.alloc(alive[-1], draw(st.integers(1, 50)), at=now, device="cuda:0", stream=stream)
        elif what == "request" and alive:
            asked.append(alive.pop(draw(st.integers(0, len(alive) - 1))))
            log.request_free(asked[-1], at=now)
        else:
            log.free((asked or alive).pop(0), at=now)
    return log


def allocator_after(log: RankLog, seq: int, stream: int) -> tuple[int, int, int]:
    """Allocated, active and reserved bytes of a stream after an event."""
    blocks = [b for b in log.allocations.values() if b["stream"] == stream and b["allocation_id"] <= seq]
    active = [b for b in blocks if b.get("freed_seq", 1 << 62) > seq]
    kept = [b for b in active if b.get("free_requested_seq", 1 << 62) > seq]
    reserved = 0
    for event in log.events:
        if event["seq"] <= seq and event["action"].startswith("segment") and event["stream"] == stream:
            grows = event["action"] in ("segment_alloc", "segment_map")
            reserved += event["size_bytes"] if grows else -event["size_bytes"]
    return sum(b["size_bytes"] for b in kept), sum(b["size_bytes"] for b in active), reserved


@MANY
@given(log=allocator_logs(), other=allocator_logs())
def test_a_streams_figures_equal_a_replay_in_each_attempt(
    connection: duckdb.DuckDBPyConnection, log: RankLog, other: RankLog
) -> None:
    clear(connection)
    logs = [log] if log.attempt == other.attempt else [log, other]
    store_logs(connection, logs)
    ask = "SELECT * EXCLUDE (device, time_ns) FROM allocator_curve($id, 0, 'stream')"
    found = rows(connection, ask, id=SESSION)
    for attempt, group, seq, *figures in found:
        (own,) = (one for one in logs if one.attempt == attempt)
        assert tuple(figures) == allocator_after(own, seq, int(group))
    told = {(attempt, group, seq) for attempt, group, seq, *_ in found}
    for one in logs:
        for stream in (0, 7):
            before = (0, 0, 0)
            for seq in (-1, *(event["seq"] for event in one.events)):
                after = allocator_after(one, seq, stream)
                assert after == before or (one.attempt, str(stream), seq) in told
                before = after


def test_a_component_has_blocks_segments_and_the_process_beyond_them(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    clear(connection)
    log = RankLog(rank=3)
    log.segment("segment_alloc", 1 << 30, 600 * MIB, at=1)
    log.sample(700 * MIB, at=2, device="cuda:0")
    log.alloc("weights", 200 * MIB, at=3, device="cuda:0", stream=0)
    log.alloc("graph", 100 * MIB, at=4, device="cuda:0", stream=0, component="cuda_graph")
    log.free("graph", at=5)
    log.sample(950 * MIB, at=6, device="cuda:0")
    log.sample(800 * MIB, at=7, device="cuda:0")
    for event in log.events:
        event["reserved_bytes"] = 600 * MIB
    store_logs(connection, [log])
    ask = """
    SELECT group_name, bytes_at_rank_peak // $mib, peak_bytes // $mib, peak_time_ns - $base,
        peak_reserved_bytes // $mib, peak_reserved_ns - $base
    FROM allocator_peak($id, 'component')
    """
    assert rows(connection, ask, id=SESSION, mib=MIB, base=BASE_NS) == [
        ("pytorch", 200, 200, 3, 600, 1),
        ("app", 100, 350, 6, 350, 6),
        ("cuda_graph", 100, 100, 4, None, None),
    ]
    by_stream = rows(
        connection, "SELECT group_name, peak_reserved_bytes FROM allocator_peak($id, 'stream')", id=SESSION
    )
    assert by_stream == [("0", None)]


def test_pinned_host_memory_stands_beside_the_accelerator_as_it_was_sampled(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    clear(connection)
    log = RankLog(rank=3)
    log.alloc("before CUDA", 500 * MIB, at=1)
    log.free("before CUDA", at=2)
    log.alloc(
        "weights", 200 * MIB, at=3, device="cuda:0", stream=0
    )  # seq 2: the rank's peak on its accelerator
    store_logs(connection, [log])
    sample = {"session_id": SESSION, "attempt": 0, "rank": 3, "device": "pinned", "component": "pinned_host"}
    samples = [(1, 2, 16, 10), (2, 4, 64, 50), (5, 9, 64, 20)]  # seq, time, held, of that in use
    store_rows(
        connection,
        "component_sample",
        [
            sample
            | {"seq": seq, "time_ns": BASE_NS + at, "reserved_bytes": held * MIB, "active_bytes": used * MIB}
            for seq, at, held, used in samples
        ],
    )
    ask = """
    SELECT device, bytes_at_rank_peak // $mib, rank_peak_bytes // $mib, peak_bytes // $mib,
        peak_time_ns - $base, peak_reserved_bytes // $mib, peak_reserved_ns - $base
    FROM allocator_peak($id, 'component')
    WHERE group_name = 'pinned_host'
    """
    assert rows(connection, ask, id=SESSION, mib=MIB, base=BASE_NS) == [("pinned", 50, 200, 50, 4, 64, 4)]
    ask = """
    SELECT seq, time_ns - $base, allocated_bytes, active_bytes // $mib, reserved_bytes // $mib
    FROM allocator_curve($id, 3, 'component')
    WHERE device = 'pinned'
    """
    assert rows(connection, ask, id=SESSION, mib=MIB, base=BASE_NS) == [
        (seq, at, None, used, held) for seq, at, held, used in samples
    ]
    ask = """
    SELECT timestampNs - $base, totalReserved // $mib FROM mindstudio.NPU_MODULE_MEM WHERE moduleId = 1004
    ORDER BY timestampNs
    """
    assert rows(connection, ask, mib=MIB, base=BASE_NS) == [(at, held) for _, at, held, _ in samples]
    by_stream = "SELECT * FROM allocator_peak($id, 'stream') WHERE device = 'pinned'"
    assert rows(connection, by_stream, id=SESSION) == []


def test_groups_of_several_ranks_by_the_second_stand_at_their_highest_of_it(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    clear(connection)
    first, second = RankLog(rank=0, ended=3 * SECOND_NS), RankLog(rank=1)
    first.alloc("high", 100, at=10, category="activation")
    first.free("high", at=20)
    first.alloc("later", 40, at=2 * SECOND_NS, category="activation")
    second.alloc("low", 30, at=15, category="activation")
    second.alloc("other", 7, at=16, category="gradient")
    store_logs(connection, [first, second])
    ask = "FROM job_curve_by_group($id, 'category', 'cpu', by_second := true) ORDER BY group_name, place"
    assert rows(connection, f"SELECT group_name, time_ns - $base, bytes {ask}", id=SESSION, base=BASE_NS) == [
        ("activation", 10, 100),
        ("activation", 15, 130),
        ("activation", 2 * SECOND_NS, 70),
        ("activation", 3 * SECOND_NS, 30),
        ("gradient", 16, 7),
    ]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_changes_at_one_event_have_its_latest_time_in_whatever_order_they_are_stored(
    database: duckdb.DuckDBPyConnection, is_reversed: bool
) -> None:
    log = RankLog(rank=0)
    for number in range(20):
        log.alloc(f"block {number}", MIB, at=number, category="unknown")
        log.means(f"block {number}", "gradient", at=SECOND_NS + number)
    for change in log.changes:
        change["seq"] = log.changes[-1]["seq"]
    log.changes.sort(key=lambda change: change["time_ns"], reverse=is_reversed)
    store_logs(database, [log])
    asked = "SELECT time_ns, bytes FROM curve_by_group($session, 0, 'category') WHERE group_name = 'gradient'"
    assert rows(database, asked, session=SESSION) == [(BASE_NS + SECOND_NS + 19, 20 * MIB)]
