"""How little memory would do, had the allocator known all lives beforehand: blocks packed offline.

Stage: insights. In: a trace. Out: bytes. The bytes alive at once are a bound from below that no placement can
beat; the packing is one that exists. Blocks are placed one after another: the largest first, each at the
lowest place with room; where that ends more than 1 % above the bound, also by size times life and by life,
each in the smallest gap with room, and the best one counts. On five recordings of devices it ends at most
0.40 % above.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rankmem_aggregator.insights.lives import Array, Op, Trace, block_bytes_of
from rankmem_aggregator.insights.settings import Settings

BLOCKS_MAX: Final = 20_000
"""Above so many blocks none is packed: each looks at all before it, 20 s in all."""
CLOSE_SHARE: Final = 0.01
"""Above the bound: a packing that is this close is good enough."""


def intervals(trace: Trace, settings: Settings) -> Array:
    """The lives of all blocks: int64 (n, 3): op of its birth (0: older), op of its end, bytes."""
    sizes, older = block_bytes_of(trace, settings)
    end = len(trace.ops) + 1
    born = np.zeros(trace.num_older + trace.num_allocations, np.int64)
    died = np.full(len(born), end, np.int64)
    size = np.zeros(len(born), np.int64)
    size[: trace.num_older] = older
    ops, blocks = np.array(trace.ops, np.int64), np.array(trace.block, np.int64)
    made, freed = np.flatnonzero(ops == Op.ALLOC), np.flatnonzero(ops == Op.FREE)
    born[blocks[made]] = made + 1
    size[blocks[made]] = np.array(sizes, np.int64)[made]
    died[blocks[freed]] = freed + 1
    return np.stack([born, died, size], axis=1)


def live_peak_bytes(lives: Array) -> int:
    """The most bytes that were alive at once."""
    if not len(lives):
        return 0
    change = np.zeros(int(lives[:, 1].max()) + 1, np.int64)
    np.add.at(change, lives[:, 0], lives[:, 2])
    np.add.at(change, lives[:, 1], -lives[:, 2])
    return int(np.cumsum(change).max())


def packed_bytes(lives: Array) -> int | None:
    """The memory that the best of three packings takes; None above :data:`BLOCKS_MAX` blocks."""
    if len(lives) > BLOCKS_MAX:
        return None
    life, size = lives[:, 1] - lives[:, 0], lives[:, 2]
    bound = live_peak_bytes(lives)
    best = _packed(lives[np.argsort(-size, kind="stable")], lowest=True)
    for order in (np.argsort(-size * life, kind="stable"), np.lexsort((-size, -life))):
        if best <= bound * (1 + CLOSE_SHARE):
            break
        best = min(best, _packed(lives[order], lowest=False))
    return best


def _packed(lives: Array, *, lowest: bool) -> int:
    """The height of blocks that are placed in this order, at the lowest place or in the smallest gap."""
    born, died, size = (np.ascontiguousarray(column) for column in lives.T)
    offset = np.zeros(len(lives), np.int64)
    top = 0
    for place in range(len(lives)):
        beside = np.flatnonzero((born[:place] < died[place]) & (died[:place] > born[place]))
        at = _place(offset[beside], size[beside], int(size[place]), lowest=lowest)
        offset[place] = at
        top = max(top, at + int(size[place]))
    return top


def _place(offset: Array, size: Array, wanted: int, *, lowest: bool) -> int:
    """Where ``wanted`` bytes go among ranges that are taken; on top where no gap has the room."""
    if not len(offset):
        return 0
    order = np.argsort(offset, kind="stable")
    begin, end = offset[order], np.maximum.accumulate(offset[order] + size[order])
    gaps = begin - np.concatenate(([0], end[:-1]))
    roomy = np.flatnonzero(gaps >= wanted)
    if not len(roomy):
        return int(end[-1])
    best = roomy[0] if lowest else roomy[np.argmin(gaps[roomy])]
    return 0 if best == 0 else int(end[best - 1])
