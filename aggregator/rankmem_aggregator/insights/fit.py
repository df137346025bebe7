"""Will it fit: what a training step would hold and need at another batch or length, or on another device.

Stage: query, in the reader's process. In: ways to ask named queries. Out: an ``Answer``. The steps of one or
more recorded sizes become a model (:mod:`laws`) that gives each block its bytes at any size; the peak is
that of the same lives with these bytes, reserved and needed what the model of the allocator makes of them.

**How sure.** Two sizes: 1 %. Three or more: each is predicted from the others, twice the worst miss, 1 % at
least. One: an upper bound for larger inputs, no more than a guess for what grows faster than its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.insights import fit_text as text
from rankmem_aggregator.insights.answer import Answer, Ask, cannot_tell
from rankmem_aggregator.insights.as_cuda import stepped_alone
from rankmem_aggregator.insights.capacity import usable_bytes, usable_on
from rankmem_aggregator.insights.fit_model import Device, Fitted, Sized, largest_figures
from rankmem_aggregator.insights.fit_sizes import Wanted, read_sizes, wanted_of
from rankmem_aggregator.insights.input_shapes import largest_text
from rankmem_aggregator.insights.laws import Law
from rankmem_aggregator.insights.reading import CannotTell, read_trace
from rankmem_aggregator.insights.replays import check
from rankmem_aggregator.insights.same_code import with_first_names
from rankmem_aggregator.insights.settings import Settings
from rankmem_aggregator.insights.windows import Place, StepSize, higher_step, place_of, step_sizes
from rankmem_protos.devices import HOST_MEMORY
from rankmem_protos.errors import Code, RankmemError

DEFAULT_WANTED: Final = ("2x", "4x")
AS_DEVICES: Final = ("cuda",)
ONE_SIZE_TIMES: Final = 2
"""Of one recorded size: what is further away is suspected, since it does not show what grows faster."""

SCHEMA: Final = pa.schema(
    [
        ("size", pa.int64()),
        ("times", pa.float64()),
        ("is_recorded", pa.bool_()),
        ("live_peak_bytes", pa.int64()),
        ("low_bytes", pa.int64()),
        ("high_bytes", pa.int64()),
        ("needed_bytes", pa.int64()),
        ("reserved_peak_bytes", pa.int64()),
        ("fits", pa.string()),
    ]
)
"""The rows of the answer, the smallest size first. size: the batch or length, NULL where nobody said what was
recorded; times: of the largest recorded; live_peak_bytes: requested, low_bytes and high_bytes its bounds;
needed_bytes: of the device, and reserved_peak_bytes where there is room, NULL on a CPU without as_device;
fits: yes, no, or unclear where the bounds do not decide; NULL where no device was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked."""

    what: str = "batch"
    """batch or length."""
    wanted: Sequence[str] = ()
    recorded: Sequence[int] = ()
    in_bytes: int | None = None
    """Of the device."""
    as_device: str | None = None
    rank: int | None = None
    attempt: int | None = None
    device: str | None = None


def fit_of(sources: Sequence[tuple[Ask, str]], request: Request) -> Answer:
    """Whether a training fits at another size; columns of its rows: :data:`SCHEMA`.

    Args:
        sources: ways to ask named queries, each with the full id of a session: the one that is meant, and
            others of the same program at other sizes.
        request: what is asked.

    Raises:
        RankmemError: INVALID for sizes or a device that are none.
    """
    session_id = sources[0][1]
    if request.as_device not in (None, *AS_DEVICES):
        raise RankmemError(Code.INVALID, f"the allocator of {request.as_device} is not modelled", "--as cuda")
    try:
        places = [
            (ask, place_of(ask, each, rank=request.rank, attempt=request.attempt, device=request.device))
            for ask, each in sources
        ]
        steps = [step_sizes(ask, place) for ask, place in places]
        sized = [(*where, own) for where, own in zip(places, steps, strict=True)]
        recorded = read_sizes(sized, request.recorded, request.what)
        fitted = Fitted(with_first_names(recorded, [ask for ask, _ in places]), request.what)
        wanted = wanted_of(request.wanted or DEFAULT_WANTED, recorded)
        fitted.refuse(wanted)
        device = _device(places[0][0], places[0][1], request)
        return _answer(session_id, fitted, wanted, device, request, places[0][1], steps[0])
    except CannotTell as reason:
        return cannot_tell("fit", session_id, str(reason), SCHEMA, next_commands=("rankmem steps",))


def _device(ask: Ask, place: Place, request: Request) -> Device:
    """The device on which it is to run: that of the recording, or the one that is named."""
    if place.device_type in HOST_MEMORY:
        settings = Settings() if request.as_device else None
        total = request.in_bytes
        usable = None if total is None else usable_on(request.as_device or place.device_type, total, None)
        return Device(settings=settings, total_bytes=total, usable_bytes=usable, as_cuda=settings is not None)
    beyond = _beyond_bytes(ask, place)
    total = request.in_bytes or place.total_bytes
    usable = None if total is None else usable_bytes(total, beyond)
    try:
        traced = read_trace(
            ask, place.session_id, rank=place.rank, attempt=place.attempt, device=place.device
        )
        found = check(traced.trace)
        text.refuse_replay(place.name, found)
        settings, reason = traced.trace.settings, ""
    except CannotTell as why:
        settings, reason = None, str(why)
    return Device(
        settings=settings, total_bytes=total, usable_bytes=usable, as_cuda=False, not_replayed=reason
    )


def _beyond_bytes(ask: Ask, place: Place) -> int | None:
    """What the process held beyond the allocator, where known."""
    for row in ask("step_tracks", session=place.session_id, rank=place.rank).to_pylist():
        if (row["attempt"], row["device"]) == (place.attempt, place.device):
            found: int | None = row["app_bytes"]
            return found
    return None


def _answer(
    session_id: str,
    fitted: Fitted,
    wanted: Sequence[Wanted],
    device: Device,
    request: Request,
    place: Place,
    steps: Sequence[StepSize],
) -> Answer:
    sized = Sized(fitted, device)
    largest = fitted.recorded[-1]
    asked = {each.size: (each.number, each.times) for each in wanted}
    known = {each.size: (each.number, each.size / largest.size) for each in fitted.recorded}
    rows = [sized.row(size, *own) for size, own in sorted((asked | known).items())]
    below, above = map(max, zip(*(sized.shares_at(each.size) for each in wanted), strict=True))
    figures = _figures(fitted, device, request, place) | {"below_share": below, "above_share": above}
    own = [each.window for each in fitted.recorded if each.source == 0]
    top = max(own, key=lambda each: each.peak()[0], default=None)
    higher = top and higher_step(steps, top.size.step, top.peak()[0], device.usable_bytes)
    figures["evaluates"] = any(fitted.model(each.size).evaluates_at(each.size) for each in wanted)
    figures |= {"higher_step": higher and higher[0], "higher_step_bytes": higher and higher[1]}
    usable = device.usable_bytes
    has_more = bool(higher and usable is not None and higher[1] > usable)
    if device.usable_bytes is not None and not device.not_replayed:
        figures |= largest_figures(sized, largest)
    first = next(row for row in rows if row["times"] == wanted[0].times) if request.wanted else None
    is_unsure = fitted.same.is_edited or _goes_far(fitted, wanted)
    does_not = [row for row in rows if row["fits"] == "no" and (row["times"] in {w.times for w in wanted})]
    return Answer(
        question="fit",
        session_id=session_id,
        verdict="finding" if request.wanted and (does_not or has_more) else "fine",
        certainty="suspected" if device.as_cuda or device.not_replayed or is_unsure else "predicted",
        sentence=text.sentence(place.name, first, figures, rows),
        error=text.error(
            below, above, len(fitted.recorded), as_cuda=device.as_cuda, changes=fitted.has_changing_kernels
        ),
        rows=pa.Table.from_pylist(rows, schema=SCHEMA),
        figures=figures,
        notes=text.notes(figures, rows[-1]),
        next_commands=text.next_commands(figures, bool(does_not)),
    )


def _goes_far(fitted: Fitted, wanted: Sequence[Wanted]) -> bool:
    """Whether one size is to tell of others so far away that a square would decide the peak."""
    return len(fitted.recorded) == 1 and any(each.times > ONE_SIZE_TIMES for each in wanted)


def _figures(fitted: Fitted, device: Device, request: Request, place: Place) -> dict[str, Any]:
    """What the sentences state."""
    model = fitted.model(fitted.recorded[-1].size)
    alive = model.window.alive(model.window.peak()[1])
    whole = max(int(model.window.bytes[alive].sum()), 1)
    shares = {
        law.name.lower(): float(model.window.bytes[alive & (model.law == law)].sum() / whole) for law in Law
    }
    return {
        "what": request.what,
        "attempt": place.attempt,
        "rank": place.rank,
        "device": place.device,
        "as_device": request.as_device if device.as_cuda else None,
        "num_sizes": len(fitted.recorded),
        "recorded_sizes": [each.number for each in fitted.recorded],
        "first_dimension_of": _first_dimension_of(fitted, request),
        "recorded_input_bytes": [each.input_bytes for each in fitted.recorded],
        "recorded_steps": [each.window.size.step for each in fitted.recorded],
        "num_blocks": len(model.window),
        "num_matched": model.num_matched,
        "shares_at_peak": shares,
        "total_bytes": device.total_bytes,
        "usable_bytes": device.usable_bytes,
        "not_replayed": device.not_replayed,
        "moved": list(fitted.same.moved),
        "is_edited": fitted.same.is_edited,
        "has_workspaces": device.as_cuda,
        "foreach_bytes": int(model.window.bytes[stepped_alone(model.window)].sum())
        if device.as_cuda
        else None,
    }


def _first_dimension_of(fitted: Fitted, request: Request) -> str | None:
    """The input whose first dimension was taken for the batch of the only recorded size; else None."""
    (one, *more), what = fitted.recorded, request.what
    inputs = one.window.size.inputs
    is_taken = not more and not request.recorded and what == "batch" and one.number is not None
    return largest_text(inputs) if is_taken and inputs else None
