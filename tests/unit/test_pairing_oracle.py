"""Pairing against a slow oracle, on arbitrary logs cut at arbitrary places."""

from __future__ import annotations

import functools
import itertools
import json
import random
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairing_oracle import Oracle, Record
from rankmem_agent.spool.layout import NO_SEQUENCE, UNKNOWN, Action, DeviceType, Kind
from rankmem_protos.tables import BUCKET_RECORDS
from rankmem_ship.checkpoint import load_checkpoint, save_checkpoint
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.pairing.stacks import stack_hash
from rankmem_ship.spool_reader.reader import Chunk
from rankmem_ship.spool_reader.segments import RECORD_DTYPE
from rankmem_ship.spool_reader.string_table import StringTable
from repetitions import examples
from spool_log import BASE_NS, META
from spool_synthetic import SyntheticSpool

DEVICES = [(DeviceType.CPU, 0), (DeviceType.CUDA, 0), (DeviceType.CUDA, 1), (DeviceType.PINNED, 0)]
ADDRESSES = [0x1000, 0x2000, 0x3000, 2**47 + 64]
TEXTS = ["one", "Optimizer.step#SGD.step", "ProfilerStep#3", "two"]
TEXTS += [json.dumps({"name": name, "dtype": "torch.float32", "shape": [3, 3]}) for name in ("w", "v")]
TORCHS_OWN = frozenset({2, 3})
BACKWARD = ("/x/torch/autograd/graph.py", "_engine_run_backward", 1)
STACKS = [
    [("/x/a.py", "f", 1)],
    [("/x/a.py", "f", 1), ("/x/torch/nn/modules/module.py", "Module._call_impl", 2), BACKWARD],
    [BACKWARD, ("/x/torch/utils/checkpoint.py", "CheckpointFunction.backward", 3), BACKWARD],
]
RECOMPUTING = frozenset({2})


@functools.cache
def strings() -> StringTable:
    """TEXTS and STACKS, numbered from 1."""
    with tempfile.TemporaryDirectory() as folder:
        spool = SyntheticSpool(path=Path(folder) / "s")
        assert [spool.string(text) for text in TEXTS] == list(range(1, len(TEXTS) + 1))
        assert [spool.stack(stack) for stack in STACKS] == [1, 2, 3]
        table = StringTable(spool.path / "strings")
        table.poll()
    return table


class LogMaker:
    """A random log that keeps the format's rules (calls of a thread follow one another) and no others."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.records: list[Record] = []
        self.time_ns = 0
        self.open_calls: dict[int, list[dict[str, int]]] = defaultdict(list)
        self.sequence: dict[int, int] = defaultdict(int)
        self.num_calls = 0
        self.num_markers = 0
        self.open_markers: dict[int, list[int]] = defaultdict(list)

    def make(self, count: int, *, only_calls: bool = False) -> list[Record]:
        self._add(Kind.CLOCK, 0)
        self.records[0]["a"] = BASE_NS + self.records[0]["time_ns"]
        steps = [self._block] * 12 + [self._begin, self._end, self._end, self._forward, self._marker]
        steps += [self._begin, self._node, self._node, self._marker, self._segment, self._older]
        steps += [
            self._counters,
            self._rounding,
            self._oom,
            self._step,
            self._lost,
            self._telling,
            self._model,
        ]
        if only_calls:
            steps = [self._begin, self._begin, self._end, self._end, self._node, self._node, self._forward]
        while len(self.records) < count:
            self.rng.choice(steps)(self.rng.randrange(3))
        return self.records

    def _add(self, kind: Kind, thread: int, **fields: int) -> None:
        self.time_ns += self.rng.choice([-50, 0, 1, 100, 400_000_000])
        self.time_ns = max(self.time_ns, 0)
        record = dict.fromkeys(RECORD_DTYPE.names or (), 0)
        record |= {"kind": int(kind), "time_ns": self.time_ns, "thread": thread}
        self.records.append(record | {name: int(value) for name, value in fields.items()})

    def _device(self) -> dict[str, int]:
        device_type, index = self.rng.choice(DEVICES)
        return {"device_type": int(device_type), "device_index": index}

    def _block(self, thread: int) -> None:
        action = self.rng.choice([Action.ALLOC, Action.ALLOC, Action.FREE_COMPLETED, Action.FREE_REQUESTED])
        size = self.rng.randrange(1, 100) if action == Action.ALLOC else 0
        address = self.rng.choice(ADDRESSES)
        call_id = self._call(thread)
        self._add(Kind.EVENT, thread, action=action, a=address, b=size, call_id=call_id, **self._device())

    def _call(self, thread: int) -> int:
        return self.open_calls[thread][-1]["call_id"] if self.open_calls[thread] else 0

    def _begin(self, thread: int) -> None:
        """A call, perhaps within others."""
        self.num_calls += 1
        self.open_calls[thread].append({"call_id": self.num_calls})
        fields = {"action": self.rng.randrange(4), "c": self.rng.randrange(3), "e": self.rng.randrange(1, 5)}
        module = self.rng.randrange(4)
        self._add(Kind.CALL_BEGIN, thread, call_id=self.num_calls, a=self.time_ns, b=module, **fields)

    def _node(self, thread: int) -> None:
        """An autograd node, made by the innermost call."""
        if self.open_calls[thread]:
            call = self.open_calls[thread][-1]
            call |= {"b": call.get("b", self.sequence[thread]), "c": self.sequence[thread]}
            self.sequence[thread] += 1

    def _end(self, thread: int) -> None:
        if self.open_calls[thread]:
            fields = {"b": NO_SEQUENCE, "c": NO_SEQUENCE} | self.open_calls[thread].pop()
            self._add(Kind.CALL_END, thread, d=self.rng.randrange(2), e=self.rng.randrange(4), **fields)

    def _forward(self, thread: int) -> None:
        if self.open_calls[thread]:
            made_by = self.rng.randrange(3)
            link = {"a": made_by, "b": self.rng.randrange(self.sequence[made_by] + 2)}
            self._add(Kind.CALL_FORWARD, thread, call_id=self._call(thread), **link)

    def _marker(self, thread: int) -> None:
        open_here = self.open_markers[self.rng.choice([thread, thread, thread, 0])]
        if open_here and self.rng.random() < 0.4:
            at = self.rng.choice([-1, -1, -1, 0])
            self._add(Kind.MARKER_END, thread, a=open_here.pop(at))
        else:
            self.num_markers += 1
            self.open_markers[thread].append(self.num_markers)
            kind, name = self.rng.choice([0, 0, 0, 1, 2, 3]), self.rng.randrange(1, 5)
            self._add(Kind.MARKER_BEGIN, thread, a=self.num_markers, action=kind, e=name)

    def _step(self, thread: int) -> None:
        self._add(Kind.STEP, thread, a=self.rng.randrange(3), e=1)

    def _lost(self, thread: int) -> None:
        self._add(Kind.LOST, thread, a=self.rng.choice([UNKNOWN, 7]), e=1, **self._device())

    def _telling(self, thread: int) -> None:
        self._add(Kind.DEVICE, thread, e=1, **self._device())

    def _model(self, thread: int) -> None:
        self._add(Kind.MODULE, thread, a=self.rng.randrange(1, 5), e=self.rng.randrange(1, 5))
        weight = {"a": self.rng.choice(ADDRESSES), "b": 9, "c": 0, "e": self.rng.randrange(5, 7)}
        self._add(Kind.WEIGHT, thread, **weight, **self._device())

    def _segment(self, thread: int) -> None:
        action = self.rng.choice(
            [Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP]
        )
        self._add(Kind.EVENT, thread, action=action, a=0x9000, b=512, **self._device())

    def _older(self, thread: int) -> None:
        action = self.rng.choice([Action.ALLOC, Action.ALLOC, Action.SEGMENT_ALLOC])
        address = self.rng.choice(ADDRESSES)
        size = self.rng.randrange(1, 100)
        self._add(Kind.PREEXISTING, thread, action=action, a=address, b=size, **self._device())

    def _counters(self, thread: int) -> None:
        figures = {name: self.rng.randrange(1000) for name in "abcd"}
        device = {"device_type": int(DeviceType.CUDA), "device_index": self.rng.randrange(2)}
        unknown = {} if self.rng.randrange(4) else {"a": UNKNOWN}
        moves = {"e": self.rng.randrange(2)}
        self._add(Kind.COUNTERS, thread, call_id=self._call(thread), **figures | unknown, **moves, **device)

    def _rounding(self, thread: int) -> None:
        fields = {"a": self.rng.randrange(2000), "b": -self.rng.randrange(1000) % 2**64}
        self._add(Kind.ROUNDING, thread, **fields, **self._device())

    def _oom(self, thread: int) -> None:
        self._add(Kind.EVENT, thread, action=Action.OOM, a=0, b=77, d=5, **self._device())


def paired(
    records: list[Record], cuts: list[int], tmp: Path | None = None
) -> dict[str, list[dict[str, Any]]]:
    """All rows of the log, cut before each of ``cuts``; with ``tmp`` the state goes through a checkpoint."""
    array = np.array([tuple(r[n] for n in RECORD_DTYPE.names or ()) for r in records], RECORD_DTYPE)
    pairing = Pairing(META, strings())
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    borders = [0, *sorted(cuts), len(records)]
    for begin, end in itertools.pairwise(borders):
        if end > begin:
            pairing.feed(Chunk(sequence_first=begin, records=array[begin:end]))
        for table, batch in pairing.cut(final=end == len(records)):
            batch.validate(full=True)
            rows[table] += batch.to_pylist()
        if tmp is not None:
            save_checkpoint(tmp, pairing.state)
            pairing = Pairing(META, strings(), load_checkpoint(tmp))
        if end == len(records):
            break
    return rows


def merged_allocations(rows: dict[str, list[dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    """allocation_record with allocation_end laid over it; each at most once for a block."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows["allocation_record"]:
        assert row["allocation_id"] not in merged
        merged[row["allocation_id"]] = dict(row)
    ended = set()
    for row in rows["allocation_end"]:
        assert row["allocation_id"] not in ended
        ended.add(row["allocation_id"])
        merged[row["allocation_id"]] |= {
            k: v for k, v in row.items() if k.startswith("free") and v is not None
        }
    return merged


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Record], list[int]]:
    count = draw(st.integers(1, 250))
    records = LogMaker(random.Random(draw(st.integers(0, 2**32)))).make(count)
    cuts = draw(st.lists(st.integers(0, len(records) - 1), max_size=12))
    return records, cuts


def text(string_id: int) -> str | None:
    return TEXTS[string_id - 1] if string_id else None


def hash_of(stack: int) -> int | None:
    return stack_hash((file, line, name) for file, name, line in STACKS[stack - 1]) if stack else None


def texts_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("operator", "module", "annotation", "stack_id", "forward_stack_id")}


def oracle_of(records: list[Record]) -> Oracle:
    oracle = Oracle(base_ns=BASE_NS, torchs_own=TORCHS_OWN, recomputing=RECOMPUTING)
    for seq, record in enumerate(records):
        oracle.feed(seq, record)
    oracle.finish()
    return oracle


RELAXED = examples(0.6)


@RELAXED
@given(logs())
def test_events_and_their_totals_are_the_oracles_wherever_the_log_is_cut(
    log: tuple[list[Record], list[int]],
) -> None:
    records, cuts = log
    expected = oracle_of(records).events
    got = paired(records, cuts)["memory_event"]
    assert [{key: row[key] for key in expected[0]} for row in got] == expected if expected else not got


@RELAXED
@given(logs())
def test_every_block_is_told_once_and_as_the_oracle_saw_it(log: tuple[list[Record], list[int]]) -> None:
    records, cuts = log
    expected = oracle_of(records).allocations
    got = merged_allocations(paired(records, cuts))
    assert got.keys() == expected.keys()
    columns: tuple[str, ...] = (
        "device",
        "address",
        "size_bytes",
        "call_id",
        "allocated_ns",
        "free_requested_ns",
        "preexisting",
    )
    columns += ("free_requested_seq", "freed_ns", "freed_seq", "phase", "step")
    columns += ("forward_call_id", "recomputed")
    for allocation_id, block in expected.items():
        row = got[allocation_id]
        assert {name: row[name] for name in columns} == {name: block[name] for name in columns}
        assert texts_of(row) == {
            **{name: text(block[name]) for name in ("operator", "module", "annotation")},
            "stack_id": hash_of(block["stack"]),
            "forward_stack_id": hash_of(block["forward_stack"]),
        }


@st.composite
def logs_of_calls(draw: st.DrawFn) -> tuple[list[Record], list[int]]:
    """Nested calls that make autograd nodes and lead to one another, also in chains."""
    maker = LogMaker(random.Random(draw(st.integers(0, 2**32))))
    records = maker.make(draw(st.integers(50, 150)), only_calls=True)
    return records, draw(st.lists(st.integers(0, len(records) - 1), max_size=6))


@RELAXED
@given(st.one_of(logs(), logs_of_calls(), logs_of_calls()))
def test_calls_and_their_forward_calls_are_the_oracles(log: tuple[list[Record], list[int]]) -> None:
    records, cuts = log
    expected = oracle_of(records).calls
    rows = paired(records, cuts)["operator_call"]
    assert sorted(row["call_id"] for row in rows) == sorted(expected)
    columns: tuple[str, ...] = (
        "phase",
        "step",
        "thread",
        "sequence_first",
        "sequence_last",
        "forward_thread",
        "started_ns",
    )
    columns += (
        "recomputed",
        "forward_sequence",
        "forward_call_id",
        "ended_ns",
        "allocated_bytes",
        "freed_bytes",
        "allocations",
    )
    for row in rows:
        call = expected[row["call_id"]]
        assert {name: row[name] for name in columns} == {name: call[name] for name in columns}
        assert texts_of(row) == {
            **{name: text(call[name]) for name in ("operator", "module", "annotation")},
            "stack_id": hash_of(call["stack"]),
            "forward_stack_id": hash_of(call["forward_stack"]),
        }


@RELAXED
@given(logs())
def test_events_that_the_source_lost_are_gaps_and_the_rank_is_not_complete(
    log: tuple[list[Record], list[int]],
) -> None:
    records, cuts = log
    expected = oracle_of(records).losses
    rows = paired(records, cuts)
    assert [(row["sequence_first"], row["records"]) for row in rows["gap"]] == expected
    assert all(row["why"] == "one" for row in rows["gap"])
    assert rows["rank_info"][-1]["events_lost"] == sum(number for _, number in expected)
    assert not (expected and rows["rank_info"][-1]["complete"])


@RELAXED
@given(logs())
def test_a_bucket_holds_the_highest_total_of_its_stretch(log: tuple[list[Record], list[int]]) -> None:
    records, cuts = log
    totals = oracle_of(records).totals
    buckets = paired(records, cuts)["memory_bucket"]
    covered = 0
    for bucket in buckets:
        inside = [
            point
            for point in totals
            if point[1] == bucket["device"] and bucket["seq_first"] <= point[0] <= bucket["seq_last"]
        ]
        covered += len(inside)
        assert bucket["requested_peak_bytes"] == max(point[3] for point in inside)
        first = next(point for point in inside if point[3] == bucket["requested_peak_bytes"])
        assert (bucket["requested_peak_seq"], bucket["requested_peak_ns"]) == (first[0], first[2])
        assert bucket["requested_last_bytes"] == inside[-1][3]
        assert (bucket["first_ns"], bucket["last_ns"]) == (inside[0][2], inside[-1][2])
        assert {point[2] // 10**9 * 10**9 for point in inside} == {bucket["bucket_ns"]}
        assert bucket["seq_first"] // BUCKET_RECORDS == bucket["seq_last"] // BUCKET_RECORDS
    assert covered == len(totals)


@RELAXED
@given(logs())
def test_a_step_has_one_row_for_each_device_and_end_wherever_the_log_is_cut(
    log: tuple[list[Record], list[int]],
) -> None:
    records, cuts = log
    events = oracle_of(records).events
    expected, begin = [], -1
    for end in [seq for seq, record in enumerate(records) if record["kind"] == Kind.STEP]:
        inside = [event for event in events if begin < event["seq"] < end]
        for device in {event["device"] for event in inside}:
            own = [event for event in inside if event["device"] == device]
            top = max(own, key=lambda event: (event["requested_bytes"], -event["seq"]))
            made = [event["size_bytes"] for event in own if event["action"] == "alloc"]
            last = (own[-1]["seq"], own[-1]["requested_bytes"])
            peak = (top["requested_bytes"], top["seq"], top["time_ns"])
            expected.append((device, records[end]["a"], *last, *peak, sum(made), len(made)))
        begin = end
    names = ("device", "step", "seq_last", "last_bytes", "peak_bytes", "peak_seq", "peak_ns")
    rows = paired(records, cuts)["step_bucket"]
    got = [tuple(row[name] for name in (*names, "allocated_bytes", "num_allocations")) for row in rows]
    assert sorted(got) == sorted(expected)


@RELAXED
@given(logs())
def test_markers_are_the_oracles(log: tuple[list[Record], list[int]]) -> None:
    records, cuts = log
    expected = oracle_of(records).markers
    rows = paired(records, cuts)["marker"]
    assert len(rows) == len(expected)
    for row in rows:
        marker = expected[row["marker_id"]]
        told = {name: value for name, value in marker.items() if name != "annotation"}
        assert {name: row[name] for name in told} == told


@examples(0.25)
@given(logs())
def test_a_state_that_went_through_a_checkpoint_gives_the_same_rows(
    tmp_path: Path, log: tuple[list[Record], list[int]]
) -> None:
    records, cuts = log
    plain, through_file = paired(records, cuts), paired(records, cuts, tmp_path)
    for table in plain.keys() - {"stack_frame"}:
        assert plain[table] == through_file[table]


def test_the_oracle_notices_a_wrong_row() -> None:
    records = LogMaker(random.Random(7)).make(200)
    expected = oracle_of(records).events
    records[next(i for i, r in enumerate(records) if r["kind"] == Kind.EVENT)]["b"] += 1
    got = paired(records, [])["memory_event"]
    with pytest.raises(AssertionError):
        assert [{key: row[key] for key in expected[0]} for row in got] == expected
