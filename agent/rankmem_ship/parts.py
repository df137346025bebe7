"""Parts of steps: which block of an earlier step each block is like, as the tap found.

Stage: between spool reader and pairing. In: committed records of one log, in order. Out: for each block of a
part that is like another one, the block of that one in the same place, its twin. A pure function, in the
shipper process. Nothing is compared here: the tap has compared what the blocks show (PART records), and says
it of whole parts. A part whose blocks are not all in the log is like no other.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rankmem_agent.spool.layout import UNKNOWN, Action, Course, Kind
from rankmem_ship.spool_reader.segments import Array, named


class Likeness(enum.IntEnum):
    """How far the part of a block is like its twin's."""

    WHOLE = 0
    """From its first block to its last."""
    BEGINNING = 1
    """Up to this block and beyond; later it differs, or its end is not in the log."""


TWIN_DTYPE: Final = np.dtype([("block", "<i8"), ("twin", "<i8"), ("likeness", "u1")])
"""Indices into the records of a block's ALLOC and of its twin's, and a Likeness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The blocks that a thread allocated in a step."""

    thread: int
    step: int
    blocks: Array
    """int64 (n,): indices of their ALLOC events, in order."""
    followed: tuple[tuple[int, int], ...]
    """(position, step): the blocks before this position are like the first ones of the part of that step."""
    like_step: int | None
    """The step whose part this one is like as a whole, its own for a new one; None: neither, or not known."""
    nodes_of: int
    """The other thread whose autograd nodes ran in it; 0: none did."""


def parts_of(records: Array) -> Iterator[Part]:
    """The parts of steps in a log, thread by thread, each in order; none where nothing was compared.

    Args:
        records: RECORD_DTYPE, the whole log or a stretch that begins where a step does.
    """
    is_part = records["kind"] == Kind.PART
    is_block = (records["kind"] == Kind.EVENT) & (records["action"] == Action.ALLOC)
    for thread in np.unique(records["thread"][is_part]).tolist():
        of_thread = records["thread"] == thread
        yield from _of_thread(records, np.flatnonzero(of_thread & (is_block | is_part)))


def twins_of(records: Array) -> Array:
    """TWIN_DTYPE, by block: those whose part, or its beginning, is like that of an earlier step.

    Args:
        records: as of :func:`parts_of`.
    """
    parts = list(parts_of(records))
    backward = _backward(parts)
    known: dict[tuple[int, int], Array] = {}
    found: list[Array] = []
    for part in parts:
        if part.like_step == part.step:
            own = part.thread, part.step
            known[own] = part.blocks if own not in known else part.blocks[:0]  # two of one name: neither
        elif part.like_step is not None:
            twins = known.get((part.thread, part.like_step))
            ran, ran_then = (backward.get((part.thread, step)) for step in (part.step, part.like_step))
            agrees = ran == ran_then and None not in (ran or {}).values()
            if twins is not None and len(twins) == len(part.blocks) and agrees:
                found.append(_pairs(part.blocks, twins, Likeness.WHOLE))
                continue
        begin = 0
        for position, step in part.followed:
            twins = known.get((part.thread, step))
            if twins is None or position > len(twins):
                break
            found.append(_pairs(part.blocks[begin:position], twins[begin:position], Likeness.BEGINNING))
            begin = position
    twins = np.concatenate([np.zeros(0, TWIN_DTYPE), *found])
    return twins[np.argsort(twins["block"])]


def _backward(parts: list[Part]) -> dict[tuple[int, int], dict[int, int | None]]:
    """By thread and step: which threads ran the thread's autograd nodes then, and what their parts were like.

    A forward call that shows no more than another one is told from it by its node alone, in backward: where
    another thread runs that, both parts have to be like those of one step.
    """
    ran: dict[tuple[int, int], dict[int, int | None]] = {}
    for part in parts:
        if part.nodes_of:
            ran.setdefault((part.nodes_of, part.step), {})[part.thread] = part.like_step
    return ran


def _pairs(blocks: Array, twins: Array, likeness: Likeness) -> Array:
    pairs = np.zeros(len(blocks), TWIN_DTYPE)
    pairs["block"], pairs["twin"], pairs["likeness"] = blocks, twins, likeness
    return pairs


def _of_thread(records: Array, at: Array) -> Iterator[Part]:
    """The parts among the blocks and PART records of a thread.

    Args:
        at: the indices of these records.
    """
    is_part = records["kind"][at] == Kind.PART
    blocks = at[~is_part]
    before = np.cumsum(~is_part)[is_part]  # blocks of the thread before each PART
    begin, is_whole, is_first = 0, True, True
    followed: list[tuple[int, int]] = []
    following: int | None = None
    said: Any = None
    for said, count in zip(named(records[at[is_part]], Kind.PART), before.tolist(), strict=True):
        position, like = int(said["position"]), int(said["like_step"])
        if is_first and not position:  # blocks before it were not compared
            begin = count
        is_first = said["course"] == Course.ENDS
        is_whole &= position == count - begin
        if following is not None and is_whole:
            followed.append((position, following))
        following = like if said["course"] == Course.FOLLOWS else None
        if said["course"] != Course.ENDS:
            continue
        yield _part(said, blocks[begin:count], followed, like if is_whole and like != UNKNOWN else None)
        begin, is_whole, followed = count, True, []
    if said is not None and begin < len(blocks):  # its end is not here
        if following is not None and is_whole:
            followed.append((len(blocks) - begin, following))
        yield _part(said, blocks[begin:], followed, None)


def _part(said: Any, blocks: Array, followed: list[tuple[int, int]], like_step: int | None) -> Part:
    """A part by the last PART record of it."""
    return Part(
        thread=int(said["thread"]),
        step=int(said["step"]),
        blocks=blocks,
        followed=tuple(followed),
        like_step=like_step,
        nodes_of=int(said["nodes_of"]),
    )
