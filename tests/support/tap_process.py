"""Runs a script in a process of its own with the tap recording into a spool, and reads the spool back.

A process opens one spool in its life, and the allocator and the callback that the tap attaches stay for
good, so every recorded script needs a process. The script finds ``torch``, ``tap``, ``What``, ``Stat``,
``Kind``, ``folder`` (the spool's path) and ``ALL`` (everything recorded on CPU); nothing is enabled yet.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankmem_agent.spool.layout import CONTROL_FIELDS, Action, Kind
from rankmem_ship.spool_reader.reader import Chunk, Gap, SpoolReader
from rankmem_ship.spool_reader.segments import RECORD_DTYPE, named
from spool_synthetic import reader_of
from torch_forks import run_forked

BUDGET_BYTES = 64 << 20
PRELUDE = """
import os, sys, threading
from pathlib import Path
import torch
from rankmem_agent.spool.layout import Kind, Phase
from rankmem_agent.tap.build import build_tap
from rankmem_agent.tap.library import Stat, Tap, What
torch.set_num_threads(1)
torch.manual_seed(0)
folder = Path(sys.argv[1])
tap = Tap(build_tap())
tap.open(folder, int(sys.argv[2]))
tap.attach_cpu()
tap.attach_calls()
ALL = What.CPU_EVENTS | What.CALLS | What.STACKS
"""
CALLS_OF_MODELS = """
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.model_calls import ModelCalls, OptimizersMade
from rankmem_agent.hooks.modules import Modules
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.tracing import tracing_of
guard, tracing, steps = Guard(0), tracing_of(torch), Steps(tap)
modules = Modules(tap, tracing.by_dynamo, guard, lambda: steps.phase_outside, tap.module_reader(), tracing)
calls = ModelCalls(tap, tracing, guard, steps, modules.path_id, OptimizersMade())
modules.install()
modules.watch_calls(calls, tap.intern("model call"))
steps.count_calls(tap.step_number)
tap.enable(ALL)
"""
"""For a script whose steps end by calls of its model."""
ORDERS = """
import mmap, struct
from rankmem_agent.spool import layout
at = {field.name: field.offset for field in layout.CONTROL_FIELDS}
page = mmap.mmap(os.open(folder / "control", os.O_RDWR), layout.CONTROL_BYTES)
def put(name, value):
    struct.pack_into("<Q", page, at[name], value)
def order(number, detail, first, last=layout.UNKNOWN, check=None):
    put("order_detail", detail); put("order_step_first", first); put("order_step_last", last)
    put("order_check", layout.order_check(number, detail, first, last) if check is None else check)
    put("order_number", number)
def taken():
    return struct.unpack_from("<Q", page, at["order_taken"])[0]
EVENTS, FULL, AUTO = layout.Detail.EVENTS, layout.Detail.FULL, layout.Detail.AUTO
"""
"""For a script that gives itself orders, as its shipper would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a finished process left in its spool."""

    records: Any
    """RECORD_DTYPE with all committed records, in order."""
    seq: Any
    """The number of each."""
    gaps: list[Gap]
    reader: SpoolReader
    returncode: int
    stdout: str
    stderr: str

    def of(self, kind: Kind) -> Any:
        """The records of a kind."""
        return self.records[self.records["kind"] == kind]

    def text(self, string_id: Any) -> str | None:
        """The string of an id."""
        return self.reader.strings.text(int(string_id))

    def calls_named(self, name: str) -> list[int]:
        """Ids of the calls of an operator."""
        begins = self.of(Kind.CALL_BEGIN)
        return [int(begin["call_id"]) for begin in begins if self.text(begin["e"]) == name]


def asking_in_vain(call: str) -> str:
    """A script in which ``call`` fails for want of memory, recorded and not: with the same words."""
    return f"""
def ask():
    try:
        {call}
    except RuntimeError as error:
        return str(error)
before = ask()
tap.enable(ALL)
assert before is not None and ask() == before
tap.close()
"""


def alive_after(events: Any) -> set[int]:
    """Addresses that are alive after these events; each was freed before it was handed out again."""
    live: set[int] = set()
    for event in events:
        if event["action"] == Action.ALLOC:
            assert int(event["a"]) not in live
            live.add(int(event["a"]))
        else:
            live.remove(int(event["a"]))
    return live


def record_process(
    script: str,
    folder: Path,
    budget_bytes: int = BUDGET_BYTES,
    prelude: str = PRELUDE,
    python: str = sys.executable,
    is_forked: bool = False,
) -> Recording:
    """Run ``script`` after the prelude; the spool is ``folder``/spool. Does not check the exit code.

    Args:
        is_forked: sooner, where it does not matter how the process began; see ``torch_forks``.
    """
    spool = folder / "spool"
    spool.mkdir()
    path = folder / "script.py"
    path.write_text(prelude + script)
    if is_forked:
        return read_spool(spool, run_forked(path, (str(spool), str(budget_bytes)), folder))
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [python, str(path), str(spool), str(budget_bytes)],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    return read_spool(spool, done)


def read_spool(spool: Path, done: subprocess.CompletedProcess[str]) -> Recording:
    """All that a finished process wrote."""
    pid_offset = next(f.offset for f in CONTROL_FIELDS if f.name == "pid")
    (pid,) = struct.unpack_from("<I", (spool / "control").read_bytes(), pid_offset)
    meta = {
        "format": "rankmem-spool", "version": 1, "spool_id": f"000000000000-0-0-{pid}-1", "session": {},
        "rank": {}, "host": {}, "clock": {"monotonic_ns": 0, "realtime_ns": 0},
    }  # fmt: skip
    (spool / "meta.json").write_text(json.dumps(meta))
    reader = reader_of(spool)
    chunks, numbers, gaps = [np.zeros(0, RECORD_DTYPE)], [np.zeros(0, np.int64)], []
    while (part := reader.read(1 << 20)) is not None:
        if isinstance(part, Chunk):
            chunks.append(part.records)
            numbers.append(np.arange(part.sequence_first, part.sequence_last + 1))
        else:
            gaps.append(part)
    return Recording(
        records=np.concatenate(chunks), seq=np.concatenate(numbers), gaps=gaps, reader=reader,
        returncode=done.returncode, stdout=done.stdout, stderr=done.stderr,
    )  # fmt: skip


def changes_of(recording: Recording) -> list[tuple[int, ...]]:
    """order, outcome, step and detail of each DETAIL record."""
    changes = named(recording.of(Kind.DETAIL), Kind.DETAIL)
    return [tuple(int(row[name]) for name in ("order", "outcome", "step", "detail")) for row in changes]
