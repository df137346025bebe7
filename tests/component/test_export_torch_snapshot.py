"""Snapshots for PyTorch's viewer hold the log's events, and the blocks and segments at its end."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.cuda import _memory_viz

from constructed import BASE_NS, RankLog
from export_logs import MIB, OLDER, SEGMENT, CudaLog, database, marker, training
from rankmem_agent.tap import snapshot_format as reader
from rankmem_aggregator import connect
from rankmem_aggregator.exports.contract import ExportResult
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.exports.pickle_stream import PickleStream
from rankmem_aggregator.query.queries import Queries
from snapshot_files import read

VIEWER_OPCODES = {
    "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1",
    "LONG_BINGET", "MARK", "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE2", "APPEND",
    "NEWFALSE", "BINPUT", "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE", "BINFLOAT", "TUPLE", "TUPLE1",
    "TUPLE3", "LONG_BINPUT", "LIST", "DICT", "SETITEM",
}  # fmt: skip
"""What MemoryViz.js unpickles."""


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    path = tmp_path_factory.mktemp("snapshot") / "r.duckdb"
    ranges = [marker("epoch 1", 2, 9), marker("never ends", 5, None, number=2)]
    database(path, [training(), training(1, offset_ns=5_000_000)], marker=ranges)
    with connect(path) as opened:
        yield opened


def exported(queries: Queries, folder: Path, **asked: Any) -> tuple[dict[str, Any], ExportResult]:
    """The snapshot as Python's own unpickler reads it."""
    out = folder / "s.pickle"
    written = export(queries, "torch-snapshot", out, force=True, **asked)
    with out.open("rb") as file:
        return pickle.load(file), written


def test_the_events_are_those_of_the_log(queries: Queries, tmp_path: Path) -> None:
    snapshot, _ = exported(queries, tmp_path, ranks=[0])
    log = training().log
    told = [(event["action"], event.get("addr"), event["size"]) for event in snapshot["device_traces"][0]]
    wanted = [(event["action"], event.get("address"), event["size_bytes"]) for event in log.events]
    assert told == wanted
    times = [event["time_us"] for event in snapshot["device_traces"][0]]
    assert times == [event["time_ns"] // 1000 for event in log.events]
    assert [event["device_free"] for event in snapshot["device_traces"][0] if event["action"] == "oom"] == [
        3 * MIB
    ]
    stacks = {
        event["addr"]: event["frames"] for event in snapshot["device_traces"][0] if event["action"] == "alloc"
    }
    assert stacks[SEGMENT][0] == {"filename": "model.py", "line": 7, "name": "forward"}
    assert [frame["line"] for frame in stacks[SEGMENT]] == [7, 99, 40]
    pools = {event["stream"]: event.get("pool_id") for event in snapshot["device_traces"][0]}
    assert pools == {0: None, 7: (0, 5)}


def test_the_segments_at_the_end_follow_from_the_events_and_the_blocks_before_them(
    queries: Queries, tmp_path: Path
) -> None:
    """Held against PyTorch's rule: the trace run backwards from the end must meet nothing that does not
    fit."""
    exported(queries, tmp_path, ranks=[0])
    (device,) = read(tmp_path / "s.pickle")
    alive = {"weight": 700, "grad-1": 3000, "pooled-0": 3 * MIB, "pooled-1": 3 * MIB}
    blocks = training().log.allocations
    alive = {blocks[name]["address"]: size for name, size in alive.items()}
    assert {address: block.requested_bytes for address, block in device.blocks.items()} == alive
    assert [block.address for block in device.blocks.values() if block.awaiting_free] == [SEGMENT + 64 * MIB]
    before = reader.baseline(device)
    assert before.residue == 0
    assert list(before.blocks) == [OLDER + 512]
    known = [(segment.address, segment.size_bytes) for segment in device.segments]
    assert known == [(OLDER + 512, 1024), (SEGMENT, 2 * MIB), (SEGMENT + 64 * MIB, 20 * MIB)]


def test_a_slice_of_time_ends_with_what_was_alive_then(queries: Queries, tmp_path: Path) -> None:
    base = BASE_NS
    snapshot, _ = exported(queries, tmp_path, ranks=[0], from_ns=base + 4_000, until_ns=base + 6_000)
    assert [event["time_us"] - base // 1000 for event in snapshot["device_traces"][0]] == [4, 5, 6]
    (device,) = read(tmp_path / "s.pickle")
    assert reader.baseline(device).residue == 0
    assert len(device.blocks) == 4
    assert [block.awaiting_free for block in device.blocks.values()] == [False, True, False, False]


def test_times_stand_on_the_clock_that_ranks_share(queries: Queries, tmp_path: Path) -> None:
    mine, _ = exported(queries, tmp_path, ranks=[0])
    other, _ = exported(queries, tmp_path, ranks=[1])
    first = [snapshot["device_traces"][0][0]["time_us"] for snapshot in (mine, other)]
    assert first[1] - first[0] == 5_000
    assert other["rankmem"]["rank"] == 1


def test_annotations_are_starts_and_ends(queries: Queries, tmp_path: Path) -> None:
    snapshot, _ = exported(queries, tmp_path, ranks=[0])
    told = [(one["stage"], one["name"]) for one in snapshot["external_annotations"]]
    assert told == [("START", "epoch 1"), ("START", "never ends"), ("END", "epoch 1")]


def test_pytorchs_own_commands_take_it(queries: Queries, tmp_path: Path) -> None:
    snapshot, _ = exported(queries, tmp_path, ranks=[0])
    assert "segments: 3" in _memory_viz.segsum(snapshot)
    assert "raise OutOfMemoryError # 40.0MiB requested, 3.0MiB free" in _memory_viz.trace(snapshot)
    flames = _memory_viz.segments(snapshot, format_flamegraph=lambda text: text)
    assert "active_allocated;train.py:40:main;train.py:12:step 3000" in flames
    assert "active_pending_free" in _memory_viz.memory(snapshot, format_flamegraph=lambda text: text)
    for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
        assert "snapshot.pickle" in page
    assert _memory_viz.trace_plot(pickle.loads(pickle.dumps(snapshot)), filter_freed=True)


def test_the_web_viewer_knows_every_opcode_and_finds_unknown_among_the_categories(
    queries: Queries, tmp_path: Path
) -> None:
    snapshot, _ = exported(queries, tmp_path, ranks=[0])
    used = {opcode.name for opcode, _, _ in pickletools.genops((tmp_path / "s.pickle").read_bytes())}
    assert used <= VIEWER_OPCODES
    categories = [event["category"] for event in snapshot["device_traces"][0]]
    assert {"activation", "gradient", "unknown"} == set(categories)


def test_a_cpu_rank_has_made_up_segments_that_hold_every_block(tmp_path: Path) -> None:
    log = RankLog()
    for number, (name, address) in enumerate([("a", 4096), ("b", 1 << 40), ("c", 8192)]):
        log.alloc(name, 600, at=1000 * number, address=address)
        log.events[-1] |= {"address": address, "allocation_id": number}
    log.free("a", at=9000)
    log.events[-1] |= {"address": 4096, "allocation_id": 0}
    job = CudaLog()
    job.log = log
    with connect(database(tmp_path / "cpu.duckdb", [job])) as queries:
        snapshot, written = exported(queries, tmp_path)
    actions = [event["action"] for event in snapshot["device_traces"][0]]
    assert actions == ["alloc", "alloc", "alloc", "free_requested", "free_completed"]
    assert all("category" not in event for event in snapshot["device_traces"][0])
    assert "total_allocated: 1.2KiB" in _memory_viz.segsum(snapshot)
    for event in snapshot["device_traces"][0]:
        assert any(
            one["address"] <= event["addr"] < one["address"] + one["total_size"]
            for one in snapshot["segments"]
        )
    assert any("made-up segments" in remark for remark in written.remarks)


def test_each_rank_gets_a_file_of_its_own(queries: Queries, tmp_path: Path) -> None:
    export(queries, "torch-snapshot", tmp_path / "all")
    assert sorted(path.name for path in (tmp_path / "all").glob("*.pickle")) == [
        "rank-0.pickle",
        "rank-1.pickle",
    ]
    _, written = exported(queries, tmp_path)
    assert any("rank 0, the highest" in remark for remark in written.remarks)


@pytest.mark.parametrize(
    "value", [0, 255, 256, 65535, 65536, -1, 2**31 - 1, 2**31, -(2**31), 2**63, -(2**63), 0.5]
)
def test_numbers_come_back_from_a_pickle_as_they_were(value: float) -> None:
    file = io.BytesIO()
    stream = PickleStream(file)
    stream.value(value)
    stream.end()
    assert pickle.loads(file.getvalue()) == value


def test_long_lists_and_repeated_texts_come_back_as_they_were() -> None:
    file = io.BytesIO()
    stream = PickleStream(file)
    texts = [f"text {number % 700}" for number in range(2_500)] + ["x" * 300, "x" * 300, "é\ud800"]
    with stream.items() as items:
        for text in texts:
            with items.item():
                stream.value(text)
    stream.end()
    assert pickle.loads(file.getvalue()) == texts


def test_expandable_segments_are_listed_whole_and_what_is_unmapped_is_gone(tmp_path: Path) -> None:
    job = CudaLog()
    for number in range(3):
        job.segment("segment_map", SEGMENT + number * 2 * MIB, 2 * MIB)
    job.alloc("block", 3 * MIB, SEGMENT)
    job.segment("segment_unmap", SEGMENT + 4 * MIB, 2 * MIB)
    with connect(database(tmp_path / "e.duckdb", [job])) as queries:
        snapshot, _ = exported(queries, tmp_path)
    (segment,) = snapshot["segments"]
    assert (segment["address"], segment["total_size"], segment["is_expandable"]) == (SEGMENT, 4 * MIB, True)
    assert [(block["state"], block["size"]) for block in segment["blocks"]] == [
        ("active_allocated", 3 * MIB),
        ("inactive", MIB),
    ]
