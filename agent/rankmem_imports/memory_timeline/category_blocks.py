"""Blocks known only by size and category: the content of a memory timeline, as events of a replay.

Stage: readers; the process of ``rankmem import``. In: bytes that come, go, or change their meaning. Out:
records of a replay, each block at an address of its own that stands for nothing. Held: a number for each
block alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from rankmem_agent.spool.layout import Action, Category, DeviceType, Kind
from rankmem_imports.bounds import checked_bytes, checked_ns
from rankmem_imports.replay import Replay

_TYPE: Final = int(DeviceType.CUDA)
"""Any: the replay names the device."""


class CategoryBlocks:
    """The blocks alive."""

    def __init__(self, replay: Replay) -> None:
        self.num_unmatched = 0
        """Frees and changes of blocks that were never made."""
        self._replay = replay
        self._alive: dict[tuple[int, Category], deque[int]] = {}
        self._sizes: dict[Category, dict[int, None]] = {}
        """By category the sizes that have blocks alive, the latest last."""
        self._next = 1
        self._last_ns = 0
        self._older: list[tuple[int, Category]] = []

    def end(self) -> None:
        """Nothing follows."""
        self._time(self._last_ns)

    def older(self, size_bytes: int, category: Category) -> None:
        """A block from before the recording; all of them come before the first that has a time."""
        self._older.append((size_bytes, category))

    def make(self, time_ns: int, size_bytes: int, category: Category) -> None:
        """A new block."""
        time_ns = self._time(time_ns)
        self._record(Kind.EVENT, time_ns, Action.ALLOC, self._next, size_bytes)
        self._born(time_ns, size_bytes, category)

    def free(self, time_ns: int, size_bytes: int, category: Category) -> None:
        """The oldest block of that size and category goes."""
        time_ns = self._time(time_ns)
        block = self._taken(size_bytes, category)
        if block is not None:
            self._record(Kind.EVENT, time_ns, Action.FREE_COMPLETED, block, size_bytes)

    def become(self, time_ns: int, size_bytes: int, category: Category, to: Category) -> None:
        """The oldest block of that size and category means something else from now on."""
        time_ns = self._time(time_ns)
        block = self._taken(size_bytes, category)
        if block is None:
            return
        if to is not category:
            self._tag(time_ns, block, size_bytes, to, since_alloc=False)
        self._keep(block, size_bytes, to)

    def move(self, time_ns: int, changes: Sequence[tuple[int, Category]]) -> None:
        """Totals change at one instant: what falls in one category and rises by as much in another changes
        its meaning; then what falls, then what rises, so that no total ever stands too high."""
        rises = [[change, category] for change, category in changes if change > 0]
        for change, category in changes:
            if change >= 0:
                continue
            other = next((rise for rise in rises if rise[0] == -change), None)
            if other is not None and self._has(-change, category):
                self.become(time_ns, -change, category, Category(other[1]))
                rises.remove(other)
            else:
                self._fall(time_ns, -change, category)
        for size_bytes, rising in rises:
            self.make(time_ns, size_bytes, Category(rising))

    def _fall(self, time_ns: int, size_bytes: int, category: Category) -> None:
        """Blocks of so many bytes go; of the last one a part stays."""
        left = size_bytes
        while left:
            sizes = self._sizes.get(category)
            if not sizes:
                self.num_unmatched += 1
                return
            size = left if left in sizes else next(reversed(sizes))
            self.free(time_ns, size, category)
            if size > left:
                self.make(time_ns, size - left, category)
            left = max(left - size, 0)

    def _has(self, size_bytes: int, category: Category) -> bool:
        return bool(self._alive.get((size_bytes, category)))

    def _taken(self, size_bytes: int, category: Category) -> int | None:
        alive = self._alive.get((size_bytes, category))
        if not alive:
            self.num_unmatched += 1
            return None
        block = alive.popleft()
        if not alive:
            del self._alive[size_bytes, category]
            del self._sizes[category][size_bytes]
        return block

    def _born(self, time_ns: int, size_bytes: int, category: Category) -> None:
        block, self._next = self._next, self._next + 1
        if category is not Category.UNKNOWN:
            self._tag(time_ns, block, size_bytes, category, since_alloc=True)
        self._keep(block, size_bytes, category)

    def _keep(self, block: int, size_bytes: int, category: Category) -> None:
        self._alive.setdefault((size_bytes, category), deque()).append(block)
        self._sizes.setdefault(category, {})[size_bytes] = None

    def _tag(
        self, time_ns: int, block: int, size_bytes: int, category: Category, *, since_alloc: bool
    ) -> None:
        self._record(Kind.TAG, time_ns, category, block, size_bytes, int(since_alloc))

    def _time(self, time_ns: int) -> int:
        self._last_ns = max(self._last_ns, checked_ns(time_ns), 0)
        waiting, self._older = self._older, []
        for size_bytes, category in waiting:
            self._record(Kind.PREEXISTING, self._last_ns, Action.ALLOC, self._next, size_bytes)
            self._born(self._last_ns, size_bytes, category)
        return self._last_ns

    def _record(
        self, kind: Kind, time_ns: int, action: int, block: int, size_bytes: int, since: int = 0
    ) -> None:
        self._replay.record(
            kind,
            time_ns=time_ns,
            action=action,
            device_type=_TYPE,
            address=block,
            size_bytes=abs(checked_bytes(size_bytes)),
            **({"since_allocation": since} if kind is Kind.TAG else {}),
        )
