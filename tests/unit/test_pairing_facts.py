"""Rows that the oracle does not cover: facts of the rank, the allocator's own figures, stacks, components."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rankmem_agent.spool.layout import UNKNOWN, Action, DeviceType, Kind
from rankmem_protos.bounds import TEXT_VALUE_BYTES_MAX
from rankmem_ship.pairing.columns import TEXT_BYTES_MAX, rows_of
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.pairing.stacks import stack_hash
from rankmem_ship.spool_reader.reader import Chunk, Gap
from spool_log import Log
from spool_synthetic import reader_of

CUDA = {"device_type": int(DeviceType.CUDA), "device_index": 1}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_a_clean_end_is_an_exit_and_its_absence_a_kill(tmp_path: Path) -> None:
    for number, clean in enumerate((True, False)):
        log = Log(tmp_path / str(number))
        log.add(Kind.EVENT, a=1, b=2)
        if clean:
            log.add(Kind.END)
        (rank,) = log.rows()["rank_info"]
        assert rank["end_reason"] == ("exit" if clean else "killed")
        assert rank["complete"] is True
        assert rank["ended_at_ns"] is not None


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_whose_events_come_late_lacks_its_last_ones_if_the_process_is_killed(
    log: Log, clean: bool
) -> None:
    log.add(Kind.NOTE, e=log.spool.string(json.dumps({"late": "by some history"})))
    log.add(Kind.LOST, a=1, e=log.spool.string("ring_overwritten"))
    log.add(Kind.EVENT, a=1, b=2)
    if clean:
        log.add(Kind.END)
    rows = log.rows()
    gaps = [(gap["why"], gap["detail"], gap["to_end"], gap["sequence_first"]) for gap in rows["gap"]]
    assert gaps[0] == ("ring_overwritten", None, None, 2)
    assert gaps[1:] == ([] if clean else [("never_read", "by some history", True, 3)])
    (rank,) = rows["rank_info"]
    assert (rank["complete"], rank["events_lost"]) == (False, 1 if clean else None)


def test_a_rank_that_runs_has_no_end(log: Log) -> None:
    rows = log.rows(final=False)
    assert rows["rank_info"][0]["end_reason"] is None
    assert rows["session"][0]["ended_at_ns"] is None


def test_a_note_is_laid_over_the_facts(log: Log) -> None:
    note = log.spool.string(json.dumps({"rank": {"dp": 3, "tp": "x"}, "session": {"name": "better"}}))
    log.add(Kind.NOTE, e=note)
    rows = log.rows()
    assert (rows["rank_info"][0]["dp"], rows["rank_info"][0]["tp"]) == (3, None)
    assert (rows["session"][0]["name"], rows["session"][0]["world_size"]) == ("better", 1)


def test_a_device_record_fills_device_info(log: Log) -> None:
    facts = {"name": "H200", "uuid": "GPU-1", "total_bytes": 2**37, "allocator": "native", "surplus": 1}
    log.add(Kind.DEVICE, e=log.spool.string(json.dumps(facts)), **CUDA)
    (row,) = log.rows()["device_info"]
    assert (row["device"], row["name"], row["total_bytes"]) == ("cuda:1", "H200", 2**37)


def test_a_replay_that_differs_from_the_allocator_is_unexplained(log: Log) -> None:
    log.add(Kind.EVENT, action=Action.ALLOC, a=0x100, b=64, call_id=1, **CUDA)
    log.add(Kind.COUNTERS, a=512, b=512, c=2**21, d=60, call_id=1, **CUDA)
    (rank,) = log.rows()["rank_info"]
    assert (rank["unexplained_bytes"], rank["complete"]) == (4, False)


def test_counters_that_another_calls_event_came_before_prove_nothing(log: Log) -> None:
    log.add(Kind.EVENT, action=Action.ALLOC, a=0x100, b=64, call_id=1, **CUDA)
    log.add(Kind.EVENT, action=Action.ALLOC, a=0x200, b=8, call_id=2, **CUDA)
    log.add(Kind.COUNTERS, a=512, b=512, c=2**21, d=64, call_id=1, **CUDA)
    (rank,) = log.rows()["rank_info"]
    assert (rank["unexplained_bytes"], rank["complete"]) == (0, True)


def test_a_bucket_ends_where_the_numbers_pass_a_multiple_however_dense_the_events(log: Log) -> None:
    for number in range(150):  # the clock's own record has the number 0
        log.add(
            Kind.EVENT, action=Action.ALLOC, a=0x1000 + number, b=10 if number % 3 else 0, call_id=1, **CUDA
        )
    buckets = log.rows()["memory_bucket"]
    bounds = [(bucket["seq_first"], bucket["seq_last"], bucket["events"]) for bucket in buckets]
    assert bounds == [(1, 63, 63), (64, 127, 64), (128, 150, 23)]
    assert [bucket["requested_last_bytes"] for bucket in buckets] == [420, 840, 1000]
    assert [bucket["requested_peak_seq"] for bucket in buckets] == [63, 126, 150]


def test_the_allocators_own_peak_reaches_the_bucket(log: Log) -> None:
    log.add(Kind.PEAKS, a=1000, b=1000, c=2**21, d=900, **CUDA)
    log.add(Kind.EVENT, action=Action.ALLOC, a=0x100, b=64, call_id=1, **CUDA)
    log.add(Kind.EVENT, action=Action.SEGMENT_ALLOC, a=0x100, b=2**21, **CUDA)
    log.add(Kind.COUNTERS, a=512, b=600, c=2**21, d=64, call_id=1, **CUDA)
    log.add(Kind.PEAKS, a=4096, b=5000, c=2**21, d=3000, **CUDA)
    (bucket,) = log.rows()["memory_bucket"]
    assert (bucket["allocated_peak_bytes"], bucket["allocated_last_bytes"]) == (4096, 512)
    assert (bucket["active_peak_bytes"], bucket["active_last_bytes"]) == (5000, 600)
    assert (bucket["reserved_peak_bytes"], bucket["events"]) == (2**21, 2)
    assert bucket["requested_peak_bytes"] == 64


def test_pools_and_components_come_from_the_pool_id(log: Log) -> None:
    for number, pool in enumerate((0, 7 << 32, 9)):
        log.add(Kind.EVENT, action=Action.ALLOC, a=0x100 * (number + 1), b=1, c=5, d=pool, **CUDA)
    log.add(Kind.EVENT, action=Action.ALLOC, a=0x900, b=1, device_type=int(DeviceType.PINNED))
    rows = log.rows()
    expected = [(None, "pytorch"), ("7.0", "cuda_graph"), ("0.9", "mem_pool"), (None, "pinned_host")]
    for table in ("memory_event", "allocation_record"):
        assert [(row["pool"], row["component"]) for row in rows[table]] == expected
    assert [row["stream"] for row in rows["memory_event"]] == [5, 5, 5, None]


def test_an_out_of_memory_names_its_operator_and_what_was_free(log: Log) -> None:
    log.add(Kind.CALL_BEGIN, call_id=1, e=log.spool.string("aten::empty"))
    log.add(Kind.EVENT, action=Action.ALLOC, a=0x100, b=64, call_id=1, **CUDA)
    log.add(Kind.EVENT, action=Action.OOM, b=2**40, d=12345, call_id=1, **CUDA)
    rows = log.rows()
    (oom,) = rows["oom"]
    assert (oom["size_bytes"], oom["device_free_bytes"], oom["requested_bytes"]) == (2**40, 12345, 64)
    assert oom["operator"] == "aten::empty"
    assert rows["memory_event"][-1]["pool"] is None


def test_an_unknown_sample_is_null(log: Log) -> None:
    log.add(Kind.SAMPLE, a=10, b=UNKNOWN, c=UNKNOWN, d=UNKNOWN)
    (row,) = log.rows()["process_sample"]
    assert (row["device"], row["app_reserved_bytes"], row["device_free_bytes"]) == ("cpu", 10, None)


def test_a_sample_of_pinned_memory_is_a_components_and_not_the_processs(log: Log) -> None:
    log.add(Kind.SAMPLE, a=64, b=10, c=UNKNOWN, d=UNKNOWN, device_type=int(DeviceType.PINNED))
    rows = log.rows()
    (row,) = rows["component_sample"]
    assert (row["device"], row["component"]) == ("pinned", "pinned_host")
    assert (row["reserved_bytes"], row["active_bytes"], row["seq"]) == (64, 10, 1)
    assert "process_sample" not in rows


def test_a_communicators_bytes_are_a_component_of_its_device(log: Log) -> None:
    names = [log.spool.string(text) for text in ("NCCL default_pg", "NCCL mesh_tp")]
    log.add(Kind.COMMUNICATOR, a=600, e=names[0], **CUDA)
    log.add(Kind.SAMPLE, a=64, b=10, c=UNKNOWN, d=UNKNOWN, device_type=int(DeviceType.PINNED))
    log.add(Kind.COMMUNICATOR, a=80, e=names[1], **CUDA)
    log.add(Kind.COMMUNICATOR, a=0, e=names[1], **CUDA)
    rows = log.rows()
    columns = ("device", "component", "reserved_bytes", "active_bytes", "seq")
    assert [tuple(row[name] for name in columns) for row in rows["component_sample"]] == [
        ("cuda:1", "NCCL default_pg", 600, None, 1),
        ("pinned", "pinned_host", 64, 10, 2),
        ("cuda:1", "NCCL mesh_tp", 80, None, 3),
        ("cuda:1", "NCCL mesh_tp", 0, None, 4),
    ]
    assert "process_sample" not in rows


def test_one_stack_has_one_id_wherever_the_project_lies(tmp_path: Path) -> None:
    ids = []
    for number, root in enumerate(("/home/a/project", "/mnt/b/project")):
        log = Log(tmp_path / str(number))
        meta = json.loads((log.spool.path / "meta.json").read_text()) | {"project_root": root}
        (log.spool.path / "meta.json").write_text(json.dumps(meta))
        stack = log.spool.stack([(f"{root}/model.py", "forward", 7), ("/usr/lib/x.py", "f", 1)])
        log.add(Kind.CALL_BEGIN, call_id=1, e=log.spool.string("op"))
        log.add(Kind.CALL_END, call_id=1, e=stack)
        rows = log.rows()
        assert [row["file_path"] for row in rows["stack_frame"]] == ["model.py", "/usr/lib/x.py"]
        ids.append(rows["operator_call"][0]["stack_id"])
    assert ids[0] == ids[1] == stack_hash([("model.py", 7, "forward"), ("/usr/lib/x.py", 1, "f")])


def test_a_step_of_the_hosts_clock_moves_no_row(log: Log) -> None:
    log.add(Kind.EVENT, a=1, b=1)
    log.add(Kind.CLOCK, a=log.spool.realtime_ns - 10**12)
    log.add(Kind.EVENT, a=2, b=1)
    times = np.array([row["time_ns"] for row in log.rows()["memory_event"]])
    assert list(times - log.spool.realtime_ns) == [1, 3]


def test_an_empty_log_tells_of_its_rank_all_the_same(log: Log) -> None:
    rows = log.rows()
    assert rows.keys() == {"rank_info", "session", "host_info"}


def test_events_lost_at_the_source_are_a_gap_and_the_rank_is_not_complete(log: Log) -> None:
    why = log.spool.string("ring_overwritten")
    log.add(Kind.LOST, a=40, e=why, **CUDA)
    log.add(Kind.LOST, a=UNKNOWN, e=why, **CUDA)
    rows = log.rows()
    assert [(row["why"], row["records"], row["sequence_first"]) for row in rows["gap"]] == [
        ("ring_overwritten", 40, 1),
        ("ring_overwritten", 1, 2),
    ]
    assert (rows["rank_info"][0]["events_lost"], rows["rank_info"][0]["complete"]) == (41, False)


def test_blocks_of_a_device_whose_recording_ended_do_not_live_on(log: Log) -> None:
    until = [
        log.spool.string(json.dumps({"source": source})) for source in ("tap", "tap, until CUDA was used")
    ]
    log.add(Kind.DEVICE, e=until[0])
    log.add(Kind.EVENT, a=0x100, b=64)
    log.add(Kind.EVENT, a=0x200, b=32)
    log.add(Kind.EVENT, a=0x200, action=Action.FREE_COMPLETED)
    log.add(Kind.EVENT, a=0x100, b=8, **CUDA)
    log.add(Kind.DEVICE, e=until[1])
    rows = log.rows()
    freed = {(row["device"], row["address"]): row["freed_seq"] for row in rows["allocation_record"]}
    assert freed == {("cpu", 0x100): 6, ("cpu", 0x200): 4, ("cuda:1", 0x100): None}
    assert 6 not in {row["seq"] for row in rows["memory_event"]}
    assert rows["memory_bucket"][0]["requested_last_bytes"] == 0
    assert {row["source"] for row in rows["device_info"] if row["device"] == "cpu"} == {
        "tap, until CUDA was used"
    }
    assert rows["rank_info"][0]["complete"] is True


def test_a_parameter_has_the_stack_of_the_block_it_lies_in_and_only_its_last_telling(log: Log) -> None:
    stack = log.spool.stack([("/project/m.py", "build", 3)])
    facts = [{"name": "a.weight", "dtype": dtype, "shape": [4, 2]} for dtype in ("float32", "bfloat16")]
    texts = [log.spool.string(json.dumps(each)) for each in facts]
    log.add(Kind.CALL_BEGIN, call_id=1, e=log.spool.string("aten::empty"))
    log.add(Kind.EVENT, a=0x100, b=128, call_id=1)
    log.add(Kind.CALL_END, call_id=1, e=stack)
    log.add(Kind.WEIGHT, a=0x100, b=32, e=texts[0])
    log.add(Kind.WEIGHT, a=0x140, b=16, c=16, e=texts[1])
    (row,) = log.rows()["weight"]
    assert (row["name"], row["dtype"], row["shape"]) == ("a.weight", "bfloat16", "[4, 2]")
    assert (row["size_bytes"], row["grad_size_bytes"]) == (16, 16)
    assert row["stack_id"] == stack_hash([("m.py", 3, "build")])


def test_another_database_is_told_the_model_anew_and_this_one_only_once(log: Log) -> None:
    log.add(Kind.MODULE, a=log.spool.string("encoder.0"), e=log.spool.string("Linear"))
    log.add(Kind.WEIGHT, a=0x100, b=32, e=log.spool.string(json.dumps({"name": "encoder.0.weight"})))
    reader = reader_of(log.spool.path)
    pairing = Pairing(reader.meta, reader.strings)
    part = reader.read(1000)
    assert part is not None
    pairing.feed(part)
    told = [{table for table, _ in pairing.cut()} & {"module", "weight"} for _ in range(2)]
    pairing.forget_sent()
    told.append({table for table, _ in pairing.cut()} & {"module", "weight"})
    assert told == [{"module", "weight"}, set(), {"module", "weight"}]


def test_a_range_of_torchs_own_hides_no_annotation(log: Log) -> None:
    names = ("mine", "Optimizer.step#AdamW.step", "ProfilerStep#7", "DistributedDataParallel.forward")
    for number, name in enumerate(names):
        log.add(Kind.MARKER_BEGIN, a=number + 1, e=log.spool.string(name), thread=1)
    log.add(Kind.EVENT, a=0x100, b=8, thread=1)
    log.add(Kind.EVENT, a=0x200, b=8, thread=2)
    rows = log.rows()
    assert [row["annotation"] for row in rows["allocation_record"]] == ["mine", None]
    assert len(rows["marker"]) == len(names)


@pytest.mark.parametrize("cuts", [False, True])
def test_nothing_is_within_a_range_whose_end_may_be_missing(log: Log, cuts: bool) -> None:
    for number, name in enumerate(("epoch", "validation")):
        log.add(Kind.MARKER_BEGIN, a=number + 1, e=log.spool.string(name), thread=1)
    log.add(Kind.EVENT, a=0x100, b=8, thread=1)
    log.add(Kind.EVENT, a=0x200, b=8, thread=1)
    log.add(Kind.MARKER_BEGIN, a=4, e=log.spool.string("training"), thread=1)
    log.add(Kind.EVENT, a=0x300, b=8, thread=1)
    log.add(Kind.MARKER_END, a=4)
    log.add(Kind.EVENT, a=0x400, b=8, thread=1)
    log.add(Kind.MARKER_END, a=1)
    reader = reader_of(log.spool.path)
    pairing = Pairing(reader.meta, reader.strings)
    part = reader.read(1000)
    assert isinstance(part, Chunk)
    before, missing = 4, 100  # the clock, two ranges and a block; then records that are not there
    pairing.feed(Chunk(sequence_first=0, records=part.records[:before]))
    tables = pairing.cut() if cuts else []
    pairing.feed(Gap(sequence_first=before, sequence_last=before + missing - 1, why="spool_full"))
    pairing.feed(Chunk(sequence_first=before + missing, records=part.records[before:]))
    rows: dict[str, list[dict[str, object]]] = {}
    for table, batch in (*tables, *pairing.cut(final=True)):
        rows.setdefault(table, []).extend(batch.to_pylist())
    found = [row["annotation"] for row in rows["allocation_record"]]
    assert found == ["validation", None, "training", None]
    ends = {row["name"]: (row["depth"], row["ended_ns"] is None) for row in rows["marker"]}
    assert ends == {"epoch": (0, False), "validation": (1, True), "training": (0, False)}


def test_a_segment_older_than_the_recording_is_told_and_those_that_came_later_are_events(log: Log) -> None:
    log.add(Kind.PREEXISTING, action=Action.SEGMENT_ALLOC, **CUDA, a=4096, b=1 << 20, c=7)
    log.add(Kind.PREEXISTING, action=Action.SEGMENT_ALLOC, **CUDA, a=2**63 + 4096, b=2 << 20, d=3 << 32 | 1)
    log.add(Kind.PREEXISTING, action=Action.ALLOC, **CUDA, a=4096, b=100)
    log.add(Kind.COUNTERS, **CUDA, a=512, b=512, c=3 << 20, d=100)
    log.add(Kind.EVENT, action=Action.SEGMENT_ALLOC, **CUDA, a=1 << 40, b=1 << 20)
    rows = log.rows()
    told = [
        (row["device"], row["address"], row["size_bytes"], row["stream"], row["pool"])
        for row in rows["older_segment"]
    ]
    assert told == [("cuda:1", 4096, 1 << 20, 7, None), ("cuda:1", 4096 - 2**63, 2 << 20, 0, "3.1")]
    assert [row["seq"] for row in rows["older_segment"]] == [1, 2]
    assert [row["reserved_bytes"] for row in rows["memory_event"]] == [4 << 20]


def test_the_allocators_size_of_a_block_older_than_the_recording_is_in_its_row_alone(log: Log) -> None:
    log.add(Kind.PREEXISTING, action=Action.ALLOC, **CUDA, a=4096, b=100, call_id=512)
    log.add(Kind.PREEXISTING, action=Action.ALLOC, **CUDA, a=8192, b=700, call_id=1 << 20)
    log.add(
        Kind.PREEXISTING, action=Action.ALLOC, **CUDA, a=16384, b=300
    )  # by an agent that did not record it
    log.add(Kind.EVENT, action=Action.ALLOC, **CUDA, a=1 << 40, b=900)
    log.add(Kind.EVENT, action=Action.FREE_COMPLETED, **CUDA, a=8192, b=700)
    log.add(Kind.EVENT, action=Action.ALLOC, **CUDA, a=8192, b=50)
    rows = log.rows()
    told = {
        (r["address"], r["size_bytes"]): (r["block_bytes"], r["call_id"]) for r in rows["allocation_record"]
    }
    assert told == {
        (4096, 100): (512, None),
        (8192, 700): (1 << 20, None),
        (16384, 300): (None, None),
        (1 << 40, 900): (None, None),
        (8192, 50): (None, None),
    }


def test_a_text_longer_than_its_column_takes_is_cut_and_says_so() -> None:
    command = "train.py " + "--päth=/ä " * 60_000
    row = {"session_id": "s", "source": "live", "command": command, "name": "\ud800"}
    (told,) = rows_of("session", [row]).to_pylist()
    kept = told["command"].encode()
    assert len(kept) <= TEXT_BYTES_MAX <= TEXT_VALUE_BYTES_MAX
    words = told["command"].rpartition(" … ")
    assert command.startswith(words[0])
    assert words[2] == f"({len(command.encode()) - len(words[0].encode())} bytes more)"
    assert told["name"] == "?"


ODD: dict[str, object] = {
    "world_size": 99_999_999_999,
    "dp": 99_999_999_999,
    "tp": -(10**30),
    "pid": 10**40,
    "local_rank": float("inf"),
}


def test_a_number_that_its_column_cannot_hold_is_left_out(tmp_path: Path) -> None:
    log = Log(tmp_path)
    path = log.spool.path / "meta.json"
    meta = json.loads(path.read_text())
    meta["rank"] |= ODD
    meta["session"] |= {"world_size": 2**62}
    meta["host"] |= {"memory_bytes": -1, "cpu_count": 10**20}
    path.write_text(json.dumps(meta))
    rows = log.rows()
    (rank,), (session,), (host,) = rows["rank_info"], rows["session"], rows["host_info"]
    assert [rank[name] for name in ODD if name != "pid"] == [None] * (len(ODD) - 1)
    assert rank["host_uid"] == "host-a"
    assert (session["world_size"], host["memory_bytes"], host["cpu_count"]) == (None, None, None)


def test_reserved_bytes_are_never_below_zero_where_the_making_of_a_segment_is_missing(log: Log) -> None:
    log.add(Kind.EVENT, action=Action.SEGMENT_ALLOC, **CUDA, a=1 << 40, b=1 << 20)
    log.add(Kind.EVENT, action=Action.SEGMENT_FREE, **CUDA, a=2 << 40, b=8 << 20)
    log.add(Kind.EVENT, action=Action.SEGMENT_ALLOC, **CUDA, a=3 << 40, b=2 << 20)
    assert [row["reserved_bytes"] for row in log.rows()["memory_event"]] == [1 << 20, 0, 2 << 20]


def test_each_tensor_of_a_call_is_a_row_and_a_damaged_text_leaves_the_bytes(log: Log) -> None:
    string = log.spool.string
    tensors = [["0", "int64", [8, 16], 1024], ["mask", "bool", [], 1], ["odd"], ["x", "y", "z", -1]]
    facts = string(json.dumps({"tensors": tensors}))
    log.add(Kind.INPUT, action=1, a=3, b=1025, c=string("GPT"), e=facts)
    log.add(Kind.INPUT, a=4, b=77, d=2, e=string('{"tensors": 5'))
    known, mask, odd, alone = log.rows()["step_input"]
    assert {**known, "seq": 0, "time_ns": 0, "session_id": ""} == {
        "session_id": "", "attempt": 0, "rank": 0, "step": 3, "seq": 0, "time_ns": 0, "module": "GPT",
        "with_grad": True, "argument": "0", "dtype": "int64", "shape": "[8, 16]", "size_bytes": 1024,
        "call_bytes": 1025, "num_left_out": 0,
    }  # fmt: skip
    assert (mask["shape"], mask["size_bytes"]) == ("[]", 1)
    assert (odd["shape"], odd["size_bytes"]) == ('"z"', None)
    assert (alone["step"], alone["module"], alone["argument"], alone["call_bytes"]) == (4, None, None, 77)
    assert (alone["with_grad"], alone["num_left_out"]) == (False, 2)
