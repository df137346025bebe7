"""Traces of other people's jobs: calls and totals against a slow reading of the same file by itself.

The recordings lie outside of the project, at ../shared/recordings; without them these tests are skipped.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from import_read import read_alone
from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Closing
from rankmem_protos.errors import RankmemError

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "recordings" / "kineto"
pytestmark = [
    pytest.mark.recordings,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/recordings/kineto"),
]
WITH_TOTALS = ("h100_bert_small", "h100_vit", "mi300_bert_small", "mi300_qwen", "mi300_sglang_rank0")
DEVICES = {0: "cpu", 1: "cuda:{}", 6: "hip:{}"}
Tables = dict[str, list[dict[str, Any]]]


@functools.cache
def imported(path: Path) -> tuple[Tables, Closing]:
    """All rows by table, and the closing."""
    return read_alone(FORMATS["kineto"], path)


@functools.cache
def events_of(name: str) -> tuple[list[dict[str, Any]], int]:
    """The trace's events as they are, and its base time."""
    whole = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return whole["traceEvents"], whole.get("baseTimeNanoseconds", 0)


def slow_call(event: dict[str, Any], frames: list[dict[str, Any]]) -> str | None:
    """The operator of an event by looking at every frame of its thread."""
    around = [
        f
        for f in frames
        if (f["pid"], str(f["tid"])) == (event["pid"], str(event["tid"]))
        and f["ts"] <= event["ts"] <= f["ts"] + f["dur"]
    ]
    operators = [f for f in around if re.fullmatch(r"(?!torch::)\w+::[\w.]+", f["name"])]
    if operators:
        return str(min(operators, key=lambda f: (f["ts"], -f["dur"]))["name"])
    return str(max(around, key=lambda f: (f["ts"], -f["dur"]))["name"]) if around else None


@pytest.mark.parametrize("name", WITH_TOTALS)
def test_totals_after_each_event_are_the_traces_own(name: str) -> None:
    events, _ = events_of(name)
    tables, closing = imported(FOLDER / f"{name}.json.gz")
    told = [e for e in events if e["name"] == "[memory]"]
    rows = tables["memory_event"]
    assert len(rows) == len(told) == closing.events
    assert closing.unexplained_bytes == 0
    assert "older_segment" not in tables
    for row, event in zip(rows, told, strict=True):
        args = event["args"]
        assert row["device"] == DEVICES[args["Device Type"]].format(args["Device Id"])
        assert row["requested_bytes"] == args["Total Allocated"]
        assert row["action"] == ("alloc" if args["Bytes"] >= 0 else "free_completed")
        assert (row["size_bytes"], row["address"]) == (abs(args["Bytes"]), args["Addr"])
        if args["Device Type"]:
            assert (row["allocated_bytes"], row["reserved_bytes"]) == (
                args["Total Allocated"],
                args["Total Reserved"],
            )
        assert row["stream"] is None


@pytest.mark.parametrize("name", ["h100_bert_small", "h100_vit", "v100_resnet50_old_format"])
def test_the_operator_of_each_event_is_the_outermost_around_it(name: str) -> None:
    events, _ = events_of(name)
    frames = [
        e
        for e in events
        if e.get("cat") in ("cpu_op", "Operator")
        and not e["name"].startswith(("ProfilerStep#", "Optimizer."))
    ]
    told = [e for e in events if e["name"] == "[memory]"][:200]
    tables, _ = imported(FOLDER / f"{name}.json.gz")
    operator = {call["call_id"]: call["operator"] for call in tables["operator_call"]}
    pairs = [
        (operator.get(row["call_id"]), slow_call(event, frames), event["ts"])
        for row, event in zip(tables["memory_event"], told, strict=False)
    ]
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


def test_the_older_form_sums_from_its_first_event() -> None:
    events, _ = events_of("v100_resnet50_old_format")
    tables, closing = imported(FOLDER / "v100_resnet50_old_format.json.gz")
    sums: dict[str, int] = {}
    for row, event in zip(
        tables["memory_event"], (e for e in events if e["name"] == "[memory]"), strict=True
    ):
        sums[row["device"]] = sums.get(row["device"], 0) + event["args"]["Bytes"]
        assert row["requested_bytes"] == sums[row["device"]]
        assert row["time_ns"] == event["ts"] * 1000
        assert (row["address"], row["reserved_bytes"]) == (None, None)
    assert not closing.complete
    assert closing.unexplained_bytes is None
    alive = sum(row["size_bytes"] for row in tables["allocation_record"] if row["freed_ns"] is None)
    assert alive == sum(sums.values())


def test_stacks_steps_and_ranks_are_there() -> None:
    tables, _ = imported(FOLDER / "h100_bert_small.json.gz")
    assert [(s["step"]) for s in tables["step"]] == [6]
    made = [row for row in tables["allocation_record"] if not row["preexisting"]]
    assert {row["step"] for row in made} == {6}
    assert all(row["stack_id"] is not None for row in made)
    [sglang] = FORMATS["kineto"].open([FOLDER / "mi300_sglang_rank0.json.gz"])
    assert (sglang.facts.rank, sglang.facts.world_size, sglang.facts.pid) == (0, 1, 251)
    ranks = [FORMATS["kineto"].open([FOLDER / "two_ranks_no_memory" / f"rank{n}.json.gz"])[0] for n in (0, 1)]
    assert [(r.facts.rank, r.facts.world_size) for r in ranks] == [(0, 128), (1, 128)]


@pytest.mark.parametrize("name", ["no_rank", "two_ranks_no_memory/rank0"])
def test_a_trace_without_memory_events_says_how_to_record_them(name: str) -> None:
    with pytest.raises(RankmemError, match="none of memory") as caught:
        imported(FOLDER / f"{name}.json.gz")
    assert "profile_memory=True" in caught.value.hint
