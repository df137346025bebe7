"""MindStudio Insight's Memory page: its tables and static graphs, by its own names and units.

Stage: page, in the thread of a request. Its curves are ``mindstudio_curve``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.parameters import (
    RANK,
    TIME,
    check_range,
    choice,
    integer,
    parameter,
    real,
    text,
)
from rankmem_aggregator.page.rank_matrix import Places
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_protos.bounds import SIZE_BYTES_MAX

ROWS_MAX: Final = 1000
"""Rows of a page, as MindStudio has them at most."""
SKIPPED_MAX: Final = 10_000_000
"""Rows before a page: a rank has no more blocks than a search finds in its time."""
SORTS: Final = (
    "Name", "Size(KB)", "Allocation Time(ms)", "Release Time(ms)", "Duration(ms)", "Active Release Time(ms)",
    "Active Duration(ms)", "Allocation Total Allocated(MB)", "Allocation Total Reserved(MB)",
    "Allocation Total Active(MB)", "Release Total Allocated(MB)", "Release Total Reserved(MB)",
    "Release Total Active(MB)", "Stream",
)  # fmt: skip
"""Columns that its table sorts by."""
_KB: Final = real(0, SIZE_BYTES_MAX / 1024)
_GRAPH: Final = text(512)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorsAsked:
    """Parameters of ``/mindstudio/operators``."""

    rank: int = parameter(RANK, "global rank")
    name: str | None = parameter(text(512), "part of an operator's name, in any case", default=None)
    least_kb: float | None = parameter(_KB, "least size in KB", default=None)
    most_kb: float | None = parameter(_KB, "largest size in KB", default=None)
    from_ns: int | None = parameter(TIME, "begin, ns since the session's start", name="from", default=None)
    until_ns: int | None = parameter(TIME, "end", name="to", default=None)
    only_within: str = parameter(
        choice(("yes", "no")), "only what was allocated or released within the range", default="no"
    )
    sort: str = parameter(choice(SORTS), "column to sort by", default="Allocation Time(ms)")
    descending: str = parameter(choice(("yes", "no")), "largest first", default="no")
    skipped: int = parameter(integer(0, SKIPPED_MAX), "rows before the page", default=0)
    limit: int = parameter(integer(1, ROWS_MAX), "rows of the page", default=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAsked:
    """The parameter of routes about a rank."""

    rank: int = parameter(RANK, "global rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphAsked:
    """Parameters of routes about a static graph."""

    rank: int = parameter(RANK, "global rank")
    graph: str = parameter(_GRAPH, "Graph ID")


def operators(reading: Reading, asked: OperatorsAsked) -> pa.Table:
    """A page of MindStudio's table of allocations. Columns: those of ``sql/page/mindstudio_operators.sql``.

    Facts: ``total``, rows on all pages.
    """
    check_range(asked.from_ns, asked.until_ns)
    whole = asked.from_ns is None or asked.until_ns is None
    by_total = " Total " in asked.sort
    from_ns = None if whole else reading.absolute(asked.from_ns)
    until_ns = None if whole else reading.absolute(asked.until_ns)
    rows = reading.show(
        "mindstudio_operators_by_total" if by_total else "mindstudio_operators",
        **({} if by_total else _bounds(reading, from_ns, until_ns, asked.only_within == "yes")),
        rank=asked.rank,
        part=asked.name,
        least_kb=asked.least_kb,
        most_kb=asked.most_kb,
        from_ns=from_ns,
        until_ns=until_ns,
        only_within=asked.only_within == "yes",
        sort=asked.sort,
        descending=asked.descending == "yes",
        skipped=asked.skipped,
        at_most=asked.limit,
    )
    total = rows["total"][0].as_py() if rows.num_rows else 0
    return reading.answer(rows.drop_columns("total"), exact=True, source="mindstudio.OP_MEMORY", total=total)


def _bounds(
    reading: Reading, from_ns: int | None, until_ns: int | None, only_within: bool
) -> dict[str, int | None]:
    """What the statement by time takes besides: the session's start, and the range by the hosts' clocks."""
    low, high = Places.of(reading).offsets()
    return {
        "started_ns": _started_ns(reading),
        "host_from_ns": None if from_ns is None or only_within else from_ns - high,
        "host_until_ns": None if until_ns is None or only_within else until_ns - low,
    }


def _started_ns(reading: Reading) -> int | None:
    """From which times count; None where the recording has none."""
    return reading.session.origin_ns or None


def components(reading: Reading, asked: RankAsked) -> pa.Table:
    """MindStudio's table of components. Columns: those of ``sql/page/mindstudio_components.sql``."""
    rows = reading.show("mindstudio_components", rank=asked.rank, started_ns=_started_ns(reading))
    return reading.answer(rows, exact=True, source="mindstudio.component_peak")


def static_graphs(reading: Reading, asked: RankAsked) -> pa.Table:
    """The static graphs of a rank. Columns: those of ``sql/page/static_graphs.sql``."""
    return reading.answer(reading.show("static_graphs", rank=asked.rank), exact=True, source="static_block")


def static_curve(reading: Reading, asked: GraphAsked) -> pa.Table:
    """What is taken at each node of a static graph: node, size_mb, total_size_mb."""
    rows = reading.show("static_curve", rank=asked.rank, graph=asked.graph)
    return reading.answer(rows, exact=True, source="mindstudio.static_curve")


def static_operators(reading: Reading, asked: GraphAsked) -> pa.Table:
    """The largest blocks of a static graph. Columns: those of ``sql/page/static_operators.sql``."""
    rows = reading.show("static_operators", rank=asked.rank, graph=asked.graph, at_most=ROWS_MAX)
    return reading.answer(rows, exact=rows.num_rows < ROWS_MAX, source="static_block")


ROUTES: Final = (
    SessionRoute(path="/mindstudio/operators", parameters=OperatorsAsked, answer=operators),
    SessionRoute(path="/mindstudio/components", parameters=RankAsked, answer=components),
    SessionRoute(path="/static_graphs", parameters=RankAsked, answer=static_graphs),
    SessionRoute(path="/static_curve", parameters=GraphAsked, answer=static_curve),
    SessionRoute(path="/static_operators", parameters=GraphAsked, answer=static_operators),
)
