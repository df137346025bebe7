"""The Python client's questions by group and over time, asked of the guide's job in a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from constructed import BASE_NS
from guide import MIB, MS, guide_database
from rankmem_aggregator import connect
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import BlockBy, By, CurveBy, PeakBy
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.groupings import GROUPINGS, offered
from repetitions import long_but


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    path = tmp_path_factory.mktemp("guide") / "guide.duckdb"
    guide_database(str(path)).close()
    with connect(path) as opened:
        yield opened


def curve(table: pa.Table, group: str) -> list[tuple[int, int]]:
    return [(row["time_ns"] - BASE_NS, row["bytes"]) for row in table.to_pylist() if row["group"] == group]


@pytest.mark.parametrize("by", get_args(PeakBy))
def test_every_grouping_of_a_peak_answers(queries: Queries, by: Any) -> None:
    rows = queries.peak_by(by=by)
    assert rows.num_rows
    if "bytes_at_rank_peak" in rows.column_names:
        blocks = rows.filter(
            pc.fill_null(pc.not_equal(rows["group_name"], "app"), True)
        )  # app is not of blocks
        held = blocks.group_by("rank").aggregate([("bytes_at_rank_peak", "sum"), ("rank_peak_bytes", "max")])
        assert held["bytes_at_rank_peak_sum"] == held["rank_peak_bytes_max"]
        assert queries.peak_by(by=by, rank=1)["rank"].unique().to_pylist() == [1]


@pytest.mark.parametrize("by", get_args(By))
@pytest.mark.parametrize("at", long_but(["peak", "total", BASE_NS + 60 * MS], "peak", BASE_NS + 60 * MS))
def test_every_grouping_of_blocks_adds_up_to_the_same(queries: Queries, by: Any, at: Any) -> None:
    rows = queries.ops(by=by, at=at)
    live = rows["live_bytes_at_time" if isinstance(at, int) else "live_bytes_at_peak"]
    whole = queries.ops(by="operator", at=at)
    assert sum(live.to_pylist()) == sum(whole[live_name(whole)].to_pylist())
    assert sum(rows["allocated_bytes"].to_pylist()) == sum(whole["allocated_bytes"].to_pylist())
    assert ("operator" if by == "rank" else by) in rows.column_names


def live_name(rows: pa.Table) -> str:
    return next(name for name in rows.column_names if name.startswith("live_bytes"))


def test_what_is_alive_at_an_instant_is_what_the_ranks_held_then(queries: Queries) -> None:
    at = BASE_NS + 60 * MS
    held = sum(queries.held_at(at)["requested_bytes"].to_pylist())
    assert sum(queries.ops(by="category", at=at)["live_bytes_at_time"].to_pylist()) == held


@pytest.mark.parametrize("by", get_args(CurveBy))
def test_every_timeline_answers_for_the_highest_rank_or_for_all(queries: Queries, by: Any) -> None:
    table = queries.timeline(by=by)
    assert table.schema.names == ["time_ns", "group", "bytes"]
    assert table.num_rows
    facts = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    whose = ("4", "cuda") if GROUPINGS[by].of == "ranks" else ("2", "cuda:0")
    assert (facts.get("num_ranks", facts.get("rank")), facts["device"], facts["exact"]) == (*whose, "True")
    assert facts["stacked"] == str(by != "overall")


def test_the_overall_timeline_has_the_allocators_curves_and_the_process(queries: Queries) -> None:
    table = queries.timeline(rank=0)
    assert set(table["group"].to_pylist()) == {"requested", "reserved", "app_reserved"}
    requested = curve(table, "requested")
    assert max(held for _, held in requested) == queries.peak(rank=0)["peak_requested_bytes"][0].as_py()
    assert len({held for _, held in curve(table, "reserved")}) == 1


def test_a_timeline_of_a_part_begins_with_what_was_there(queries: Queries) -> None:
    from_ns, until_ns = BASE_NS + 60 * MS, BASE_NS + 80 * MS
    table = queries.timeline(by="category", rank=0, from_ns=from_ns, until_ns=until_ns)
    assert curve(table, "parameter") == [(60 * MS, 128 * MIB)]
    assert all(from_ns <= time <= until_ns for time in table["time_ns"].to_pylist())


def test_a_thinned_timeline_keeps_its_peak_and_is_marked_as_thin(queries: Queries) -> None:
    thin, whole = queries.timeline(rank=2, points=8), queries.timeline(rank=2)
    assert thin.schema.metadata[b"exact"] == b"False"
    assert len(curve(thin, "requested")) <= 8
    highest = max(held for _, held in curve(whole, "requested"))
    assert max(held for _, held in curve(thin, "requested")) == highest


def test_a_timeline_of_no_rank_is_refused(queries: Queries) -> None:
    with pytest.raises(RankmemError, match="of rank 9") as caught:
        queries.timeline(rank=9)
    assert caught.value.code is Code.NOT_FOUND
    with pytest.raises(RankmemError, match="too few to show a shape"):
        queries.timeline(points=2)


def held_by(table: pa.Table, at_ns: int) -> int:
    """What all curves hold together after an instant."""
    last = {row["group"]: row["bytes"] for row in table.to_pylist() if row["time_ns"] <= at_ns}
    return sum(last.values())


@pytest.mark.parametrize("by", [each.name for each in offered("timeline") if each.of == "ranks"])
def test_the_jobs_peak_is_the_highest_point_of_its_curve(queries: Queries, by: Any) -> None:
    (peak,) = {(row["job_peak_bytes"], row["job_peak_ns"]) for row in queries.job_peak().to_pylist()}
    table = queries.timeline(by=by)
    assert held_by(table, peak[1]) == peak[0]
    assert max(held_by(table, time_ns) for time_ns in table["time_ns"].to_pylist()) == peak[0]


def test_several_ranks_are_added_up_and_others_are_left_out(queries: Queries) -> None:
    table = queries.timeline(by="rank", rank=[1, 3])
    assert table["group"].unique().to_pylist() == ["rank 1", "rank 3"]
    peaks = {row["rank"]: row["peak_requested_bytes"] for row in queries.peak().to_pylist()}
    assert max(held for _, held in curve(table, "rank 3")) == peaks[3]
    with pytest.raises(RankmemError, match="no events with times of rank 8, 9"):
        queries.timeline(by="rank", rank=[9, 1, 8])
    with pytest.raises(RankmemError, match="overall applies to one rank") as caught:
        queries.timeline(by="overall", rank=[1, 3])
    assert caught.value.code is Code.INVALID


@pytest.mark.parametrize("by", get_args(BlockBy))
@pytest.mark.parametrize("ranks", long_but(["all", [1, 3]], [1, 3]))
def test_groups_of_blocks_over_ranks_add_up_to_the_ranks(queries: Queries, by: Any, ranks: Any) -> None:
    groups, whole = queries.timeline(by=by, rank=ranks), queries.timeline(by="job", rank=ranks)
    for time_ns in whole["time_ns"].unique().to_pylist():
        assert held_by(groups, time_ns) == held_by(whole, time_ns)
    assert groups.schema.metadata[b"num_ranks"] == (b"4" if ranks == "all" else b"2")


def test_a_part_of_groups_over_ranks_begins_with_what_was_there(queries: Queries) -> None:
    from_ns, until_ns = BASE_NS + 60 * MS, BASE_NS + 80 * MS
    part = queries.timeline(by="category", rank="all", from_ns=from_ns, until_ns=until_ns)
    whole = queries.timeline(by="category", rank="all")
    assert held_by(part, from_ns) == held_by(whole, from_ns)
    assert held_by(part, until_ns) == held_by(whole, until_ns)
    assert curve(part, "parameter") == [(60 * MS, 8 * 64 * MIB)]


def test_a_stream_has_every_figure_by_itself_and_beside_each_other(queries: Queries) -> None:
    every = queries.timeline(by="stream", figure="all")
    assert every.schema.metadata[b"stacked"] == b"False"
    assert every["group"].unique().to_pylist() == ["0 allocated", "0 active", "0 reserved"]
    for figure in ("allocated", "active", "reserved"):
        alone: Any = queries.timeline(by="stream", figure=figure)
        assert curve(alone, "0") == curve(every, f"0 {figure}")
    requested = curve(queries.timeline(by="stream"), "0")
    assert max(held for _, held in requested) == max(held for _, held in curve(every, "0 active"))


def test_components_have_the_process_beside_them_and_in_a_stack_what_lies_beyond(queries: Queries) -> None:
    every = queries.timeline(by="component", figure="all", rank=0)
    assert [held for _, held in curve(every, "app_reserved")] == [760 * MIB] * 1
    stack = queries.timeline(by="component", figure="reserved", rank=0)
    assert stack["group"].unique().to_pylist() == ["pytorch", "app"]
    highest = {row["group_name"]: row for row in queries.peak_by(by="component", rank=0).to_pylist()}
    assert highest["pytorch"]["peak_reserved_bytes"] == max(held for _, held in curve(stack, "pytorch"))
    assert highest["app"]["peak_bytes"] == max(held for _, held in curve(stack, "app"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"by": "category", "figure": "reserved"},
        {"by": "job", "figure": "all"},
        {"by": "rank", "attempt": 0},
        {"by": "category", "rank": "all", "attempt": 0},
        {"by": "stream", "rank": "all", "figure": "reserved"},
    ],
)
def test_a_figure_that_is_not_known_is_refused_with_where_it_is(queries: Queries, wrong: Any) -> None:
    with pytest.raises(RankmemError) as caught:
        queries.timeline(**wrong)
    assert caught.value.code is Code.INVALID
    assert caught.value.hint


def test_peaks_below_a_threshold_are_left_out(queries: Queries) -> None:
    every = queries.peak_by(by="category").to_pylist()
    some = queries.peak_by(by="category", at_least_bytes=100 * MIB).to_pylist()
    assert some == [row for row in every if row["peak_bytes"] >= 100 * MIB]
    assert 0 < len(some) < len(every)
    assert queries.peak_by(by="host", at_least_bytes=1 << 50).num_rows == 0
    reserving = queries.peak_by(by="component", rank=0, at_least_bytes=500 * MIB)["group_name"].to_pylist()
    assert reserving == ["pytorch"]  # its blocks hold less, its segments 576 MiB


def test_a_failed_allocation_leads_to_what_was_alive(queries: Queries) -> None:
    failed = queries.oom().to_pylist()
    assert [(row["rank"], row["size_bytes"]) for row in failed] == [(2, 96 * MIB)]
    chosen = {name: failed[0][name] for name in ("attempt", "rank", "device", "seq")}
    for by in get_args(BlockBy):
        held = queries.oom_held(by=by, **chosen)
        assert sum(held["live_bytes"].to_pylist()) == failed[0]["requested_bytes"]
    others = queries.held_at(failed[0]["time_ns"])
    assert sorted(others["rank"].to_pylist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["peak", "ops", "live", "steps", "modules", "weights", "oom", "timeline"])
def test_a_rank_that_is_not_there_is_refused_by_every_answer(queries: Queries, name: str) -> None:
    ask = getattr(queries, name)
    with pytest.raises(RankmemError, match="rank 77") as caught:
        ask(77) if name == "live" else ask(rank=77)
    assert (caught.value.code, caught.value.hint) == (Code.NOT_FOUND, "rankmem ranks")


def test_a_rank_without_what_was_asked_for_has_no_rows(queries: Queries) -> None:
    assert queries.oom(rank=0).num_rows == 0


def test_a_range_that_ends_before_it_begins_is_refused(queries: Queries) -> None:
    with pytest.raises(RankmemError, match=r"ends 1\.5 s before it begins"):
        queries.timeline(from_ns=BASE_NS + 1_500_000_000, until_ns=BASE_NS)


def test_the_other_answers_come_by_rank(queries: Queries) -> None:
    assert queries.steps(rank=2)["end_growth_bytes"].to_pylist() == [None, 24 * MIB, 24 * MIB]
    assert queries.steps().num_rows == 12
    assert queries.weights(rank=1)["name"].to_pylist() == ["h.0.fc.weight", "h.1.fc.weight"]
    assert queries.modules(rank=1)["depth"].to_pylist() == [0, 1, 2, 3, 2, 3, 0]
    assert queries.job_peak_bound()["gap_bytes"].to_pylist() == [112 * MIB]
    shares = queries.job_peak()
    assert queries.job_peak_bound(shares=shares).equals(queries.job_peak_bound())
    held = queries.job_peak_held(by="operator")
    assert queries.job_peak_held(by="operator", shares=shares).equals(held)
    assert (
        queries.job_peak_held(by="operator", shares=shares.slice(0, 0)).num_rows == 0
    )  # they are what is read
    assert sum(held["live_bytes"].to_pylist()) == queries.job_peak()["job_peak_bytes"][0].as_py()
