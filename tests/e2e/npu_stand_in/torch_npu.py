"""Stands in for torch_npu: an accelerator that torch loads by itself, with an allocator that keeps a history.

Stage: a recorded program's process. It has the names that Ascend's package has, and blocks that no device
holds: each is a segment of its own. What it did is printed by the script that uses it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

SEGMENT_BYTES = 2**21
MARK = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": []}


class Allocator:
    """The one device's memory."""

    def __init__(self) -> None:
        self.ring: list[dict[str, Any]] = []
        self.held: dict[int, int] = {}
        self.is_on = False
        self.is_used = False
        self.made = self.next_address = self.peak = 0
        self.waiting: list[Callable[[], None]] = []

    def lazy_call(self, call: Callable[[], None]) -> None:
        """As torch's accelerators have it."""
        call() if self.is_used else self.waiting.append(call)

    def init(self) -> None:
        """The first use."""
        self.is_used = True
        for call in self.waiting:
            call()
        self.waiting.clear()

    def alloc(self, size: int) -> int:
        """A block; its address."""
        address = 2**40 + self.next_address
        self.next_address += SEGMENT_BYTES
        self.made += 1
        self.held[address] = size
        self.peak = max(self.peak, sum(self.held.values()))
        self._happened("segment_alloc", address, SEGMENT_BYTES)
        self._happened("alloc", address, size)
        return address

    def free(self, address: int) -> None:
        """Gives it back."""
        size = self.held.pop(address)
        self._happened("free_requested", address, size)
        self._happened("free_completed", address, size)
        self._happened("segment_free", address, SEGMENT_BYTES)

    def record(
        self, enabled: str | None = "all", context: str = "all", stacks: str = "all", max_entries: int = 0
    ) -> None:
        """``_record_memory_history``."""
        self.is_on = enabled is not None

    def snapshot(self) -> dict[str, Any]:
        """``_snapshot``."""
        shown = list(self.ring)
        self.ring.append({**MARK, "time_us": time.time_ns() // 1000})
        segments = [
            {
                "device": 0, "address": address, "total_size": SEGMENT_BYTES, "stream": 0,
                "allocated_size": size, "active_size": size,
                "blocks": [
                    {"address": address, "size": size, "requested_size": size, "state": "active_allocated"}
                ],
            }
            for address, size in self.held.items()
        ]  # fmt: skip
        return {"segments": segments, "device_traces": [shown]}

    def stats(self, device: int) -> dict[str, Any]:
        """``_npu_memoryStats``."""
        held = sum(self.held.values())
        figures = {"current": held, "peak": self.peak, "allocated": held, "freed": 0}
        names = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
        return {"allocation": {"all": {"allocated": self.made}}, **{key: {"all": figures} for key in names}}

    def _happened(self, action: str, address: int, size: int) -> None:
        if self.is_on:
            frame = sys._getframe(2)
            frames = [
                {"filename": frame.f_code.co_filename, "name": frame.f_code.co_name, "line": frame.f_lineno}
            ]
            self.ring.append(
                {
                    "action": action, "addr": address, "size": size, "stream": 0, "frames": frames,
                    "time_us": time.time_ns() // 1000,
                }
            )  # fmt: skip


allocator = Allocator()
npu = SimpleNamespace(
    _lazy_call=allocator.lazy_call,
    init=allocator.init,
    device_count=lambda: 1,
    get_device_properties=lambda index: SimpleNamespace(name="Stand-in 910", total_memory=2**36),
    memory=SimpleNamespace(
        _record_memory_history=allocator.record,
        _snapshot=allocator.snapshot,
        get_allocator_backend=lambda: "native",
    ),
)
_C = SimpleNamespace(_npu_isHistoryEnabled=lambda: allocator.is_on, _npu_memoryStats=allocator.stats)


def autoload() -> None:
    """What torch calls at the end of its import."""
    torch.npu = npu  # type: ignore[attr-defined]
    if "rankmem_agent" in sys.modules:  # there is no device of this kind here, and so no file of its driver's
        from rankmem_agent.tap import accelerators

        object.__setattr__(accelerators.NPU, "nodes", ("/dev/null",))
