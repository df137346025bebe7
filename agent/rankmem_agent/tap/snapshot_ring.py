"""The allocator's ring of recorded events, and how far it has been read.

Stage: trainer, for the fallback without a compiler (:mod:`rankmem_agent.tap.snapshot_drain`). Comes in:
``torch.cuda.memory``'s recording. Goes out: the entries that are new since the last look, and whether some
were overwritten unread. Holds no tensor; the only torch it touches is in :class:`TorchHistory`.

A look returns the whole ring: entries have no number, their microseconds may tie, and each look itself
adds a ``snapshot`` entry. So the place is found again by the last entries seen, TAIL_ENTRIES of them.

Source: ``_record_memory_history``, ``_snapshot`` (private; signatures of 2.6 to 2.15 differ, so probed).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final, Protocol

from rankmem_protos.errors import Code, RankmemError

RING_ENTRIES: Final = 65_536
"""Entries that the allocator keeps. A look costs some 7 us an entry whatever is new, and half a ring is read
at a time; 20,000 events a step still fit."""
TAIL_ENTRIES: Final = 64
"""Entries compared to find the place again: times may tie, but no loop repeats so many within their ties."""

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

    def device_facts(self, device_index: int) -> dict[str, Any]:
        """name, uuid, total_bytes and settings of a device."""

    def pinned_bytes(self) -> tuple[int, int] | None:
        """Pinned host memory: taken from the system, and of that in use; None where not known."""


class TorchHistory:
    """``torch.cuda.memory``'s recording.

    Raises:
        RankmemError: UNSUPPORTED where this torch lacks what is needed, or its allocator keeps no history.
    """

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._memory = torch.cuda.memory
        self._c = torch._C
        missing = [
            name for name in ("_record_memory_history", "_snapshot") if not hasattr(self._memory, name)
        ] + [name for name in ("_cuda_isHistoryEnabled", "_cuda_memoryStats") if not hasattr(self._c, name)]
        if missing:
            message = f"torch {torch.__version__} has no {', '.join(missing)}"
            raise RankmemError(Code.UNSUPPORTED, message, "install a C++ compiler for the native tap")
        backend = str(self._memory.get_allocator_backend())
        if backend != "native":
            message = f"the allocator {backend} keeps no history"
            raise RankmemError(Code.UNSUPPORTED, message, "unset backend in PYTORCH_CUDA_ALLOC_CONF")

    def is_recording(self) -> bool:
        """Whether anyone has switched the allocator's history on."""
        return bool(self._c._cuda_isHistoryEnabled())

    def start(self) -> None:
        """Switches it on: RING_ENTRIES entries, Python stacks of allocations; omits what this torch lacks."""
        wanted = {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": RING_ENTRIES}
        known = inspect.signature(self._memory._record_memory_history).parameters
        if "enabled" not in known or "max_entries" not in known:
            message = f"_record_memory_history{tuple(known)} is not one that is known"
            raise RankmemError(Code.UNSUPPORTED, message, "install a C++ compiler for the native tap")
        self._memory._record_memory_history(**{k: v for k, v in wanted.items() if k in known})

    def look(self) -> dict[str, Any]:
        """The whole ring and the segments. Takes each device's allocator lock, and holds the GIL."""
        raw: dict[str, Any] = self._memory._snapshot()
        return raw

    def allocations(self) -> int:
        """Allocations ever made, over all devices."""
        count = 0
        for device_index in range(self._cuda.device_count()):
            count += int(self._c._cuda_memoryStats(device_index)["allocation"]["all"]["allocated"])
        return count

    def device_facts(self, device_index: int) -> dict[str, Any]:
        """name, uuid, total_bytes and settings of a device."""
        properties = self._cuda.get_device_properties(device_index)
        return {
            "name": str(properties.name),
            "uuid": f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else "",
            "total_bytes": int(properties.total_memory),
            "allocator": "native",
            "settings": "",
        }

    def pinned_bytes(self) -> tuple[int, int] | None:
        """By ``torch.cuda.host_memory_stats()``, which torch has since 2.8 or so."""
        stats: dict[str, Any] = getattr(self._cuda, "host_memory_stats", dict)()
        held, used = (stats.get(f"{name}_bytes.current") for name in ("allocated", "active"))
        return None if held is None or used is None else (int(held), int(used))


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
        the ring's very beginning.
        """
        if not self._tail:
            return 0
        for at in range(min(self._length, len(trace)), 0, -1):
            count = min(at, len(self._tail))
            if _key(trace[at - 1]) == self._tail[-1] and all(
                _key(trace[at - back]) == self._tail[-back] for back in range(2, count + 1)
            ):
                return at
        return None


def _key(entry: dict[str, Any]) -> _Key:
    return (entry["action"], entry.get("addr"), entry["size"], entry["stream"], entry.get("time_us"))
