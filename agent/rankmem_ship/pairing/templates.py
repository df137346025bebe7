"""Templates: what was observed of a part of a step, and blocks of later parts that take it over.

Stage: pairing; shipper process, pure functions over arrays. In: blocks whose rows go out, with their places
in their parts (rankmem_ship.pairing.comparing). Out: templates, and blocks described by them.

**Learned** where calls are observed. A template is taken from the second part that is like it: the first
batch of a line of the script has no category yet. Every later one that was observed is held against it:
where operator or module differs, both are known from then on and a block says "a or b"; of all else that
differs nothing is said any more.

**Taken over** where calls are not observed. A block waits until its part has ended: only the whole of it
says which part it is like. Where it is like none in the end, where the end is not in the log, or where it
waited WAIT_NS, what the beginning says stands, and its row says that (``template_prefix``).

A block of a part that another thread's autograd nodes belong to is never more than that: what shows that
two parts are alike lies on both threads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_agent.spool.layout import Phase
from rankmem_ship.pairing.comparing import Comparison
from rankmem_ship.pairing.state import ABSENT, TEMPLATE_DTYPE, Array, Known, indices, joined, rows_at

WAIT_NS: Final = 1_000_000_000
"""Of the log's time: a step that hangs shows what it holds."""
ROWS_MAX: Final = 1 << 20
"""Blocks in templates, at most: 96 MiB. The tap keeps half as many a thread."""
PARTS_MAX: Final = 64
"""Templates of a thread: the tap follows no more."""
CONFIRMED: Final = 2
"""Times that a part was observed until what it says is used."""
IDENTITY: Final = ("operator", "module", "phase", "stack", "forward_stack", "recomputed")
"""Columns that a block takes over, and that audits compare."""
_Parts = dict[tuple[int, int], Array]
"""TEMPLATE_DTYPE of each (thread, step), in order of their places."""
_UNKNOWN: Final = {"phase": ABSENT, "recomputed": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Templates after a batch."""

    templates: Array
    """TEMPLATE_DTYPE."""
    differs: Array
    """TEMPLATE_DTYPE: places of templates that blocks may have taken over, in which a part was observed to
    differ; as they are from here on."""


def learn(templates: Array, blocks: Array, comparison: Comparison) -> Learned:
    """The templates with what a batch has observed.

    Args:
        templates: TEMPLATE_DTYPE; with ``times`` 0 rows of parts that go on.
        blocks: BLOCK_DTYPE, whose rows go out and whose calls were observed.
    """
    rows = _rows(blocks, comparison.blocks)
    ended = comparison.ended
    if not len(rows) and not ended and not len(comparison.lives):
        return Learned(templates=templates, differs=templates[:0])
    templates = templates.copy()
    _note_deaths(templates, comparison.lives)
    if not len(rows) and not ended:
        return Learned(templates=templates, differs=templates[:0])
    known = _by_part(rows_at(templates, templates["times"] != 0))
    going_on = _by_part(joined([rows_at(templates, templates["times"] == 0), rows]))
    differs = [templates[:0]]
    for part in ended:
        own = going_on.pop((part.thread, part.step), None)
        like = part.thread, part.like_step
        if own is None or part.like_step == ABSENT or not _is_complete(own, part.num_blocks):
            continue
        if part.like_step == part.step:
            if known.pop(like, None) is None:  # two of one name: neither
                known[like] = own
                own["times"] = 1
        elif like in known:
            differs.append(_confirm(known, like, own))
    open_parts = {(int(part["thread"]), int(part["step"])) for part in comparison.parts if part["is_open"]}
    still_open = [rows for key, rows in going_on.items() if key in open_parts]
    kept = _newest(known)
    return Learned(templates=joined([templates[:0], *kept, *still_open]), differs=joined(differs))


def take_over(waiting: Array, templates: Array, comparison: Comparison, now_ns: int, *, final: bool) -> Array:
    """Describes blocks of unobserved calls by their templates; bool of each: it waits for its part's end.

    Args:
        waiting: BLOCK_DTYPE, not sent yet; those of ``Known.WAITS`` are meant, and changed in place.
    """
    holds = np.zeros(len(waiting), np.bool_)
    asked = np.flatnonzero((waiting["by"] == Known.WAITS) & ~waiting["sent"])
    if not len(asked):
        return holds
    if not len(comparison.blocks):
        waiting["by"][asked] = Known.NONE
        return holds
    place = indices(waiting["allocation_id"][asked], comparison.blocks["allocation_id"])
    compared = rows_at(comparison.blocks, place)
    is_compared = place != ABSENT
    confirmed = _by_part(rows_at(templates, templates["times"] >= CONFIRMED))
    like, is_whole, is_over = _verdicts(compared, comparison, confirmed)
    is_late = now_ns - waiting["allocated_ns"][asked] > WAIT_NS
    due = ~is_compared | is_over | is_late | final
    like = np.where(is_whole, like, compared["follows"])
    source, is_found = _in_places(confirmed, compared["thread"], like, compared["place"])
    is_found &= is_compared
    apart = np.isin(compared["thread"], _threads_apart(comparison.parts))
    known = np.where(is_whole & ~apart, Known.TEMPLATE, Known.TEMPLATE_PREFIX)
    waiting["by"][asked[due]] = np.where(is_found, known, Known.NONE)[due]
    holds[asked[~due]] = True
    at, source = asked[due & is_found], source[due & is_found]
    waiting["like"][at] = source["allocation_id"]
    for name in IDENTITY:
        waiting[name][at] = source[name]
    # A block is in the ranges that are open; one of backward in its forward's, which only the template has.
    inherits = (waiting["annotation"][at] == 0) & (source["phase"] == Phase.BACKWARD)
    waiting["annotation"][at[inherits]] = source["annotation"][inherits]
    return holds


def _verdicts(compared: Array, comparison: Comparison, confirmed: _Parts) -> tuple[Array, Array, Array]:
    """Of compared blocks: the step whose part theirs is like as a whole, whether it is, and whether it has
    ended."""
    ended = {(part.thread, part.step): part for part in comparison.ended}
    # A part that is not the thread's present one has ended, if without a word: the log has a hole.
    going_on = {(int(part["thread"]), int(part["step"])) for part in comparison.parts if part["is_open"]}
    stretches, lengths = _stretches(compared["thread"], compared["part"])
    like = np.full(len(stretches), ABSENT)
    is_over = np.ones(len(stretches), np.bool_)
    for at, key in enumerate(stretches):
        part = ended.get(key)
        is_over[at] = part is not None or key not in going_on
        if part is not None and len(confirmed.get((key[0], part.like_step), ())) == part.num_blocks:
            like[at] = part.like_step
    like = np.repeat(like, lengths)
    return like, like != ABSENT, np.repeat(is_over, lengths)


def _rows(blocks: Array, compared: Array) -> Array:
    """TEMPLATE_DTYPE of observed blocks that have a place in a part."""
    place = indices(blocks["allocation_id"], compared["allocation_id"])
    observed = (place != ABSENT) & (blocks["by"] == Known.OBSERVED) & ~blocks["preexisting"]
    blocks, compared = rows_at(blocks, observed), rows_at(compared, place[observed])
    rows = np.zeros(len(blocks), TEMPLATE_DTYPE)
    for name in (*IDENTITY, "annotation", "allocation_id"):
        rows[name] = blocks[name]
    for name in ("thread", "place", "died_steps", "died_place", "died_thread"):
        rows[name] = compared[name]
    rows["step"] = compared["part"]
    return rows


def _note_deaths(templates: Array, lives: Array) -> None:
    place = indices(templates["allocation_id"], lives["allocation_id"])
    died = np.flatnonzero(place != ABSENT)
    for name in ("steps", "place", "thread"):
        templates[f"died_{name}"][died] = lives[name][place[died]]


def _by_part(rows: Array) -> _Parts:
    """The rows of each (thread, step), in order of their places."""
    rows = rows_at(rows, np.lexsort((rows["place"], rows["step"], rows["thread"])))
    parts, lengths = _stretches(rows["thread"], rows["step"])
    ends = np.cumsum(lengths)
    return {
        part: rows_at(rows, slice(begin, end))
        for part, begin, end in zip(parts, (ends - lengths).tolist(), ends.tolist(), strict=True)
    }


def _is_complete(rows: Array, num_blocks: int) -> bool:
    return len(rows) == num_blocks and bool((rows["place"] == np.arange(1, num_blocks + 1)).all())


def _confirm(known: _Parts, like: tuple[int, int], own: Array) -> Array:
    """Holds a part that was observed against its template, which it replaces the first time; the places
    that differ."""
    before = known[like]
    if len(before) != len(own):  # cannot be: the tap compares lengths
        return own[:0]
    differs = np.zeros(len(own), np.bool_)
    new = before.copy()
    if before["times"][0] < CONFIRMED:
        new = own.copy()
        new["step"] = like[1]
    for name in ("operator", "module"):
        other = (before[name] != own[name]) & (own[name] != before[f"other_{name}"])
        new[f"other_{name}"] = np.where(
            other, np.where(new[name] == own[name], before[name], own[name]), before[f"other_{name}"]
        )
        differs |= other
    for name in ("phase", "stack", "forward_stack", "recomputed"):
        other = (before[name] != own[name]) & (before[name] != _UNKNOWN.get(name, 0))
        new[name][other] = _UNKNOWN.get(name, 0)
        differs |= other
    new["annotation"][before["annotation"] != own["annotation"]] = 0  # a range named anew in each step
    new["times"] = np.minimum(before["times"].astype(np.int64) + 1, 255)
    known[like] = new
    was_used = before["times"][0] >= CONFIRMED
    return rows_at(new, differs if was_used else np.zeros(len(new), np.bool_))


def _newest(known: _Parts) -> list[Array]:
    """The latest templates of each thread, as many as the tap keeps; of all, what there is room for."""
    of_thread: Counter[int] = Counter()
    kept: list[Array] = []
    num_rows = 0
    for (thread, _), rows in sorted(known.items(), key=lambda item: -item[0][1]):
        of_thread[thread] += 1
        num_rows += len(rows)
        if of_thread[thread] <= PARTS_MAX and num_rows <= ROWS_MAX:
            kept.append(rows)
    return kept


def _threads_apart(parts: Array) -> Array:
    """Threads whose nodes another one runs, and those."""
    others = parts["nodes_of"] != 0
    return np.concatenate([parts["thread"][others], parts["nodes_of"][others]])


def _in_places(confirmed: _Parts, threads: Array, steps: Array, places: Array) -> tuple[Array, Array]:
    """TEMPLATE_DTYPE, the rows in these places, and whether there is one."""
    stretches, lengths = _stretches(threads, steps)
    used = {key: confirmed[key] for key in stretches if key in confirmed}
    if not used:
        return np.zeros(len(places), TEMPLATE_DTYPE), np.zeros(len(places), np.bool_)
    num_rows = [len(rows) for rows in used.values()]
    begins = dict(zip(used, np.cumsum([0, *num_rows[:-1]]).tolist(), strict=True))
    begin = np.repeat([begins.get(key, 0) for key in stretches], lengths)
    is_found = places <= np.repeat([len(used.get(key, ())) for key in stretches], lengths)
    is_found &= places > 0
    return rows_at(joined(list(used.values())), np.where(is_found, begin + places - 1, 0)), is_found


def _stretches(threads: Array, steps: Array) -> tuple[list[tuple[int, int]], Array]:
    """Thread and step of each stretch of rows that have the same, and how many rows it has."""
    is_other = (threads[1:] != threads[:-1]) | (steps[1:] != steps[:-1])
    begins = np.flatnonzero(np.append(len(threads) > 0, is_other))
    lengths = np.diff(np.append(begins, len(threads)))
    return list(zip(threads[begins].tolist(), steps[begins].tolist(), strict=True)), lengths
