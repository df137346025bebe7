"""Every question of the Python client, asked of a file and of an aggregator: the answers are the same.

The calls below are held complete twice: every public method of the client is among them, and between them
they ask every named query there is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

from constructed import BASE_NS
from guide import MS, guide_database
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.query import timeline as timeline_module
from rankmem_aggregator.query.local import LocalQueries
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_aggregator.query.types import BlockBy, By, CurveBy, PeakBy
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.sql import query_names
from repetitions import PROFILE

AT = BASE_NS + 60 * MS
FAILED: dict[str, Any] = {"attempt": 0, "rank": 2, "device": "cuda:0"}
OF_OLDER_VERSIONS = {"incompleteness_older"}
"""Asked where a database lacks a view."""
NO_ANSWERS = {
    "aggregator_state",
    "allocator_trace",
    "allow",
    "close",
    "copy_to",
    "interrupt",
    "recent_missing",
    "stream",
    "with_missing",
}
"""Methods that give no table: each has tests of its own."""

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def call(name: str, *arguments: Any, **options: Any) -> Call:
    return name, arguments, options


def some(groupings: Any, turn: int) -> Sequence[Any]:
    """Every third grouping, from this on: each is asked of some question. In ``make test-long`` all."""
    return get_args(groupings) if PROFILE == "long" else get_args(groupings)[turn::3]


CALLS: list[Call] = [
    call(
        "sql", "SELECT rank, count(*) AS n FROM memory_event WHERE rank < $below GROUP BY rank ORDER BY rank"
    ),
    call("sql", "FROM gap"),
    call("sessions"),
    call("session_id"),
    call("session_id", "0sess"),
    call("session_row"),
    call("session_row", "0sess"),
    call("session_facts"),
    call("session_facts", "0sess"),
    call("ranks"),
    call("hosts"),
    call("incompleteness"),
    call("status", now_ns=AT),
    call("top", now_ns=AT),
    call("peak"),
    call("peak", rank=1, attempt=0),
    *(call("peak_by", by=by) for by in some(PeakBy, 0)),
    call("peak_by", by="component", rank=1, at_least_bytes=500 << 20),
    call("peak_by_host"),
    call("peak_bound"),
    call("incomplete_sessions"),
    call("job_peak"),
    call("job_peak_bound"),
    call("job_peak_interval"),
    *(call("job_peak_held", by=by) for by in some(BlockBy, 1)),
    call("held_at", AT),
    call("steps"),
    call("steps", rank=2),
    call("leaks"),
    call("leaks", rank=2),
    call("imbalance"),
    call("imbalance", by="line"),
    call("diff", "0sess", "0sess"),
    call("fragmentation"),
    call("fragmentation", rank=2),
    call("why_oom"),
    call("diagnose"),
    call("ledger"),
    call("ledger", rank=1),
    call("fit"),
    call("fit", rank=2),
    call("whatif"),
    call("whatif", rank=2),
    call("modules", rank=1),
    call("weights"),
    call("oom"),
    call("oom", rank=0),
    *(call("oom_held", **FAILED, seq=43, by=by) for by in some(BlockBy, 2)),
    *(call("timeline", by=by) for by in some(CurveBy, 2)),
    call("timeline", by="rank", rank=[0, 3], figure="reserved", from_ns=AT),
    call("timeline", by="category", rank="all", from_ns=AT),
    call("timeline", by="stream", figure="all", rank=1, until_ns=AT, points=8),
    call("curve", 2),
    *(call("ops", by=by) for by in some(By, 1)),
    *(call("ops", by=by, at=AT, rank=1) for by in some(By, 2)),
    call("live", 2),
    call("live", 2, at=AT, device="cuda:0"),
    call("stack", 2),
]


@dataclass
class Both:
    """What each side answers to each call, or the error it raises."""

    local: list[Any]
    remote: list[Any]
    asked: set[str]


def answer(queries: Queries, made: Call) -> Any:
    name, arguments, options = made
    if arguments and "$below" in str(arguments[0]):
        arguments = (*arguments, {"below": 3})
    return getattr(queries, name)(*arguments, **options)


def answers(queries: Queries, events_max: int) -> list[Any]:
    """All calls; again the curves of totals, as a long recording has them; what leaks and a comparison
    rest on."""
    found = [answer(queries, made) for made in CALLS]
    patch = pytest.MonkeyPatch()
    for limit in (name for name in vars(timeline_module) if name.startswith("EVENTS_")):
        patch.setattr(timeline_module, limit, events_max)
    found += [queries.timeline(), queries.timeline(by="job"), queries.timeline(by="category")]
    patch.undo()
    # The guide's job has too few steps for a leak: no public question asks for these.
    found += [
        queries._ask(name, session=queries.session_id(), rank=None)
        for name in ("held_after_steps", "new_sizes", "given_bytes", "optimizers_of_ranks")
    ]
    found.append(queries._ask("input_arguments", session=queries.session_id()))
    # Nor has it addresses, without which nothing is replayed.
    place = {"attempt": 0, "rank": 1, "device": "cuda:1"}
    found.append(queries._ask("allocator_start", session=queries.session_id(), **place))
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    path: Path = tmp_path_factory.mktemp("same") / "guide.duckdb"
    guide_database(str(path)).close()
    asked: set[str] = set()
    original = Queries._ask

    def remembered(queries: Queries, name: str, **parameters: Any) -> pa.Table:
        asked.add(name)
        return original(queries, name, **parameters)

    patch = pytest.MonkeyPatch()
    patch.setattr(Queries, "_ask", remembered)
    with connect(path) as queries:
        assert isinstance(queries, LocalQueries)
        local = answers(queries, events_max=10)
    patch.undo()
    config = AggregatorConfig(database_path=path, listen="127.0.0.1:0")
    with server.open(config) as running, connect(running.address) as queries:
        assert isinstance(queries, RemoteQueries)
        yield Both(local=local, remote=answers(queries, events_max=10), asked=asked)


NAMES = [f"{made[0]} {made[1]} {made[2]}" for made in CALLS] + [
    "a long timeline", "a long timeline of the job", "a long timeline by category",
    "held after steps", "sizes that come first", "bytes of inputs that come", "optimizers",
    "arguments that come", "what an allocator held at the start 'rank': 0}",
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(NAMES)), ids=NAMES)
def test_an_aggregator_answers_as_its_file_does(both: Both, place: int) -> None:
    local, remote = both.local[place], both.remote[place]
    if isinstance(local, pa.Table):
        assert remote.schema.equals(local.schema, check_metadata=True)
    assert remote == local


def test_every_method_and_every_named_query_is_asked(both: Both) -> None:
    methods = {
        name for name, _ in inspect.getmembers(Queries, inspect.isfunction) if not name.startswith("_")
    }
    assert {made[0] for made in CALLS} == methods - NO_ANSWERS
    of_hosts = {"stretches_at_peak", "job_peak_lowest", "job_peak_highest", "job_peak_bound_here"}
    of_fetch = {"stretches_missing", "clock_error"}
    # Events on hosts; two runs alike, or code of other names; ranks that are running; a sample as early as
    # the first event.
    elsewhere = (
        of_hosts
        | of_fetch
        | {"held_at_steps", "code_of_step", "module_classes"}
        | {"control_progress", "control_of_order", "ledger_reserved"}
    )
    assert both.asked | elsewhere == set(query_names()) - OF_OLDER_VERSIONS


def test_what_is_read_by_seconds_is_marked_as_thinned(both: Both) -> None:
    assert [table.schema.metadata[b"exact"] for table in both.local[-8:-6]] == [b"False", b"False"]


def test_most_answers_have_rows(both: Both) -> None:
    empty = {
        name for name, rows in zip(NAMES, both.local, strict=True) if isinstance(rows, pa.Table) and not rows
    }
    none_there = ("gap", "incomplete", "'rank': 0}", "that come")  # inputs were not recorded
    assert all(any(part in name for part in none_there) for name in empty), empty


def test_wrong_sql_is_refused_alike(tmp_path: Path) -> None:
    path = tmp_path / "guide.duckdb"
    guide_database(str(path)).close()
    wrong: list[Callable[[Queries], Any]] = [
        lambda queries: queries.session_id("nobody"),
        lambda queries: queries.live(77),
        lambda queries: queries.timeline(rank=9),
        lambda queries: queries.sql("SELECT nonsense FROM peak_by_rank"),
        lambda queries: queries.sql("DROP TABLE gap"),
    ]
    with connect(path) as queries:
        local = [refusal(queries, ask) for ask in wrong]
    config = AggregatorConfig(database_path=path, listen="127.0.0.1:0")
    with server.open(config) as running, connect(running.address) as queries:
        assert [refusal(queries, ask) for ask in wrong] == local


def refusal(queries: Queries, ask: Callable[[Queries], Any]) -> str:
    from rankmem_protos.errors import RankmemError

    with pytest.raises(RankmemError) as told:
        ask(queries)
    return told.value.code


def test_times_are_utc_whatever_the_machines_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "guide.duckdb"
    guide_database(str(path)).close()
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    with connect(path) as queries:
        rows = queries.peak()
    assert rows.schema.field("peak_time_utc").type == pa.timestamp("us")
    for row in rows.to_pylist():
        assert row["peak_time_utc"] == datetime(1970, 1, 1) + timedelta(
            microseconds=row["peak_time_ns"] // 1000
        )
