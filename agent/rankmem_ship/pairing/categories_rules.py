"""The category of a block by the call that made it, before any tag and any free is looked at.

Stage: pairing; shipper process, pure functions over arrays. In: the blocks whose rows go out and their calls.
Out: a category for each, unknown where the call does not show it. See docs/categories.md.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rankmem_agent.spool.layout import Category, Phase
from rankmem_ship.pairing.batch import Batch
from rankmem_ship.pairing.state import ABSENT, CATEGORY_DTYPE, Array
from rankmem_ship.pairing.texts import Texts


class Source(enum.IntEnum):
    """Why a block has its category; of two tags the one with the higher number holds, of equals the later."""

    RULE = 0
    CANDIDATE = 1
    """Unknown; input if its line makes data, see rankmem_ship.pairing.categories_lives."""
    PENDING = 2
    """Unknown; its call's category if its forward recorded a node or it died in it."""
    SCRATCH = 3
    """Unknown; temporary if it dies in the optimizer's step that made it."""
    SETUP = 4
    """Unknown; activation if it dies before a second backward, see rankmem_ship.pairing.categories_lives."""
    LIKE = 5
    """That of the block of an earlier step that it is like, if it lives as that did."""
    BUFFER = 6
    CACHE = 7
    GRADIENT = 8
    PARAMETER = 9
    OPTIMIZER_STATE = 10
    USER = 11
    """Whatever the training script itself has tagged."""


def of_calls(batch: Batch, call_ids: Array, column: Array, missing: int) -> Array:
    """A column of the calls' table for each call id."""
    place = batch.calls.place(call_ids)
    values: Array = np.append(column, np.array([missing], column.dtype))[place]  # ABSENT is the one appended
    return values


def by_rules(batch: Batch, has_frozen: bool, texts: Texts, devices: Array) -> Array:
    """CATEGORY_DTYPE of the blocks whose row goes out, from their calls alone.

    Args:
        has_frozen: some parameter wants no gradient.
        devices: PairingState.devices after the batch.
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
    early &= due["call_id"] != 0
    rows["category"][early] = Category.TEMPORARY
    sees_autograd = ~texts.are_snapshots(devices["name_id"])[due["device"]]
    call_end = of_calls(batch, due["call_id"], calls.end_seq, 0)
    setup = made.with_nodes & batch.dependence.is_first(call_end)
    rows["source"] = np.where(early, Source.RULE, _sources(rows, made, none, setup, sees_autograd))
    rows["would"] = rows["category"]
    rows["category"][np.isin(rows["source"], (Source.PENDING, Source.SETUP))] = Category.UNKNOWN
    rows["doubtful"] = ~made.from_nothing & batch.dependence.is_from_gradients(call_end)
    rows["line"] = np.where(due["stack"] != 0, _lines(due), 0)
    return rows


def _sources(rows: Array, made: _Made, none: Array, setup: Array, sees_autograd: Array) -> Array:
    """Why each block has its category, and what has still to be seen of its life.

    Args:
        none: it depends on no parameter.
        setup: its call made a node before any module or backward had run.
        sees_autograd: the recording knows of nodes and of autograd's mode.
    """
    is_unknown = rows["category"] == Category.UNKNOWN
    is_result = (rows["category"] == Category.INPUT) | (rows["category"] == Category.ACTIVATION)
    sources: Array = np.select(
        [
            (made.phase == Phase.OTHER) & made.with_grad & none & ~made.blank,
            (made.phase == Phase.FORWARD) & ~made.with_nodes & sees_autograd & is_result,
            (made.phase == Phase.OPTIMIZER) & is_unknown,
            (made.phase == Phase.OTHER) & setup,
        ],
        [Source.CANDIDATE, Source.PENDING, Source.SCRATCH, Source.SETUP],
        Source.RULE,
    )
    return sources


def _lines(due: Array) -> Array:
    """A number for the line of code that made each block: its stack and operator."""
    lines: Array = (due["stack"].astype(np.uint64) << np.uint64(32)) | due["operator"].astype(np.uint64)
    return lines


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
    """By an operator that leaves the content open: what the bytes are for is not known."""
    by_reducer: Array
    """By DistributedDataParallel for what it sends: the gradients of its parameters."""
    from_nothing: Array
    """By an operator that takes no tensor."""
    blank: Array
    """By an operator whose result is made to be written to, see texts.BLANK."""
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
        blank=texts.are_blank(operator),
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
