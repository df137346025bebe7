"""The category of each block as its row goes out, and what is learned of it later.

Stage: pairing; shipper process, pure functions over arrays. In: a batch's facts and what was known of the
blocks alive before it. Out: a category for each row of allocation_record, and the changes of earlier rows.

The names and their meaning are torch.profiler's (docs/categories.md: how they agree). In this order:

1. *Tagged* by the user, or by the hooks: optimizer_state, parameter, gradient, kv_cache; also buffers.
2. *temporary*: freed in the call that made it; in backward, in the autograd node that made it.
3. By its call (rankmem_ship.pairing.categories_rules): gradient, autograd_detail, activation, input.
4. Where calls are not observed in steps that are known: that of the block that it is like, if it lives as
   that did (rankmem_ship.pairing.categories_templates).
5. By its life (rankmem_ship.pairing.categories_lives): temporary of an optimizer, activation without
   autograd, input.

Everything else is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_agent.spool.layout import BY_USER, FROZEN, Action, Category, Kind, Phase
from rankmem_ship.pairing.batch import Batch
from rankmem_ship.pairing.categories_lives import find_inputs, find_results, find_scratch, find_setup
from rankmem_ship.pairing.categories_rules import Source, by_rules, of_calls, of_unknown
from rankmem_ship.pairing.categories_tags import blocks_at
from rankmem_ship.pairing.categories_templates import hold_against_lives, take_categories
from rankmem_ship.pairing.devices import dense_numbers, device_codes
from rankmem_ship.pairing.rounds import NEVER, first_after
from rankmem_ship.pairing.state import (
    ABSENT,
    TAG_DTYPE,
    Array,
    Known,
    PairingState,
    indices,
    joined,
    rows_at,
)
from rankmem_ship.pairing.texts import Texts
from rankmem_ship.spool_reader.segments import named

CHANGE_DTYPE: Final = np.dtype(
    [
        ("allocation_id", "<i8"),
        ("time_ns", "<i8"),  # host time from which on the block means this; its own alloc's if it always did
        ("seq", "<i8"),  # likewise
        ("device", "<i2"),  # dense number
        ("category", "u1"),
    ]
)
"""A row of category_change. At most one for each (allocation_id, seq) in the life of a block."""


_SOURCE_OF_TAG: Final = np.full(256, Source.BUFFER, np.uint8)
_SOURCE_OF_TAG[Category.KV_CACHE] = Source.CACHE
_SOURCE_OF_TAG[Category.GRADIENT] = Source.GRADIENT
_SOURCE_OF_TAG[Category.PARAMETER] = Source.PARAMETER
_SOURCE_OF_TAG[Category.OPTIMIZER_STATE] = Source.OPTIMIZER_STATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The categories of a batch."""

    known: Array
    """CATEGORY_DTYPE, PairingState.categories after the batch."""
    tags: Array
    """TAG_DTYPE, PairingState.tags after it."""
    lines: Array
    """LINE_DTYPE, PairingState.lines after it."""
    initial: Array
    """uint8, one for each of Batch.records_due: what the block has meant since it was allocated."""
    changes: Array
    """CHANGE_DTYPE, in order of seq: blocks whose row went out earlier, or that change after their alloc."""


def resolve(
    before: PairingState, batch: Batch, devices: Array, texts: Texts, *, infers: bool = True
) -> Resolved:
    """The categories of a batch.

    Args:
        before: the state before the batch.
        batch: its facts.
        devices: PairingState.devices after it.
        texts: what names of the spool mean.
        infers: whether calls and lives count, too; otherwise tags alone do.
    """
    known, lines = before.categories, before.lines
    if infers:
        frozen = (known["frozen"], before.tags["frozen"], _frozen_tags(batch.records))
        has_frozen = any(each.any() for each in frozen)
        due = by_rules(batch, has_frozen, texts, devices)
    else:
        due = of_unknown(batch)
    take_categories(due, batch)
    known = _resent(due, known)
    num_old, table = len(known), joined([known, due])
    places = indices(table["allocation_id"], batch.blocks["allocation_id"])  # ABSENT: freed before the batch
    sent = table["category"][:num_old].copy()
    tags, waiting = _tags(before.tags, batch, devices, table)
    if infers:
        _find_temporaries(table, batch, places)
        _find_gradients(table, batch, places)
        find_scratch(table, batch, places)
        find_setup(table, batch, places)
        find_results(table, batch, places)
        lines = find_inputs(table, batch, places, lines, tags.row)
        _leave_doubtful(table, batch, places)
    else:
        _leave_open(table)
    hold_against_lives(table, batch, places)
    last = _apply(table, tags)
    initial = table["category"][num_old:].copy()
    differs = np.flatnonzero(table["category"][:num_old] != sent)
    changes = _changes(table, batch, places, differs, _told(batch, tags, last[differs]))
    later = _later_changes(table, tags)
    changes = joined([changes, later])
    return Resolved(
        known=_still_alive(table, batch, places),
        tags=waiting,
        lines=lines,
        initial=initial,
        changes=rows_at(changes, np.argsort(changes["seq"], kind="stable")),
    )


def _made_by_backward(table: Array) -> Array:
    """Whether nothing more is known of a block than that."""
    made: Array = (table["source"] == Source.RULE) & (table["category"] == Category.AUTOGRAD_DETAIL)
    return made


def _leave_open(table: Array) -> None:
    """What backward made and left may be a gradient, as the next forward would show: here nobody sees it."""
    table["category"][_made_by_backward(table) & ~table["recorded"]] = Category.UNKNOWN


def _leave_doubtful(table: Array, batch: Batch, places: Array) -> None:
    """A block of a node that nobody saw begin may have died within it, as a temporary does."""
    at = np.flatnonzero(_made_by_backward(table) & (table["node"] == 0) & (places != ABSENT))
    by, freed = (batch.blocks[name][places[at]] for name in ("by", "freed_seq"))
    table["category"][at[(by == Known.EVIDENCE) & (freed != ABSENT)]] = Category.UNKNOWN


def _deaths(batch: Batch) -> tuple[Array, Array]:
    """Of each block: the call in which its tensor died in this batch, 0 if none, and that call's node."""
    points = batch.points
    ends = points.is_event & (points.block != ABSENT)
    ends &= (points.action == Action.FREE_REQUESTED) | (points.action == Action.FREE_COMPLETED)
    at = np.flatnonzero(ends)[::-1]  # the first one holds
    call = np.zeros(len(batch.blocks), np.uint64)
    call[points.block[at]] = points.call_id[at]
    return call, of_calls(batch, call, batch.calls.table["node"], 0)


def _frozen_tags(records: Array) -> Array:
    tags = named(records, Kind.TAG)
    is_parameter = (tags["kind"] == Kind.TAG) & (tags["category"] == Category.PARAMETER)
    frozen: Array = is_parameter & (tags["qualifier"] == FROZEN)
    return frozen


def _resent(due: Array, known: Array) -> Array:
    """Blocks whose row goes out once more, to another database, keep what is known; returns the others."""
    place = indices(due["allocation_id"], known["allocation_id"])
    again = place != ABSENT
    due[again] = known[place[again]]
    due["told_seq"][again] = ABSENT
    return rows_at(known, ~np.isin(known["allocation_id"], due["allocation_id"][again]))


def _find_temporaries(table: Array, batch: Batch, places: Array) -> None:
    """Blocks that died in the call or in the autograd node that made them."""
    death_call, death_node = (np.append(each, np.zeros(1, np.uint64))[places] for each in _deaths(batch))
    call_id = np.append(batch.blocks["call_id"], np.zeros(1, np.uint64))[places]
    temporary = (death_call != 0) & (death_call == call_id)
    temporary |= (death_node != 0) & (death_node == table["node"])
    temporary &= table["source"] < Source.BUFFER
    table["category"][temporary] = Category.TEMPORARY
    table["source"][temporary] = Source.RULE


def _find_gradients(table: Array, batch: Batch, places: Array) -> None:
    """Blocks that backward made and left behind were gradients, whether or not an optimizer has seen it.

    The engine keeps nothing when it has run but what it put into some ``.grad``, or gave to who asked
    (``torch.autograd.grad``). It is seen when the next forward runs while the block lives, or when the block
    dies outside of the engine after the backward. Where autograd recorded the backward itself, it
    left a graph, too (``torch.func.grad`` always does): what lives on is one or the other.
    """
    death_call = np.append(_deaths(batch)[0], np.uint64(0))[places]
    freed = np.append(batch.blocks["freed_seq"], 0)[places]
    at = np.flatnonzero(_made_by_backward(table) & (places != ABSENT))
    made, freed, by = table["allocation_id"][at], freed[at], death_call[at]
    lives = freed == ABSENT
    freed[lives] = NEVER
    kept = batch.dependence.is_forward_between(made, freed)
    in_engine = of_calls(batch, by, batch.calls.table["phase"], ABSENT) == Phase.BACKWARD
    left = ~lives & ~in_engine & batch.dependence.is_backward_over(made, freed)
    recorded = table["recorded"][at]
    table["category"][at[(kept | left) & ~recorded]] = Category.GRADIENT
    runs_again = first_after(batch.rounds.runs, made) < freed
    table["category"][at[runs_again & recorded]] = Category.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tags:
    """Those of blocks whose row goes out now or went out before, in order of the log."""

    table: Array
    """TAG_DTYPE."""
    row: Array
    """Row of the blocks' table."""


def _tags(before: Array, batch: Batch, devices: Array, table: Array) -> tuple[_Tags, Array]:
    """The tags, and TAG_DTYPE of those whose block still waits for its row.

    Args:
        before: TAG_DTYPE, those that waited for it before the batch.
        table: CATEGORY_DTYPE, the blocks.
    """
    tags = joined([before, _tagged(batch, devices)])
    row = indices(tags["allocation_id"], table["allocation_id"])
    due = row != ABSENT
    return _Tags(table=rows_at(tags, due), row=row[due]), rows_at(tags, ~due)


def _tagged(batch: Batch, devices: Array) -> Array:
    """TAG_DTYPE of the batch's records, as far as their blocks are known."""
    known_device = np.isin(device_codes(batch.records), devices["code"])
    rows = np.flatnonzero((batch.records["kind"] == Kind.TAG) & known_device)
    records = named(rows_at(batch.records, rows), Kind.TAG)
    numbers = dense_numbers(devices, device_codes(records))
    block = blocks_at(batch.blocks, numbers, records["address"], batch.seq[rows])
    held = block != ABSENT
    tags = np.zeros(int(held.sum()), TAG_DTYPE)
    tags["allocation_id"] = batch.blocks["allocation_id"][block[held]]
    tags["seq"], tags["time_ns"] = batch.seq[rows[held]], batch.time_ns[rows[held]]
    tags["device"] = batch.blocks["device"][block[held]]
    tags["category"] = records["category"][held]
    by_user = records["qualifier"][held] == BY_USER
    tags["source"] = np.where(by_user, Source.USER, _SOURCE_OF_TAG[tags["category"]])
    tags["since_alloc"] = records["since_allocation"][held] != 0
    tags["frozen"] = _frozen_tags(records)[held]
    return tags


def _apply(table: Array, tags: _Tags) -> Array:
    """Apply the tags that hold since a block's alloc; returns for each row the index of its last one."""
    last = np.full(len(table), ABSENT)
    for strength in range(Source.BUFFER, Source.USER + 1):
        own = np.flatnonzero(tags.table["since_alloc"] & (tags.table["source"] == strength))
        own = own[table["source"][tags.row[own]] <= strength]
        row = tags.row[own]
        table["category"][row] = tags.table["category"][own]  # of several on a block the last one holds
        table["source"][row] = strength
        if strength == Source.PARAMETER:
            table["frozen"][row] = tags.table["frozen"][own]
        last[row] = own
    return last


def _changes(table: Array, batch: Batch, places: Array, changed: Array, told: Array) -> Array:
    """Rows for blocks that mean something else than in their row, mostly since they were allocated.

    A second change of a block, and one of a block older than the recording, counts from its tag on, or from
    the batch's end.

    Args:
        told: int64 (2, changed): time and place of that tag.
    """
    blocks = rows_at(batch.blocks, places[changed])
    since_alloc = (table["told_seq"][changed] == ABSENT) & ~blocks["preexisting"]
    rows = np.zeros(len(changed), CHANGE_DTYPE)
    rows["allocation_id"] = blocks["allocation_id"]
    rows["time_ns"] = np.where(since_alloc, blocks["allocated_ns"], told[0])
    rows["seq"] = np.where(since_alloc, blocks["allocation_id"], told[1])
    rows["device"] = blocks["device"]
    rows["category"] = table["category"][changed]
    table["told_seq"][changed] = rows["seq"]
    return rows


def _told(batch: Batch, tags: _Tags, last: Array) -> Array:
    """int64 (2, n): time and place of tags by index; of ABSENT the batch's end."""
    ends = batch.time_ns[-1:], batch.seq[-1:]
    columns = (tags.table["time_ns"], tags.table["seq"])
    return np.stack([np.append(column, end)[last] for column, end in zip(columns, ends, strict=True)])


def _later_changes(table: Array, tags: _Tags) -> Array:
    """Rows for the tags that hold from their own place on, where they change their block's category."""
    at = np.flatnonzero(~tags.table["since_alloc"])
    at = at[np.argsort(tags.row[at], kind="stable")]  # those of a block one after another, as in the log
    before = table["category"][tags.row[at]]
    again = np.flatnonzero(tags.row[at][1:] == tags.row[at][:-1]) + 1
    before[again] = tags.table["category"][at[again - 1]]
    at = np.sort(at[before != tags.table["category"][at]])
    row, later = tags.row[at], rows_at(tags.table, at)
    rows = np.zeros(len(at), CHANGE_DTYPE)
    for name in CHANGE_DTYPE.names or ():
        rows[name] = later[name]
    table["category"][row], table["source"][row] = later["category"], later["source"]
    table["told_seq"][row] = rows["seq"]
    return rows


def _still_alive(table: Array, batch: Batch, places: Array) -> Array:
    freed = np.append(batch.blocks["freed_seq"], 0)[places]  # ABSENT, freed before, is the one appended
    alive = rows_at(table, freed == ABSENT)
    return rows_at(alive, np.argsort(alive["allocation_id"], kind="stable"))
