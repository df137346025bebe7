"""Where in its thread's part of a step each block comes, and how it lives, as far as the log tells.

Stage: pairing; shipper process, pure functions over arrays. In: a batch's records and the parts that go on.
Out: for each block that the tap compared its place, and the parts that have ended. A log in which nothing
was compared has no PART record, and this costs nothing.

A part is the blocks that a thread allocates in a step, in their order. The tap says of whole parts, and of
beginnings, which earlier part they are like (rankmem_agent.spool.layout.Course). A part whose blocks are
not all in the log is like no other.

A life is where a block's tensor died, seen from where it was made: how many steps later, behind how many
blocks of the thread that ends steps, and on which thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankmem_agent.spool.layout import UNKNOWN, Action, Course, Kind
from rankmem_ship.pairing.points import Points
from rankmem_ship.pairing.state import (
    ABSENT,
    COMPARED_DTYPE,
    LIFE_DTYPE,
    PART_DTYPE,
    STEP_END_DTYPE,
    Array,
    joined,
    rows_at,
)
from rankmem_ship.spool_reader.segments import named

THREADS_MAX = 256
"""Threads whose parts are followed: the tap has room for 64 at a time."""
STEP_ENDS_MAX = 64
"""Ends of steps remembered: a block that lives longer has lived long, and no more is said."""


_ENDS, _FOLLOWS = int(Course.ENDS), int(Course.FOLLOWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPart:
    """A part that has ended in a batch."""

    thread: int
    step: int
    like_step: int
    """The step whose part it is like as a whole, its own for a new one; ABSENT: none, or blocks are
    missing."""
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a batch says of parts."""

    parts: Array
    """PART_DTYPE, after the batch."""
    blocks: Array
    """COMPARED_DTYPE, sorted by allocation_id: those of the batch, behind those that waited before it."""
    ended: tuple[EndedPart, ...]
    lives: Array
    """LIFE_DTYPE, sorted by allocation_id: of blocks that died in the batch."""
    step_ends: Array
    """STEP_END_DTYPE, after the batch; likewise made_in_step."""
    made_in_step: int
    """Blocks that the thread of the last STEP has allocated since."""

    def showing(self) -> Array:
        """Threads that show where they are: those that end steps, and those that run autograd's nodes for
        others."""
        return np.concatenate([self.step_ends["thread"], self.parts["thread"][self.parts["nodes_of"] != 0]])

    def ages(self, allocation_ids: Array) -> tuple[Array, Array]:
        """How old blocks are at the batch's end: steps, and blocks of the thread that ends steps in the
        last."""
        steps = len(self.step_ends) - np.searchsorted(self.step_ends["seq"], allocation_ids)
        return steps, np.full(len(allocation_ids), self.made_in_step)


def compare(
    before: tuple[Array, Array, Array, int],
    records: Array,
    seq: Array,
    holes: Array,
    points: Points,
    made: Array,
) -> Comparison:
    """The parts of a batch.

    Args:
        before: PART_DTYPE, COMPARED_DTYPE, STEP_END_DTYPE and how many blocks were made in the step, before
            it.
        holes: places in the log behind missing records: no part goes on there.
        made: BLOCK_DTYPE, the batch's blocks: all alive before it, then those made.
    """
    parts, waiting, step_ends, made_in_step = before
    kind = records["kind"]
    is_part = kind == Kind.PART
    if not len(parts) and not is_part.any():
        return Comparison(
            parts=parts, blocks=waiting, ended=(), lives=np.zeros(0, LIFE_DTYPE), step_ends=step_ends,
            made_in_step=made_in_step,
        )  # fmt: skip
    is_block = (kind == Kind.EVENT) & (records["action"] == Action.ALLOC)
    is_block &= named(records, Kind.EVENT)["address"] != UNKNOWN
    followed = {int(part["thread"]): rows_at(parts, slice(at, at + 1)) for at, part in enumerate(parts)}
    found, ended = [waiting], []
    for thread in sorted({*followed, *records["thread"][is_part].tolist()}):
        part = followed.setdefault(thread, _new_part(thread))
        at = np.flatnonzero((is_block | is_part) & (records["thread"] == thread))
        for number, stretch in enumerate(np.split(at, np.searchsorted(seq[at], holes))):
            if number:
                part["is_open"], part["follows"] = False, ABSENT
            blocks, over = _of_thread(part, rows_at(records, stretch), seq[stretch])
            found.append(blocks)
            ended += over
    blocks = joined(found)
    blocks = rows_at(blocks, np.argsort(blocks["allocation_id"], kind="stable"))
    ends, allocs = _with_ends(step_ends, records, seq), seq[is_block]
    owners = records["thread"][is_block]
    trainers = np.append(ends["thread"], 0)[np.searchsorted(ends["seq"], allocs) - 1]
    of_trainer = allocs[owners == trainers]
    lives = _lives(points, made, ends, of_trainer, made_in_step, seq)
    _note_lives(blocks, lives)
    since = int(ends["seq"][-1]) if len(ends) else ABSENT
    is_new_step = len(ends) and (not len(step_ends) or ends["seq"][-1] != step_ends["seq"][-1])
    made_since = int((of_trainer > since).sum()) + (0 if is_new_step else made_in_step)
    rows = joined([followed[thread] for thread in sorted(followed)])
    latest = np.lexsort((rows["step"], rows["is_open"]))[-THREADS_MAX:]
    return Comparison(
        parts=rows_at(rows, np.sort(latest)),
        blocks=blocks,
        ended=tuple(ended),
        lives=lives,
        step_ends=rows_at(ends, slice(max(0, len(ends) - STEP_ENDS_MAX), None)),
        made_in_step=made_since,
    )


def _new_part(thread: int) -> Array:
    part = np.zeros(1, PART_DTYPE)
    part["thread"], part["step"], part["follows"] = thread, ABSENT, ABSENT
    return part


def _of_thread(part: Array, records: Array, seq: Array) -> tuple[Array, list[EndedPart]]:
    """The blocks of a thread that were compared, and its parts that ended; ``part`` goes on after them."""
    is_part = records["kind"] == Kind.PART
    said = named(rows_at(records, is_part), Kind.PART)
    num_before = np.cumsum(~is_part)[is_part]  # blocks of the batch before each PART
    made = seq[~is_part]
    rows = np.zeros(len(made), COMPARED_DTYPE)
    rows["allocation_id"], rows["thread"], rows["died_steps"] = made, part["thread"][0], ABSENT
    ended: list[EndedPart] = []
    columns = [said[name].tolist() for name in ("course", "step", "position", "like_step", "nodes_of")]
    begin = 0
    for upto, course, step, position, like, nodes_of in zip(num_before.tolist(), *columns, strict=True):
        _go_on(part, rows[begin:upto])
        begin, like_step = upto, ABSENT if like == UNKNOWN else like
        if course == _ENDS:
            is_whole = bool(part["is_open"][0]) and position == part["num_blocks"][0]
            like_step = like_step if is_whole else ABSENT
            thread = int(part["thread"][0])
            ended.append(EndedPart(thread=thread, step=step, like_step=like_step, num_blocks=position))
            part["is_open"], part["follows"], part["num_blocks"] = False, ABSENT, 0
            part["nodes_of"] = nodes_of
            continue
        if position == 0:
            part["is_open"], part["step"], part["num_blocks"] = True, step, 0
        elif position != part["num_blocks"][0]:
            part["is_open"] = False
        part["follows"] = like_step if course == _FOLLOWS else ABSENT
    _go_on(part, rows[begin:])
    return rows_at(rows, rows["place"] != 0), ended


def _go_on(part: Array, rows: Array) -> None:
    """Gives the next blocks of a thread their places in its part, if that was compared from its beginning
    on."""
    if not len(rows) or not part["is_open"][0]:
        return
    first = int(part["num_blocks"][0]) + 1
    rows["place"] = np.arange(first, first + len(rows))
    rows["part"], rows["follows"] = part["step"][0], part["follows"][0]
    part["num_blocks"] += len(rows)


def _with_ends(step_ends: Array, records: Array, seq: Array) -> Array:
    is_end = records["kind"] == Kind.STEP
    rows = np.zeros(int(is_end.sum()), STEP_END_DTYPE)
    rows["seq"], rows["thread"] = seq[is_end], records["thread"][is_end]
    return joined([step_ends, rows])


def _lives(points: Points, blocks: Array, ends: Array, made: Array, made_in_step: int, seq: Array) -> Array:
    """Of the blocks whose tensor died in the batch.

    Args:
        made: places of the blocks that the thread that ends steps allocated in the batch.
        made_in_step: and before it, since the last STEP.
    """
    is_death = points.is_event & (points.block != ABSENT)
    asked = points.action == Action.FREE_REQUESTED
    is_death &= asked | (points.action == Action.FREE_COMPLETED)
    at = np.flatnonzero(is_death)
    _, first = np.unique(points.block[at], return_index=True)
    at = at[first]
    number, place = points.block[at], points.seq[at]
    of_block = blocks["free_requested_seq"][number]
    is_first = (of_block == ABSENT) | (of_block == place)
    number, place, thread = number[is_first], place[is_first], points.thread[at][is_first]
    lives = np.zeros(len(number), LIFE_DTYPE)
    lives["allocation_id"], lives["thread"] = blocks["allocation_id"][number], thread
    last = np.searchsorted(ends["seq"], place)
    lives["steps"] = last - np.searchsorted(ends["seq"], lives["allocation_id"])
    since = np.append(ends["seq"], ABSENT)[last - 1]
    lives["place"] = np.searchsorted(made, place) - np.searchsorted(made, since)
    lives["place"] += np.where(since < (seq[0] if len(seq) else 0), made_in_step, 0)
    return rows_at(lives, np.argsort(lives["allocation_id"], kind="stable"))


def _note_lives(blocks: Array, lives: Array) -> None:
    if not len(blocks) or not len(lives):
        return
    near = np.minimum(np.searchsorted(lives["allocation_id"], blocks["allocation_id"]), len(lives) - 1)
    died = lives["allocation_id"][near] == blocks["allocation_id"]
    for name in ("steps", "place", "thread"):
        blocks[f"died_{name}"][died] = lives[name][near[died]]
