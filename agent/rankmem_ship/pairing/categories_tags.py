"""Which block a TAG record is about: the one that lies at its address at that moment.

Stage: pairing; shipper process, pure functions over arrays. A tag names the address of a tensor, which may
lie inside of its block (a gradient in DDP's bucket, a flattened parameter). Addresses are used again, so the
block is looked for among those alive at the tag's place in the log.
"""

from __future__ import annotations

import numpy as np

from rankmem_ship.pairing.devices import ADDRESS_BITS, block_keys
from rankmem_ship.pairing.state import ABSENT, Array

_SEQ_BITS = np.uint64(40)
"""Records of one batch and the distance to its oldest: 10^12 of them."""


def blocks_at(blocks: Array, devices: Array, addresses: Array, seq: Array) -> Array:
    """The index of the block at each address at that moment, ABSENT where none is known.

    Args:
        blocks: BLOCK_DTYPE, those alive at some time of the batch.
        devices: dense number of each tag's device; addresses: uint64; seq: its place in the log.
    """
    found = np.full(len(addresses), ABSENT)
    if not len(blocks) or not len(addresses):
        return found
    keys = block_keys(devices, addresses)
    begin = np.where(blocks["preexisting"], 0, blocks["allocation_id"])
    found = _at_begin(blocks, begin, keys, seq)
    inside = np.flatnonzero(found == ABSENT)
    for moment in np.unique(_moments(seq[inside])):  # tags of one call of the tap lie one after another
        own = inside[_moments(seq[inside]) == moment]
        found[own] = _inside(blocks, begin, keys[own], int(seq[own[0]]))
    return found


def _at_begin(blocks: Array, begin: Array, keys: Array, seq: Array) -> Array:
    """Blocks that begin at the address: the last one allocated there before, if it lives."""
    known, place = np.unique(blocks["key"], return_inverse=True)
    codes = (place.astype(np.uint64) << _SEQ_BITS) | begin.astype(np.uint64)
    order = np.argsort(codes)
    key_place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    wanted = (key_place.astype(np.uint64) << _SEQ_BITS) | seq.astype(np.uint64)
    near = order[np.maximum(np.searchsorted(codes[order], wanted) - 1, 0)]
    right = (blocks["key"][near] == keys) & (begin[near] < seq) & _lives(blocks[near], seq)
    found: Array = np.where(right, near, ABSENT)
    return found


def _inside(blocks: Array, begin: Array, keys: Array, seq: int) -> Array:
    """Blocks that the address lies in, at one moment."""
    alive = np.flatnonzero((begin < seq) & _lives(blocks, np.full(len(blocks), seq)))
    if not len(alive):
        return np.full(len(keys), ABSENT)
    alive = alive[np.argsort(blocks["key"][alive])]
    near = alive[np.maximum(np.searchsorted(blocks["key"][alive], keys, side="right") - 1, 0)]
    first = blocks["key"][near]
    right = (first <= keys) & (keys < first + blocks["size"][near].astype(np.uint64))
    right &= first >> np.uint64(ADDRESS_BITS) == keys >> np.uint64(ADDRESS_BITS)
    found: Array = np.where(right, near, ABSENT)
    return found


def _lives(blocks: Array, seq: Array) -> Array:
    alive: Array = (blocks["freed_seq"] == ABSENT) | (blocks["freed_seq"] > seq)
    return alive


def _moments(seq: Array) -> Array:
    """A number for each run of seq without a hole."""
    runs: Array = np.cumsum(np.diff(seq, prepend=seq[:1]) > 1)
    return runs
