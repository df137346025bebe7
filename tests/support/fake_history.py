"""A stand-in for PyTorch's caching allocator and its recorded history, for the fallback's tests.

It keeps a ring as torch does (fixed entries, the oldest overwritten; each look adds a ``snapshot`` entry),
and beside it a list of everything that happened: the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Entry = dict[str, Any]


class FakeHistory:
    """One or two devices; every block is its own segment of the rounded size.

    Args:
        ring_entries: entries that a device's ring keeps.
        tick_us: how far the clock moves at each event; 0 makes all times tie.
    """

    def __init__(self, ring_entries: int = 10_000, tick_us: int = 1, devices: int = 1) -> None:
        self.ring_entries = ring_entries
        self.tick_us = tick_us
        self.now_us = 1_700_000_000_000_000
        self.recording = False
        self.rings: list[list[Entry]] = [[] for _ in range(devices)]
        self.happened: list[list[Entry]] = [[] for _ in range(devices)]
        """All events since the recording began, without ``snapshot`` entries."""
        self.live: list[dict[int, dict[str, Any]]] = [{} for _ in range(devices)]
        self.pools: dict[int, tuple[int, int]] = {}
        """Private pools by address; the trace tells none of them."""
        self.allocated = 0
        self.looks = 0
        self.starts = 0
        self.pinned: tuple[int, int] | None = None
        self.between: Callable[[], None] | None = None
        """Called once between the reading of the trace and that of the segments: the race."""

    def is_recording(self) -> bool:
        return self.recording

    def start(self) -> None:
        self.starts += 1
        self.recording = True

    def switch_off(self) -> None:
        """What the program's ``_record_memory_history(None)`` does: the ring is erased."""
        self.recording = False
        self.rings = [[] for _ in self.rings]

    def allocations(self) -> int:
        return self.allocated

    def device_facts(self, device_index: int) -> dict[str, Any]:
        return {"name": "fake", "uuid": f"GPU-{device_index}", "total_bytes": 2**34}

    def pinned_bytes(self) -> tuple[int, int] | None:
        return self.pinned

    def look(self) -> dict[str, Any]:
        self.looks += 1
        traces = [list(ring) for ring in self.rings]
        if self.between is not None:
            self.between()
            self.between = None
        segments = [self._segment(device, a) for device, live in enumerate(self.live) for a in live]
        for device in range(len(self.rings)):
            self._push(device, {"action": "snapshot", "addr": 0, "size": 0, "stream": 0}, happened=False)
        return {"segments": segments, "device_traces": traces}

    def alloc(self, address: int, size: int, *, device: int = 0, stream: int = 0, line: int = 1) -> None:
        self.allocated += 1
        frames = [{"filename": "train.py", "name": "step", "line": line}]
        self.live[device][address] = {
            "size": size,
            "stream": stream,
            "state": "active_allocated",
            "frames": frames,
        }
        self._event("alloc", address, size, stream, device, frames)

    def free_requested(self, address: int, *, device: int = 0) -> None:
        block = self.live[device][address]
        block["state"] = "active_awaiting_free"
        self._event("free_requested", address, block["size"], block["stream"], device, ())

    def free_completed(self, address: int, *, device: int = 0) -> None:
        block = self.live[device].pop(address)
        self._event("free_completed", address, block["size"], block["stream"], device, ())

    def free(self, address: int, *, device: int = 0) -> None:
        self.free_requested(address, device=device)
        self.free_completed(address, device=device)

    def oom(self, size: int, free_bytes: int, *, device: int = 0) -> None:
        self.now_us += self.tick_us
        entry = {
            "action": "oom",
            "size": size,
            "stream": 0,
            "device_free": free_bytes,
            "time_us": self.now_us,
        }
        self._push(device, entry, happened=True)

    def _event(self, action: str, address: int, size: int, stream: int, device: int, frames: Any) -> None:
        self.now_us += self.tick_us
        entry = {"action": action, "addr": address, "size": size, "stream": stream, "frames": frames}
        self._push(device, {**entry, "time_us": self.now_us}, happened=True)

    def _push(self, device: int, entry: Entry, *, happened: bool) -> None:
        if not self.recording:
            return
        entry.setdefault("time_us", self.now_us)
        self.rings[device].append(entry)
        del self.rings[device][: -self.ring_entries]
        if happened:
            self.happened[device].append(entry)

    def _segment(self, device: int, address: int) -> dict[str, Any]:
        block = self.live[device][address]
        rounded = (block["size"] + 511) // 512 * 512
        in_use = block["state"] == "active_allocated"
        return {
            "device": device, "address": address, "total_size": rounded, "stream": block["stream"],
            "allocated_size": rounded if in_use else 0, "active_size": rounded,
            "segment_pool_id": self.pools.get(address, (0, 0)),
            "blocks": [
                {"address": address, "size": rounded, "requested_size": block["size"],
                 "state": block["state"], "frames": block["frames"]}
            ],
        }  # fmt: skip
