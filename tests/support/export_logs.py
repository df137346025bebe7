"""A small log of a CUDA rank with addresses, streams, pools and stacks, for the tests of exports.

Stage: tests. Built on :mod:`constructed`; its events have all fields of an allocator's own.
Out: a database file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from constructed import BASE_NS, SESSION, RankLog, empty_database, store_logs, store_rows

MIB: Final = 1 << 20
SEGMENT: Final = 0x7F00_0000_0000
OLDER: Final = 0x7E00_0000_0000
"""Where blocks lie whose segment is older than the recording."""
STACKS: Final = {
    1: [("train.py", 12, "step"), ("train.py", 40, "main")],
    2: [
        ("model.py", 7, "forward"),
        ("/usr/lib/python3/torch/nn.py", 99, "_call_impl"),
        ("train.py", 40, "main"),
    ],
}


class CudaLog:
    """A rank on one CUDA device, event by event; times in µs after the base."""

    def __init__(
        self, rank: int = 0, *, device: str = "cuda:0", offset_ns: int = 0, host_uid: str = "host-0"
    ) -> None:
        self.log = RankLog(rank=rank, offset_ns=offset_ns, host_uid=host_uid)
        self.device = device
        self._at = 0

    def later(self, microseconds: int = 1) -> int:
        self._at += microseconds * 1000
        return self._at

    def segment(
        self, action: str, address: int, size: int, *, stream: int = 0, pool: str | None = None
    ) -> None:
        self.log.segment(action, address, size, at=self.later(), device=self.device)
        self.log.events[-1] |= {"stream": stream, "pool": pool}

    def alloc(self, name: str, size: int, address: int, *, stream: int = 0, **columns: Any) -> int:
        seq = self.log.alloc(
            name, size, at=self.later(), device=self.device, address=address, stream=stream, **columns
        )
        told = {"address": address, "stream": stream, "allocation_id": seq, "pool": columns.get("pool")}
        self.log.events[-1] |= told | {"call_id": columns.get("call_id")}
        return seq

    def older(self, name: str, size: int, address: int, **columns: Any) -> None:
        self.log.preexisting(name, size, device=self.device, address=address, stream=0, **columns)

    def request_free(self, name: str) -> None:
        self._about(name, self.log.request_free(name, at=self.later()))

    def free(self, name: str, *, told_later: bool = False) -> None:
        if "free_requested_seq" not in self.log.allocations[name]:
            self.request_free(name)
        self._about(name, self.log.free(name, at=self.later(), told_later=told_later))

    def oom(self, size: int) -> None:
        self.log.oom(size, at=self.later(), device=self.device, device_free_bytes=3 * MIB)

    def _about(self, name: str, seq: int) -> None:
        row = self.log.allocations[name]
        told = {key: row.get(key) for key in ("address", "stream", "pool", "allocation_id")}
        assert self.log.events[-1]["seq"] == seq
        self.log.events[-1] |= told


def training(rank: int = 0, **options: Any) -> CudaLog:
    """Weights older than the recording, two steps in two segments, a pool, another stream, an oom."""
    job = CudaLog(rank, **options)
    job.older("weight", 700, OLDER + 512, category="parameter")
    job.segment("segment_alloc", SEGMENT, 2 * MIB)
    job.segment("segment_alloc", SEGMENT + 64 * MIB, 20 * MIB, stream=7, pool="0.5")
    for step in range(2):
        base = SEGMENT + step * 4096
        job.alloc(
            f"act-{step}", 1000, base, category="activation", operator="aten::mm", stack_id=2, step=step,
            module="layers.0", phase="forward", call_id=10 * step + 1,
        )  # fmt: skip
        job.alloc(
            f"grad-{step}", 3000, base + 1024, category="gradient", operator="aten::mm", stack_id=1,
            step=step, phase="backward", call_id=10 * step + 2, forward_call_id=10 * step + 1,
        )  # fmt: skip
        job.alloc(
            f"pooled-{step}", 3 * MIB, SEGMENT + (64 + 4 * step) * MIB, stream=7, pool="0.5", stack_id=1
        )
        job.free(f"act-{step}", told_later=step == 0)
        job.log.step_ends(step, at=job.later())
    job.request_free("pooled-0")
    job.oom(40 * MIB)
    job.free("grad-0")
    return job


def calls_of(job: CudaLog) -> list[dict[str, Any]]:
    """operator_call rows of :func:`training`."""
    rows = []
    for name, row in job.log.allocations.items():
        if row.get("call_id") is None:
            continue
        backward = name.startswith("grad")
        rows.append(
            {
                "session_id": SESSION,
                "attempt": 0,
                "rank": job.log.rank,
                "call_id": row["call_id"],
                "operator": row["operator"],
                "phase": row["phase"],
                "step": row["step"],
                "thread": 2 if backward else 1,
                "stack_id": row["stack_id"],
                "forward_call_id": row.get("forward_call_id"),
                "started_ns": row["allocated_ns"] - 300,
                "ended_ns": row["allocated_ns"] + 400,
                "allocated_bytes": row["size_bytes"],
                "freed_bytes": 0,
                "allocations": 1,
            }
        )
    return rows


def database(path: Path, jobs: list[CudaLog], **tables: list[dict[str, Any]]) -> Path:
    """A database file with these ranks; ``tables``: rows of further tables."""
    with empty_database(str(path)) as connection:
        store_logs(connection, [job.log for job in jobs])
        store_rows(connection, "operator_call", [row for job in jobs for row in calls_of(job)])
        frames = [
            {
                "stack_id": number,
                "ordering": ordering,
                "file_path": file,
                "line_number": line,
                "function": function,
            }
            for number, stack in STACKS.items()
            for ordering, (file, line, function) in enumerate(stack)
        ]
        store_rows(connection, "stack_frame", frames)
        for name, rows in tables.items():
            store_rows(connection, name, rows)
    return path


def marker(name: str, begin_us: int, end_us: int | None, *, rank: int = 0, number: int = 1) -> dict[str, Any]:
    """A row of marker."""
    return {
        "session_id": SESSION,
        "attempt": 0,
        "rank": rank,
        "marker_id": number,
        "name": name,
        "kind": "user_scope",
        "depth": 0,
        "thread": 1,
        "started_ns": BASE_NS + begin_us * 1000,
        "ended_ns": None if end_us is None else BASE_NS + end_us * 1000,
    }
