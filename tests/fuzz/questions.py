"""Every question that can be asked of a database: no stored row may make one of them fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from rankmem_aggregator.query import queries as q
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import Code, RankmemError

VIEWS = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main' ORDER BY ALL"


def ask_everything(queries: Queries) -> int:
    """Asks all views and every question of every session; how many answered.

    Raises:
        RankmemError: one did not, for another reason than that there is nothing.
    """
    answered = 0
    for (view,) in (tuple(row.values()) for row in queries.sql(VIEWS).to_pylist()):
        _answered(f"view {view}", lambda view=view: queries.sql(f'FROM "{view}"'))  # type: ignore[misc]
        answered += 1
    for row in queries.sessions().to_pylist():
        for name, ask in _questions(queries, row["session_id"]):
            _answered(f"{name} of {row['session_id']}", ask)
            answered += 1
    return answered


def _answered(name: str, ask: Callable[[], object]) -> None:
    try:
        ask()
    except RankmemError as error:
        if error.code is not Code.NOT_FOUND:
            raise RankmemError(error.code, f"{name}: {error.message}", error.hint) from error


def _questions(queries: Queries, session: str) -> Iterator[tuple[str, Callable[[], object]]]:
    ranks = [row["rank"] for row in queries.ranks(session).to_pylist()][:2]
    for plain in ("ranks", "status", "top", "hosts", "peak", "peak_by_host", "job_peak", "job_peak_bound",
                  "job_peak_held", "steps", "modules", "weights", "oom"):  # fmt: skip
        yield plain, lambda plain=plain: getattr(queries, plain)(session)  # type: ignore[misc]
    for by in get_args(q.PeakBy):
        yield f"peak by {by}", lambda by=by: queries.peak_by(session, by=by)  # type: ignore[misc]
    for by in get_args(q.By):
        yield f"ops by {by}", lambda by=by: queries.ops(session, by=by)  # type: ignore[misc]
        yield f"ops by {by} at", lambda by=by: queries.ops(session, by=by, at=10**18)  # type: ignore[misc]
    for by in get_args(q.CurveBy):
        yield f"timeline by {by}", lambda by=by: queries.timeline(session, by=by)  # type: ignore[misc]
    yield "held", lambda: queries.held_at(10**18, session)
    for rank in ranks:
        yield f"live of {rank}", lambda rank=rank: queries.live(rank, session)  # type: ignore[misc]
        yield f"curve of {rank}", lambda rank=rank: queries.curve(rank, session)  # type: ignore[misc]
