"""A log of blocks with everything that a table of blocks may have to sort, filter or leave out.

Stage: tests. In: a seed of choices; out: a :class:`constructed.RankLog`, and the blocks as plain
dictionaries, found by loops over its rows: the oracle of tables, flame graphs and maps of blocks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from constructed import BASE_NS, RankLog

Row = dict[str, Any]
CATEGORIES: Final = ("activation", "gradient", "temporary", None)
OFFSET_NS: Final = 5_000
"""Of the host's clock."""
FRAMES: Final = {
    1: [("src/train.py", 10, "loss"), ("src/train.py", 40, "main")],
    2: [("src/model.py", 7, "forward"), ("src/train.py", 12, "step"), ("src/train.py", 40, "main")],
    3: [("src/model.py", 7, "forward"), ("src/model.py", 7, "forward"), ("src/train.py", 40, "main")],
    4: [("/usr/lib/python3.11/site-packages/torch/nn/linear.py", 3, "forward")],
}
"""Frames of stacks, the one nearest to the operator first."""
LINES: Final = {
    1: "src/train.py:10",
    2: "src/model.py:7",
    3: "src/model.py:7",
    4: "[/usr/lib/python3.11/site-packages/torch/nn/linear.py:3]",
}
"""The line of each, by docs/sql.md."""


def random_log(seed: int, blocks: int = 40, *, rank: int = 0, device: str = "cuda:0") -> RankLog:
    """A log with ties of sizes and times, older blocks, frees reported later, and changing categories."""
    draw = random.Random(seed)
    log = RankLog(rank=rank, ended=10_000, offset_ns=OFFSET_NS)
    for i in range(draw.randrange(4)):
        log.preexisting(f"old{i}", draw.choice((64, 512)), device=device)
    alive = list(log.allocations)
    for i in range(blocks):
        at = i * 10 // draw.choice((1, 1, 2)) + 1
        at = max(at, (log.events[-1]["time_ns"] - BASE_NS) if log.events else 0)
        name = f"b{i}"
        log.alloc(
            name,
            draw.choice((64, 512, 512, 4096)),
            at=at,
            device=device,
            category=draw.choice(CATEGORIES),
            operator=draw.choice(("aten::mm", "aten::Add", None)),
            module=draw.choice(("net.layers.1", "net.layers.10", "net.layers.1.mlp", None)),
            phase=draw.choice(("forward", "backward")),
            step=draw.choice((0, 1, None)),
            stream=draw.choice((0, 7)),
            stack_id=draw.choice((1, 2, 3, 4, None)),
            forward_stack_id=draw.choice((2, None, None)),
            annotation=draw.choice(("a;b:c", None)),
            recomputed=draw.choice((True, False, None)),
            attribution=(None, "observed", "template", "none")[i % 4],
            like_id=i if i % 4 == 2 else None,
        )
        alive.append(name)
        if draw.random() < 0.2:
            log.means(draw.choice(alive), draw.choice(("parameter", "input")), at=at)
        while alive and draw.random() < 0.4:
            gone = alive.pop(draw.randrange(len(alive)))
            if draw.random() < 0.3 and not log.allocations[gone]["preexisting"]:
                log.request_free(gone, at=at)
            log.free(gone, at=at, told_later=draw.random() < 0.3)
    return log


def frame_rows() -> list[Row]:
    """The rows of stack_frame."""
    return [
        {"stack_id": stack, "ordering": i, "file_path": path, "line_number": line, "function": function}
        for stack, frames in FRAMES.items()
        for i, (path, line, function) in enumerate(frames)
    ]


def lives(log: RankLog) -> list[Row]:
    """The blocks of a log with their ends; times on the common clock, in ns after :data:`BASE_NS`."""
    ends = {row["allocation_id"]: row for row in log.endings}
    found = []
    for row in log.allocations.values():
        whole = row | ends.get(row["allocation_id"], {})
        times = {
            name: whole[name] - BASE_NS + log.offset_ns if whole.get(name) is not None else None
            for name in ("allocated_ns", "free_requested_ns", "freed_ns")
        }
        found.append(dict.fromkeys(("operator", "module", "stack_id")) | whole | times)
    return found


def meaning(log: RankLog, block: Row, known: Callable[[Row], bool]) -> str:
    """What a block meant by the changes that are known."""
    changes = [row for row in log.changes if row["allocation_id"] == block["allocation_id"] and known(row)]
    last = max(changes, key=lambda row: (row["seq"], row["time_ns"]), default=block)
    category = last.get("category") or "unknown"
    return "before the recording" if block["preexisting"] and category == "unknown" else category


def alive_after(log: RankLog, seq: int) -> list[Row]:
    """The blocks alive after an event, with ``category`` as it was then."""
    return [
        block | {"category": meaning(log, block, lambda row: row["seq"] <= seq)}
        for block in lives(log)
        if block["allocation_id"] <= seq and (block.get("freed_seq") is None or block["freed_seq"] > seq)
    ]
