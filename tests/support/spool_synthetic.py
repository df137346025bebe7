"""A fast writer of synthetic spools in the real format, for tests and benchmarks.

Not the tap: numpy fills whole segments at once (some ten million records a second), with the shape of a
training on CPU: calls with a few temporaries, activations kept to the step's end, addresses used again.
The folder is complete: meta.json, control, strings, segments, marks. A spool can end cleanly, stay
unfinished, be killed, lose segments or hold torn records.
"""

from __future__ import annotations

import json
import os
import struct
import time
import weakref
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmem_agent.spool import layout
from rankmem_agent.spool.layout import Action, Entry, Kind, State
from rankmem_ship.spool_reader.reader import SpoolReader
from rankmem_ship.spool_reader.segments import CONTROL_DTYPE, RECORD_DTYPE, SEGMENT_HEADER_DTYPE

Array = npt.NDArray[Any]

SECRET = "5ec2e7" * 4
DEAD_TICKS = 1
"""A process start that no living process has: the spool's writer counts as gone."""


def own_start_ticks() -> int:
    """This process's start time from /proc: a spool that names it has a living writer."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


@dataclass(kw_only=True)
class SyntheticSpool:
    """A spool folder to fill with arrays of records.

    Args (fields):
        path: the folder; made here.
        alive: whether its writer seems to live (it is this process then).
    """

    path: Path
    session_id: str = "0TESTSESSION"
    attempt: int = 0
    rank: int = 0
    alive: bool = False
    aggregator: str = ""
    host_uid: str = "host-a"
    project_root: str = "/project"
    next_seq: int = 0
    dropped: int = 0
    _counts: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0, 3: 0})

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        header = struct.pack("<8sII", layout.STRINGS_MAGIC, layout.FORMAT_VERSION, 0)
        (self.path / "strings").write_bytes(header)
        self._write_control(State.RUNNING)
        ticks = own_start_ticks() if self.alive else DEAD_TICKS
        self.spool_id = f"{self.session_id}-{self.attempt}-{self.rank}-{os.getpid()}-{ticks}"
        self.monotonic_ns, self.realtime_ns = time.monotonic_ns(), time.time_ns()
        temporary = self.path / "meta.json.new"
        temporary.write_text(json.dumps(self._meta()))
        temporary.rename(self.path / "meta.json")

    def string(self, text: str) -> int:
        """The id of a new string."""
        return self._entry(Entry.STRING, text.encode())

    def stack(self, frames: Iterable[tuple[str, str, int]]) -> int:
        """The id of a new stack of (file, function, line) frames."""
        ids = [self._frame(*frame) for frame in frames]
        return self._entry(Entry.STACK, struct.pack(f"<{len(ids)}I", *ids))

    def append(self, records: Array, *, torn: Sequence[int] = ()) -> int:
        """Append records (RECORD_DTYPE; marks are set here), but leave the numbers in ``torn`` uncommitted.

        Returns the number of the first.
        """
        first, at = self.next_seq, 0
        while at < len(records):
            number, index = divmod(self.next_seq, layout.RECORDS_PER_SEGMENT)
            count = min(len(records) - at, layout.RECORDS_PER_SEGMENT - index)
            run = records[at : at + count].copy()
            seq = np.arange(self.next_seq, self.next_seq + count, dtype=np.uint64)
            run["mark"] = (seq & np.uint64(0x7FFF_FFFF)) | np.uint64(0x8000_0000)
            run["mark"][np.isin(seq, list(torn))] = 0
            with self._segment(number).open("r+b") as file:
                file.seek(layout.SEGMENT_HEADER_BYTES + index * layout.RECORD_BYTES)
                file.write(run.tobytes())
            self.next_seq += count
            at += count
        self._write_control(State.RUNNING)
        return first

    def lose_segment(self) -> None:
        """Leave out the rest of this segment's numbers, or a whole segment at its border."""
        index = self.next_seq % layout.RECORDS_PER_SEGMENT
        self.dropped += layout.RECORDS_PER_SEGMENT - index
        self.next_seq += layout.RECORDS_PER_SEGMENT - index
        self._write_control(State.RUNNING)

    def end(self, *, found_room: bool = True) -> None:
        """The clean end: an END record where there is room for it, and a mark in the control file."""
        if found_room:
            self.append(make_records(1, kind=Kind.END, time_ns=self.monotonic_ns))
        self._write_control(State.ENDED)

    def _meta(self) -> dict[str, Any]:
        return {
            "format": "rankmem-spool",
            "version": layout.FORMAT_VERSION,
            "spool_id": self.spool_id,
            "secret": SECRET,
            "aggregator": self.aggregator,
            "project_root": self.project_root,
            "session": {"name": "synthetic", "world_size": 1},
            "rank": {"local_rank": self.rank, "host_uid": self.host_uid},
            "host": {"host_uid": self.host_uid, "host_name": "synthetic-host"},
            "clock": {"monotonic_ns": self.monotonic_ns, "realtime_ns": self.realtime_ns},
        }

    def _segment(self, number: int) -> Path:
        path = self.path / layout.segment_name(number)
        if not path.exists():
            header = np.zeros(1, SEGMENT_HEADER_DTYPE)
            header["magic"], header["version"] = layout.SEGMENT_MAGIC, layout.FORMAT_VERSION
            header["record_bytes"], header["segment_number"] = layout.RECORD_BYTES, number
            header["sequence_first"], header["ready"] = number * layout.RECORDS_PER_SEGMENT, 1
            with path.open("wb") as file:
                file.write(header.tobytes())
                file.truncate(layout.SEGMENT_BYTES)
        return path

    def _write_control(self, state: State) -> None:
        path = self.path / "control"
        control = np.zeros(1, CONTROL_DTYPE)
        if path.exists():
            control = np.frombuffer(path.read_bytes(), CONTROL_DTYPE).copy()
        control["magic"], control["version"] = layout.CONTROL_MAGIC, layout.FORMAT_VERSION
        control["pid"], control["state"] = os.getpid(), state
        control["next_seq"], control["dropped"] = self.next_seq, self.dropped
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(control.tobytes())

    def _frame(self, file: str, function: str, line: int) -> int:
        payload = struct.pack("<III", self.string(file), self.string(function), line)
        return self._entry(Entry.FRAME, payload)

    def _entry(self, kind: Entry, payload: bytes) -> int:
        self._counts[kind] += 1
        header = struct.pack("<B3xIII", kind, self._counts[kind], len(payload), zlib.crc32(payload))
        with (self.path / "strings").open("ab") as file:
            file.write(header + payload + bytes(-len(payload) % 8))
        return self._counts[kind]


def make_records(count: int, **fields: object) -> Array:
    """``count`` records with these fields, the others zero."""
    records = np.zeros(count, RECORD_DTYPE)
    for name, value in fields.items():
        records[name] = value
    return records


def clock_record(spool: SyntheticSpool) -> Array:
    """The record that opens every log."""
    return make_records(1, kind=Kind.CLOCK, time_ns=spool.monotonic_ns, a=spool.realtime_ns)


CALL_RECORDS = 8
"""Records of one call in :func:`training_records`: begin, 3 allocs, 2 frees within, end, a late free."""
CALL_EVENTS = 6


def training_records(
    spool: SyntheticSpool, num_calls: int, *, interval_ns: int = 400, live_calls: int = 500, seed: int = 0
) -> Array:
    """Records like a training's: 8 a call, 6 of them events; one block of three lives for ``live_calls``.

    Starts with the log's CLOCK record. Interns 40 operators and 200 stacks of 12 frames.
    """
    rng = np.random.default_rng(seed)
    operators = np.array([spool.string(f"aten::op{i}") for i in range(40)], np.uint32)
    stacks = np.array(
        [
            spool.stack((f"/project/model/part{j}.py", f"forward{j}", 10 * i + j + 1) for j in range(12))
            for i in range(200)
        ],
        np.uint32,
    )
    call = np.arange(num_calls)
    records = np.zeros((num_calls, CALL_RECORDS), RECORD_DTYPE)
    start = spool.monotonic_ns + 1000
    records["time_ns"] = start + np.arange(num_calls * CALL_RECORDS).reshape(num_calls, -1) * interval_ns
    records["call_id"] = (call + 1)[:, None]
    records["thread"] = 1
    kinds = [Kind.CALL_BEGIN, *[Kind.EVENT] * 5, Kind.CALL_END, Kind.EVENT]
    records["kind"] = np.array(kinds, np.uint8)
    actions = [1, Action.ALLOC, Action.ALLOC, Action.FREE_COMPLETED, Action.ALLOC, Action.FREE_COMPLETED, 0]
    records["action"] = np.array([*actions, Action.FREE_COMPLETED], np.uint8)
    _fill_calls(records, call, operators, stacks, rng)
    _fill_events(records, call, live_calls, rng)
    flat = records.reshape(-1)
    late_free_of_nothing = np.arange(num_calls * CALL_RECORDS) % CALL_RECORDS == CALL_RECORDS - 1
    late_free_of_nothing &= np.arange(len(flat)) // CALL_RECORDS < live_calls
    return np.concatenate([clock_record(spool), flat[~late_free_of_nothing]])


def _fill_calls(
    records: Array, call: Array, operators: Array, stacks: Array, rng: np.random.Generator
) -> None:
    records["a"][:, 0] = records["time_ns"][:, 0]
    records["c"][:, 0] = call // 1000  # step
    records["e"][:, 0] = operators[rng.integers(0, len(operators), len(call))]
    records["a"][:, 6] = records["time_ns"][:, 0]
    records["b"][:, 6] = call
    records["c"][:, 6] = call
    records["e"][:, 6] = stacks[rng.integers(0, len(stacks), len(call))]
    records["call_id"][:, 7] = 0


def _fill_events(records: Array, call: Array, live_calls: int, rng: np.random.Generator) -> None:
    """Two temporaries at addresses used by every call, one block that a later call's record frees."""
    sizes = rng.integers(1, 4096, (len(call), 3)) * 64
    slots = np.uint64(0x7F00_0000_0000) + (call % (live_calls + 1)).astype(np.uint64) * np.uint64(1 << 20)
    for column, address in ((1, 0x1000), (3, 0x1000), (4, 0x2000), (5, 0x2000)):
        records["a"][:, column] = address
    records["a"][:, 2] = slots
    records["b"][:, 1], records["b"][:, 2], records["b"][:, 4] = sizes[:, 0], sizes[:, 1], sizes[:, 2]
    freed = np.maximum(call - live_calls, 0)
    records["a"][:, 7] = slots[freed]


def reader_of(path: Path) -> SpoolReader:
    """A reader of a spool; its file of strings is closed when a test lets go of it without closing it."""
    reader = SpoolReader(path)
    weakref.finalize(reader, reader.strings.close)
    return reader
