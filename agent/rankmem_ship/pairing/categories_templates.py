"""The category of blocks whose calls were not observed: that of the block that each is like.

Stage: pairing; shipper process, pure functions over arrays. In: the table of blocks whose rows go out or
went out, and a batch's lives. Out: their categories, written into the table.

The rules of a category look at how a block lives. So the category is taken over as the row goes out, and
holds while the block lives as the other one did: it dies as many steps later, behind as many blocks, on a
thread that shows where it is. Once it does not, nothing is known.
"""

from __future__ import annotations

import numpy as np

from rankmem_agent.spool.layout import Category
from rankmem_ship.pairing.batch import Batch
from rankmem_ship.pairing.categories_rules import Source
from rankmem_ship.pairing.state import ABSENT, Array, PairingState, indices, rows_at


def take_categories(due: Array, batch: Batch) -> None:
    """Writes into rows that go out, CATEGORY_DTYPE, the category of the blocks that theirs are like."""
    like = batch.records_due["like"]
    if not (like != ABSENT).any():
        return
    source = indices(like, batch.templates["allocation_id"])
    taken = source != ABSENT
    source = source[taken]
    due["category"][taken] = batch.templates["category"][source]
    due["source"][taken] = Source.LIKE
    for name in ("steps", "place", "thread"):
        due[f"like_{name}"][taken] = batch.templates[f"died_{name}"][source]


def hold_against_lives(table: Array, batch: Batch, places: Array) -> None:
    """Blocks that do not live as the ones they are like: nothing is known of them any more."""
    at = np.flatnonzero(table["source"] == Source.LIKE)
    if not len(at):
        return
    ids = table["allocation_id"][at]
    dead = np.append(batch.blocks["freed_seq"], 0)[places[at]] != ABSENT
    alike = np.zeros(len(at), np.bool_)
    for rows, prefix in ((batch.comparison.blocks, "died_"), (batch.comparison.lives, "")):
        found = indices(ids, rows["allocation_id"])
        is_life = found != ABSENT
        if prefix:
            is_life &= np.append(rows["died_steps"], ABSENT)[found] != ABSENT
        life, own = rows_at(rows, found[is_life]), rows_at(table, at[is_life])
        same = life[f"{prefix}thread"] == own["like_thread"]
        for name in ("steps", "place"):
            same &= life[f"{prefix}{name}"] == own[f"like_{name}"]
        alike[is_life] = same & np.isin(own["like_thread"], batch.comparison.showing())
        dead |= is_life
    steps, place = batch.comparison.ages(ids)
    died = table["like_steps"][at] != ABSENT
    overdue = (steps > table["like_steps"][at]) | (
        (steps == table["like_steps"][at]) & (place > table["like_place"][at])
    )
    differs = np.where(dead, ~alike, died & overdue)
    table["category"][at[differs]] = Category.UNKNOWN
    table["source"][at[differs]] = Source.RULE


def with_categories(state: PairingState, batch: Batch, initial: Array, changes: Array) -> Array:
    """The templates after a batch with the categories that their blocks have now.

    Args:
        initial: of each of Batch.records_due; changes: CHANGE_DTYPE, in order.
    """
    templates = state.templates
    if not len(templates):
        return templates
    told = np.concatenate([batch.records_due["allocation_id"], changes["allocation_id"]])
    categories = np.concatenate([initial, changes["category"]])
    of_template = np.isin(told, templates["allocation_id"])
    if not of_template.any():
        return templates
    templates = templates.copy()
    told, categories = told[of_template], categories[of_template]
    order = np.argsort(told, kind="stable")
    last = np.searchsorted(told[order], templates["allocation_id"], side="right") - 1
    hit = (last >= 0) & (told[order][last] == templates["allocation_id"])
    templates["category"][hit] = categories[order][last[hit]]
    return templates
