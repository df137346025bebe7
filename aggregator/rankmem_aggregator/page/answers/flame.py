"""What was held, as a tree: by stack, module or operator, of one rank, some, or all at the job's peak.

Stage: page, in the thread of a request. The bytes of the root are exactly those alive: blocks without a stack
have a node of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.page.flame_tree import Step, bounded, merged, tree_of
from rankmem_aggregator.page.job_shares import PEAK_S, job_shares
from rankmem_aggregator.page.lives import OLDER, WHICH, WHICH_DOC, Lives, lives_of
from rankmem_aggregator.page.parameters import (
    DEVICE,
    RANK,
    SEQ,
    TIME,
    choice,
    integers,
    parameter,
    real,
    text,
)
from rankmem_aggregator.page.pool import QUESTION_S
from rankmem_aggregator.page.reading import Reading, Track
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.selection import PICK, picked
from rankmem_protos.bounds import NUMBER_MAX, RANKS_MAX
from rankmem_protos.errors import Code, RankmemError

RANKS_AT_ONCE: Final = 64
"""A pipeline stage of a large job; all ranks at once are the job at its peak."""
MIN_SHARE: Final = 0.0005
"""Half a pixel of a wide screen."""
WITHOUT: Final = {"line": "no stack recorded", "module": "no module", "operator": "no operator"}
_WORDS: Final = {"line": "frame", "module": "module", "operator": "operator"}
"""The kind of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlameAsked:
    """Parameters of ``/flame``: of ``rank``, of ``ranks``, or of the job at its peak."""

    rank: int | None = parameter(RANK, "global rank", default=None)
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)
    ranks: tuple[int, ...] = parameter(
        integers(0, RANKS_MAX, at_most=RANKS_AT_ONCE), "several ranks, each at its own peak", default=()
    )
    job: str | None = parameter(
        text(16), "a device type: all ranks at the instant of the job's peak on it", default=None
    )
    which: str = parameter(WHICH, WHICH_DOC, default="alive")
    seq: int | None = parameter(SEQ, "event after which alive; default: that of the peak", default=None)
    from_ns: int | None = parameter(TIME, "begin, ns since the session's start", name="from", default=None)
    until_ns: int | None = parameter(TIME, "end, included", name="to", default=None)
    by: str = parameter(choice(("line", "module", "operator")), "what a level is", default="line")
    inverted: str = parameter(choice(("0", "1")), "1: the innermost first", default="0")
    category: str = parameter(choice(("0", "1")), "1: the category as the last level", default="0")
    recursion: str = parameter(
        choice(("keep", "direct", "all")),
        "direct: a frame that calls itself once; all: every frame once in a path",
        default="keep",
    )
    min_share: float = parameter(real(MIN_SHARE, 1), "least share of a node", default=MIN_SHARE)
    pick: str | None = parameter(PICK, "groups as kind:value;kind:value", default=None)


def flame(reading: Reading, asked: FlameAsked) -> pa.Table:
    """Nodes in depth-first order, the largest child first: parent (its place, -1 for the root), kind, name,
    bytes, blocks.

    Facts: bytes, blocks of the root; held_bytes, what the logs say is alive then, NULL for a range or a pick;
    ranks, how many; min_share, which is larger than asked for where there would be too many nodes.
    """
    lives = _lives(reading, asked)
    first = lives[0]
    rows = reading.show(
        "flame",
        points=json.dumps([_point(each) for each in lives]),
        rank_first=min(each.track.rank for each in lives),
        rank_last=max(each.track.rank for each in lives),
        which=first.which,
        from_ns=first.from_ns,
        until_ns=first.until_ns,
        by=asked.by,
        with_category=asked.category == "1",
        with_size=False,
        pick=picked(reading, asked.pick),
    )
    root = tree_of(
        paths_of(
            rows,
            asked.by,
            inverted=asked.inverted == "1",
            recursion=asked.recursion,
            with_category=asked.category == "1",
        )
    )
    nodes = bounded(root, asked.min_share)
    found = pa.table(
        {
            "parent": pa.array(nodes.parent, pa.int32()),
            "kind": pa.array(nodes.kind, pa.string()).dictionary_encode(),
            "name": pa.array(nodes.name, pa.string()),
            "bytes": pa.array(nodes.bytes, pa.int64()),
            "blocks": pa.array(nodes.blocks, pa.int64()),
        }
    )
    held = [each.held_bytes for each in lives if each.held_bytes is not None]
    return reading.answer(
        found,
        exact=True,
        source="allocation_record",
        which=first.which,
        seq=first.seq if len(lives) == 1 else None,
        at_ns=first.at_ns - reading.session.origin_ns,
        rank=first.track.rank if len(lives) == 1 else None,
        ranks=len(lives),
        bytes=root.bytes,
        blocks=root.blocks,
        held_bytes=sum(held) if held and asked.pick is None else None,
        min_share=nodes.min_share,
    )


def _lives(reading: Reading, asked: FlameAsked) -> Sequence[Lives]:
    given = [asked.rank is not None, bool(asked.ranks), asked.job is not None]
    if sum(given) != 1:
        raise RankmemError(
            Code.INVALID,
            "a flame graph is of one rank, of several or of the job",
            "give one of rank, ranks and job",
        )
    if asked.job is not None:
        return _at_job_peak(reading, asked, asked.job)
    if asked.ranks and asked.seq is not None:
        raise RankmemError(Code.INVALID, "seq is of one rank's log", "give rank, not ranks")
    ranks = asked.ranks or (asked.rank,)
    tracks = [
        reading.track(rank, asked.attempt, asked.device) for rank in dict.fromkeys(ranks) if rank is not None
    ]
    return [
        lives_of(reading, track, asked.which, asked.seq, asked.from_ns, asked.until_ns) for track in tracks
    ]


def _at_job_peak(reading: Reading, asked: FlameAsked, device_type: str) -> Sequence[Lives]:
    if asked.which != "alive" or asked.seq is not None:
        raise RankmemError(
            Code.INVALID,
            "the job is shown at the instant of its peak alone",
            "give no seq, and which=alive; or rank",
        )
    peaks = job_shares(reading, reading.session).to_pylist()
    shares = [row for row in peaks if row["device_type"] == device_type]
    if not shares:
        raise RankmemError(
            Code.NOT_FOUND,
            f"no rank has a share on {device_type}",
            f"types of devices: {', '.join(sorted({row['device_type'] for row in peaks})) or 'none'}",
        )
    offsets = {
        (row["attempt"], row["rank"]): row["offset_ns"] for row in reading.ask("rank_offsets").to_pylist()
    }
    return [
        Lives(
            track=Track(
                attempt=row["attempt"],
                rank=row["rank"],
                device=row["device"],
                offset_ns=offsets.get((row["attempt"], row["rank"]), 0),
                peak_bytes=row["requested_bytes"],
                peak_seq=row["seq"],
                peak_ns=row["job_peak_ns"],
                host_name=row["host_name"] or "unknown",
            ),
            which="alive",
            seq=row["seq"],
            from_ns=-NUMBER_MAX,
            until_ns=NUMBER_MAX,
            at_ns=row["job_peak_ns"],
            event_ns=row["job_peak_ns"],
            held_bytes=row["requested_bytes"],
        )
        for row in shares
    ]


def _point(lives: Lives) -> dict[str, Any]:
    track = lives.track
    return {
        "attempt": track.attempt,
        "rank": track.rank,
        "device": track.device,
        "offset_ns": track.offset_ns,
        "seq": lives.seq,
    }


def paths_of(
    rows: pa.Table, by: str, *, inverted: bool = False, recursion: str = "keep", with_category: bool = False
) -> Iterator[tuple[Sequence[Step], int, int]]:
    """The path, bytes and blocks of each row of ``sql/page/flame.sql``, the outermost level first.

    Args:
        rows: asked for by the same grouping.
        by: line, module or operator.
        inverted: the innermost level first.
        recursion: see :func:`merged`.
        with_category: the category is the last level.
    """
    kind = _WORDS[by]
    steps: dict[str, Step] = {}  # frames come again and again
    for row in rows.to_pylist():
        names = row["frames"][::-1] if row["frames"] else []
        if row["group_name"] is not None:
            names = row["group_name"].split(".") if by == "module" else [row["group_name"]]
        path = [steps.get(name) or steps.setdefault(name, Step(kind, name)) for name in names]
        if not path:
            path = [Step("none", OLDER if row["preexisting"] else WITHOUT[by])]
        if inverted:
            path.reverse()
        shown = list(merged(path, recursion))
        if with_category:
            shown.append(Step("category", row["category"]))
        yield shown, row["bytes"], row["blocks"]


def _limit_s(asked: FlameAsked) -> float:
    return QUESTION_S if asked.job is None else PEAK_S


ROUTES: Final = (SessionRoute(path="/flame", parameters=FlameAsked, answer=flame, limit_of=_limit_s),)
