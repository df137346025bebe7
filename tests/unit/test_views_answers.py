"""Steps, modules, weights, failed allocations, groups of ranks, and how sure the job's peak is: by hand."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from hypothesis import given

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, clear, store_logs, store_rows
from job_peak_oracle import jobs, merged
from repetitions import examples

pytestmark = pytest.mark.slow

PLACE = {"session_id": SESSION, "attempt": 0, "rank": 0}


def rows(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(sql, parameters or None).fetchall()


def test_a_step_has_its_peak_what_it_allocated_and_what_it_left(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog(offset_ns=5)
    log.alloc("weights", 100, at=10)
    log.alloc("activation", 50, at=20)
    log.free("activation", at=30)
    log.step_ends(0, at=40)
    log.alloc("activation 1", 70, at=50)
    log.alloc("leak", 7, at=55)
    log.free("activation 1", at=60)
    log.step_ends(1, at=70, optimizer="SGD")
    log.step_ends(1, at=75, optimizer="AdamW")
    log.alloc("after", 500, at=80)
    store_logs(database, [log])
    answer = rows(
        database,
        "SELECT step, started_ns - $base, ended_ns - $base, peak_bytes, peak_time_ns - $base, end_bytes, "
        "allocated_bytes, num_allocations, peak_growth_bytes, end_growth_bytes, optimizers "
        "FROM step_total($id) ORDER BY step",
        id=SESSION,
        base=BASE_NS + 5,
    )
    assert answer == [
        (0, None, 40, 150, 20, 100, 150, 2, None, None, ["SGD"]),
        (1, 40, 75, 177, 55, 107, 77, 2, 27, 7, ["AdamW", "SGD"]),
    ]


def test_a_module_holds_its_own_and_its_childrens_bytes(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog()
    log.alloc("embedding", 10, at=1, module="GPT.wte")
    log.alloc("fc", 20, at=2, module="GPT.h.0.mlp.fc")
    log.alloc("mlp", 5, at=3, module="GPT.h.0.mlp")
    log.alloc("decoy", 40, at=4, module="GPT.h.01")
    log.alloc("outside", 3, at=5)
    store_logs(database, [log])
    classes = {"GPT": "GPT", "GPT.h.0.mlp": "MLP", "GPT.ln": "LayerNorm"}
    store_rows(database, "module", [PLACE | {"module": m, "class": c} for m, c in classes.items()])
    answer = rows(
        database, "SELECT module, class, depth, own_bytes, total_bytes FROM module_at_peak($id)", id=SESSION
    )
    assert answer == [
        ("GPT", "GPT", 0, 0, 75),
        ("GPT.h", None, 1, 0, 65),
        ("GPT.h.0", None, 2, 0, 25),
        ("GPT.h.0.mlp", "MLP", 3, 5, 25),
        ("GPT.h.0.mlp.fc", None, 4, 20, 20),
        ("GPT.h.01", None, 2, 40, 40),
        ("GPT.ln", "LayerNorm", 1, 0, 0),
        ("GPT.wte", None, 1, 10, 10),
        (None, None, 0, 3, 3),
    ]


def test_a_failed_allocation_shows_the_largest_free_piece(database: duckdb.DuckDBPyConnection) -> None:
    # Segments: 8 KiB with blocks at 0 (600 bytes take 1024) and at 2048 (1 KiB), and 2 KiB that are empty.
    log = RankLog()
    log.segment("segment_alloc", 0, 8192, at=1)
    log.segment("segment_alloc", 1 << 20, 2048, at=2)
    log.segment("segment_alloc", 1 << 21, 4096, at=3)
    log.segment("segment_free", 1 << 21, 4096, at=4)
    log.alloc("first", 600, at=5, device="cuda:0", category="parameter")
    log.alloc("second", 1024, at=6, device="cuda:0", category="activation")
    log.allocations["first"]["address"], log.allocations["second"]["address"] = 0, 2048
    seq = log.oom(1 << 30, at=10, device_free_bytes=77, operator="aten::mm")
    store_logs(database, [log])
    answer = rows(
        database,
        "SELECT size_bytes, device_free_bytes, requested_bytes, unused_bytes, largest_free_bytes, "
        "round(fragmentation, 3), operator FROM oom_overview",
    )
    assert answer == [(1 << 30, 77, 1624, 1024 + 5120 + 2048, 5120, 0.375, "aten::mm")]
    held = rows(
        database,
        "SELECT group_name, live_bytes FROM held_at_points($id, 'category', "
        "[{attempt: 0, rank: 0, device: 'cuda:0', seq: $seq::BIGINT}])",
        id=SESSION,
        seq=seq,
    )
    assert held == [("activation", 1024), ("parameter", 600)]


def test_a_block_or_hole_may_reach_over_the_pieces_of_an_expandable_segment(
    database: duckdb.DuckDBPyConnection,
) -> None:
    # Three pieces of 4 KiB in a row with a block of 6 KiB, and 2 KiB from before the recording.
    log = RankLog()
    for piece in range(3):
        log.segment("segment_map", piece << 12, 1 << 12, at=1 + piece)
    log.alloc("first", 6 << 10, at=5, device="cuda:0", address=0)
    log.oom(1 << 30, at=10)
    store_logs(database, [log])
    older = {"device": "cuda:0", "seq": -1, "address": 1 << 20, "size_bytes": 2048}
    store_rows(database, "older_segment", [{"session_id": SESSION, "attempt": 0, "rank": 0, **older}])
    answer = rows(database, "SELECT unused_bytes, largest_free_bytes, fragmentation FROM oom_overview")
    assert answer == [(8192, 6144, 0.25)]


def test_without_segments_fragmentation_is_not_known(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog()
    log.alloc("block", 10, at=1)
    log.oom(100, at=2, device="cpu")
    store_logs(database, [log])
    assert rows(database, "SELECT unused_bytes, fragmentation FROM oom_overview") == [(None, None)]


def test_ranks_are_grouped_by_their_coordinates(database: duckdb.DuckDBPyConnection) -> None:
    logs = [RankLog(rank=rank, coordinates={"tp": rank % 2}) for rank in range(4)]
    curves = [[(10, 100), (20, 5)], [(12, 30)], [(15, 3), (25, 90)], [(5, 40), (9, 1)]]
    for log, curve in zip(logs, curves, strict=True):
        log.totals("cpu", curve)
    store_logs(database, logs)
    answer = rows(
        database,
        "SELECT group_name, num_ranks, peak_bytes, peak_time_ns - $base, sum_of_peaks_bytes, highest_rank, "
        "lowest_rank, lowest_peak_bytes FROM peak_by_ranks($id, 'tp')",
        id=SESSION,
        base=BASE_NS,
    )
    assert answer == [("0", 2, 103, 15, 190, 0, 2, 90), ("1", 2, 40, 5, 70, 3, 1, 30)]
    assert [
        row[0] for row in rows(database, "SELECT num_ranks FROM peak_by_ranks($id, 'pp')", id=SESSION)
    ] == [4]


@examples(0.4)
@given(logs=jobs())
def test_the_peak_of_each_host_equals_a_merge_of_its_events(
    database: duckdb.DuckDBPyConnection, logs: list[RankLog]
) -> None:
    clear(database)
    logs = [log for log in logs if log.attempt == 0]
    store_logs(database, logs)
    expected = {
        (f"name-of-{host}", kind): peak[:2]
        for host in {log.host_uid for log in logs}
        for kind, peak in merged([log for log in logs if log.host_uid == host]).items()
        if peak[0] > 0
    }
    answer = rows(
        database,
        "SELECT group_name, device_type, peak_bytes, peak_time_ns FROM peak_by_ranks($id, 'host')",
        id=SESSION,
    )
    assert {(name, kind): (held, at) for name, kind, held, at in answer if held} == expected


def test_the_jobs_peak_is_sure_on_one_host_and_open_where_clocks_may_err(
    database: duckdb.DuckDBPyConnection,
) -> None:
    def of_hosts(*hosts: str) -> list[tuple[Any, ...]]:
        clear(database)
        first, second = (RankLog(rank=rank, host_uid=host) for rank, host in enumerate(hosts))
        first.alloc("large", 100, at=10_000)
        first.free("large", at=20_000)
        second.alloc("small", 30, at=5_000)
        second.alloc("short", 7, at=8_500)
        second.free("short", at=9_000)
        store_logs(database, [first, second])
        return rows(
            database,
            "SELECT job_peak_bytes, sum_of_peaks_bytes, gap_bytes, clock_error_ns, lowest_bytes, "
            "highest_bytes, order_is_certain FROM job_peak_bound($id)",
            id=SESSION,
        )

    assert of_hosts("host-0", "host-0") == [(130, 137, 7, 0, 130, 130, True)]
    # Each clock may be off by 1000 ns: within 2000 ns of the peak the other host rose to 37 and fell to 30.
    assert of_hosts("host-0", "host-1") == [(130, 137, 7, 2000, 130, 137, False)]


def test_what_held_the_job_adds_up_to_its_peak(database: duckdb.DuckDBPyConnection) -> None:
    first, second = RankLog(rank=0), RankLog(rank=1)
    first.alloc("weights", 100, at=10, category="parameter", operator="aten::empty")
    first.alloc("activation", 20, at=20, category="activation", operator="aten::mm")
    second.alloc("weights", 50, at=12, category="parameter", operator="aten::empty")
    second.free("weights", at=SECOND_NS)
    store_logs(database, [first, second])
    answer = rows(
        database, "SELECT group_name, live_bytes, num_ranks FROM job_peak_held($id, 'category')", id=SESSION
    )
    assert answer == [("parameter", 150, 2), ("activation", 20, 1)]


def test_weights_show_the_line_that_made_them(database: duckdb.DuckDBPyConnection) -> None:
    store_rows(
        database,
        "weight",
        [PLACE | {"name": "fc.weight", "size_bytes": 4, "grad_size_bytes": 0, "stack_id": 1}],
    )
    frame = {"stack_id": 1, "ordering": 0, "file_path": "model.py", "line_number": 3, "function": "f"}
    store_rows(database, "stack_frame", [frame])
    assert rows(database, "SELECT name, line FROM weight_line") == [("fc.weight", "model.py:3")]


def test_what_the_process_holds_beyond_the_allocator_is_the_component_app(
    database: duckdb.DuckDBPyConnection,
) -> None:
    log = RankLog(offset_ns=3)
    log.alloc("block", 100, at=10)
    log.sample(130, at=20)
    log.sample(90, at=30)
    store_logs(database, [log])
    answer = rows(
        database, "SELECT time_ns - $base, known_bytes, app_bytes FROM app_curve ORDER BY 1", base=BASE_NS
    )
    assert answer == [(23, 100, 30), (33, 100, 0)]
