"""A made-up training of 16 ranks, one of which keeps a tensor of every step.

Stage: tests. pp 4 x tp 2 x dp 2 on four hosts, 24 steps of a second; rank 5 keeps what ``metrics.py:44
log_activations`` makes. Every rank keeps each batch for three steps (``data.py:12 prefetch``), which is no
leak. Out: a database file, as the constructed logs make it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from constructed import SESSION, RankLog, Row, empty_database, store_logs, store_rows

MIB: Final = 1 << 20
SECOND: Final = 1_000_000_000
MS: Final = 1_000_000
RANKS: Final = 16
STEPS: Final = 24
LEAKING_RANK: Final = 5
LEAK_BYTES: Final = 96 * MIB
RING_STEPS: Final = 3
DEVICE_BYTES: Final = 16 << 10 << 20
LAYERS: Final = 4

_MAIN: Final = [("train.py", 212, "main"), ("train.py", 148, "train_step")]
STACKS: Final = {
    1: [("model.py", 96, "Block.__init__"), ("train.py", 200, "build"), _MAIN[0]],
    2: [("optim.py", 63, "AdamW.step"), _MAIN[1], _MAIN[0]],
    3: [("mlp.py", 31, "MLP.forward"), ("model.py", 118, "Block.forward"), _MAIN[1], _MAIN[0]],
    4: [("train.py", 155, "backward"), _MAIN[1], _MAIN[0]],
    5: [("metrics.py", 44, "log_activations"), _MAIN[1], _MAIN[0]],
    6: [("data.py", 12, "prefetch"), _MAIN[0]],
}
"""Frames, innermost first."""


def story_logs(*, ranks: int = RANKS, steps: int = STEPS) -> list[RankLog]:
    """The logs of the ranks."""
    return [_log(rank, steps) for rank in range(ranks)]


def make_story(path: Path, **size: int) -> None:
    """Writes the story's database."""
    logs = story_logs(**size)
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
        store_rows(connection, "stack_frame", frames())
        store_rows(
            connection,
            "device_info",
            [device_row(log.rank, f"cuda:{log.rank % 4}", DEVICE_BYTES) for log in logs],
        )


def frames() -> list[Row]:
    """Rows of stack_frame."""
    return [
        {
            "stack_id": stack_id,
            "ordering": i,
            "file_path": file_path,
            "line_number": line_number,
            "function": function,
        }
        for stack_id, stack in STACKS.items()
        for i, (file_path, line_number, function) in enumerate(stack)
    ]


def device_row(rank: int, device: str, total_bytes: int | None, attempt: int = 0) -> Row:
    """A row of device_info."""
    return {
        "session_id": SESSION,
        "attempt": attempt,
        "rank": rank,
        "device": device,
        "name": "made up",
        "total_bytes": total_bytes,
    }


def _log(rank: int, steps: int) -> RankLog:
    pp, tp, dp = rank // 4, rank % 2, rank // 2 % 2
    log = RankLog(
        rank=rank,
        host_uid=f"node-{rank // 4:03}",
        ended=(steps + 1) * SECOND,
        coordinates={"pp": pp, "tp": tp, "dp": dp},
    )
    device = f"cuda:{rank % 4}"
    scale = 8 - pp

    def alloc(name: str, size: int, at: int, stack: int, **columns: Any) -> None:
        log.alloc(name, size, at=at, device=device, stack_id=stack, **columns)

    for layer in range(LAYERS):
        made = {"category": "parameter", "operator": "aten::empty", "module": f"GPT.h.{layer}"}
        alloc(f"p{layer}", 96 * MIB, layer * MS, 1, **made)
    for step in range(steps):
        begin = step * SECOND + 10 * MS + rank * 100_000
        _step(log, alloc, step, begin, scale)
        if rank == LEAKING_RANK:
            made = {"category": "unknown", "operator": "aten::clone", "phase": "other", "step": step}
            alloc(f"leak{step}", LEAK_BYTES, begin + 900 * MS, 5, **made)
        log.step_ends(step, at=begin + 950 * MS, optimizer="AdamW")
    reserved = 0
    for event in log.events:
        reserved = max(reserved, -(-event["requested_bytes"] // (20 * MIB)) * 20 * MIB)
        event["reserved_bytes"] = reserved
    return log


def _step(log: RankLog, alloc: Any, step: int, begin: int, scale: int) -> None:
    at = begin
    data = {"category": "input", "operator": "aten::to", "phase": "other", "step": step}
    alloc(f"batch{step}", 8 * MIB, at, 6, **data)
    if step >= RING_STEPS:
        log.free(f"batch{step - RING_STEPS}", at=at + MS)
    for layer in range(LAYERS):
        at += 50 * MS
        made = {"operator": "aten::mm", "phase": "forward", "module": f"GPT.h.{layer}.mlp", "step": step}
        alloc(f"a{layer} {step}", 48 * scale * MIB, at, 3, category="activation", **made)
        alloc(f"t{layer} {step}", 24 * MIB, at + MS, 3, category="temporary", **made)
        log.free(f"t{layer} {step}", at=at + 2 * MS)
    for layer in reversed(range(LAYERS)):
        at += 50 * MS
        made = {"operator": "aten::mm", "phase": "backward", "module": f"GPT.h.{layer}.mlp", "step": step}
        alloc(f"g{layer} {step}", 96 * MIB, at, 4, forward_stack_id=3, category="gradient", **made)
        log.free(f"a{layer} {step}", at=at + MS)
    for layer in range(LAYERS):
        at += 20 * MS
        made = {"operator": "aten::zeros_like", "phase": "optimizer", "module": "AdamW", "step": step}
        if step == 0:
            alloc(f"o{layer}", 192 * MIB, at, 2, category="optimizer_state", **made)
        log.free(f"g{layer} {step}", at=at + MS)
