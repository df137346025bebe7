"""Two runs of a training made by hand, before and after a change, with batches that vary.

Stage: tests. In: how the runs differ. Out: logs and the rows that go with them, stored as two sessions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb

from constructed import SECOND_NS, RankLog, store_logs, store_rows

BASE: Final = "0SESSION000A"
HEAD: Final = "0SESSION000B"
MIB: Final = 1 << 20
_LINES: Final = {1: ("train.py", 20, "main"), 2: ("model.py", 41, "forward"), 3: ("model.py", 43, "forward")}


@dataclass(slots=True, kw_only=True)
class Run:
    """A side."""

    session_id: str = BASE
    seed: int = 1
    steps: int = 14
    batches: tuple[int, int] = (4, 12)
    """The smallest and the largest."""
    ranks: int = 1
    device: str = "cuda:0"
    per_sample: int = MIB
    """Bytes of activations for each sample."""
    state: int = 64 * MIB
    extra: int = 0
    """Bytes that line 43 holds besides, within a step."""
    noise: int = 0
    """Bytes that come and go at random."""
    inputs: str = "shapes"
    """shapes, bytes (of the batch's blocks alone) or nothing."""
    arguments: tuple[tuple[str, str, int], ...] = (("0", "int64", 8),)
    """Of the model: name, type and bytes of an element; each has 512 for each sample."""
    validation: int = 0
    """Bytes that the model holds without autograd in every fourth step."""
    line: int = 41
    complete: bool = True
    is_running: bool = False
    logs: list[RankLog] = field(default_factory=list)
    given: list[dict[str, Any]] = field(default_factory=list)
    """Rows of step_input."""

    def made(self) -> Run:
        """With its logs."""
        for rank in range(self.ranks):
            self._train(rank)
        return self

    def _train(self, rank: int) -> None:
        rng = random.Random(self.seed * 1000 + rank)
        ended = None if self.is_running else (self.steps + 2) * SECOND_NS
        log = RankLog(session_id=self.session_id, rank=rank, ended=ended, complete=self.complete)
        self.logs.append(log)
        common: dict[str, Any] = {"device": self.device}
        forward = {**common, "category": "activation", "phase": "forward", "module": "GPT.h", "stack_id": 2}
        log.alloc("w", 128 * MIB, at=1, category="parameter", operator="aten::empty", stack_id=1, **common)
        for step in range(self.steps):
            at, batch = (step + 1) * SECOND_NS, rng.randint(*self.batches)
            given = {"category": "input", "operator": "aten::to"} if self.inputs != "nothing" else {}
            log.alloc(f"x{step}", batch << 12, at=at, step=step, **common, **given)
            if self.inputs == "shapes":
                self._give(log, rank, step, batch, at)
            log.alloc(f"a{step}", batch * self.per_sample, at=at + 1, operator="aten::linear", **forward)
            if self.extra:
                forward_43 = forward | {"stack_id": 3}
                log.alloc(f"e{step}", self.extra, at=at + 2, operator="aten::gelu", **forward_43)
                log.free(f"e{step}", at=at + 3)
            if self.validation and step % 4 == 3:
                log.alloc(f"v{step}", self.validation, at=at + 4, operator="aten::linear", **forward)
                log.free(f"v{step}", at=at + 5)
                self._give(log, rank, step, 64, at, with_grad=False)
            if self.noise:
                log.alloc(f"n{step}", 1 + rng.randrange(self.noise), at=at + 4, operator="aten::mm", **common)
                log.free(f"n{step}", at=at + 5)
            log.free(f"a{step}", at=at + 6)
            if step == 0:
                made = {"category": "optimizer_state", "operator": "aten::zeros_like", "stack_id": 1}
                log.alloc("state", self.state, at=at + 7, **common, **made)
            log.free(f"x{step}", at=at + 8)
            log.step_ends(step, at=at + 9)

    def _give(
        self, log: RankLog, rank: int, step: int, batch: int, at: int, *, with_grad: bool = True
    ) -> None:
        elements = batch * 512
        call = {
            "session_id": self.session_id, "attempt": 0, "rank": rank, "step": step, "time_ns": at,
            "seq": log.events[-1]["seq"] + 1, "module": "GPT", "with_grad": with_grad, "num_left_out": 0,
            "call_bytes": sum(elements * size for _, _, size in self.arguments),
        }  # fmt: skip
        for name, dtype, size in self.arguments:
            tensor = {"argument": name, "dtype": dtype, "size_bytes": elements * size}
            self.given.append(call | tensor | {"shape": f"[{batch}, 512]"})
        log.skip()


def store_runs(connection: duckdb.DuckDBPyConnection, base: Run, head: Run) -> None:
    """Stores both as sessions named main and pull-request."""
    for run in (base, head):
        run.made()
        store_rows(connection, "step_input", run.given)
        if not run.complete:
            store_rows(connection, "gap", [_gap(run.session_id)])
    store_logs(connection, [*base.logs, *head.logs])
    for run, name in ((base, "main"), (head, "pull-request")):
        connection.execute("UPDATE session SET name = ? WHERE session_id = ?", [name, run.session_id])
    frames = [
        {"stack_id": stack, "ordering": 0, "file_path": file, "line_number": line, "function": function}
        for stack, (file, line, function) in _LINES.items()
    ]
    store_rows(connection, "stack_frame", frames)


def _gap(session_id: str) -> dict[str, Any]:
    place = {"session_id": session_id, "attempt": 0, "rank": 0, "sequence_first": 4, "sequence_last": 63}
    return place | {"records": 60, "why": "spool_full", "noticed_ns": SECOND_NS}


def changed(connection: duckdb.DuckDBPyConnection) -> None:
    """A pull request whose activation function keeps 24 MiB more, under other batches."""
    store_runs(connection, Run(), Run(session_id=HEAD, seed=2, steps=18, extra=24 * MIB))
