"""Snapshots of made-up jobs, imported: what a slow walk over them finds, with annotations and oddities."""

from __future__ import annotations

import copy
import gzip
from pathlib import Path
from typing import Any

import pytest

from import_read import asked, imported
from made_snapshots import dump, random_snapshot
from rankmem_aggregator import connect
from rankmem_aggregator.insights.replays import check
from rankmem_imports.files.plain_pickle import load_plain
from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Identity
from rankmem_protos.errors import Code, RankmemError
from snapshot_oracle import truth_of

RECORDINGS = Path(__file__).with_name("recordings")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("seed", "devices"), [(0, 1), (1, 1), (2, 3)])
def test_totals_and_ends_of_every_device_are_those_of_a_slow_walk(
    seed: int, devices: int, tmp_path: Path
) -> None:
    raw = random_snapshot(seed, devices=devices, events=120 * devices)
    database = tmp_path / "made.duckdb"
    assert imported(database, dump(tmp_path / "made.pickle", raw, protocol=2 + seed)).failed == []
    for number, truth in truth_of(raw).items():
        device = {"device": f"cuda:{number}"}
        totals = asked(
            database,
            "SELECT requested_bytes FROM memory_event WHERE device = $device ORDER BY seq",
            **device,
        )
        assert [total for (total,) in totals] == truth.totals
        blocks = asked(
            database,
            "SELECT address, size_bytes, preexisting, freed_ns IS NULL FROM allocation "
            "WHERE device = $device",
            **device,
        )
        assert {a: size for a, size, _, is_live in blocks if is_live} == truth.live == truth.listed
        assert {a: size for a, size, is_older, _ in blocks if is_older} == truth.older
        own_sizes = asked(
            database,
            "SELECT address, block_bytes FROM allocation_record WHERE block_bytes IS NOT NULL "
            "AND device = $device",
            **device,
        )
        assert dict(own_sizes) == {
            a: -(-size // 512) * 512 for a, size, is_older, is_live in blocks if is_older and is_live
        }
    [(events, unexplained)] = asked(database, "SELECT events, unexplained_bytes FROM rank_info")
    assert events == sum(map(len, raw["device_traces"]))
    assert unexplained == 0


def test_events_of_several_devices_stand_in_order_of_time(tmp_path: Path) -> None:
    raw = random_snapshot(9, devices=2)
    database = tmp_path / "made.duckdb"
    imported(database, dump(tmp_path / "made.pickle", raw))
    times = [time for (time,) in asked(database, "SELECT time_ns FROM memory_event ORDER BY seq")]
    assert times == sorted(times)
    assert times == sorted(entry["time_us"] * 1000 for trace in raw["device_traces"] for entry in trace)


@pytest.mark.parametrize(("stream", "device"), [(0, "cuda:0"), (0x6C3C_8DC0, "npu:0")])
def test_of_recordings_without_times_those_of_torch_npu_have_no_stream_0(
    stream: int, device: str, tmp_path: Path
) -> None:
    raw = {name: small()[name] for name in ("segments", "device_traces")}
    for one in (*raw["segments"], *raw["device_traces"][0]):
        one["stream"] = stream
        one.pop("time_us", None)
    imported(tmp_path / "made.duckdb", dump(tmp_path / "torch21.pickle", raw))
    assert asked(tmp_path / "made.duckdb", "SELECT DISTINCT device FROM memory_event") == [(device,)]


def test_a_request_that_failed_may_have_been_for_more_than_there_is(tmp_path: Path) -> None:
    raw = small()
    last = raw["device_traces"][0][-1]
    raw["device_traces"][0].append(last | {"action": "oom", "size": 1 << 60, "device_free": 5})
    database = tmp_path / "made.duckdb"
    assert imported(database, dump(tmp_path / "oom.pickle", raw)).failed == []
    assert asked(database, "SELECT size_bytes FROM oom") == [(1 << 60,)]
    raw["device_traces"][0].append(last | {"size": 1 << 60, "addr": 1 << 40})
    report = imported(database, dump(tmp_path / "absurd.pickle", raw))
    [(_, error)] = report.failed
    assert f"an event of {1 << 60} bytes" in error.message


def test_a_recording_in_gzip_keeps_its_rank_and_its_time(tmp_path: Path) -> None:
    raw = small() | {"rankmem": {"rank": 5, "pid": 77, "host_name": "node3"}}
    path = dump(tmp_path / "plain.pickle", raw, protocol=2)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    facts = [FORMATS["torch-snapshot"].open([one])[0].facts for one in (path, packed)]
    assert facts[0] == facts[1]
    assert (facts[1].rank, facts[1].started_ns) == (5, 1_700_000_000_000_010_000)


def test_a_time_of_eight_bytes_is_a_time(tmp_path: Path) -> None:
    """As torch's pickler in C++ writes all numbers above 32 bits."""
    path = dump(tmp_path / "cpp.pickle", small(), protocol=2)
    time = (1_700_000_000_000_010).to_bytes(7, "little")
    content = path.read_bytes()
    assert b"\x8a\x07" + time in content
    path.write_bytes(content.replace(b"\x8a\x07" + time, b"\x8a\x08" + time + b"\0"))
    assert FORMATS["torch-snapshot"].open([path])[0].facts.started_ns == 1_700_000_000_000_010_000
    assert imported(tmp_path / "made.duckdb", path).failed == []


def test_metadata_of_several_devices_and_labels_of_blocks_are_markers(tmp_path: Path) -> None:
    raw = random_snapshot(3, devices=2, late=0)
    entries = sorted((e for trace in raw["device_traces"] for e in trace), key=lambda e: e["time_us"])
    for place, entry in enumerate(entries):
        entry["user_metadata"] = "first" if place < len(entries) // 2 else "second"
    trace = raw["device_traces"][1]
    trace.insert(5, trace[4] | {"action": "annotate", "user_metadata": "a tensor"})
    database = tmp_path / "made.duckdb"
    assert imported(database, dump(tmp_path / "made.pickle", raw)).failed == []
    names = asked(database, "SELECT name, ended_ns - started_ns FROM marker ORDER BY started_ns, name")
    assert sorted(name for name, _ in names) == ["a tensor", "first", "second"]
    assert dict(names)["a tensor"] == 0


def test_private_pools_are_those_of_the_segments_and_the_replay_out_of_the_database_is_exact(
    tmp_path: Path,
) -> None:
    database = tmp_path / "made.duckdb"
    assert imported(database, RECORDINGS / "allocator_graph.pickle.gz").failed == []
    with connect(database) as queries:
        found = check(queries.allocator_trace(0))
    assert (found.num_allocations, found.is_exact) == (627, True)
    assert asked(database, "SELECT DISTINCT pool FROM allocation ORDER BY 1") == [("1.0",), (None,)]


def test_segments_given_back_are_of_no_known_pool_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = load_plain(RECORDINGS / "allocator_graph.pickle.gz")
    pool = next(each for each in raw["segments"] if each["segment_pool_id"] != (0, 0))
    gone = {"action": "segment_free", "addr": pool["address"], "size": pool["total_size"], "stream": 0}
    raw["device_traces"][0].append(gone)  # its graph was reset, its tensors with it
    raw["segments"].remove(pool)
    database = tmp_path / "made.duckdb"
    assert imported(database, dump(tmp_path / "made.pickle", raw)).failed == []
    assert (
        "of the segments given back before the end (1) nothing tells the private pool"
        in capsys.readouterr().err
    )
    with connect(database) as queries:
        answer = queries.fragmentation()
    assert answer.verdict == "cannot tell"
    assert "of 1 segment given back before the snapshot was taken it does not tell" in answer.sentence


@pytest.mark.parametrize(
    ("field", "value"),
    [("size", 512.5), ("size", "512"), ("time_us", 1.5e15), ("addr", "7"), ("stream", None)],
)
def test_a_number_that_is_none_is_refused(field: str, value: object, tmp_path: Path) -> None:
    raw = small()
    raw["device_traces"][0][1][field] = value
    [(_, error)] = imported(tmp_path / "made.duckdb", dump(tmp_path / "odd.pickle", raw)).failed
    assert f"a number is a {type(value).__name__}" in error.message


def test_a_snapshot_without_events_is_not_complete(tmp_path: Path) -> None:
    path = dump(tmp_path / "empty.pickle", {"segments": [], "device_traces": [[], []]})
    imported(tmp_path / "made.duckdb", path)
    assert asked(tmp_path / "made.duckdb", "SELECT complete FROM rank_info") == [(False,)]


def small() -> dict[str, Any]:
    """Three allocs at 10, 20 and 30 µs after the start, all alive."""
    start_us = 1_700_000_000_000_000
    frames = [{"filename": "m.py", "name": "f", "line": 3}]
    trace = [
        {"action": "alloc", "addr": n << 20, "size": 100 * n, "stream": 7, "frames": frames,
         "time_us": start_us + 10 * n, "pool_id": (0, 2)}
        for n in (1, 2, 3)
    ]  # fmt: skip
    segments = [
        {
            "device": 0, "address": n << 20, "total_size": 512, "stream": 7, "segment_pool_id": (0, 2),
            "allocated_size": 512, "active_size": 512,
            "blocks": [
                {"size": 512, "requested_size": 100 * n, "state": "active_allocated", "frames": frames}
            ],
        }
        for n in (1, 2, 3)
    ]  # fmt: skip
    return {
        "segments": segments, "device_traces": [trace], "allocator_settings": {"a": 1},
        "external_annotations": [],
    }  # fmt: skip


def test_annotations_and_metadata_become_markers_and_name_blocks(tmp_path: Path) -> None:
    raw = small()
    start_us = 1_700_000_000_000_000
    raw["external_annotations"] = [
        {"stage": "START", "name": "epoch", "device": 0, "time_us": start_us + 15},
        {"stage": "END", "name": "epoch", "device": 0, "time_us": start_us + 25},
        {"stage": "END", "name": "never began", "device": 0, "time_us": start_us + 26},
    ]
    raw["device_traces"][0][2]["user_metadata"] = "the cache"
    database = tmp_path / "made.duckdb"
    imported(database, dump(tmp_path / "made.pickle", raw))
    markers = asked(database, "SELECT name, kind, started_ns, ended_ns FROM marker ORDER BY started_ns")
    assert markers == [
        ("epoch", "user_scope", (start_us + 15) * 1000, (start_us + 25) * 1000),
        ("the cache", "annotate", (start_us + 30) * 1000, None),
    ]
    blocks = asked(database, "SELECT annotation FROM allocation ORDER BY allocated_ns")
    assert blocks == [(None,), ("epoch",), ("the cache",)]


def test_streams_pools_and_settings_are_kept_and_nothing_else_is_claimed(tmp_path: Path) -> None:
    database = tmp_path / "made.duckdb"
    imported(database, dump(tmp_path / "made.pickle", small()), name="mine")
    assert asked(
        database,
        "SELECT DISTINCT stream, pool, component, category, operator, module, phase, step, call_id "
        "FROM allocation",
    ) == [(7, "0.2", "mem_pool", "unknown", None, None, None, None, None)]
    assert asked(database, "SELECT device, source, settings, name FROM device_info") == [
        ("cuda:0", "torch-snapshot", '{"a": 1}', None)
    ]
    assert asked(database, "SELECT name, source, world_size FROM session") == [
        ("mine", "torch-snapshot", None)
    ]
    assert asked(database, "SELECT DISTINCT allocated_bytes, active_bytes FROM memory_event") == [
        (None, None)
    ]


def test_a_trace_that_contradicts_segments_is_imported_and_the_difference_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = small()
    del raw["segments"][0]
    raw["segments"][1]["blocks"][0]["requested_size"] = 301
    database = tmp_path / "made.duckdb"
    imported(database, dump(tmp_path / "made.pickle", raw))
    said = capsys.readouterr().err
    assert "1 blocks (100 bytes) are alive after the trace, not in segments" in said
    assert "1 blocks have another size" in said
    assert asked(database, "SELECT complete, unexplained_bytes FROM rank_info") == [(False, 99)]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("device_traces", 0, 0, "size"), 2**60),
        (("device_traces", 0, 0, "size"), -5),
        (("device_traces", 0, 0, "size"), "many"),
        (("device_traces", 0, 0, "time_us"), 2**62),
        (("device_traces", 0, 0, "addr"), None),
        (("device_traces", 0, 1), 7),
        (("device_traces", 0), {"a": 1}),
        (("device_traces",), None),
        (("segments", 0, "device"), 5000),
        (("segments", 0, "blocks"), 3),
        (("segments", 0, "blocks", 0, "requested_size"), 2**62),
        (("segments",), {}),
    ],
)
def test_values_that_no_snapshot_has_are_refused_with_the_file(
    path: tuple[Any, ...], value: Any, tmp_path: Path
) -> None:
    raw = copy.deepcopy(small())
    inner: Any = raw
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    [recording] = FORMATS["torch-snapshot"].open([dump(tmp_path / "odd.pickle", raw)])
    with pytest.raises(RankmemError, match=r"odd\.pickle") as raised:
        list(recording.parts(Identity("0" * 12, 0, 0)))
    assert raised.value.code is Code.INVALID


def test_a_device_of_our_own_export_keeps_its_name_and_its_rank(tmp_path: Path) -> None:
    raw = small() | {"rankmem": {"rank": 5, "pid": 77, "host_name": "node3", "devices": "0=npu:4"}}
    database = tmp_path / "made.duckdb"
    imported(database, dump(tmp_path / "made.pickle", raw))
    assert asked(database, "SELECT rank, pid, host_uid FROM rank_info") == [(5, 77, "node3")]
    assert asked(database, "SELECT DISTINCT device FROM memory_event") == [("npu:4",)]


def test_a_function_of_c_without_a_file_is_not_the_line(tmp_path: Path) -> None:
    raw = random_snapshot(4)
    frames = [
        {"filename": "", "name": "clone", "line": 0},
        {"filename": "/home/me/train.py", "name": "main", "line": 7},
    ]
    for entry in raw["device_traces"][0]:
        entry["frames"] = frames
    database = tmp_path / "made.duckdb"
    assert imported(database, dump(tmp_path / "made.pickle", raw)).failed == []
    lines = asked(
        database, "SELECT DISTINCT line FROM allocation JOIN stack USING (stack_id) WHERE NOT preexisting"
    )
    assert lines == [("/home/me/train.py:7",)]
