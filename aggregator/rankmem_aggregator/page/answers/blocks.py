"""Blocks of a device of a rank as a table: filtered, sorted, page by page.

Stage: page, in the thread of a request. A page begins after a block, not after a number of rows: none comes
twice or is missed, whatever is stored in the meantime.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.page.lives import WHICH, WHICH_DOC, Lives, block_is_gone, lives_of
from rankmem_aggregator.page.parameters import (
    DEVICE,
    RANK,
    SEQ,
    TIME,
    choice,
    integer,
    parameter,
    text,
)
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.selection import PICK, picked
from rankmem_aggregator.query.types import Value
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.errors import Code, RankmemError

NUMBERS: Final = (
    "size",
    "step",
    "stream",
    "address",
    "allocated",
    "freed",
    "free_requested",
    "age",
    "life",
    "id",
    "stack",
    "preexisting",
    "recomputed",
)
TEXTS: Final = (
    "category",
    "operator",
    "module",
    "line",
    "forward_line",
    "phase",
    "component",
    "annotation",
    "pool",
)
SORTS: Final = tuple(f"{sign}{name}" for name in (*NUMBERS, *TEXTS) for sign in ("", "-"))
"""``-`` for descending."""
PAGE_LEAST: Final = 10
PAGE_MOST: Final = 1000
WORDS_MAX: Final = 4
"""Words of a search: each is looked for in every name of a rank."""
SEARCH_CHARACTERS_MAX: Final = 200
"""Of a search."""
BYTES: Final = integer(0, NUMBER_MAX // 2)
TIMES: Final = ("allocated_ns", "freed_ns", "free_requested_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAsked:
    """Parameters of ``/blocks/total``: which blocks fit."""

    rank: int = parameter(RANK, "global rank")
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)
    which: str = parameter(WHICH, WHICH_DOC, default="alive")
    seq: int | None = parameter(SEQ, "event after which alive; default: that of the peak", default=None)
    from_ns: int | None = parameter(TIME, "begin, ns since the session's start", name="from", default=None)
    until_ns: int | None = parameter(TIME, "end, included", name="to", default=None)
    size_min: int | None = parameter(BYTES, "bytes at least", default=None)
    size_max: int | None = parameter(BYTES, "bytes at most", default=None)
    age_min: int | None = parameter(BYTES, "ns from its alloc to the instant or end, at least", default=None)
    age_max: int | None = parameter(BYTES, "at most", default=None)
    made_from: int | None = parameter(TIME, "allocated from, ns since the session's start", default=None)
    made_to: int | None = parameter(TIME, "allocated until, included", default=None)
    freed_from: int | None = parameter(TIME, "freed from", default=None)
    freed_to: int | None = parameter(TIME, "freed until, included", default=None)
    q: str = parameter(
        text(SEARCH_CHARACTERS_MAX), "words, each part of operator, module, line or category", default=""
    )
    pick: str | None = parameter(PICK, "groups as kind:value;kind:value", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksAsked(FitAsked):
    """Parameters of ``/blocks``."""

    sort: str = parameter(choice(SORTS), "column, with - before it descending", default="-size")
    after: int | None = parameter(SEQ, "id of the last block of the page before", default=None)
    limit: int = parameter(integer(PAGE_LEAST, PAGE_MOST), "rows of a page", default=100)


def blocks(reading: Reading, asked: BlocksAsked) -> pa.Table:
    """A page of blocks. Columns: those of ``sql/page/blocks.sql`` but its keys.

    Facts: rank, attempt, device, which, seq, at_ns; sort; after, the parameter of the next page, or None
    where this is the last; held_bytes, what the log says is alive after the event.
    """
    lives = _lives(reading, asked)
    fits = _filters(reading, asked, lives, by_line=asked.sort.removeprefix("-") in ("line", "forward_line"))
    order: dict[str, Value] = {
        "sort": asked.sort.removeprefix("-"),
        "descending": asked.sort.startswith("-"),
    }
    last = _last(reading, asked.after, lives, order)
    rows = reading.show("blocks", **fits, **order, **last, at_most=asked.limit + 1)
    more = rows.num_rows > asked.limit
    rows = rows.slice(0, asked.limit)
    return reading.answer(
        reading.relative(rows.drop_columns(["number_key", "text_key"]), *TIMES),
        exact=True,
        source="allocation_record",
        **lives_facts(reading, lives),
        sort=asked.sort,
        after=rows["allocation_id"][-1].as_py() if more else None,
    )


def blocks_total(reading: Reading, asked: FitAsked) -> pa.Table:
    """One row about all blocks that fit. Columns: those of ``sql/page/blocks_total.sql``."""
    lives = _lives(reading, asked)
    rows = reading.show("blocks_total", **_filters(reading, asked, lives))
    return reading.answer(rows, exact=True, source="allocation_record", **lives_facts(reading, lives))


def lives_facts(reading: Reading, lives: Lives) -> dict[str, Any]:
    """The facts that say which blocks an answer is about."""
    return {
        "rank": lives.track.rank,
        "attempt": lives.track.attempt,
        "device": lives.track.device,
        "which": lives.which,
        "seq": lives.seq,
        "at_ns": lives.at_ns - reading.session.origin_ns,
        "held_bytes": lives.held_bytes,
    }


def _lives(reading: Reading, asked: FitAsked) -> Lives:
    track = reading.track(asked.rank, asked.attempt, asked.device)
    return lives_of(reading, track, asked.which, asked.seq, asked.from_ns, asked.until_ns)


def _filters(reading: Reading, asked: FitAsked, lives: Lives, *, by_line: bool = False) -> dict[str, Value]:
    words = asked.q.lower().split()
    if len(words) > WORDS_MAX:
        raise RankmemError(
            Code.INVALID, f"q has {len(words)} words", f"search for at most {WORDS_MAX} words at once"
        )
    given = {f"word_{i + 1}": words[i] if i < len(words) else None for i in range(WORDS_MAX)}
    return {
        **lives.parameters(),
        "at_ns": lives.at_ns,
        "size_min": asked.size_min,
        "size_max": asked.size_max,
        "age_min": asked.age_min,
        "age_max": asked.age_max,
        "made_from_ns": reading.absolute(asked.made_from),
        "made_until_ns": reading.absolute(asked.made_to),
        "freed_from_ns": reading.absolute(asked.freed_from),
        "freed_until_ns": reading.absolute(asked.freed_to),
        **given,
        "pick": picked(reading, asked.pick),
        "by_line": by_line or bool(words),
    }


def _last(reading: Reading, after: int | None, lives: Lives, order: dict[str, Value]) -> dict[str, Value]:
    """Where a page begins: the last block of the page before, as it is now."""
    if after is None:
        return {"after_id": None, "after_number": None, "after_text": None}
    track = lives.track
    found = reading.ask(
        "block_keys",
        attempt=track.attempt,
        rank=track.rank,
        device=track.device,
        offset_ns=track.offset_ns,
        seq=lives.seq,
        until_ns=None if lives.seq is not None else lives.until_ns,
        at_ns=lives.at_ns,
        block=after,
        by_line=order["sort"] in ("line", "forward_line"),
    ).to_pylist()
    if not found:
        raise block_is_gone(after)
    by = str(order["sort"])
    return {
        "after_id": after,
        "after_number": found[0][by] if by in NUMBERS else None,
        "after_text": found[0][by] if by in TEXTS else None,
    }


ROUTES: Final = (
    SessionRoute(path="/blocks", parameters=BlocksAsked, answer=blocks),
    SessionRoute(path="/blocks/total", parameters=FitAsked, answer=blocks_total),
)
