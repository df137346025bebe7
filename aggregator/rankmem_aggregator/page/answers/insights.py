"""The insights: what leaks, why an allocation failed, what is lost, what fits, what would help, what changed.

Stage: page, in the thread of a request. A route is a verb of the command line, with its figures. Where
nothing can be told the fact ``insight`` has the reason as its sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.page.insight import INSIGHT_S, REPLAYED_MAX, insight, leaks_of, shown
from rankmem_aggregator.page.parameters import DEVICE, RANK, choice, integer, integers, parameter, real, text
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import NoParameters, SessionRoute
from rankmem_protos.bounds import NUMBER_MAX, RANKS_MAX

GIB: Final = 1 << 30
SIZES_MAX: Final = 8
"""Batches or lengths at a time: each is a replay."""
SIZE_CHARS_MAX: Final = 12
"""Of one: a number, or a multiple such as 1.5x."""
SIZE_GIB: Final = real(0.001, 1 << 20)
DIAGNOSED_MAX: Final = 20_000
"""Events of a device that is replayed for the job's findings, twice: 4 s of CPU each."""
DIAGNOSED_S: Final = 10.0
"""No further insight is asked after so long, so that the page is there for its other questions."""


def _sizes(given: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in given.split(","))
    if len(parts) > SIZES_MAX or not all(0 < len(part) <= SIZE_CHARS_MAX for part in parts):
        raise ValueError(f"at most {SIZES_MAX} sizes separated by commas, such as 64,128 or 2x")
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyOomAsked:
    """Parameters of ``/insight/oom``."""

    failure: int = parameter(integer(1, NUMBER_MAX // 2), "which row of /oom, from 1", default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAsked:
    """Which device of a rank."""

    rank: int | None = parameter(RANK, "global rank; none: the highest", default=None)
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentationCostAsked(DeviceAsked):
    """Parameters of ``/insight/fragmentation``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSizesAsked(DeviceAsked):
    """Parameters of ``/insight/fit``."""

    batch: tuple[str, ...] = parameter(_sizes, "batches such as 64,128, or multiples such as 2x", default=())
    length: tuple[str, ...] = parameter(_sizes, "lengths, likewise", default=())
    recorded: tuple[int, ...] = parameter(
        integers(1, NUMBER_MAX // 2, at_most=SIZES_MAX), "the recorded sizes, the smallest first", default=()
    )
    size_gib: float | None = parameter(SIZE_GIB, "memory of the device; none: as recorded", default=None)
    as_device: str | None = parameter(
        choice(("cuda",)), "what a CPU's recording would need there", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatifAsked(DeviceAsked):
    """Parameters of ``/insight/whatif``."""

    size_gib: float | None = parameter(
        SIZE_GIB, "a device for which the smallest set of remedies is looked for", default=None
    )
    ranks: int | None = parameter(
        integer(2, RANKS_MAX), "over which is sharded; none: those of the job, or 8", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictAsked:
    """Parameters of ``/insight/diff``."""

    base: str = parameter(text(128), "the session before the change; the route's is the one after it")


def leaks(reading: Reading, asked: NoParameters) -> pa.Table:
    """What ``rankmem leaks`` says; columns: ``insights.leaks.SCHEMA``."""
    return shown(reading, leaks_of(reading))


def why_oom(reading: Reading, asked: WhyOomAsked) -> pa.Table:
    """What ``rankmem oom --why`` says of a failure; columns: ``insights.oom.SCHEMA``."""

    def ask() -> Answer:
        session = reading.session.session_id
        return reading.queries.why_oom(session, failure=asked.failure, events_max=REPLAYED_MAX)

    return shown(reading, insight(reading, repr(asked), ask))


def fragmentation(reading: Reading, asked: FragmentationCostAsked) -> pa.Table:
    """What ``rankmem fragmentation`` says; columns: ``insights.fragmentation.SCHEMA``."""

    def ask() -> Answer:
        session = reading.session.session_id
        return reading.queries.fragmentation(session, **_place(asked), events_max=REPLAYED_MAX)

    return shown(reading, insight(reading, repr(asked), ask))


def fit(reading: Reading, asked: FitSizesAsked) -> pa.Table:
    """What ``rankmem fit`` says; columns: ``insights.fit.SCHEMA``."""

    def ask() -> Answer:
        return reading.queries.fit(
            reading.session.session_id,
            batch=asked.batch,
            length=asked.length,
            recorded=asked.recorded,
            in_bytes=_bytes(asked.size_gib),
            as_device=asked.as_device,
            **_place(asked),
        )

    return shown(reading, insight(reading, repr(asked), ask))


def whatif(reading: Reading, asked: WhatifAsked) -> pa.Table:
    """What ``rankmem whatif`` says; columns: ``insights.whatif.SCHEMA``."""

    def ask() -> Answer:
        session, fit_bytes = reading.session.session_id, _bytes(asked.size_gib)
        return reading.queries.whatif(session, fit_bytes=fit_bytes, ranks=asked.ranks, **_place(asked))

    return shown(reading, insight(reading, repr(asked), ask))


def diff(reading: Reading, asked: VerdictAsked) -> pa.Table:
    """What ``rankmem diff BASE`` says of the session; columns: ``insights.diff.SCHEMA``."""
    base = reading.other(asked.base)

    def ask() -> Answer:
        return reading.queries.diff(base.session_id, reading.session.session_id)

    return shown(reading, insight(reading, repr(asked), ask, others=(base,)))


def diagnose(reading: Reading, asked: NoParameters) -> pa.Table:
    """What ``rankmem diagnose`` finds, in bounded time; columns: ``insights.diagnose.SCHEMA``."""

    def ask() -> Answer:
        session = reading.session.session_id
        return reading.queries.diagnose(session, events_max=DIAGNOSED_MAX, within_s=DIAGNOSED_S)

    return shown(reading, insight(reading, "diagnose", ask))


def _place(asked: DeviceAsked) -> dict[str, Any]:
    return {"rank": asked.rank, "attempt": asked.attempt, "device": asked.device}


def _bytes(size_gib: float | None) -> int | None:
    return None if size_gib is None else round(size_gib * GIB)


def _route(name: str, parameters: type[Any], answer: Callable[[Reading, Any], pa.Table]) -> SessionRoute:
    return SessionRoute(path=f"/insight/{name}", parameters=parameters, answer=answer, limit_s=INSIGHT_S)


ROUTES: Final = (
    _route("leaks", NoParameters, leaks),
    _route("oom", WhyOomAsked, why_oom),
    _route("fragmentation", FragmentationCostAsked, fragmentation),
    _route("fit", FitSizesAsked, fit),
    _route("whatif", WhatifAsked, whatif),
    replace(_route("diff", VerdictAsked, diff), others=lambda asked: (asked.base,)),
    _route("diagnose", NoParameters, diagnose),
)
