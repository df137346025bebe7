"""What was alive, and what held it: hand-computed, and against a replay of the log."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constructed import BASE_NS, SESSION, RankLog, clear, store_logs, store_rows
from repetitions import examples

pytestmark = pytest.mark.slow


def rows(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: Any) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = connection.sql(sql, params=parameters or None).to_arrow_table().to_pylist()
    return answer


def a_training(log: RankLog) -> RankLog:
    """weights stay; at 30 weights + activation + temporary are alive: 170 bytes, the peak."""
    log.alloc("weights", 100, at=10, operator="aten::empty", stack_id=1)
    log.alloc("activation", 50, at=20, operator="aten::mm", stack_id=2)
    log.alloc("temporary", 20, at=30, operator="aten::mm", stack_id=2)
    log.free("temporary", at=40)
    log.free("activation", at=50, told_later=True)
    log.alloc("gradient", 60, at=60, operator="aten::mm", stack_id=3)
    return log


def test_a_free_that_came_later_ends_the_allocation(database: duckdb.DuckDBPyConnection) -> None:
    store_logs(database, [a_training(RankLog(offset_ns=1000))])
    answer = rows(
        database,
        "SELECT allocation_id, allocated_ns, freed_ns, freed_seq, duration_ns FROM allocation ORDER BY ALL",
    )
    start = BASE_NS + 1000
    assert [tuple(row.values()) for row in answer] == [
        (0, start + 10, None, None, None),
        (1, start + 20, start + 50, 4, 30),
        (2, start + 30, start + 40, 3, 10),
        (5, start + 60, None, None, None),
    ]


def test_a_free_sent_in_two_rows_is_one_end(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog()
    log.alloc("block", 10, at=1, device="cuda:0")
    log.free("block", at=9, told_later=True)
    log.endings.append(
        {key: log.endings[0][key] for key in ("session_id", "attempt", "rank", "device", "allocation_id")}
        | {"free_requested_ns": BASE_NS + 5, "free_requested_seq": 1}
    )
    store_logs(database, [log])
    answer = rows(database, "SELECT free_requested_ns, freed_ns FROM allocation")
    assert answer == [{"free_requested_ns": BASE_NS + 5, "freed_ns": BASE_NS + 9}]


def test_what_is_alive_at_the_peak_is_decided_by_seq_where_times_tie(
    database: duckdb.DuckDBPyConnection,
) -> None:
    log = RankLog()
    log.preexisting("older", 7)
    log.alloc("first", 100, at=5)
    log.free("first", at=5)
    log.alloc("second", 90, at=5)
    store_logs(database, [log])
    live = rows(database, "SELECT allocation_id, size_bytes FROM live_at_peak($id)", id=SESSION)
    assert live == [{"allocation_id": 0, "size_bytes": 100}, {"allocation_id": -1, "size_bytes": 7}]
    later = rows(
        database, "SELECT size_bytes FROM live_at($id, 0, 0, 'cpu', $at)", id=SESSION, at=BASE_NS + 5
    )
    assert later == [{"size_bytes": 90}, {"size_bytes": 7}]


def test_operators_and_lines_at_the_peak_add_up_to_it(database: duckdb.DuckDBPyConnection) -> None:
    store_logs(database, [a_training(RankLog())])
    frames = [
        (1, 0, "model.py", 12, "build"),
        (2, 0, "/usr/lib/torch/functional.py", 99, "linear"),
        (2, 1, "model.py", 34, "forward"),
        (2, 2, "train.py", 5, "main"),
    ]
    names = ("stack_id", "ordering", "file_path", "line_number", "function")
    store_rows(database, "stack_frame", [dict(zip(names, frame, strict=True)) for frame in frames])
    by_operator = rows(
        database, "SELECT operator, live_bytes_at_peak, largest_bytes FROM operator_at_peak($id)", id=SESSION
    )
    assert [tuple(row.values()) for row in by_operator] == [("aten::empty", 100, 100), ("aten::mm", 70, 50)]
    by_line = rows(database, "SELECT line, function, live_bytes_at_peak FROM line_at_peak($id)", id=SESSION)
    assert [tuple(row.values()) for row in by_line] == [
        ("model.py:12", "build", 100),
        ("model.py:34", "forward", 70),
    ]
    stack = rows(database, "SELECT frames FROM stack WHERE stack_id = 2")[0]["frames"]
    assert stack == ["/usr/lib/torch/functional.py:99 linear", "model.py:34 forward", "train.py:5 main"]


def test_a_stack_wholly_outside_the_project_shows_its_innermost_frame_in_brackets(
    database: duckdb.DuckDBPyConnection,
) -> None:
    frame = {"stack_id": 9, "ordering": 0, "file_path": "<string>", "line_number": 1, "function": "<module>"}
    outer = frame | {"ordering": 1, "file_path": "/usr/lib/runpy.py", "line_number": 8}
    store_rows(database, "stack_frame", [outer, frame])
    assert rows(database, "SELECT line FROM stack") == [{"line": "[<string>:1]"}]


def test_operator_totals_count_what_the_recording_saw(database: duckdb.DuckDBPyConnection) -> None:
    log = a_training(RankLog())
    log.preexisting("older", 1 << 30)
    store_logs(database, [log])
    answer = rows(
        database,
        "SELECT operator, allocated_bytes, num_allocations, mean_duration_ns FROM operator_total($id)",
        id=SESSION,
    )
    assert [tuple(row.values()) for row in answer] == [
        ("aten::mm", 130, 3, 20),
        ("aten::empty", 100, 1, None),
    ]


def test_at_one_instant_the_blocks_of_an_ended_process_are_gone(database: duckdb.DuckDBPyConnection) -> None:
    ended, running = a_training(RankLog(rank=0, ended=100)), a_training(RankLog(rank=1))
    store_logs(database, [ended, running])
    alive = (
        "SELECT rank, sum(size_bytes)::BIGINT AS bytes FROM allocation_at($id, $at) "
        "WHERE alive_at_time GROUP BY rank ORDER BY rank"
    )
    before = rows(database, alive, id=SESSION, at=BASE_NS + 99)
    assert before == [{"rank": 0, "bytes": 160}, {"rank": 1, "bytes": 160}]
    assert rows(database, alive, id=SESSION, at=BASE_NS + 100) == [{"rank": 1, "bytes": 160}]


@examples(0.4)
@given(data=st.data())
def test_the_blocks_alive_after_any_event_add_up_to_its_total(
    database: duckdb.DuckDBPyConnection, data: st.DataObject
) -> None:
    clear(database)
    log = RankLog(offset_ns=data.draw(st.sampled_from([0, -5, 10**9])))
    for number in range(data.draw(st.integers(0, 2))):
        log.preexisting(f"older {number}", data.draw(st.integers(1, 50)))
    alive = list(log.allocations)
    now = 0
    for number in range(data.draw(st.integers(1, 15))):
        now += data.draw(st.sampled_from([0, 1, 10**9]))
        log.skip(data.draw(st.integers(0, 1)))
        if alive and data.draw(st.booleans()):
            name = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            log.free(name, at=now, told_later=data.draw(st.booleans()))
        else:
            log.alloc(f"block {number}", data.draw(st.integers(0, 50)), at=now)
            alive.append(f"block {number}")
    store_logs(database, [log])
    for event in log.events:
        answer = rows(
            database,
            "SELECT coalesce(sum(size_bytes), 0)::BIGINT AS bytes FROM live_at_seq($id, 0, 0, 'cpu', $seq)",
            id=SESSION,
            seq=event["seq"],
        )
        assert answer == [{"bytes": event["requested_bytes"]}]
