"""What each route of the page costs over random ranges: CPU and wall of its answer, without a browser.

Stage: benchmark. In: an open database and its routes, as ``page.answers`` lists them; out: figures.
Parameters are found by their declared names, so that a new route is measured without a line here; one that
cannot be asked so is a line that says why. An answer's cache is left out: every range is another one.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from harness import Figure, say
from synthetic_database import SESSION

from rankmem_aggregator.page.answering import arrow_bytes
from rankmem_aggregator.page.answers import ROUTES
from rankmem_aggregator.page.parameters import Declared, declared, read_parameters
from rankmem_aggregator.page.reading import PageSession, Reading
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute
from rankmem_aggregator.page.serving import keep_what_is_loaded
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import SessionId
from rankmem_aggregator.sql import page_text
from rankmem_protos.errors import RankmemError

CPU_MS_MAX: Final = 100.0
"""Of an answer, the median of random ranges."""
P95_MS_MAX: Final = 200.0
LARGE_CPU_MS_MAX: Final = 250.0
LARGE_P95_MS_MAX: Final = 1000.0
LARGE_EVENTS: Final = 110_000_000
"""Above it the two large ones hold: a thousand million events of 1,024 ranks."""
ONCE_MS_MAX: Final = 2000.0
"""Of what is asked once and kept."""
ONCE_RATIO_MAX: Final = 1.3
"""Of the job's peak, against its named question, which has a budget of its own (``answers``)."""
ROUTE_S: Final = 10.0
"""Measuring of one route at most, however many ranges that is."""
TODAY_ROUNDS: Final = 3
_ASKED_ONCE: Final = ("/peak", "/peak_held", "/ranks_curve")

_VARIANTS: Final[Mapping[str, Sequence[Mapping[str, str]]]] = {
    "/heat": ({}, {"mode": "median", "group": "pp"}, {"mode": "headroom"}),
    "/groups": ({"by": "category"}, {"by": "line"}),
    "/blocks": ({}, {"which": "made"}),
    "/map": ({"kind": "stacked"}, {"kind": "address"}),
}
"""Parameters besides the random ones; a variant with one that a route does not know is left out."""

Pairs = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What random parameters are drawn from."""

    name: str
    ranks: int
    span_ns: int
    rank_events: int
    has_blocks: bool
    """Blocks and events are stored, not buckets alone."""
    events: int


_TODAY: Final[Mapping[str, tuple[str, bool, Callable[[Queries, Scale], Any]]]] = {
    "/sessions": ("sessions", False, lambda q, scale: q.sessions()),
    "/job": ("peak and ranks", False, lambda q, scale: (q.peak(SESSION), q.ranks(SESSION))),
    "/curve": ("timeline --rank", True, lambda q, scale: q.timeline(SESSION, rank=3)),
    "/groups": (
        "timeline --by category --rank",
        True,
        lambda q, scale: q.timeline(SESSION, by="category", rank=3),
    ),
    "/blocks": ("live --rank", True, lambda q, scale: q.live(3, SESSION)),
    "/flame": ("live --rank", True, lambda q, scale: q.live(3, SESSION)),
    "/map": ("live --rank", True, lambda q, scale: q.live(3, SESSION)),
    "/steps": ("steps", True, lambda q, scale: q.steps(SESSION)),
    "/peak": ("job-peak", True, lambda q, scale: q.job_peak(SESSION)),
}
"""By path: what is asked today for the same, whether it needs events and blocks, and how it is asked."""


def route_figures(queries: Queries, scale: Scale, *, ranges: int) -> Iterator[Figure]:
    """For each route and variant p50 and p95 of its CPU, and in the note what else was measured."""
    session = _session(queries)
    keep_what_is_loaded()  # as the page's process does
    for route in ROUTES:
        if getattr(route, "method", "GET") != "GET":
            continue
        named = {each.name for each in declared(route.parameters)}
        for extra in _VARIANTS.get(route.path, ({},)):
            if extra.keys() <= named:
                yield from _figures_of(queries, session, scale, route, extra, ranges)


def _session(queries: Queries) -> PageSession:
    rows = queries.sql(page_text("session_state"), {"session": SESSION}).to_pylist()
    return PageSession(**{**rows[0], "session_id": SessionId(SESSION)})


def _figures_of(
    queries: Queries,
    session: PageSession,
    scale: Scale,
    route: SessionRoute | DatabaseRoute,
    extra: Mapping[str, str],
    ranges: int,
) -> Iterator[Figure]:
    shown = f"{route.path} {' '.join(f'{k}={v}' for k, v in extra.items())}".strip()
    what = f"{scale.name}: {shown}, CPU"
    try:
        cpu, wall, rows, size = _samples(queries, session, scale, route, extra, ranges)
    except RankmemError as exc:
        say(f"{what}: {exc.message}")
        yield Figure(what=what, value=float("nan"), unit="ms", note=f"not asked: {exc.message}")
        return
    p50, p95 = _percentiles(cpu)
    wall50, wall95 = _percentiles(wall)
    note = f"wall {wall50:.0f} / {wall95:.0f}; {rows:,} rows, {size / 1000:,.0f} kB"
    once = route.path in _ASKED_ONCE
    note += f"; {len(cpu)} ranges{'' if once else _ratio(queries, scale, route.path, p50)}"
    say(f"{what}: {p50:.1f} / {p95:.1f} ms, {note}")
    if once:
        first = f"the first of the session; {min(cpu):.0f} ms afterwards; {note}"
        most = None if route.path in _TODAY else ONCE_MS_MAX
        yield Figure(what=what, value=cpu[0], unit="ms", at_most=most, note=first)
        if route.path in _TODAY and (named_ms := _named_ms(queries, scale, route.path)) is not None:
            name = f"{what}, the first / {_TODAY[route.path][0]}"
            yield Figure(what=name, value=cpu[0] / named_ms, at_most=ONCE_RATIO_MAX)
        return
    is_large = scale.events > LARGE_EVENTS
    p95_max = LARGE_P95_MS_MAX if is_large else P95_MS_MAX
    p50_max = LARGE_CPU_MS_MAX if is_large else CPU_MS_MAX
    yield Figure(what=f"{what} p50", value=p50, unit="ms", at_most=p50_max, note=note)
    yield Figure(what=f"{what} p95", value=p95, unit="ms", at_most=p95_max)


def _samples(
    queries: Queries,
    session: PageSession,
    scale: Scale,
    route: SessionRoute | DatabaseRoute,
    extra: Mapping[str, str],
    ranges: int,
) -> tuple[list[float], list[float], int, int]:
    random_of = random.Random(7)
    cpu: list[float] = []
    wall: list[float] = []
    rows = size = 0
    until_s = time.monotonic() + ROUTE_S
    once = route.path in _ASKED_ONCE or not declared(route.parameters)
    for number in range(4 if once else ranges + 1):
        asked = read_parameters(route.parameters, _pairs(declared(route.parameters), extra, scale, random_of))
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        if isinstance(route, SessionRoute):
            others = dict.fromkeys(route.others(asked), session)
            answer = route.answer(Reading(queries=queries, session=session, others=others), asked)
        else:
            answer = route.answer(queries, asked)
        sent = len(arrow_bytes(answer)) if isinstance(answer, pa.Table) else 0
        if number or once:  # of ranges the first fills DuckDB's cache; what is asked once has no other
            cpu.append(1e3 * (time.process_time() - began_cpu_s))
            wall.append(1e3 * (time.perf_counter() - began_s))
            rows, size = max(rows, getattr(answer, "num_rows", 0)), max(size, sent)
        if not once and cpu and time.monotonic() > until_s:
            break
    return cpu, wall, rows, size


def _pairs(
    known: Sequence[Declared], extra: Mapping[str, str], scale: Scale, random_of: random.Random
) -> Pairs:
    """Random values of a route's parameters; of the optional ones those that place the answer."""
    names = {each.name for each in known}
    width = scale.span_ns * 10 ** -random_of.uniform(0, 5)
    begin = random_of.uniform(0, scale.span_ns - width)
    seq = random_of.randrange(max(1, scale.rank_events))
    rank = random_of.randrange(scale.ranks)
    values: dict[str, Any] = {"rank": rank, "device_type": "cuda", "px": 1400, "bins": 512}
    if "rank" not in names:
        values["ranks"] = rank
    if {"from", "to"} <= names:
        values |= {"from": int(begin), "to": int(begin + max(width, 1e6))}
    elif "seq" in names and "at" not in names:
        values["seq"] = seq
    required = {
        "attempt": 0,
        "device": f"cuda:{rank % 8}",
        "seq": seq,
        "block": seq // 2048 * 2048 + seq % 1000,
    }
    required |= {"stack_id": random_of.randrange(500), "sql": "SELECT 1"}
    required |= {"a": f"/{rank}/peak", "b": f"/{random_of.randrange(scale.ranks)}/time={int(begin)}"}
    for each in known:
        if each.required and each.name not in values:
            values[each.name] = required.get(each.name, _first_choice(each))
    return [(name, str(value)) for name, value in {**values, **extra}.items() if name in names]


def _first_choice(parameter: Declared) -> str:
    """The first word of a choice, as its refusal lists them; else a number that most accept."""
    try:
        parameter.read("\0")
    except ValueError as refused:
        words = str(refused)
        if words.startswith("one of "):
            return words.removeprefix("one of ").split(",")[0]
    return "1"


def _ratio(queries: Queries, scale: Scale, path: str, page_ms: float) -> str:
    """How many times the CPU of the answer today's own question takes, in words."""
    if path not in _TODAY:
        return ""
    try:
        today_ms = _named_ms(queries, scale, path)
    except RankmemError as exc:
        return f"; {_TODAY[path][0]}: {exc.message}"
    if today_ms is None:
        return ""
    return f"; {_TODAY[path][0]}: {today_ms:.0f} ms, {today_ms / max(page_ms, 0.1):.1f} times"


def _named_ms(queries: Queries, scale: Scale, path: str) -> float | None:
    """CPU of today's own question; None where the session has no events for it."""
    _, needs_events, ask = _TODAY[path]
    if needs_events and not scale.has_blocks:
        return None
    took = []
    for _ in range(TODAY_ROUNDS):
        began_s = time.process_time()
        ask(queries, scale)
        took.append(1e3 * (time.process_time() - began_s))
    return statistics.median(took)


def _percentiles(samples: Sequence[float]) -> tuple[float, float]:
    """p50 and p95, by nearest rank."""
    ordered = sorted(samples)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
