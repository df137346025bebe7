"""Profiler traces that we make up: threads, ties, older blocks, and values that no profiler writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from import_read import read_alone
from made_profiles import BASE_NS, memory, op, written
from rankmem_imports.formats import FORMATS
from rankmem_imports.probing import Probe
from rankmem_imports.recording import Closing
from rankmem_protos.errors import RankmemError

Tables = dict[str, list[dict[str, Any]]]


def imported(path: Path) -> tuple[Tables, Closing]:
    return read_alone(FORMATS["kineto"], path)


def operators(tables: Tables) -> list[str | None]:
    """The operator of each event, in order."""
    names = {call["call_id"]: call["operator"] for call in tables["operator_call"]}
    return [names.get(row["call_id"]) for row in tables["memory_event"]]


def test_the_call_is_the_outermost_operator_of_the_events_own_thread(tmp_path: Path) -> None:
    events = [
        op("autograd::engine::evaluate_function: MmBackward0", 0, 100),
        op("MmBackward0", 1, 98),
        op("aten::mm", 10, 20),
        op("aten::empty", 12, 5),
        op("aten::relu", 0, 100, tid=2),
        memory(13, 512, 512, 1),
        memory(50, 512, 1024, 2),
        memory(14, 512, 1536, 3, tid=2),
        memory(200, 512, 2048, 4),
    ]
    tables, _ = imported(written(tmp_path, events))
    assert operators(tables) == ["aten::mm", "aten::relu", "MmBackward0", None]


@pytest.mark.parametrize("base", [str(BASE_NS), float(BASE_NS), BASE_NS])
def test_a_base_time_in_another_hand_is_the_same(tmp_path: Path, base: object) -> None:
    trace = written(tmp_path, [memory(5, 512, 512, 1)], baseTimeNanoseconds=base)
    tables, _ = imported(trace)
    assert tables["memory_event"][0]["time_ns"] == BASE_NS + 5000


@pytest.mark.parametrize("base", ["today", [1], 1.5, 10**30])
def test_a_base_time_that_is_none_is_refused(tmp_path: Path, base: object) -> None:
    trace = written(tmp_path, [memory(5, 512, 512, 1)], baseTimeNanoseconds=base)
    with pytest.raises(RankmemError, match=r"trace\.json.*(baseTimeNanoseconds|clock)"):
        imported(trace)


def test_addresses_of_64_bits_and_ranks_as_text_are_read(tmp_path: Path) -> None:
    high = 0xFF00_0000_0020_0000
    events = [memory(5, 512, 512, high, device=12), memory(6, -512, 0, high, device=12)]
    path = written(tmp_path, events, distributedInfo={"rank": "7", "world_size": "8"})
    tables, _ = imported(path)
    assert [row["address"] for row in tables["allocation_record"]] == [high - 2**64]
    assert tables["allocation_record"][0]["freed_ns"] == BASE_NS + 6000
    assert {row["device"] for row in tables["memory_event"]} == {"xpu:0"}
    [recording] = FORMATS["kineto"].open([path])
    assert (recording.facts.rank, recording.facts.world_size) == (7, 8)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"Device Id": 999}, "outside of -1 to 255"),
        ({"Device Type": -3}, "outside of 0 to 255"),
        ({"Bytes": 1 << 60}, "more than any device"),
        ({"Bytes": None}, "a value is missing"),
        ({"Addr": 1 << 70}, "larger than 64 bits"),
    ],
)
def test_an_absurd_event_is_named_with_its_place(tmp_path: Path, said: dict[str, Any], why: str) -> None:
    events = [memory(4, 512, 512, 1), memory(5, 512, 1024, 2)]
    events[1]["args"] |= said
    with pytest.raises(RankmemError, match=rf"trace\.json: event 2 .*{why}"):
        imported(written(tmp_path, events))


def shared(time: float, change: int, address: int) -> dict[str, Any]:
    """As torch tells memory that it maps: no total, and its own bytes as reserved."""
    event = memory(time, change, 0, address, device=0)
    event["args"]["Total Reserved"] = max(change, 0)
    return event


def test_shared_memory_is_beside_the_host_allocators_totals(tmp_path: Path) -> None:
    events = [
        shared(1, 4096, 70),
        memory(2, 512, 10_512, 1, device=0),
        shared(3, 8192, 80),
        memory(4, -512, 10_000, 1, device=0),
        shared(5, -4096, 70),
        memory(6, 100, 10_100, 2, device=0),
    ]
    tables, closing = imported(written(tmp_path, events))
    held = [row["requested_bytes"] for row in tables["memory_event"]]
    assert held == [14_096, 14_608, 22_800, 22_288, 18_192, 18_292]
    assert closing.unexplained_bytes == 0
    assert any("3 events are of shared memory" in said for said in closing.remarks)
    assert not any("other than their bytes" in said for said in closing.remarks)


def test_events_of_one_time_keep_the_files_order(tmp_path: Path) -> None:
    events = [memory(5, 512, 512, 1), memory(5, -512, 0, 1), memory(5, 1024, 1024, 1), memory(3, 0, 0, 9)]
    tables, closing = imported(written(tmp_path, events))
    assert [row["requested_bytes"] for row in tables["memory_event"]] == [0, 512, 0, 1024]
    assert closing.unexplained_bytes == 0
    assert [row["freed_ns"] for row in tables["allocation_record"] if row["size_bytes"] == 512] == [
        BASE_NS + 5000
    ]


def test_blocks_older_than_the_window_are_those_it_frees_and_one_of_the_rest(tmp_path: Path) -> None:
    events = [memory(1, 512, 10_512, 7), memory(2, -4096, 6416, 8), memory(3, -512, 5904, 7)]
    tables, closing = imported(written(tmp_path, events))
    older = [row for row in tables["allocation_record"] if row["preexisting"]]
    assert [(row["address"], row["size_bytes"], row["freed_ns"]) for row in older] == [
        (8, 4096, BASE_NS + 2000),
        (None, 5904, None),
    ]
    assert [row["requested_bytes"] for row in tables["memory_event"]] == [10_512, 6416, 5904]
    assert "10000 bytes are from before the recording" in closing.remarks


def test_what_each_device_held_before_the_window_is_a_block_of_that_device(tmp_path: Path) -> None:
    events = [memory(1, 512, 1512, 7), memory(2, 16, 316, 7, device=0), memory(3, 8, 24, 9, device=6)]
    tables, _ = imported(written(tmp_path, events))
    older = [row for row in tables["allocation_record"] if row["preexisting"]]
    assert {row["device"]: row["size_bytes"] for row in older} == {"cuda:0": 1000, "cpu": 300, "hip:0": 16}


def test_a_total_that_comes_late_tells_what_was_there_before_the_window(tmp_path: Path) -> None:
    events = [memory(1, 100, 0, 7), memory(2, -40, 1060, 8), memory(3, 5, 1065, 9)]
    del events[0]["args"]["Total Allocated"]
    tables, closing = imported(written(tmp_path, events))
    assert [row["requested_bytes"] for row in tables["memory_event"]] == [1100, 1060, 1065]
    assert closing.unexplained_bytes == 0


def test_frees_beyond_the_first_totals_are_told(tmp_path: Path) -> None:
    tables, closing = imported(written(tmp_path, [memory(1, -4096, 0, 8), memory(2, -512, 0, 9)]))
    assert [row["requested_bytes"] for row in tables["memory_event"]] == [512, 0]
    assert "512 bytes of them are not in the trace's first totals" in closing.remarks


def of_the_older_form(*changes: int) -> list[dict[str, Any]]:
    events = [memory(n, change, 0, 0) for n, change in enumerate(changes)]
    for event in events:
        event["args"] = {name: event["args"][name] for name in ("Bytes", "Device Type", "Device Id")}
    return events


def test_a_free_of_the_older_form_gives_back_a_block_of_its_size_or_an_older_one(tmp_path: Path) -> None:
    tables, closing = imported(written(tmp_path, of_the_older_form(100, -400, 50, -50, -20, 500)))
    assert [row["requested_bytes"] for row in tables["memory_event"]] == [520, 120, 170, 120, 100, 600]
    assert {(row["address"], row["reserved_bytes"]) for row in tables["memory_event"]} == {(None, None)}
    blocks = {row["size_bytes"]: row for row in tables["allocation_record"]}
    assert {size: row["preexisting"] for size, row in blocks.items()} == {
        100: False, 400: True, 50: False, 20: True, 500: False,
    }  # fmt: skip
    assert {size: row["freed_ns"] for size, row in blocks.items() if row["freed_ns"]} == {
        400: BASE_NS + 1000, 50: BASE_NS + 3000, 20: BASE_NS + 4000,
    }  # fmt: skip
    assert {row["address"] for row in blocks.values()} == {None}
    assert "420 bytes are from before the recording" in closing.remarks


def test_of_several_blocks_of_a_size_none_has_an_operator_once_one_is_freed(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 0, 2),
        op("aten::add", 5, 5),
        *of_the_older_form(64, 32, 8),  # of aten::mm
        memory(6, 64, 0, 0),
        memory(7, -64, 0, 0),
        memory(8, -32, 0, 0),
    ]
    for event in events[5:]:
        event["args"] = {name: event["args"][name] for name in ("Bytes", "Device Type", "Device Id")}
    tables, closing = imported(written(tmp_path, events))
    made = sorted((row["size_bytes"], row["operator"] or "-") for row in tables["allocation_record"])
    assert made == [(8, "aten::mm"), (32, "aten::mm"), (64, "-"), (64, "-")]
    assert any(remark.startswith("2 blocks have no operator") for remark in closing.remarks)


def test_an_event_without_its_reserved_bytes_leaves_the_total_as_it_was(tmp_path: Path) -> None:
    events = [memory(n, 8, 8 * n + 8, n) for n in range(3)]
    del events[1]["args"]["Total Reserved"]
    tables, _ = imported(written(tmp_path, events))
    assert [row["reserved_bytes"] for row in tables["memory_event"]] == [4096, 4096, 4096]


def test_totals_that_contradict_the_bytes_are_counted(tmp_path: Path) -> None:
    events = [memory(1, 512, 512, 7), memory(2, 512, 2000, 8)]
    _, closing = imported(written(tmp_path, events))
    assert closing.unexplained_bytes == 1024 - 2000
    assert "1 events change the total by another amount than their bytes" in closing.remarks


def test_devices_are_cpu_cuda_and_hip(tmp_path: Path) -> None:
    properties = [{"id": 0, "name": "a GPU", "totalGlobalMem": 99}]
    events = [memory(n, 8, 8, n, device=kind) for n, kind in enumerate((0, 1, 6))]
    tables, _ = imported(written(tmp_path, events, deviceProperties=properties))
    assert [row["device"] for row in tables["memory_event"]] == ["cpu", "cuda:0", "hip:0"]
    said = {row["device"]: (row["name"], row["total_bytes"]) for row in tables["device_info"]}
    assert said == {"cpu": (None, None), "cuda:0": ("a GPU", 99), "hip:0": ("a GPU", 99)}


def test_steps_annotations_and_python_stacks(tmp_path: Path) -> None:
    python = {"Python id": 1, "Python parent id": None}
    events = [
        op("ProfilerStep#7", 0, 100, category="user_annotation"),
        op("decode", 5, 50, category="user_annotation"),
        op("train.py(12): main", 0, 100, tid=0, category="python_function", **python),
        op(
            "model.py(3): forward",
            8,
            40,
            tid=0,
            category="python_function",
            **{"Python id": 2, "Python parent id": 1},
        ),
        op("aten::mm", 10, 5),
        op("aten::add", 60, 5),
        memory(11, 512, 512, 1),
        memory(61, 512, 1024, 2),
    ]
    tables, _ = imported(written(tmp_path, events))
    mm, add = tables["allocation_record"]
    assert (mm["step"], mm["annotation"], add["annotation"]) == (7, "decode", None)
    frames = {
        stack: [
            (f["file_path"], f["line_number"], f["function"])
            for f in tables["stack_frame"]
            if f["stack_id"] == stack
        ]
        for stack in (mm["stack_id"], add["stack_id"])
    }
    assert frames[mm["stack_id"]] == [("model.py", 3, "forward"), ("train.py", 12, "main")]
    assert frames[add["stack_id"]] == [("train.py", 12, "main")]
    assert {row["name"] for row in tables["marker"]} == {"ProfilerStep#7", "decode"}


@pytest.mark.parametrize("category", ["Operator", "cpu_op"])
def test_steps_are_read_where_the_older_form_has_them_among_the_operators(
    tmp_path: Path, category: str
) -> None:
    events = [
        op("ProfilerStep#7", 0, 100, category=category),
        op("aten::mm", 10, 5, category=category),
        op("Optimizer.step#SGD.step", 50, 40, category=category),
        op("aten::add_", 60, 5, category=category),
        op("ProfilerStep#8", 100, 100, category=category),
        *(memory(at, 512, 512, 1) for at in (5, 11, 61, 150)),
    ]
    for event in events[5:]:
        for unsaid in ("Addr", "Total Allocated", "Total Reserved"):
            del event["args"][unsaid]
    tables, _ = imported(written(tmp_path, events))
    assert [(row["step"], row["ended_ns"] - BASE_NS) for row in tables["step"]] == [
        (7, 100_000),
        (8, 200_000),
    ]
    calls = {call["operator"]: (call["phase"], call["step"]) for call in tables["operator_call"]}
    assert calls == {"aten::mm": (None, 7), "aten::add_": ("optimizer", 7)}
    assert operators(tables) == [None, "aten::mm", "aten::add_", None]
    assert {row["name"] for row in tables["marker"]} == {
        "ProfilerStep#7", "ProfilerStep#8", "Optimizer.step#SGD.step",
    }  # fmt: skip


def test_frames_of_the_main_thread_are_found_beside_those_of_a_thread_with_a_smaller_number(
    tmp_path: Path,
) -> None:
    def at(thread: int, pid: int, event: dict[str, Any]) -> dict[str, Any]:
        return event | {"pid": pid, "tid": thread}

    frame = {"category": "python_function", "Python parent id": None}
    events = [
        at(0, 9, op("train.py(12): main", 0, 100, **frame, **{"Python id": 1})),
        at(3, 9, op("loader.py(7): run", 0, 100, **frame, **{"Python id": 2})),
        at(9, 9, op("aten::mm", 10, 5)),
        at(3, 9, op("aten::stack", 20, 5)),
        at(9, 9, memory(11, 512, 512, 1)),
        at(3, 9, memory(21, 512, 1024, 2)),
    ]
    tables, _ = imported(written(tmp_path, events))
    functions = {frame["stack_id"]: frame["function"] for frame in tables["stack_frame"]}
    assert [functions.get(row["stack_id"]) for row in tables["allocation_record"]] == ["main", "run"]


def test_the_rank_is_found_at_either_end_of_the_file(tmp_path: Path) -> None:
    padding = [op("aten::mm", 0, 1, text="x" * 1000) for _ in range(3000)]
    path = written(tmp_path, [*padding, memory(1, 8, 8, 1)], distributedInfo={"rank": 3, "world_size": 8})
    [recording] = FORMATS["kineto"].open([path])
    assert (recording.facts.rank, recording.facts.world_size) == (3, 8)


@pytest.mark.parametrize(
    "head",
    [
        b'{"schemaVersion": 1, "deviceProperties": [',
        b' \n{ "traceEvents": [',
        b'[{"ph": "X", "args": {"External id": 1',
    ],
)
def test_a_trace_is_told_by_its_content(tmp_path: Path, head: bytes) -> None:
    assert FORMATS["kineto"].recognises(Probe(path=tmp_path, head=head))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"PK",
        b'[{"ph": "X", "cat": "async_npu", "pid": 1',
        b'{"model": 1}',
        b"[1, 2, 3]",
        b"[[1, 2, 3], [4, 5]]",
    ],
)
def test_other_json_is_not_a_trace(tmp_path: Path, head: bytes) -> None:
    assert not FORMATS["kineto"].recognises(Probe(path=tmp_path, head=head))


@pytest.mark.parametrize(
    "wrong",
    [
        {"Bytes": 2**60},
        {"Bytes": "many"},
        {"Bytes": None},
        {"Device Type": 999},
        {"Device Id": -7},
        {"Addr": 2**70},
        {"Total Allocated": []},
        {"Total Allocated": -5000},
        {"Total Reserved": -5000},
    ],
)
def test_values_that_no_profiler_writes_are_refused_with_the_event(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    event = memory(1, 8, 8, 1)
    event["args"] |= wrong
    with pytest.raises(RankmemError, match=r"trace\.json"):
        imported(written(tmp_path, [memory(0, 8, 8, 2), event]))


@pytest.mark.parametrize("time", [-1e30, 1e30, "soon", None, -BASE_NS])
def test_times_that_no_clock_shows_are_refused(tmp_path: Path, time: Any) -> None:
    event = memory(1, 8, 8, 1) | {"ts": time}
    with pytest.raises(RankmemError, match=r"trace\.json"):
        imported(written(tmp_path, [event]))


def python_frames(*frames: tuple[str, float, float, int | None]) -> list[dict[str, Any]]:
    """Frames of Python on the main thread, numbered from 1: name, start, duration, number of the caller."""
    return [
        op(
            name,
            start,
            duration,
            tid=0,
            category="python_function",
            **{"Python id": number, "Python parent id": parent},
        )
        for number, (name, start, duration, parent) in enumerate(frames, 1)
    ]


def test_an_allocation_has_the_modules_whose_calls_it_lies_in(tmp_path: Path) -> None:
    events = [
        *python_frames(
            ("train.py(12): main", 0, 100, None),
            ("nn.Module: GPT_0", 5, 80, 1),
            ("torch/nn/modules/module.py(1750): _call_impl", 6, 78, 2),
            ("model.py(30): forward", 7, 76, 3),
            ("nn.Module: Block_1", 10, 30, 4),
            ("nn.Module: Linear_7", 12, 20, 5),
            ("<built-in method linear of type object at 0x7f>", 13, 5, 6),
        ),
        op("aten::linear", 14, 3),
        op("aten::add", 35, 3),
        op("aten::relu", 50, 3),
        op("aten::zeros", 90, 3),
        memory(15, 512, 512, 1),
        memory(36, 512, 1024, 2),
        memory(51, 512, 1536, 3),
        memory(91, 512, 2048, 4),
    ]
    tables, _ = imported(written(tmp_path, events))
    assert [row["module"] for row in tables["allocation_record"]] == [
        "GPT_0.Block_1.Linear_7", "GPT_0.Block_1", "GPT_0", None,
    ]  # fmt: skip
    assert {row["module"]: row["class"] for row in tables["module"]} == {
        "GPT_0": "GPT",
        "GPT_0.Block_1": "Block",
        "GPT_0.Block_1.Linear_7": "Linear",
    }


def test_a_block_of_backward_has_the_module_of_its_forward_call(tmp_path: Path) -> None:
    flow = {"cat": "fwdbwd", "name": "fwdbwd", "pid": 1, "id": 4}
    events = [
        *python_frames(("nn.Module: Linear_0", 5, 20, None)),
        op("aten::mm", 10, 5),
        flow | {"ph": "s", "ts": 10, "tid": 1},
        op("autograd::engine::evaluate_function: MmBackward0", 50, 20, tid=2),
        op("aten::mm", 55, 5, tid=2),
        flow | {"ph": "f", "ts": 55, "tid": 2},
        memory(11, 512, 512, 1),
        memory(56, 512, 1024, 2, tid=2),
    ]
    tables, _ = imported(written(tmp_path, events))
    assert [row["module"] for row in tables["allocation_record"]] == ["Linear_0", "Linear_0"]


def test_objects_at_different_addresses_make_no_stacks_of_their_own(tmp_path: Path) -> None:
    built_ins = [(f"<built-in method cat of Tensor object at 0x{n:x}>", 10.0 * n, 9.0, 1) for n in (1, 2, 3)]
    events = [
        *python_frames(("model.py(7): forward", 0, 100, None), *built_ins),
        *(op("aten::cat", 10 * n + 1, 5) for n in (1, 2, 3)),
        *(memory(10 * n + 2, 512, 512 * n, n) for n in (1, 2, 3)),
    ]
    tables, _ = imported(written(tmp_path, events))
    assert len({row["stack_id"] for row in tables["allocation_record"]}) == 1
    functions = {row["function"] for row in tables["stack_frame"]}
    assert functions == {"forward", "<built-in method cat of Tensor object>"}


def test_an_allocation_in_no_call_has_its_module_and_stack_too(tmp_path: Path) -> None:
    events = [
        *python_frames(("nn.Module: Norm_0", 5, 20, None), ("model.py(7): forward", 6, 18, 1)),
        memory(1, 512, 512, 1),
        memory(11, 512, 1024, 2),
        op("aten::mm", 12, 3),
        memory(13, 512, 1536, 3),
    ]
    tables, _ = imported(written(tmp_path, events))
    assert [row["module"] for row in tables["allocation_record"]] == [None, "Norm_0", "Norm_0"]
    none, outside, inside = [row["stack_id"] for row in tables["allocation_record"]]
    assert none is None
    assert outside == inside is not None
    assert tables["module"][0]["class"] == "Norm"
