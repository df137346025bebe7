"""The allocator's ring of recorded events, and how far it has been read.

Stage: trainer, for the fallback without a compiler (:mod:`rankmem_agent.tap.snapshot_drain`). Comes in:
the recording of ``torch.cuda.memory`` or its like. Goes out: the entries that are new since the last look,
and whether some were overwritten unread. Holds no tensor; :class:`TorchHistory` alone touches torch.

A look returns the whole ring: entries have no number, their microseconds may tie and are not the same at each
look, and each look itself adds a ``snapshot`` entry. So the place is found again by the last entries seen,
TAIL_ENTRIES of them, and that entry.

Source: ``_record_memory_history``, ``_snapshot`` (private; signatures of 2.6 to 2.15 differ, so probed).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

from rankmem_agent.tap.accelerators import CUDA, Accelerator
from rankmem_agent.tap.snapshot_blocks import Figures
from rankmem_protos.errors import Code, RankmemError

RING_ENTRIES: Final = 32_768
"""Entries that the allocator keeps. A look costs some 1.3 us for each, whatever is new."""
DRAIN_ENTRIES: Final = RING_ENTRIES // 4
"""New entries at which they are read, or a quarter of a longer ring of the program's: 20,000 more, between
two calls of modules or step ends, still fit."""
TAIL_ENTRIES: Final = 64
"""Entries compared to find the place again: times may tie, but no loop repeats so many within their ties."""
JITTER_US: Final = 2
"""A look computes times out of ticks and the clock of its instant: of ten thousand entries one has moved by a
microsecond at the next look (2.11, measured)."""
SHIFT_US: Final = 1_000
"""All move together where the clock is being corrected: by up to 500 ppm of the time between two looks."""
PINNED_IN_USE_SINCE: Final = (2, 13)
"""Before, blocks that waited for a stream count as in use for ever: see tap_pinned.cpp."""

_Key = tuple[Any, ...]


class History(Protocol):
    """The recording that is drained; a test's ring, or :class:`TorchHistory`."""

    def is_recording(self) -> bool:
        """Whether anyone has switched the allocator's history on."""

    def start(self) -> None:
        """Switches it on."""

    def look(self) -> dict[str, Any]:
        """The whole ring and the segments: what ``_snapshot()`` returns."""

    def allocations(self) -> int:
        """Allocations ever made, over all devices: cheap, and shows how full the ring is getting."""

    def peaks(self, device_index: int) -> Figures:
        """The allocator's own peaks of a device; the program may reset them."""

    def device_facts(self, device_index: int) -> dict[str, Any]:
        """name, uuid, total_bytes and settings of a device."""

    def pinned_bytes(self) -> tuple[int, int | None] | None:
        """Pinned host memory: taken from the system, and of that in use; None where not known."""


class TorchHistory:
    """The recording of ``torch.cuda.memory`` or its like.

    Args:
        accelerator: whose. Of XPU's torch does not say whether it is on: one of the program's is replaced.

    Raises:
        RankmemError: UNSUPPORTED where this torch lacks what is needed, or its allocator keeps no history.
    """

    def __init__(self, torch: Any, accelerator: Accelerator = CUDA) -> None:
        self._part = accelerator.part(torch)
        self._memory = self._part.memory
        self._is_cuda = accelerator is CUDA
        self._has_started = False
        version = re.match(r"(\d+)\.(\d+)", torch.__version__)
        numbers = (int(version[1]), int(version[2])) if version else (0, 0)
        self._counts_pinned_in_use = accelerator.name == "cuda" and numbers >= PINNED_IN_USE_SINCE
        self._hint = "install a C++ compiler for the native tap" if self._is_cuda else "update torch"
        missing = accelerator.missing(torch)
        if missing:
            message = f"torch {torch.__version__} has no {', '.join(missing)}"
            raise RankmemError(Code.UNSUPPORTED, message, self._hint)
        self._stats = accelerator.native(torch, "memoryStats")
        self._is_enabled = accelerator.native(torch, "isHistoryEnabled")
        backend = str(getattr(self._memory, "get_allocator_backend", lambda: "native")())
        if backend != "native":
            message = f"the allocator {backend} keeps no history"
            raise RankmemError(Code.UNSUPPORTED, message, f"unset backend in {accelerator.settings}")

    def is_recording(self) -> bool:
        """Whether anyone has switched the allocator's history on."""
        return self._has_started if self._is_enabled is None else bool(self._is_enabled())

    def start(self) -> None:
        """Switches it on: RING_ENTRIES entries, Python stacks of allocations; omits what this torch lacks."""
        wanted = {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": RING_ENTRIES}
        known = inspect.signature(self._memory._record_memory_history).parameters
        if "enabled" not in known or "max_entries" not in known:
            message = f"_record_memory_history{tuple(known)} is not one that is known"
            raise RankmemError(Code.UNSUPPORTED, message, self._hint)
        self._memory._record_memory_history(**{k: v for k, v in wanted.items() if k in known})
        self._has_started = True

    def look(self) -> dict[str, Any]:
        """The whole ring and the segments. Takes each device's allocator lock, and holds the GIL."""
        raw: dict[str, Any] = self._memory._snapshot()
        return raw

    def allocations(self) -> int:
        """Allocations ever made, over all devices."""
        count = 0
        for device_index in range(self._part.device_count()):
            count += int(self._stats(device_index)["allocation"]["all"]["allocated"])
        return count

    def peaks(self, device_index: int) -> Figures:
        """The allocator's own peaks of a device; the program may reset them."""
        stats = self._stats(device_index)
        return Figures(*(int(stats[f"{name}_bytes"]["all"]["peak"]) for name in Figures._fields))

    def device_facts(self, device_index: int) -> dict[str, Any]:
        """name, uuid, total_bytes and settings of a device."""
        properties = self._part.get_device_properties(device_index)
        uuid = str(getattr(properties, "uuid", ""))
        return {
            "name": str(properties.name),
            "uuid": f"GPU-{uuid}" if uuid and self._is_cuda else uuid,  # as NVIDIA's driver has it
            "total_bytes": int(properties.total_memory),
            "allocator": "native",
            "settings": "",
        }

    def pinned_bytes(self) -> tuple[int, int | None] | None:
        """By ``host_memory_stats()``, which torch has since 2.8 or so, and CUDA's right since 2.13."""
        stats: dict[str, Any] = getattr(self._part, "host_memory_stats", dict)()
        held, used = (stats.get(f"{name}_bytes.current") for name in ("allocated", "active"))
        if held is None or used is None:
            return None
        return int(held), int(used) if self._counts_pinned_in_use else None


class RingCursor:
    """How far one device's ring has been read."""

    def __init__(self) -> None:
        self._tail: list[_Key] = []
        self._length = 0
        self._looked = False

    def advance(self, trace: Sequence[dict[str, Any]]) -> tuple[Sequence[dict[str, Any]], bool]:
        """The entries after those seen, and True if others before them were overwritten or erased unread.

        The ``snapshot`` entry that our own last look added is left out.
        """
        at = self._position(trace)
        new = trace[at or 0 :]
        own = next((n for n, entry in enumerate(new) if entry["action"] == "snapshot"), None)
        # Where the last look found nothing, its own mark is all there is to be found again.
        lost = at is None or (self._looked and not self._tail and own is None)
        if self._looked and own is not None and not lost:
            new = [*new[:own], *new[own + 1 :]]
        self._looked = True
        self._length = len(trace)
        self._tail = [_key(entry) for entry in trace[-TAIL_ENTRIES:]]
        return new, lost

    def _position(self, trace: Sequence[dict[str, Any]]) -> int | None:
        """Number of entries already seen; None if nothing that was seen is left.

        The ring loses entries at its front only, so the place is where it was or earlier. Of the tail, what
        the ring still holds before the place must match; a place with less than all of it before it is
        the ring's very beginning. Times, which a look computes anew, have hardly moved there, and the last
        look's mark stands right behind it, if no other thread came between.
        """
        if not self._tail:
            return 0
        last = self._tail[-1]
        best: tuple[int, tuple[int, bool, bool, int]] | None = None
        ideal = (-len(self._tail), False, False)
        for at in range(min(self._length, len(trace)), 0, -1):
            if trace[at - 1].get("addr") != last[1] or trace[at - 1]["size"] != last[2]:
                continue  # a look compares thousands
            has_mark = at < len(trace) and trace[at]["action"] == "snapshot"
            moved_us = (trace[at - 1].get("time_us") or 0) - (last[-1] or 0)
            if abs(moved_us) > SHIFT_US and not has_mark:
                continue
            shift_us = self._shift_us(trace, at)
            if shift_us is None:
                continue
            rank = (-min(at, len(self._tail)), shift_us > JITTER_US, not has_mark, shift_us)
            if best is None or rank < best[1]:
                best = (at, rank)
            if best[1][:3] == ideal:
                break
        return None if best is None else best[0]

    def _shift_us(self, trace: Sequence[dict[str, Any]], at: int) -> int | None:
        """How far the times of the tail have moved if it ends at this place; None if it does not."""
        shifts: list[int] = []
        for back in range(1, min(at, len(self._tail)) + 1):
            *what, was_us = self._tail[-back]
            *found, is_us = _key(trace[at - back])
            if what != found:
                return None
            shifts.append((is_us or 0) - (was_us or 0))
            if abs(shifts[-1] - shifts[0]) > JITTER_US:
                return None
        return abs(shifts[0])


def _key(entry: dict[str, Any]) -> _Key:
    return (entry["action"], entry.get("addr"), entry["size"], entry["stream"], entry.get("time_us"))
