"""The blocks of one training step: from the end of the step before to its own.

Stage: insights, in the reader's process. In: a way to ask named queries. Out: :class:`Window`, a step's
blocks as arrays, held against the recorded curve. Only steps that are steady are read: not the first, whose
optimizer makes its state.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.insights.answer import Ask
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.reading import CannotTell, device_row
from rankmem_aggregator.quantity_text import bytes_text, counted

BLOCKS_MAX: Final = 400_000
"""Of one step; some 400 MiB while they are compared."""
NEVER: Final = 1 << 52
"""When a block dies that outlives its step; times in a log are below, and floats hold it."""
STATE: Final = "optimizer_state"
"""The category of what an optimizer keeps."""
LASTING: Final = frozenset({"parameter", STATE, "gradient"})
"""Categories whose sizes follow from the model alone."""
COMPUTING: Final = ("forward", "backward")
"""Phases in which blocks follow from the input."""
OF_STEP: Final = (*COMPUTING, "optimizer")
"""Phases in which a step makes its own blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A device of a rank in a start of a session's workers, and what is known of it."""

    session_id: str
    attempt: int
    rank: int
    device: str
    device_type: str
    allocator: str | None
    settings: str | None
    total_bytes: int | None

    @property
    def name(self) -> str:
        """For sentences: ``rank 0, cuda:0``."""
        return f"rank {self.rank}, {self.device}"

    def keys(self) -> dict[str, Any]:
        """The parameters that every query about a device has."""
        return {"session": self.session_id, "attempt": self.attempt, "rank": self.rank, "device": self.device}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """A step, where it is in the log, and how large its input was."""

    step: int
    from_seq: int | None
    to_seq: int
    input_bytes: int
    """Of the blocks of category input that were made in it, outside of modules."""
    peak_bytes: int | None
    call_bytes: int | None = None
    """Of what its largest call of the model was given; None: not recorded."""
    inputs: Sequence[tuple[str, str]] | None = None
    """Argument and shape of each tensor of that call; None: not known in full."""
    is_named: bool = True
    """Operators were recorded in all of it."""
    allocated_bytes: int | None = None
    """Of the blocks that were allocated in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The blocks that were alive at some instant of a step, in order of their births.

    ``born`` of a block older than the step is the step's begin, ``died`` of one that outlives it NEVER.
    """

    place: Place
    size: StepSize
    begin: int
    end: int
    born: Array
    died: Array
    bytes: Array
    category: list[str]
    operator: list[str | None]
    module: list[str | None]
    phase: list[str | None]
    line: list[str | None]
    forward_line: list[str | None]
    function: list[str | None]
    """Of the line."""
    forward_function: list[str | None]
    """Of the forward line."""
    recomputed: list[bool]
    stream: list[int | None]
    pool: list[str | None]

    def __len__(self) -> int:
        return len(self.bytes)

    @property
    def num_older(self) -> int:
        """Blocks older than the step; they come first."""
        return int(np.searchsorted(self.born, self.begin, side="right"))

    def names(self) -> list[tuple[Any, ...]]:
        """What tells blocks of one program apart: operator, module, phase, lines, whether recomputed."""
        return list(
            zip(
                self.operator, self.module, self.phase, self.line, self.forward_line, self.recomputed,
                strict=True,
            )
        )  # fmt: skip

    def peak(self, sizes: Array | None = None) -> tuple[int, int]:
        """The most bytes alive at once, and the instant from which on they were.

        Args:
            sizes: of the blocks, in place of those recorded.
        """
        highest, at = peak_of(self.born, self.died, self.bytes if sizes is None else sizes)
        return int(highest), int(at)

    def alive(self, at: float) -> Array:
        """Which blocks are alive right after an instant."""
        found: Array = (self.born <= at) & (self.died > at)
        return found


def peak_of(born: Array, died: Array, sizes: Array) -> tuple[float, float]:
    """The most bytes alive at once and the first instant at which they are; frees at an instant come
    first."""
    if not len(sizes):
        return 0, 0
    ends = died < NEVER
    times = np.concatenate([died[ends], born])
    changes = np.concatenate([-sizes[ends], sizes])
    order = np.argsort(times, kind="stable")
    levels = np.cumsum(changes[order])
    last = np.append(np.diff(times[order]) > 0, True)
    levels = np.where(last, levels, 0)
    place = int(np.argmax(levels))
    return levels[place], times[order][place]


def place_of(
    ask: Ask, session_id: str, *, rank: int | None, attempt: int | None = None, device: str | None = None
) -> Place:
    """The device that was meant.

    Args:
        ask: asks a named query.
        session_id: full id.
        rank: global rank; None: the one that got highest.
        attempt, device: None: those on which it got highest, host memory left out.

    Raises:
        CannotTell: there is none.
    """
    row = device_row(ask("allocator_devices", session=session_id, rank=rank, attempt=attempt), device)
    names = ("attempt", "rank", "device", "device_type", "allocator", "settings", "total_bytes")
    return Place(session_id=session_id, **{name: row[name] for name in names})


def step_sizes(ask: Ask, place: Place) -> list[StepSize]:
    """The steps of a rank in order, each with the bytes of its input.

    Raises:
        CannotTell: fewer than two were recorded, so that none is steady; or no operators in any.
    """
    rows = ask("step_sizes", **place.keys()).to_pylist()
    if not rows:
        raise CannotTell(
            f"no steps of {place.name} were recorded: no optimizer stepped and rankmem_agent.step() was not "
            "called"
        )
    if len(rows) == 1:
        raise CannotTell(
            f"one step of {place.name} was recorded; its first makes the optimizer's state, so two are needed"
        )
    if not any(row["is_named"] for row in rows):
        raise CannotTell(
            f"no step of {place.name} was recorded with operators in all of it: rankmem control had switched "
            "them off"
        )
    return [StepSize(**row) for row in rows]


def read_window(ask: Ask, place: Place, size: StepSize) -> Window:
    """The blocks of a step.

    Raises:
        CannotTell: they are too many, have no names, or do not add up to the recorded peak.
    """
    begin = -1 if size.from_seq is None else size.from_seq
    rows = ask("step_blocks", **place.keys(), from_seq=begin, to_seq=size.to_seq, at_most=BLOCKS_MAX + 1)
    if rows.num_rows > BLOCKS_MAX:
        raise CannotTell(f"step {size.step} of {place.name} has more than {BLOCKS_MAX:,} blocks")
    if rows["operator"].null_count == rows.num_rows:
        raise CannotTell(
            f"the recording of {place.name} has no operators: imported without calls, or "
            "RANKMEM_DETAIL=events"
        )
    window = _window(rows, place, size, begin)
    _check(window)
    return window


HIGHER_SHARE: Final = 1.01
"""A step that held so much more than the one that is looked at is named beside it."""


def higher_step(
    steps: Sequence[StepSize], step: int, peak_bytes: int, usable_bytes: int | None = None
) -> tuple[int, int] | None:
    """The step that held most, and its bytes; None where it is no matter.

    It is one where it held HIGHER_SHARE of the peak of the one that is looked at, or any more that decides
    what fits. The first step is left out: what it holds more is the start's.

    Args:
        steps: all of the device, in order.
        step, peak_bytes: what is looked at.
        usable_bytes: of the device that it should fit in.
    """
    rest = [each for each in steps[1:] if each.peak_bytes is not None and each.step != step]
    top = max(rest, key=lambda each: each.peak_bytes or 0, default=None)
    if top is None or top.peak_bytes is None:
        return None
    decides = usable_bytes is not None and peak_bytes <= usable_bytes < top.peak_bytes
    return (top.step, top.peak_bytes) if decides or top.peak_bytes > HIGHER_SHARE * peak_bytes else None


def _window(rows: pa.Table, place: Place, size: StepSize, begin: int) -> Window:
    freed = rows["freed_seq"].fill_null(NEVER).to_numpy()
    texts = (
        "category",
        "operator",
        "module",
        "phase",
        "line",
        "forward_line",
        "function",
        "forward_function",
        "recomputed",
        "stream",
        "pool",
    )
    return Window(
        place=place,
        size=size,
        begin=begin,
        end=size.to_seq,
        born=np.maximum(rows["allocation_id"].to_numpy(), begin),
        died=np.where(freed > size.to_seq, NEVER, freed),
        bytes=rows["bytes"].to_numpy(),
        **{name: rows[name].to_pylist() for name in texts},
    )


def _check(window: Window) -> None:
    """Refuses a step whose blocks are not those of the recorded curve."""
    recorded = window.size.peak_bytes
    first = window.num_older
    inside = np.concatenate([window.born[first:], window.died[window.died < NEVER]])
    if recorded is None or not len(inside):
        raise CannotTell(f"nothing was allocated on {window.place.name} in step {window.size.step}")
    # The level at the step's begin belongs to the step before.
    born = np.where(window.born <= window.begin, int(inside.min()), window.born)
    highest = int(peak_of(born, window.died, window.bytes)[0])
    if highest != recorded:
        raise CannotTell(
            f"the blocks of step {window.size.step} of {window.place.name} come to {bytes_text(highest)} at "
            f"their highest, the recorded events to {bytes_text(recorded)}: "
            f"{counted(abs(highest - recorded), 'byte')} are not told of"
        )


def has_backward(window: Window) -> bool:
    """Whether the step ran backward."""
    return "backward" in window.phase


def refuse_without_phases(window: Window) -> None:
    """Raises CannotTell where nothing shows which blocks follow from the input, as in profilers' traces."""
    if not any(each in COMPUTING for each in window.phase):
        raise CannotTell(
            f"no block of {window.place.name} is known to be of forward or backward: what grows with the "
            "batch, and what a remedy would change, is not known"
        )


def are_parameters(window: Window) -> Array:
    """Which blocks are parameters."""
    return np.array([each == "parameter" for each in window.category], bool)


def is_of_model(category: Sequence[str], phase: Sequence[str | None]) -> Array:
    """Which blocks are as large as the model, whatever its input: parameters, gradients, optimizer state, the
    optimizer's scratch, and what is unknown outside of forward and backward."""
    named = zip(category, phase, strict=True)
    return np.array(
        [
            what in LASTING or when == "optimizer" or (what == "unknown" and when not in COMPUTING)
            for what, when in named
        ],
        bool,
    )


def as_large_as_parameters(window: Window) -> Array:
    """Which blocks have the bytes of some parameter, or half of them.

    They may be a copy of it, in 16 bits too, or a part of its gradient that is then added to the rest, as
    where gradients are accumulated or a layer is called several times; or they may be as large by chance.
    """
    whole = np.unique(window.bytes[are_parameters(window)])
    found: Array = np.isin(window.bytes, np.concatenate([whole, whole // 2]))
    return found


def may_follow_input(window: Window) -> Array:
    """Which of the blocks of :func:`is_of_model` may grow with the input all the same.

    More gradients of a size than parameters have, as sparse ones, and what is made beside the model and is no
    copy of it: data that is kept there, or what a policy collects. Nobody can see whether that follows the
    batch.
    """
    sizes = window.bytes.tolist()
    parameters = Counter(itertools.compress(sizes, are_parameters(window)))
    places = range(len(window))
    made = [
        (place < window.num_older, what == "gradient" and when == "backward", size)
        for place, what, when, size in zip(places, window.category, window.phase, sizes, strict=True)
    ]
    counts = Counter(made)
    return np.array(
        [
            counts[each] > parameters[each[2]]
            if each[1]
            else what == "unknown" and when not in OF_STEP and each[2] not in parameters
            for each, what, when in zip(made, window.category, window.phase, strict=True)
        ],
        bool,
    )


def any_null(column: pa.ChunkedArray) -> bool:
    """Whether a value is missing."""
    return bool(pc.any(pc.is_null(column)).as_py())
