"""What a device's memory was made of over time: the bytes of groups of its blocks, stacked.

Stage: page, in the thread of a request. The rows are those of ``/curve`` for the same range and pixels, and
each group is counted from the blocks, right after the event at which the row's requested bytes stood highest:
so the groups of a row add up to the curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.page.answers.curve import PX_DEFAULT, PX_MAX, facts_of_columns, nullable, rows_of
from rankmem_aggregator.page.coarse_groups import SUMMARISED, from_summaries
from rankmem_aggregator.page.columns import FIGURES, UNKNOWN, Integers, columns_of
from rankmem_aggregator.page.parameters import (
    DEVICE,
    RANK,
    TIME,
    check_range,
    choice,
    integer,
    parameter,
)
from rankmem_aggregator.page.reading import Reading, Track
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.selection import PICK, by_category, picked
from rankmem_aggregator.page.stacks import lines_of
from rankmem_aggregator.query.types import BlockBy
from rankmem_protos.errors import Code, RankmemError

GROUPS_MAX: Final = 12
"""Colours that can be told apart; what is left is "others"."""
CELLS_MAX: Final = 16_000_000
"""Groups times instants in memory: 128 MiB, twice."""
GROUP_EVENTS_MAX: Final = 2_000_000
"""Events of a range whose blocks are read: about 100 ms of CPU."""
NONE: Final = "none"
OTHERS: Final = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsAsked:
    """Parameters of ``/groups``."""

    rank: int = parameter(RANK, "global rank")
    from_ns: int = parameter(TIME, "begin, ns since the session's start", name="from")
    until_ns: int = parameter(TIME, "end", name="to")
    by: str = parameter(choice(get_args(BlockBy)), "what a group is", default="category")
    px: int = parameter(integer(1, PX_MAX), "columns to draw at most", default=PX_DEFAULT)
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)
    pick: str | None = parameter(PICK, "these blocks alone: kind:value;kind:value", default=None)


def groups(reading: Reading, asked: GroupsAsked) -> pa.Table:
    """The rows and columns of ``/curve``, and g0, g1, … (bytes) by group.

    Facts: ``groups``, the names of g0, g1, …, the one that reached the most first, "others" last;
    ``difference_bytes``, by how much the groups differ from the total at most: 0 unless events are missing,
    and where blocks are picked; ``coarse``, true where the groups are from summaries, so not of a row's
    highest instant; ``picked``, true where the groups are of picked blocks alone, and ``too_many``, true
    where those are too many to read, so that there are no groups.
    """
    check_range(asked.from_ns, asked.until_ns)
    track = reading.track(asked.rank, asked.attempt, asked.device)
    origin_ns = reading.session.origin_ns
    columns = columns_of(reading, track, asked.from_ns + origin_ns, asked.until_ns + origin_ns, asked.px)
    total = columns.high["requested"]
    is_long = columns.life.events > GROUP_EVENTS_MAX
    too_many = is_long and asked.pick is not None
    is_coarse = is_long and not too_many
    if is_coarse and asked.by not in SUMMARISED:
        raise RankmemError(
            Code.EXHAUSTED,
            f"this range has {columns.life.events:,} events of the rank; its blocks are counted by "
            f"{asked.by} for up to {GROUP_EVENTS_MAX:,}",
            f"choose a shorter range, or one of {', '.join(SUMMARISED)}, of which there are summaries",
        )
    if is_coarse:
        found_names, held, is_counted = from_summaries(reading, track, asked.by, columns)
        names = [NONE if name is None else name for name in found_names]
        held = held[:, is_counted]
    else:
        is_counted = (columns.seq != UNKNOWN) & (total != UNKNOWN)
        seqs = columns.seq[is_counted & (not too_many)]
        names, held = _held_by_group(reading, track, asked.by, seqs, asked.pick)
    names, held = _largest(names, held)
    is_whole = not is_coarse and asked.pick is None
    difference = np.abs(held.sum(axis=0) - total[is_counted]) if is_whole else np.zeros(0, np.int64)
    found = rows_of(reading, columns, FIGURES)
    for i, values in enumerate(held):
        column = np.full(len(total), UNKNOWN)
        column[is_counted] = values
        found[f"g{i}"] = nullable(column)
    return reading.answer(
        pa.table(found),
        exact=columns.drawn != "highest" and not is_coarse,
        source="group_bucket" if is_coarse else "allocation_record",
        coarse=is_coarse,
        by=asked.by,
        picked=asked.pick is not None,
        too_many=too_many,
        groups=names,
        difference_bytes=int(difference.max()) if len(difference) else 0,
        **facts_of_columns(reading, track, columns),
    )


def _held_by_group(
    reading: Reading, track: Track, by: str, seqs: Integers, pick: str | None
) -> tuple[list[str], Integers]:
    """The names of groups, and what each held right after each of these events (in any order)."""
    if not len(seqs):
        return [], np.zeros((0, 0), np.int64)
    places, row = np.unique(seqs, return_inverse=True)
    blocks, categories = by_category(picked(reading, pick))
    spans = reading.show(
        "group_blocks",
        attempt=track.attempt,
        rank=track.rank,
        device=track.device,
        by=by,
        first_seq=int(places[0]),
        last_seq=int(places[-1]),
        pick=blocks,
        categories=categories,
    )
    coded = spans["group_name"].combine_chunks().dictionary_encode(null_encoding="encode")
    names = [NONE if name is None else name for name in coded.dictionary.to_pylist()]
    code = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if by == "line":
        names, code = _as_lines(reading, names, code)
    size = spans["size_bytes"].to_numpy()
    begin = _place_of(spans["begin_seq"].to_numpy(), places)
    ends = pc.fill_null(spans["end_seq"], int(places[-1]) + 1).to_numpy()
    end = _place_of(ends, places)
    # A span counts at the places from its begin on to before its end: added at one, taken away at the other.
    width = len(places) + 1
    if len(names) * width > CELLS_MAX:
        raise RankmemError(
            Code.EXHAUSTED,
            f"{len(names):,} groups at {width:,} instants are too many to add up",
            "choose a shorter range, or group by category",
        )
    changes = np.zeros(len(names) * width, np.int64)
    np.add.at(changes, code * width + begin, size)
    np.subtract.at(changes, code * width + end, size)
    held = np.cumsum(changes.reshape(len(names), width), axis=1)[:, :-1]
    return names, held[:, row]


def _place_of(seq: Integers, places: Integers) -> Integers:
    """The index of the first place at or after each position; len(places) beyond the last."""
    first, last = int(places[0]), int(places[-1])
    if last - first > 16 * len(seq) + 1_000_000:
        return np.searchsorted(places, seq).astype(np.int64)
    # A table of all positions is faster than a search for each.
    table = np.zeros(last - first + 2, np.int64)
    table[places[:-1] - first + 1] = 1
    table[-1] = 1
    index = np.cumsum(table)
    return index[np.clip(seq - first, 0, last - first + 1)]


def _as_lines(reading: Reading, stacks: list[str], code: Integers) -> tuple[list[str], Integers]:
    """Stacks' ids as the lines of the project nearest to the operator; stacks of one line are one group."""
    line_of = lines_of(reading, (name for name in stacks if _is_number(name)))
    lines = [line_of.get(name) or (NONE if _is_number(name) else name) for name in stacks]
    place = {line: place for place, line in enumerate(dict.fromkeys(lines))}
    return list(place), np.array([place[line] for line in lines], np.int64)[code]


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _largest(names: list[str], held: Integers) -> tuple[list[str], Integers]:
    """The groups that reached the most, the highest first, and what the others held together."""
    if not len(names):
        return names, held
    # Of equal ones the first by name: blocks come in no order.
    order = np.lexsort((np.array(names), -held.max(axis=1, initial=0)))
    order = order[held.max(axis=1, initial=0)[order] > 0]
    kept, rest = order[:GROUPS_MAX], order[GROUPS_MAX:]
    if len(rest) == 1:
        kept, rest = order, rest[:0]
    shown, found = [names[i] for i in kept], held[kept]
    if len(rest):
        return [*shown, OTHERS], np.vstack([found, held[rest].sum(axis=0)])
    return shown, found


ROUTES: Final = (SessionRoute(path="/groups", parameters=GroupsAsked, answer=groups),)
