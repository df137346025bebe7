"""A stand-in for PyTorch's caching allocator and its recorded history, for the fallback's tests.

It keeps a ring as torch does (fixed entries, the oldest overwritten; each look adds a ``snapshot`` entry),
and beside it a list of everything that happened, with the allocator's own bytes after each: the oracle.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from rankmem_agent.tap.snapshot_blocks import Figures

Entry = dict[str, Any]


class FakeHistory:
    """One or two devices; every block is its own segment of the rounded size, or cut off a given segment.

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
        self.held: list[list[tuple[int, int]]] = [[] for _ in range(devices)]
        """Allocated and active bytes after each."""
        self.live: list[dict[int, dict[str, Any]]] = [{} for _ in range(devices)]
        self.segments: list[dict[int, int]] = [{} for _ in range(devices)]
        """Bytes of the segments that were given, by address."""
        self.tops = [Figures() for _ in range(devices)]
        self.settings: dict[str, Any] = {"max_split_size": -1, "roundup_power2_divisions": {"1": 0}}
        self.shifts_us: Iterator[int] = itertools.repeat(0)
        """How far the next look finds each entry's time from where it was."""
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
        for entry in itertools.chain.from_iterable(self.rings):
            entry["time_us"] += next(self.shifts_us)
        traces = [[dict(entry) for entry in ring] for ring in self.rings]
        if self.between is not None:
            self.between()
            self.between = None
        segments = [found for device in range(len(self.live)) for found in self._segments(device)]
        for device in range(len(self.rings)):
            self._push(device, {"action": "snapshot", "addr": 0, "size": 0, "stream": 0}, happened=False)
        return {"segments": segments, "device_traces": traces, "allocator_settings": self.settings}

    def peaks(self, device_index: int) -> Figures:
        return self.tops[device_index]

    def reset_peaks(self, device: int = 0) -> None:
        """What the program's ``reset_peak_memory_stats()`` does."""
        self.tops[device] = self._figures(device)

    def segment_alloc(self, address: int, size: int, *, device: int = 0) -> None:
        self.segments[device][address] = size
        self._event("segment_alloc", address, size, 0, device, ())

    def segment_free(self, address: int, *, device: int = 0) -> None:
        self._event("segment_free", address, self.segments[device].pop(address), 0, device, ())

    def alloc(
        self,
        address: int,
        size: int,
        *,
        device: int = 0,
        stream: int = 0,
        line: int = 1,
        block_bytes: int | None = None,
    ) -> None:
        """Args: block_bytes: what the allocator takes for it; the request rounded up to 512 bytes if None."""
        self.allocated += 1
        frames = [{"filename": "train.py", "name": "step", "line": line}]
        self.live[device][address] = {
            "size": size,
            "block_bytes": block_bytes or max(-(-size // 512), 1) * 512,
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
        now = self._figures(device)
        self.tops[device] = Figures(*map(max, now, self.tops[device]))
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
            now = self._figures(device)
            self.held[device].append((now.allocated, now.active))

    def _segments(self, device: int) -> Iterator[dict[str, Any]]:
        """Those that were given, and one for each block that is in none."""
        rest = dict(self.live[device])
        for address, size in self.segments[device].items():
            within = [at for at in rest if address <= at < address + size]
            yield _segment(device, address, size, {at: rest.pop(at) for at in within}, self.pools)
        for at, block in rest.items():
            yield _segment(device, at, block["block_bytes"], {at: block}, self.pools)

    def _figures(self, device: int) -> Figures:
        blocks = self.live[device].values()
        return Figures(
            allocated=sum(b["block_bytes"] for b in blocks if b["state"] == "active_allocated"),
            active=sum(b["block_bytes"] for b in blocks),
            requested=sum(b["size"] for b in blocks),
        )


def _segment(
    device: int,
    address: int,
    size: int,
    live: dict[int, dict[str, Any]],
    pools: dict[int, tuple[int, int]],
) -> dict[str, Any]:
    blocks = [
        {"address": at, "size": block["block_bytes"], "requested_size": block["size"],
         "state": block["state"], "frames": block["frames"]}
        for at, block in live.items()
    ]  # fmt: skip
    in_use = [block for block in blocks if block["state"] == "active_allocated"]
    return {
        "device": device, "address": address, "total_size": size,
        "stream": next((block["stream"] for block in live.values()), 0),
        "allocated_size": sum(block["size"] for block in in_use),
        "active_size": sum(block["size"] for block in blocks),
        "segment_pool_id": pools.get(address, (0, 0)), "blocks": blocks,
    }  # fmt: skip
