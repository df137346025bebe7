"""Traces hold to the rules of Chrome's format, and their counters, lives and arrows to the log."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from constructed import BASE_NS, SESSION
from export_logs import MIB, OLDER, SEGMENT, database, marker, training
from rankmem_aggregator import connect
from rankmem_aggregator.exports import chrome_trace
from rankmem_aggregator.exports.contract import ExportResult
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.exports.trace_counters import Counters
from rankmem_aggregator.query.queries import Queries

pytestmark = pytest.mark.slow

Row = dict[str, Any]
REQUIRED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "C": {"name", "pid", "ts", "args"},
    "b": {"name", "cat", "id", "pid", "ts"},
    "e": {"name", "cat", "id", "pid", "ts"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    path = tmp_path_factory.mktemp("trace") / "r.duckdb"
    ranges = [
        marker('epoch "1" \\ é', 2, 9),
        marker("inner", 3, None, number=2),
        marker("of rank 1", 3, 4, rank=1),
    ]
    database(path, [training(), training(1, offset_ns=5_000_000, host_uid="host-1")], marker=ranges)
    with connect(path) as opened:
        yield opened


def exported(queries: Queries, out: Path, **asked: Any) -> tuple[list[Row], Row, ExportResult]:
    written = export(queries, "chrome-trace", out, force=True, **asked)
    text = gzip.decompress(out.read_bytes()) if out.suffix == ".gz" else out.read_bytes()
    trace = json.loads(text)
    return trace.pop("traceEvents"), trace, written


@pytest.fixture(scope="module")
def rows(queries: Queries, tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return exported(queries, tmp_path_factory.mktemp("out") / "t.json")[0]


def of(rows: list[Row], phase: str, **wanted: Any) -> list[Row]:
    return [row for row in rows if row["ph"] == phase and wanted.items() <= row.items()]


def test_every_row_has_what_its_phase_needs(rows: list[Row]) -> None:
    for row in rows:
        assert REQUIRED[row["ph"]] <= row.keys(), row
        assert row.get("dur", 1) > 0
    assert {row["ph"] for row in rows} == REQUIRED.keys()


def test_slices_of_a_row_nest(rows: list[Row]) -> None:
    by_row: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in of(rows, "X"):
        by_row[row["pid"], row["tid"]].append(row)
    for slices in by_row.values():
        open_until: list[float] = []
        for one in sorted(slices, key=lambda row: (row["ts"], -row["dur"])):
            while open_until and open_until[-1] <= one["ts"]:
                open_until.pop()
            assert not open_until or one["ts"] + one["dur"] <= open_until[-1] + 1e-6
            open_until.append(one["ts"] + one["dur"])


def test_every_life_ends_once_and_no_sooner_than_it_begins(rows: list[Row]) -> None:
    begun = {row["id"]: row for row in of(rows, "b")}
    ended = {row["id"]: row for row in of(rows, "e")}
    assert begun.keys() == ended.keys()
    assert len(begun) == len(of(rows, "b")) == 2 * 7
    assert all(begun[key]["ts"] <= ended[key]["ts"] for key in begun)
    assert all(
        (begun[key]["name"], begun[key]["cat"]) == (ended[key]["name"], ended[key]["cat"]) for key in begun
    )
    lives = {row["args"]["address"]: row["args"] for row in of(rows, "b", pid=1)}
    assert lives[hex(OLDER + 512)]["category"] == "parameter"
    assert lives[hex(SEGMENT + 4096 + 1024)]["line"] == "train.py:12"
    assert [args["bytes"] for args in lives.values() if args.get("alive") == "at the end"] == [
        700, 3 * MIB, 3000, 3 * MIB,
    ]  # fmt: skip


def test_a_block_says_by_what_it_is_known_where_its_call_was_not_observed(tmp_path: Path) -> None:
    job = training()
    blocks = job.log.allocations
    blocks["act-0"] |= {"attribution": "observed"}
    blocks["act-1"] |= {"attribution": "template", "like_id": blocks["act-0"]["allocation_id"]}
    blocks["grad-1"] |= {"attribution": "none"}
    database(tmp_path / "r.duckdb", [job])
    with connect(tmp_path / "r.duckdb") as queries:
        rows, _, _ = exported(queries, tmp_path / "t.json")
    said = {
        row["args"]["address"]: (row["args"]["attribution"], row["args"].get("like_id"))
        for row in of(rows, "b")
        if "attribution" in row["args"]
    }
    assert said == {
        hex(blocks["act-1"]["address"]): ("template", blocks["act-0"]["allocation_id"]),
        hex(blocks["grad-1"]["address"]): ("none", None),
    }


def test_arrows_begin_and_end_within_slices(rows: list[Row]) -> None:
    starts = {row["id"]: row for row in of(rows, "s")}
    ends = {row["id"]: row for row in of(rows, "f")}
    assert starts.keys() == ends.keys()
    assert {row["cat"] for row in starts.values()} == {"autograd"}
    for row in (*starts.values(), *ends.values()):
        assert any(
            one["ts"] <= row["ts"] < one["ts"] + one["dur"] - 1e-6
            for one in of(rows, "X", pid=row["pid"], tid=row["tid"])
        )
    assert all(starts[key]["ts"] <= ends[key]["ts"] for key in starts)


def test_a_block_freed_in_another_call_has_an_arrow_from_its_maker(tmp_path: Path) -> None:
    job = training()
    freed = next(event for event in job.log.events if event["action"] == "free_requested")
    freed["call_id"] = 2
    with connect(database(tmp_path / "r.duckdb", [job])) as queries:
        rows, _, written = exported(queries, tmp_path / "t.json")
    (start,), (end,) = of(rows, "s", cat="free"), of(rows, "f", cat="free")
    made = next(event for event in job.log.events if event.get("allocation_id") == freed["allocation_id"])
    assert start["ts"] == (made["time_ns"] - job.log.events[0]["time_ns"]) / 1000
    assert (start["tid"], end["tid"]) == (1, 2)
    assert written.counts["free arrows"] == 1


def test_counters_say_the_totals_of_the_log_at_each_change(rows: list[Row]) -> None:
    base = training().log.events[0]["time_ns"]
    told = [(row["ts"], row["args"]["bytes"]) for row in of(rows, "C", pid=1, name="cuda:0 requested")]
    wanted, last = [], None
    for event in training().log.events:
        if event["requested_bytes"] != last:
            last = event["requested_bytes"]
            wanted.append(((event["time_ns"] - base) / 1000, last))
    assert told == wanted


def test_a_streams_counters_follow_its_blocks_and_segments(rows: list[Row]) -> None:
    def course(name: str) -> list[int]:
        return [row["args"]["bytes"] for row in of(rows, "C", pid=1, name=f"cuda:0 stream 7 {name}")]

    assert course("reserved") == [20 * MIB]
    assert course("active") == [3 * MIB, 6 * MIB]
    assert course("allocated") == [3 * MIB, 6 * MIB, 3 * MIB]  # the free of one is requested, never completed
    main = [row["args"]["bytes"] for row in of(rows, "C", pid=1, name="cuda:0 stream 0 active")]
    assert main == [700, 1700, 4700, 3700, 4700, 7700, 6700, 3700]


def test_groups_of_blocks_without_addresses_are_followed_by_their_ids() -> None:
    """As MindStudio's recordings have them: blocks with ids and no addresses."""
    told: list[tuple[str, int]] = []
    counters = Counters("npu:0", lambda name, _time_ns, value: told.append((name, value)), ["component"])

    def row(action: str, number: int | None, size: int, component: str) -> Row:
        totals = dict.fromkeys(("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"))
        return {
            "action": action, "time_ns": 1, "address": None, "allocation_id": number, "size_bytes": size,
            "component": component, "stream": None, "awaiting_free": False, **totals,
        }  # fmt: skip

    counters.begin(0, [row("alloc", -2, 100, "ge"), row("alloc", -3, 10, "pytorch")], [])
    for event in (
        row("alloc", 5, 7, "pytorch"),
        row("free_completed", -2, 100, "ge"),
        row("unknown", None, 9, "ge"),
        row("free_requested", 5, 7, "pytorch"),
    ):
        counters.event(event)
    counters.end()
    assert [value for name, value in told if name == "npu:0 ge active"] == [100, 0]
    assert [value for name, value in told if name == "npu:0 pytorch allocated"] == [10, 17, 10]
    assert [value for name, value in told if name == "npu:0 pytorch active"] == [10, 17]


def test_ranks_are_processes_with_their_hosts_on_one_clock(
    queries: Queries, tmp_path: Path, rows: list[Row]
) -> None:
    names = [row["args"]["name"] for row in of(rows, "M", name="process_name")]
    assert names == ["rank 0 on name-of-host-0", "rank 1 on name-of-host-1"]
    first = [of(rows, "C", pid=pid, name="cuda:0 requested")[0]["ts"] for pid in (1, 2)]
    assert first == [0, 5000]
    one, facts, _ = exported(queries, tmp_path / "one.json", ranks=[1])
    assert [row["args"]["name"] for row in of(one, "M", name="process_name")] == ["rank 1 on name-of-host-1"]
    assert facts["baseTimeNanoseconds"] == BASE_NS + 1_000 + 5_000_000
    assert facts["otherData"]["session_id"] == SESSION


def test_names_from_outside_are_text_and_ranges_stand_on_rows_of_their_own(rows: list[Row]) -> None:
    (epoch,) = of(rows, "X", name='epoch "1" \\ é')
    (inner,) = of(rows, "X", name="inner")
    assert inner["tid"] != epoch["tid"], "the inner one never ended, so it outlives the outer one"
    assert epoch["tid"] not in {row["tid"] for row in of(rows, "X", cat="operator")}
    last = training().log.events[-1]["time_ns"] - training().log.events[0]["time_ns"]
    assert inner["ts"] + inner["dur"] == pytest.approx(last / 1000)


def test_a_packed_trace_is_the_same_and_the_same_twice(
    queries: Queries, tmp_path: Path, rows: list[Row]
) -> None:
    packed = exported(queries, tmp_path / "t.json.gz")[0]
    assert packed == rows
    first = (tmp_path / "t.json.gz").read_bytes()
    exported(queries, tmp_path / "t.json.gz")
    assert (tmp_path / "t.json.gz").read_bytes() == first


def test_a_range_of_time_shows_what_lived_in_it(queries: Queries, tmp_path: Path) -> None:
    asked = {"ranks": [0], "from_ns": BASE_NS + 4_000, "until_ns": BASE_NS + 6_000}
    rows, _, _ = exported(queries, tmp_path / "t.json", **asked)
    assert sorted(row["args"]["bytes"] for row in of(rows, "b")) == [700, 1000, 3000, 3 * MIB]
    assert all(0 <= row["ts"] <= 2 for row in (*of(rows, "b"), *of(rows, "e"), *of(rows, "C")))


def test_no_time_is_negative_though_calls_and_ranges_begin_before_the_first_event(tmp_path: Path) -> None:
    job = training()
    first = job.log.events[0]["time_ns"]
    early = {**marker("warm-up", 0, 9), "started_ns": first - 7_000}
    gone = {**marker("imports", 0, 9, number=2), "started_ns": first - 9_000, "ended_ns": first - 8_000}
    with connect(database(tmp_path / "r.duckdb", [job], marker=[early, gone])) as queries:
        rows, facts, _ = exported(queries, tmp_path / "t.json")
        cut, _, _ = exported(queries, tmp_path / "cut.json", from_ns=first + 2_000)
    assert facts["baseTimeNanoseconds"] == first - 7_000
    assert [row["name"] for row in of(rows, "X", ts=0)] == ["warm-up"]
    for row in (*rows, *cut):
        assert row["ph"] == "M" or row["ts"] >= 0, row
    (same,) = of(cut, "X", name="warm-up")
    assert same["ts"] == 0


def test_a_large_trace_is_thinned_and_says_so_and_keeps_the_peak(
    queries: Queries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Row]
) -> None:
    monkeypatch.setattr(chrome_trace, "ROWS_MAX", 40)
    thin, facts, written = exported(queries, tmp_path / "t.json")
    assert len(thin) < len(rows)
    assert written.remarks[0].startswith("thinned to about 40 rows")
    assert "blocks under" in facts["otherData"]["thinned"]

    def most(of_rows: list[Row]) -> int:
        return max(row["args"]["bytes"] for row in of(of_rows, "C", name="cuda:0 requested"))

    assert most(thin) == most(rows)
    assert max(row["args"]["bytes"] for row in of(thin, "b")) == 3 * MIB


def test_a_thinned_counter_keeps_the_highest_and_the_last_of_each_stretch() -> None:
    told: list[tuple[int, int]] = []
    counters = Counters("cpu", lambda _name, time_ns, value: told.append((time_ns, value)), (), 10)
    for time_ns, value in [(0, 5), (3, 9), (4, 2), (9, 3), (10, 3), (15, 1), (31, 1), (32, 7)]:
        empty = dict.fromkeys(("allocated_bytes", "active_bytes", "reserved_bytes"))
        counters.event({"time_ns": time_ns, "action": "alloc", "requested_bytes": value, **empty})
    counters.end()
    assert told == [(3, 9), (9, 3), (15, 1), (32, 7)]
