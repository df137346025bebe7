"""``python -m rankmem_agent.tap.self_test FOLDER BLOCKS``: records BLOCKS tensors and prints what it finds.

Stage: tap, in a process of its own that ``rankmem_agent.tap.doctor`` starts. In: an empty folder. Out: one
JSON object on stdout: blocks got and given back as the spool has them, stacks, records lost, nanoseconds an
event. Reads the log with ``struct``, not with the shipper's reader, so that it needs no numpy.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rankmem_agent.hooks.module_frames import follow_unnamed
from rankmem_agent.spool import layout
from rankmem_agent.spool.layout import Action, Kind
from rankmem_agent.tap.build import build_tap
from rankmem_agent.tap.library import Stat, Tap, What

TIMED_ROUNDS: Final = 5
TIMED_BLOCKS: Final = 4_000  # a round, got and given back: 40,000 events in all, two thirds of a segment
_BLOCK_BYTES: Final = 4 * 1013  # a size that nothing else asks for
_OFFSET: Final = {field.name: field.offset for field in layout.RECORD_FIELDS}
_EVENT_OFFSET: Final = _OFFSET[layout.FIELDS[Kind.EVENT]["address"].name]
"""Of the address, which the size follows."""


def main(folder: Path, num_blocks: int) -> dict[str, int]:
    """Records ``num_blocks`` tensors in ``folder``; returns what came back."""
    import torch

    tap = Tap(build_tap())
    tap.open(folder, 4 * layout.SEGMENT_BYTES)
    tap.attach_cpu()
    tap.attach_calls()
    tap.enable(What.CPU_EVENTS | What.CALLS | What.STACKS)
    for _ in range(num_blocks):
        torch.empty(_BLOCK_BYTES, dtype=torch.uint8)
    modules_followed = follow_unnamed(tap)
    tap.enable(What.CALLS | What.STACKS | What.MODULES, False)
    event_ns = _event_ns(tap)
    tap.stop_stacks()
    tap.close()
    allocs = frees = 0
    live: set[int] = set()
    for action, address, size_bytes in _events(folder, tap.stat(Stat.NEXT_SEQ)):
        if action == Action.ALLOC and size_bytes == _BLOCK_BYTES:
            allocs += 1
            live.add(address)
        elif action == Action.FREE_COMPLETED and address in live:
            frees += 1
            live.remove(address)
    return {
        "allocs": allocs, "frees": frees, "event_ns": event_ns, "dropped": tap.stat(Stat.DROPPED),
        "stacks": tap.stat(Stat.STACKS), "python_found": tap.stat(Stat.PYTHON_FOUND),
        "frames_known": tap.stat(Stat.FRAMES_KNOWN), "modules_followed": int(modules_followed),
        "cpu_sees": int(tap.cpu_sees()),
    }  # fmt: skip


def _event_ns(tap: Tap) -> int:
    """The cost of an event in an allocation, in ns of this thread's CPU time: the same loop with and without
    recording, in turn, the fastest of each. 0 where a busy machine hides it."""
    import torch

    def loop() -> int:
        began = time.thread_time_ns()
        for _ in range(TIMED_BLOCKS):
            torch.empty(1000)
        return time.thread_time_ns() - began

    fastest: dict[bool, int] = {}
    for turn in range(2 * TIMED_ROUNDS):
        records = turn % 2 == 0
        tap.enable(What.CPU_EVENTS, records)
        fastest[records] = min(loop(), fastest.get(records, sys.maxsize))
    tap.enable(What.CPU_EVENTS)
    return max(0, fastest[True] - fastest[False]) // (2 * TIMED_BLOCKS)


def _events(folder: Path, next_seq: int) -> Iterator[tuple[int, int, int]]:
    """action, address and size of the committed events."""
    for seq in range(next_seq):
        number, index = divmod(seq, layout.RECORDS_PER_SEGMENT)
        if index == 0:
            data = (folder / layout.segment_name(number)).read_bytes()
        start = layout.SEGMENT_HEADER_BYTES + index * layout.RECORD_BYTES
        if struct.unpack_from("<I", data, start + _OFFSET["mark"])[0] != layout.mark_of(seq):
            continue
        if data[start + _OFFSET["kind"]] == Kind.EVENT:
            address, size_bytes = struct.unpack_from("<QQ", data, start + _EVENT_OFFSET)
            yield data[start + _OFFSET["action"]], address, size_bytes


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
