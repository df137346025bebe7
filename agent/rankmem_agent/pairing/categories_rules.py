"""What a block means by the call that made it, before any tag and any free is looked at.

Stage: pairing; shipper process, pure functions over arrays. In: the blocks whose rows go out and their calls.
Out: a category for each, unknown where the call does not say. See docs/categories.md.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rankmem_agent.pairing.batch import Batch
from rankmem_agent.pairing.state import ABSENT, CATEGORY_DTYPE, Array
from rankmem_agent.pairing.texts import Texts
from rankmem_agent.spool.layout import Category, Phase


class Source(enum.IntEnum):
    """Why a block has its category; of two tags the one with the higher number holds, of equals the later."""

    RULE = 0
    CANDIDATE = 1
    """Unknown; input if it lives when the next forward or backward begins."""
    BUFFER = 2
    GRADIENT = 3
    PARAMETER = 4
    OPTIMIZER_STATE = 5


def of_calls(batch: Batch, call_ids: Array, column: Array, missing: int) -> Array:
    """A column of the calls' table for each call id."""
    place = batch.calls.place(call_ids)
    values: Array = np.append(column, np.array([missing], column.dtype))[place]  # ABSENT is the one appended
    return values


def by_rules(batch: Batch, has_frozen: bool, texts: Texts) -> Array:
    """CATEGORY_DTYPE of the blocks whose row goes out, from their calls alone.

    Args:
        has_frozen: some parameter wants no gradient.
    """
    due, calls = batch.records_due, batch.calls
    made = _made(batch, texts)
    none = _depends_on_none(batch, made, has_frozen)
    rows = np.zeros(len(due), CATEGORY_DTYPE)
    rows["allocation_id"] = due["allocation_id"]
    rows["told_seq"] = ABSENT
    rows["node"] = of_calls(batch, due["call_id"], calls.table["node"], 0)
    rows["recorded"] = made.with_grad
    rows["category"] = np.select(
        [
            made.by_reducer,
            (rows["node"] != 0) | (made.phase == Phase.BACKWARD),
            (made.phase == Phase.OPTIMIZER) | made.uninitialized,
            made.with_nodes,
            (made.phase == Phase.FORWARD) & none,
            (made.phase == Phase.FORWARD) & (~made.with_grad | made.in_frozen) & ~made.by_distributed,
        ],
        [
            Category.GRADIENT, Category.AUTOGRAD_DETAIL, Category.UNKNOWN, Category.ACTIVATION,
            Category.INPUT, Category.ACTIVATION,
        ],
        Category.UNKNOWN,
    )  # fmt: skip
    first = batch.seq[0] if len(batch.seq) else np.iinfo(np.int64).max
    died = np.where(due["free_requested_seq"] != ABSENT, due["free_requested_seq"], due["freed_seq"])
    early = (died != ABSENT) & (died < first)  # in an earlier batch, so while its call went on
    rows["category"][early] = Category.TEMPORARY
    outside = (made.phase == Phase.OTHER) & made.with_grad & none
    rows["source"] = np.where(~early & outside, Source.CANDIDATE, Source.RULE)
    return rows


def of_unknown(batch: Batch) -> Array:
    """CATEGORY_DTYPE of the blocks whose row goes out, where nothing is inferred: all unknown."""
    rows = np.zeros(len(batch.records_due), CATEGORY_DTYPE)
    rows["allocation_id"] = batch.records_due["allocation_id"]
    rows["told_seq"] = ABSENT
    rows["category"], rows["source"] = Category.UNKNOWN, Source.RULE
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """How each block was made; arrays of equal length."""

    phase: Array
    """Of its call; ABSENT outside of calls, also for a block whose call is unknown; likewise the others."""
    with_nodes: Array
    """Its call made autograd nodes."""
    with_grad: Array
    """Autograd was recording."""
    uninitialized: Array
    """By an operator that leaves the bytes to whoever writes them: nothing is known of what they are for."""
    by_reducer: Array
    """By DistributedDataParallel for what it sends: the gradients of its parameters."""
    from_nothing: Array
    """By an operator that takes no tensor."""
    opaque: Array
    """By an operator that never makes a node, see texts.OPAQUE."""
    by_distributed: Array
    """By torch.distributed itself, which copies weights, or what it was given, to send it."""
    in_frozen: Array
    """In the forward of a module whose parameters want no gradient, all of them."""


def _made(batch: Batch, texts: Texts) -> _Made:
    due, calls = batch.records_due, batch.calls
    call_id, operator = due["call_id"], due["operator"]
    phase = of_calls(batch, call_id, calls.table["phase"], ABSENT)
    with_nodes = of_calls(batch, call_id, calls.sequence_first, ABSENT) != ABSENT
    uninitialized = texts.are_uninitialized(operator)
    unclear = ~with_nodes & ((phase == Phase.FORWARD) | (phase == Phase.OTHER))
    return _Made(
        phase=phase,
        with_nodes=with_nodes,
        with_grad=of_calls(batch, call_id, calls.with_grad, False),
        uninitialized=uninitialized,
        by_reducer=_of_stacks(texts.are_reducers, due["stack"], uninitialized & unclear),
        from_nothing=texts.are_factories(operator),
        opaque=texts.are_opaque(operator),
        by_distributed=_of_stacks(texts.are_distributed, due["stack"], unclear),
        in_frozen=np.isin(due["module"], batch.frozen_modules),
    )


def _of_stacks(are: Callable[[Array], Array], stacks: Array, asked: Array) -> Array:
    """An answer about the stacks that are asked about, False for the others: each has to be read once."""
    answers = np.zeros(len(stacks), np.bool_)
    answers[asked] = are(stacks[asked])
    return answers


def _depends_on_none(batch: Batch, made: _Made, has_frozen: bool) -> Array:
    """The blocks that depend on no parameter: what their operator takes is nothing, or data."""
    call_end = of_calls(batch, batch.records_due["call_id"], batch.calls.end_seq, 0)
    from_data = made.with_grad & ~made.with_nodes & ~made.uninitialized
    from_data &= ~batch.dependence.is_possible(call_end, has_frozen=has_frozen)
    if has_frozen:  # the first call of a frozen model's forward makes no node either
        from_data &= made.phase != Phase.FORWARD
    from_data &= (made.phase == Phase.FORWARD) | ~(made.opaque | made.by_distributed)
    none: Array = made.from_nothing | from_data
    return none
