"""The lives of a device's blocks as a picture: stacked by age, or at their addresses, over events or time.

Stage: page, in the thread of a request. The largest blocks go to the browser one by one, all others as a
raster of how much of each pixel they cover, so the answer is bounded and nothing is left out of the picture.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.page.address_space import (
    AddressSpace,
    address_space,
    address_text,
    address_texts,
    read_address,
)
from rankmem_aggregator.page.lives import OLDER, named_if_older
from rankmem_aggregator.page.parameters import (
    DEVICE,
    RANK,
    SEQ,
    TIME,
    check_range,
    choice,
    integer,
    parameter,
)
from rankmem_aggregator.page.raster import Raster, Rectangles, raster_of
from rankmem_aggregator.page.reading import Reading, Track
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.selection import PICK, picked
from rankmem_aggregator.page.stacking import stacked
from rankmem_aggregator.query.types import BlockBy
from rankmem_protos.errors import Code, RankmemError

Array = np.ndarray[Any, Any]

EVENTS_MAX: Final = 50_000
"""Positions of the log in a picture: their blocks are read in 0.1 s, and most can be drawn one by one."""
RECTANGLES_MAX: Final = 20_000
"""In a picture: a canvas draws so many in 7 ms."""
GROUPS_MAX: Final = 12
"""With a colour of their own; the rest are others."""
RANGES_MAX: Final = 500
"""Ranges of addresses that are named on the axis, the largest."""
WIDTH_MAX: Final = 2048
HEIGHT_MAX: Final = 1024
CLOCK_POINTS: Final = 512
"""Events of a picture of which the time is sent: one in three pixels."""
OTHERS: Final = "others"
COLOURS: Final = (*get_args(BlockBy), "age")
AUTO: Final = "auto"
_AUTO: Final = ("category", "line", "operator", "stream")
_NO_CATEGORY: Final = ("unknown", OLDER)
_AGES: Final = (10, 100, 1_000, 10_000, 100_000)
"""In events: the lives that the colours of age tell apart."""
_AGES_NS: Final = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000)
_AGE_NAMES: Final = ("under 10 events", "under 100", "under 1,000", "under 10,000", "under 100,000", "longer")
_AGE_NAMES_NS: Final = ("under 1 ms", "under 10 ms", "under 100 ms", "under 1 s", "under 10 s", "longer")
_SENT: Final = (
    "size_bytes", "category", "operator", "module", "line", "phase", "step", "annotation", "pool",
    "freed_seq", "free_requested_seq",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MapAsked:
    """Parameters of ``/map``."""

    rank: int = parameter(RANK, "global rank")
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)
    from_ns: int | None = parameter(TIME, "begin, ns since the session's start", name="from", default=None)
    until_ns: int | None = parameter(TIME, "end", name="to", default=None)
    seq_from: int | None = parameter(SEQ, "first event, in place of a range of time", default=None)
    seq_to: int | None = parameter(SEQ, "last event", default=None)
    seq: int | None = parameter(
        SEQ,
        "where the range has too many events, those around this one are shown; absent: the peak",
        default=None,
    )
    width: int = parameter(integer(16, WIDTH_MAX), "of the picture in pixels", default=800)
    height: int = parameter(integer(16, HEIGHT_MAX), "of the picture in pixels", default=300)
    kind: str = parameter(choice(("stacked", "address")), "by age or by address", default="stacked")
    axis: str = parameter(choice(("event", "time")), "what runs to the right", default="event")
    colour: str = parameter(
        choice((AUTO, *COLOURS)),
        "what a colour stands for; auto: the first of which anything is known",
        default=AUTO,
    )
    pick: str | None = parameter(PICK, "these blocks alone: kind:value;kind:value", default=None)
    address_from: int | None = parameter(
        read_address, "by address: from this address on, as hexadecimal digits", default=None
    )
    address_to: int | None = parameter(read_address, "to before this one", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAsked:
    """Parameters of ``/block_stack``."""

    rank: int = parameter(RANK, "global rank")
    block: int = parameter(SEQ, "id of the block: the position of its alloc in the log")
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """What is shown."""

    seq_first: int
    seq_last: int
    first_ns: int
    last_ns: int
    events: int
    is_cut: bool
    """The range asked for has more events than a picture may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lives:
    """Blocks within the range, in the order of their allocation; x in events or ns from its begin."""

    rows: pa.Table
    begin: Array
    end: Array
    size_bytes: Array
    length: int
    """Of the range, in x."""

    def only(self, kept: Array) -> _Lives:
        """Some of them."""
        return _Lives(
            rows=self.rows.filter(pa.array(kept)),
            begin=self.begin[kept],
            end=self.end[kept],
            size_bytes=self.size_bytes[kept],
            length=self.length,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """Rectangles by block, and what else there is."""

    chosen: Array
    first: Array
    x: Array
    y: Array
    height_bytes: int
    raster: Raster
    raster_groups: list[str]


def block_map(reading: Reading, asked: MapAsked) -> pa.Table:
    """The largest blocks of a range, in the order of their allocation; each is one or more rectangles.

    Columns: block (id), x (list: where each of its rectangles begins; it ends where the next one begins),
    x_end (where the last ends), y (list: bytes below), address (text), group (its colour, by the fact
    ``groups``), size_bytes, category, operator, module, line, phase, step, annotation, pool, stream (text),
    stack (text), allocated_ns, freed_ns (since the session's start), freed_seq, free_requested_seq. x counts
    events, or ns, from the begin of the range. Facts: ``raster``, ``raster_group`` (base64, a byte a pixel
    from the top left) of all other blocks; length (of the range, in x), height_bytes (of the picture). By
    address also low_bytes (what lies below the picture) and space_bytes (of all addresses), and a block of
    which a part lies outside of the picture has its own y and size.
    """
    track = reading.track(asked.rank, asked.attempt, asked.device)
    shown = _range(reading, asked, track)
    rows = reading.show(
        "blocks_touching",
        attempt=track.attempt,
        rank=track.rank,
        device=track.device,
        offset_ns=track.offset_ns,
        seq_first=shown.seq_first,
        seq_last=shown.seq_last,
        pick=picked(reading, asked.pick),
    )
    lives = _lives(rows, asked, shown, reading)
    without = 0
    space, low, high = None, 0, 0
    colour = _colour(lives.rows, asked.colour)
    if asked.kind == "address":
        placed = lives.rows["address"].is_valid().to_numpy()
        without = int((~placed).sum())
        lives = lives.only(placed)
        space = address_space(_numbers(lives.rows["address"]), lives.size_bytes)
        low, high = _window(space, asked)
        y = _offsets(space, lives)
        lives = lives.only((y < high) & (y + lives.size_bytes > low))
    group, names = _groups(lives, asked.axis, colour)
    if space is None:
        picture = _stacked(lives, asked)
    else:
        picture = _at_addresses(lives, _offsets(space, lives) - low, high - low, group, names, asked)
    return reading.answer(
        _table(reading, lives, picture, group),
        exact=len(picture.chosen) == len(lives.begin),
        source="allocation_record",
        rank=track.rank,
        attempt=track.attempt,
        device=track.device,
        kind=asked.kind,
        axis=asked.axis,
        colour=colour,
        length=lives.length,
        begin=shown.seq_first
        if asked.axis == "event"
        else _time_range(reading, asked, shown)[0] - _origin(reading),
        height_bytes=picture.height_bytes,
        low_bytes=low,
        space_bytes=0 if space is None else space.total_bytes,
        seq_first=shown.seq_first,
        seq_last=shown.seq_last,
        first_ns=shown.first_ns - _origin(reading),
        last_ns=shown.last_ns - _origin(reading),
        is_cut=shown.is_cut,
        events=shown.events,
        peak_seq=track.peak_seq,
        num_blocks=len(lives.begin),
        num_without_address=without,
        clock=_clock(rows, shown, _origin(reading)),
        groups=names,
        raster_groups=picture.raster_groups,
        width=asked.width,
        height=asked.height,
        raster=_text_of(picture.raster.shares),
        raster_group=_text_of(picture.raster.groups),
        ranges=_ranges(space, low),
    )


def block_stack(reading: Reading, asked: StackAsked) -> pa.Table:
    """The frames of a block's Python stack, the one nearest to the operator first. Columns: frame (text)."""
    track = reading.track(asked.rank, asked.attempt, asked.device)
    rows = reading.show(
        "block_stack", attempt=track.attempt, rank=track.rank, device=track.device, block=asked.block
    )
    frames = rows.select(["frame"]).filter(rows["frame"].is_valid())
    return reading.answer(frames, exact=True, source="stack_frame", block=asked.block)


def _range(reading: Reading, asked: MapAsked, track: Track) -> _Range:
    """The events that are shown."""
    if asked.from_ns is not None or asked.until_ns is not None:
        check_range(asked.from_ns, asked.until_ns)
    first, last = asked.seq_from, asked.seq_to
    if first is not None and last is not None:
        if last < first:
            raise RankmemError(
                Code.INVALID, f"the events from {first} to {last} are none", "give seq_from ≤ seq_to"
            )
        if last - first >= EVENTS_MAX:
            raise RankmemError(
                Code.INVALID,
                f"the range from {first} to {last} has more than {EVENTS_MAX:,} events",
                "choose a shorter range",
            )
    found = _events(reading, asked, track, first, last)
    if found.seq_last - found.seq_first < EVENTS_MAX:
        return found
    middle = track.peak_seq if asked.seq is None else asked.seq
    middle = min(max(middle, found.seq_first), found.seq_last)
    begin = min(max(middle - EVENTS_MAX // 2, found.seq_first), found.seq_last - EVENTS_MAX + 1)
    return _events(reading, asked, track, begin, begin + EVENTS_MAX - 1, is_cut=True)


def _events(
    reading: Reading,
    asked: MapAsked,
    track: Track,
    first: int | None,
    last: int | None,
    *,
    is_cut: bool = False,
) -> _Range:
    """The events of a range; if there are none in it, the instant of the last one before."""

    def ask(from_ns: int | None, until_ns: int | None) -> dict[str, Any]:
        rows = reading.ask(
            "seq_range",
            attempt=track.attempt,
            rank=track.rank,
            device=track.device,
            offset_ns=track.offset_ns,
            from_ns=reading.absolute(from_ns),
            until_ns=reading.absolute(until_ns),
            seq_from=first,
            seq_to=last,
        )
        return dict(rows.to_pylist()[0])

    row = ask(asked.from_ns, asked.until_ns)
    if row["seq_first"] is None and asked.from_ns is not None:
        row = ask(None, asked.from_ns)
        row |= {"seq_first": row["seq_last"], "first_ns": row["last_ns"], "events": 0}
    if row["seq_first"] is None:
        raise RankmemError(
            Code.NOT_FOUND,
            f"rank {track.rank} has no event on {track.device} in this range, and none before",
            "choose a longer range: a double click on a diagram doubles it",
        )
    return _Range(
        seq_first=row["seq_first"],
        seq_last=row["seq_last"],
        first_ns=row["first_ns"],
        last_ns=row["last_ns"],
        events=row["events"],
        is_cut=is_cut,
    )


def _lives(rows: pa.Table, asked: MapAsked, shown: _Range, reading: Reading) -> _Lives:
    made, size = _numbers(rows["allocation_id"]), _numbers(rows["size_bytes"])
    if asked.axis == "event":
        first, after = shown.seq_first, shown.seq_last + 1
        begin = np.maximum(made, first) - first
        end = np.minimum(_numbers(rows["freed_seq"], after), after) - first
    else:
        first, after = _time_range(reading, asked, shown)
        begin = np.maximum(_numbers(rows["allocated_ns"], first), first) - first
        end = np.minimum(_numbers(rows["freed_ns"], after), after) - first
    lives = _Lives(rows=rows, begin=begin, end=end, size_bytes=size, length=after - first)
    return lives.only((end > begin) & (size > 0))


def _time_range(reading: Reading, asked: MapAsked, shown: _Range) -> tuple[int, int]:
    """On the common clock."""
    first, after = reading.absolute(asked.from_ns), reading.absolute(asked.until_ns)
    if shown.is_cut or first is None or after is None:
        return shown.first_ns, max(shown.last_ns, shown.first_ns + 1)
    return first, after


def _colour(rows: pa.Table, asked: str) -> str:
    """What colours stand for: as asked, or by itself the first of which anything is known."""
    if asked != AUTO:
        return asked
    for name in _AUTO:
        known = set(pc.unique(rows[name]).to_pylist()) - {None, *(_NO_CATEGORY if name == "category" else ())}
        if known:
            return name
    return _AUTO[0]


def _groups(lives: _Lives, axis: str, colour: str) -> tuple[Array, list[str]]:
    """The colour group of each block, and the groups' names; the largest first, but ages in their order."""
    if colour == "age":
        by_event = axis == "event"
        bins = np.array(_AGES if by_event else _AGES_NS)
        return np.searchsorted(bins, lives.end - lives.begin), list(_AGE_NAMES if by_event else _AGE_NAMES_NS)
    column = lives.rows[colour].combine_chunks()
    if not pa.types.is_string(column.type):
        column = column.cast(pa.string())
    column = named_if_older(column, lives.rows["allocation_id"].combine_chunks())
    codes = column.dictionary_encode(null_encoding="encode")
    names = [_name(name) for name in codes.dictionary.to_pylist()]
    code = codes.indices.to_numpy(zero_copy_only=False)
    area = np.bincount(code, weights=lives.size_bytes * (lives.end - lives.begin), minlength=len(names))
    order = np.argsort(-area, kind="stable")
    place = np.empty(len(names), np.int64)
    place[order] = np.minimum(np.arange(len(names)), GROUPS_MAX)
    listed = [names[i] for i in order[:GROUPS_MAX].tolist()]
    return place[code], [*listed, OTHERS] if len(names) > GROUPS_MAX else listed


def _name(value: str | None) -> str:
    return "unknown" if value is None else value


def _stacked(lives: _Lives, asked: MapAsked) -> _Picture:
    stack = stacked(lives.begin, lives.end, lives.size_bytes, pieces_max=RECTANGLES_MAX)
    height = max(stack.highest_bytes, 1)
    is_band = stack.rest_bytes[:-1] > 0
    scale_x, scale_y = asked.width / lives.length, asked.height / height
    below = stack.rest_y[:-1][is_band]
    band = Rectangles(
        x_begin=stack.rest_x[:-1][is_band] * scale_x,
        x_end=stack.rest_x[1:][is_band] * scale_x,
        y_begin=asked.height - (below + stack.rest_bytes[:-1][is_band]) * scale_y,
        y_end=asked.height - below * scale_y,
    )
    return _Picture(
        chosen=stack.chosen,
        first=stack.first,
        x=stack.x,
        y=stack.y,
        height_bytes=height,
        raster=raster_of([band], asked.width, asked.height),
        raster_groups=["smaller blocks"],
    )


def _window(space: AddressSpace, asked: MapAsked) -> tuple[int, int]:
    """The part of the addresses that is shown, as offsets."""
    first, after = asked.address_from, asked.address_to
    if first is not None and after is not None and after <= first:
        raise RankmemError(
            Code.INVALID,
            f"the addresses from {address_text(first)} to {address_text(after)} are none",
            "give address_from < address_to; those from 0x8000000000000000 on are before the others",
        )
    return space.window(first, after)


def _offsets(space: AddressSpace, lives: _Lives) -> Array:
    """Of each block the kept bytes below it."""
    addresses = _numbers(lives.rows["address"])
    return space.offset_of(addresses) if len(addresses) else np.empty(0, np.int64)


def _at_addresses(
    lives: _Lives, y: Array, height: int, group: Array, names: list[str], asked: MapAsked
) -> _Picture:
    """Blocks that begin so many bytes above the lower edge of a picture of this height."""
    seen = np.minimum(y + lives.size_bytes, height) - np.maximum(y, 0)
    area = seen.astype(np.float64) * (lives.end - lives.begin)
    chosen = np.sort(np.argsort(-area, kind="stable")[:RECTANGLES_MAX])
    scale_x, scale_y = asked.width / lives.length, asked.height / height
    is_rest = np.ones(len(area), bool)
    is_rest[chosen] = False

    def rectangles(number: int) -> Rectangles:
        own = is_rest & (group == number)
        return Rectangles(
            x_begin=lives.begin[own] * scale_x,
            x_end=lives.end[own] * scale_x,
            y_begin=asked.height - (y[own] + lives.size_bytes[own]) * scale_y,
            y_end=asked.height - y[own] * scale_y,
        )

    return _Picture(
        chosen=chosen,
        first=np.arange(len(chosen) + 1),
        x=lives.begin[chosen],
        y=y[chosen],
        height_bytes=height,
        raster=raster_of([rectangles(i) for i in range(len(names))], asked.width, asked.height),
        raster_groups=names,
    )


def _table(reading: Reading, lives: _Lives, picture: _Picture, group: Array) -> pa.Table:
    rows = lives.rows.take(pa.array(picture.chosen))
    first = pa.array(picture.first, pa.int32())
    columns: dict[str, Any] = {
        "block": rows["allocation_id"],
        "x": pa.ListArray.from_arrays(first, pa.array(picture.x, pa.int64())),
        "x_end": pa.array(lives.end[picture.chosen], pa.int64()),
        "y": pa.ListArray.from_arrays(first, pa.array(picture.y, pa.int64())),
        "group": pa.array(group[picture.chosen], pa.int16()),
        "address": pa.array(address_texts(rows["address"].to_pylist()), pa.string()),
    }
    for name in _SENT:
        column = rows[name]
        columns[name] = column.dictionary_encode() if pa.types.is_string(column.type) else column
    columns["stream"] = rows["stream"].cast(pa.string()).dictionary_encode()
    columns["stack"] = rows["stack_id"].cast(pa.string()).dictionary_encode()
    for name in ("allocated_ns", "freed_ns"):
        columns[name] = pc.subtract(rows[name].cast(pa.int64()), pa.scalar(_origin(reading), pa.int64()))
    return pa.table(columns)


def _clock(rows: pa.Table, shown: _Range, origin_ns: int) -> dict[str, list[int]]:
    """Some events of the range, spread evenly, and when they were: what an axis of events means in time."""
    seq = np.concatenate([_numbers(rows["allocation_id"]), _numbers(rows["freed_seq"], -1)])
    time_ns = np.concatenate([_numbers(rows["allocated_ns"], -1), _numbers(rows["freed_ns"], -1)])
    inside = (seq > shown.seq_first) & (seq < shown.seq_last) & (time_ns >= shown.first_ns)
    seq, place = np.unique(seq[inside], return_index=True)
    time_ns = time_ns[inside][place]
    kept = np.unique(np.linspace(0, len(seq) - 1, CLOCK_POINTS).astype(np.int64)) if len(seq) else slice(0)
    return {
        "seq": [shown.seq_first, *seq[kept].tolist(), shown.seq_last],
        "time_ns": [
            shown.first_ns - origin_ns,
            *(time_ns[kept] - origin_ns).tolist(),
            shown.last_ns - origin_ns,
        ],
    }


def _ranges(space: AddressSpace | None, low: int) -> list[dict[str, Any]]:
    """The ranges of addresses from the bottom up, the largest of them; their offsets are from ``low`` on."""
    if space is None or not len(space.begins):
        return []
    lengths = np.diff(np.append(space.offsets, space.total_bytes))
    kept = np.sort(np.argsort(-lengths, kind="stable")[:RANGES_MAX]).tolist()
    return [
        {
            "address": address_text(int(space.begins[i])),
            "offset": int(space.offsets[i]) - low,
            "bytes": int(lengths[i]),
        }
        for i in kept
    ]


def _origin(reading: Reading) -> int:
    return reading.session.origin_ns


def _text_of(pixels: Array) -> str:
    return base64.b64encode(pixels.tobytes()).decode() if pixels.any() else ""


def _numbers(column: pa.ChunkedArray, absent: int = 0) -> Array:
    found: Array = column.fill_null(absent).to_numpy()
    return found.astype(np.int64)


ROUTES: Final = (
    SessionRoute(path="/map", parameters=MapAsked, answer=block_map),
    SessionRoute(path="/block_stack", parameters=StackAsked, answer=block_stack),
)
