"""Ranks that write like a training for as long as they are asked to: real spools, by the Python writer.

Stage: outside the way of the data, in the place of trainers. One process may play hundreds of ranks. The
records are those of :func:`spool_synthetic.training_records`, made once a process and told again and again
with later calls and times, so that a log of hours costs no memory.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rankmem_agent.spool.layout import CONTROL_FIELDS, Kind
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from spool_synthetic import CALL_RECORDS, SyntheticSpool, training_records

LIVE_CALLS: Final = 500
ROUND_CALLS: Final = 8 * (
    LIVE_CALLS + 1
)  # addresses come back after LIVE_CALLS + 1 calls, so after a round too
CALLS_A_STEP: Final = 1000
ACKED_OFFSET: Final = next(f.offset for f in CONTROL_FIELDS if f.name == "acked_seq")


@dataclass(slots=True, kw_only=True)
class Template:
    """What all ranks of a process write, and the names in it."""

    folder: Path
    """A spool folder whose strings and meta.json are copied."""
    first: npt.NDArray[Any]
    """Records of the first calls: blocks that nobody made are not freed yet."""
    round: npt.NDArray[Any]
    """Records of the calls after them, as if they were the first of a round: told again for ever."""


def make_template(folder: Path, session_id: str, aggregator: str) -> Template:
    """Makes the records and a folder with their names."""
    spool = SyntheticSpool(path=folder, session_id=session_id, alive=True, aggregator=aggregator)
    records = training_records(spool, 2 * ROUND_CALLS, live_calls=LIVE_CALLS)[1:]  # the writer makes CLOCK
    num_first = len(records) - ROUND_CALLS * CALL_RECORDS
    later = records[num_first:].copy()
    _move_calls(later, -ROUND_CALLS)
    return Template(folder=folder, first=records[:num_first], round=later)


@dataclass(slots=True, kw_only=True)
class LiveRank:
    """One rank: its spool, and what it wrote so far."""

    template: Template
    folder: Path
    rank: int
    spool_bytes: int
    host_uid: str
    events: int = 0
    """Allocator events written."""
    writer: PythonSpoolWriter = field(init=False)
    _control_fd: int = -1
    _rounds: int = 0
    _at: int = 0

    def __post_init__(self) -> None:
        self.writer = PythonSpoolWriter(self.folder, self.spool_bytes)
        self._control_fd = os.open(self.folder / "control", os.O_RDONLY)
        shutil.copyfile(self.template.folder / "strings", self.folder / "strings")  # no other is interned
        meta = json.loads((self.template.folder / "meta.json").read_text())
        session_id, attempt, _, pid, ticks = meta["spool_id"].split("-")
        meta["spool_id"] = f"{session_id}-{attempt}-{self.rank}-{pid}-{ticks}"
        meta["rank"] |= {"local_rank": self.rank, "host_uid": self.host_uid}
        meta["host"] |= {"host_uid": self.host_uid, "host_name": self.host_uid}
        temporary = self.folder / "meta.json.new"
        temporary.write_text(json.dumps(meta))
        temporary.rename(self.folder / "meta.json")

    @property
    def acknowledged(self) -> int:
        """Records that are stored, as the shipper says in the control file."""
        (acked,) = struct.unpack("<Q", os.pread(self._control_fd, 8, ACKED_OFFSET))
        return int(acked)

    def write(self, count: int) -> int:
        """Writes the next records as of now; how many found room. Fewer than asked for at a round's end."""
        source = self.template.round if self._rounds else self.template.first
        run = source[self._at : self._at + count].copy()
        self._at += len(run)
        _move_calls(run, self._rounds * ROUND_CALLS)
        now_ns = time.monotonic_ns()
        run["time_ns"] = now_ns
        begins = np.isin(run["kind"], (Kind.CALL_BEGIN, Kind.CALL_END))
        run["a"][begins] = now_ns
        if self._at == len(source):
            self._at, self._rounds = 0, self._rounds + 1
        written = self.writer.record_many(run.tobytes())
        if written == len(run):
            self.events += int(np.count_nonzero(run["kind"] == Kind.EVENT))
        return written


def _move_calls(records: npt.NDArray[Any], calls: int) -> None:
    """The same records, so many calls later, in place."""
    if not calls:
        return
    inside = records["call_id"] != 0
    records["call_id"][inside] = (records["call_id"][inside].astype(np.int64) + calls).astype(np.uint64)
    ends = records["kind"] == Kind.CALL_END
    for name in ("b", "c"):  # autograd's sequence numbers
        records[name][ends] = (records[name][ends].astype(np.int64) + calls).astype(np.uint64)
    begins = records["kind"] == Kind.CALL_BEGIN
    records["c"][begins] = (records["call_id"][begins] - 1) // CALLS_A_STEP
