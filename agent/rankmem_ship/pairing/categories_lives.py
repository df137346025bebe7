"""The category of blocks by how they live: data of the script's, results of a forward, scratch of an
optimizer.

Stage: pairing; shipper process, pure functions over arrays. In: the table of blocks that the rules could not
place yet (``Source.CANDIDATE``, ``PENDING``, ``SCRATCH``, ``SETUP``) and a batch's rounds. Out: their
categories, written into the table as soon as a life shows enough; until then, and where it never does, they
are unknown.

*Data* and what else a script holds (weights that no module has, momentum, caches) are made in the same way:
by a call that takes no parameter. The difference is how they live: a batch serves one round, and the
same line of code makes the next one. So a **line** (stack and operator) is known to make data once a block of
it has lived as data does: one run of forward saw it, or it lived through a backward and no more than
DATA_STEPS_MAX steps, with at most one forward before that recorded nothing. From then on what the line makes
is input when the next forward begins. The line's first block stays unknown.

*Without autograd* a forward's intermediate results die before it is over. What outlives a run that recorded
nothing is its output, or kept for the next one (a cache of keys and values): unknown.

*An optimizer's scratch* is made and given back while its step goes on.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rankmem_agent.spool.layout import Category
from rankmem_ship.pairing.batch import Batch
from rankmem_ship.pairing.categories_rules import Source
from rankmem_ship.pairing.rounds import NEVER, first_after, last_before, num_between
from rankmem_ship.pairing.state import ABSENT, LINE_DTYPE, Array, joined, rows_at

DATA_STEPS_MAX: Final = 2
"""Steps that end in the life of a batch: one, and another where it is fetched ahead."""
IDLE_FORWARDS_MAX: Final = 1
"""Forwards without autograd that a batch may see before its backward (a target net's). A cache sees more:
it is kept from one to the next."""
LINES_MAX: Final = 65_536
"""Lines remembered; a program has a few that make data. 1 MiB."""


def find_scratch(table: Array, batch: Batch, places: Array) -> None:
    """Blocks that an optimizer's step made and gave back."""
    at = np.flatnonzero((table["source"] == Source.SCRATCH) & (places != ABSENT))
    freed = _ends(batch, places[at])
    over = first_after(batch.rounds.optimizers, table["allocation_id"][at])
    table["category"][at[freed < over]] = Category.TEMPORARY
    table["source"][at[np.minimum(freed, over) != NEVER]] = Source.RULE


def find_results(table: Array, batch: Batch, places: Array) -> None:
    """Blocks that a forward made without an autograd node: activation or input, or kept, and so unknown."""
    at = np.flatnonzero((table["source"] == Source.PENDING) & (places != ABSENT))
    if not len(at):
        return
    made, freed = table["allocation_id"][at], _ends(batch, places[at])
    over = first_after(batch.rounds.breaks, made)
    kept_on = table["runs"][at] != 0  # known to have outlived its run
    sure = ~kept_on & (batch.rounds.records_at(made, over) | (freed < over))
    survived = kept_on | (~sure & (over != NEVER))
    # A frozen module's features, made with autograd on, that live when a backward begins are used in it.
    used = survived & table["recorded"][at] & (first_after(batch.rounds.engines, made) < freed)
    gone = survived & ~used & (~table["recorded"][at] | (freed != NEVER))
    table["category"][at[sure | used]] = table["would"][at[sure | used]]
    table["source"][at[sure | used | gone]] = Source.RULE
    table["runs"][at[survived]] = 1


def find_setup(table: Array, batch: Batch, places: Array) -> None:
    """Blocks made with a node before any forward or backward: a result of the first step, or stacked weights
    (``torch.func.stack_module_state``), whose node is gone."""
    at = np.flatnonzero((table["source"] == Source.SETUP) & (places != ABSENT))
    if not len(at):
        return
    freed = _ends(batch, places[at])
    _count(table, batch, at, freed)
    kept_on = table["engines"][at] > 1
    table["category"][at[~kept_on & (freed != NEVER)]] = Category.ACTIVATION
    table["source"][at[kept_on | (freed != NEVER)]] = Source.RULE


def find_inputs(table: Array, batch: Batch, places: Array, lines: Array, tagged: Array) -> Array:
    """Blocks of lines that make data; returns the lines known after the batch.

    Args:
        tagged: rows that the batch's tags are about: their lives prove nothing about their line.
    """
    is_open = (table["source"] == Source.CANDIDATE) & (places != ABSENT)
    is_open[tagged] = False
    at = np.flatnonzero(is_open)
    if not len(at):
        return lines
    rounds = batch.rounds
    made, freed = table["allocation_id"][at], _ends(batch, places[at])
    begins = np.where(table["runs"][at] == 0, first_after(rounds.runs, made), NEVER)
    _count(table, batch, at, freed)
    lived = _lived_as_data(rows_at(table, at), last_before(rounds.steps, freed) != ABSENT)
    lived &= (freed != NEVER) & ~table["doubtful"][at] & (table["line"][at] != 0)
    lines = _with_lines(lines, table["line"][at[lived]], freed[lived])
    known_since = _known_since(lines, table["line"][at])
    is_input = (begins < freed) & (known_since < begins)  # NEVER < NEVER is false
    is_input |= lived & (known_since < freed)
    table["category"][at[is_input]] = Category.INPUT
    table["source"][at[is_input]] = Source.RULE
    return lines


def _ends(batch: Batch, places: Array) -> Array:
    """Where each block's tensor died, NEVER while it lives."""
    blocks = rows_at(batch.blocks, places)
    asked = blocks["free_requested_seq"]
    freed = np.where(asked != ABSENT, asked, blocks["freed_seq"])
    ends: Array = np.where(freed == ABSENT, NEVER, freed)
    return ends


def _count(table: Array, batch: Batch, at: Array, freed: Array) -> None:
    """Add what of the batch lies in each block's life to its counts, which stay within a byte."""
    rounds, made = batch.rounds, table["allocation_id"][at]
    first_engine = np.minimum(first_after(rounds.engines, made), freed)
    until_backward = np.where(table["engines"][at] == 0, first_engine, ABSENT)
    more = {
        "idle": num_between(rounds.idle, made, np.minimum(until_backward, NEVER - 1) + 1),
        "runs": num_between(rounds.runs, made, freed),
        "engines": num_between(rounds.engines, made, freed),
        "steps": num_between(rounds.steps[1:], made, freed),
    }
    for name, number in more.items():
        table[name][at] = np.minimum(table[name][at].astype(np.int64) + number, 255)


def _lived_as_data(rows: Array, with_steps: Array) -> Array:
    """Whether lives are those of a batch, by their counts.

    Args:
        with_steps: this recording has steps; otherwise each backward is one.
    """
    served = (rows["engines"] > 0) & (rows["idle"] <= IDLE_FORWARDS_MAX) & (rows["steps"] <= DATA_STEPS_MAX)
    served &= with_steps | (rows["engines"] <= DATA_STEPS_MAX)
    lived: Array = (rows["runs"] == 1) | ((rows["runs"] > 1) & served)
    return lived


def _with_lines(lines: Array, keys: Array, seq: Array) -> Array:
    """The lines, with these known since their first place."""
    if not len(keys):
        return lines
    rows = np.zeros(len(keys), LINE_DTYPE)
    rows["line"], rows["seq"] = keys, seq
    both = joined([lines, rows])
    both = rows_at(both, np.lexsort((both["seq"], both["line"])))
    _, first = np.unique(both["line"], return_index=True)
    lines = rows_at(both, first)
    if len(lines) > LINES_MAX:
        lines = rows_at(lines, np.sort(np.argsort(lines["seq"], kind="stable")[-LINES_MAX:]))
    return lines


def _known_since(lines: Array, keys: Array) -> Array:
    """Since when each line is known to make data, NEVER for one that is not."""
    if not len(lines):
        return np.full(len(keys), NEVER)
    near = np.minimum(np.searchsorted(lines["line"], keys), len(lines) - 1)
    since: Array = np.where(lines["line"][near] == keys, lines["seq"][near], NEVER)
    return since
