"""The report says what the named queries say, reaches for nothing, and trusts no name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from constructed import BASE_NS, RankLog
from export_logs import CudaLog, database, training
from rankmem_aggregator import connect
from rankmem_aggregator.exports import report_heat
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.quantity_text import bytes_text, instant_text
from rankmem_aggregator.query.queries import Queries

pytestmark = pytest.mark.slow

HOSTILE = "</script><img src=x onerror=alert(1)>{{body}}"
SECOND_US = 1_000_000


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    jobs = [training(rank, host_uid=f"host-{rank // 2}") for rank in range(4)]
    jobs[3].later(3 * SECOND_US)
    jobs[3].alloc("hostile", 70_000_000, 1 << 40, operator=HOSTILE, module=HOSTILE, category="activation")
    with connect(database(tmp_path_factory.mktemp("report") / "r.duckdb", jobs)) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(queries: Queries, tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(queries, tmp_path_factory.mktemp("out") / "r.html")


def written(queries: Queries, out: Path, **asked: Any) -> str:
    export(queries, "html", out, force=True, **asked)
    return out.read_text(encoding="utf-8")


def embedded(page: str, name: str) -> list[Any]:
    found = re.findall(rf'<script type="application/json" class="{name}">(.*?)</script>', page, re.DOTALL)
    return [json.loads(text) for text in found]


def rows_of(page: str, table: str) -> list[list[str]]:
    (body,) = re.findall(rf'<table class="report" id="{table}">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    return [
        [unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", body)
    ]


def test_the_page_reaches_for_nothing_and_is_whole(page: str) -> None:
    assert "default-src 'none'" in page
    assert not re.findall(
        r"https?:|src=|@import|url\(|fetch\(", re.sub("img src=x", "", page).replace("default-src", "")
    )
    assert page.rstrip().endswith("</html>")
    for tag in ("table", "div", "script", "canvas", "tr", "td", "h2"):
        assert len(re.findall(rf"<{tag}[ >]", page)) == page.count(f"</{tag}>"), tag


def test_names_from_outside_reach_it_as_text_alone(page: str) -> None:
    assert "<img" not in page
    assert [row[0] for row in rows_of(page, "by-operator")].count(HOSTILE) == 1
    assert [row[0] for row in rows_of(page, "by-module")].count(HOSTILE) == 1


def test_the_jobs_peak_and_the_ranks_peaks_are_the_queries_own(queries: Queries, page: str) -> None:
    (bound,) = queries.job_peak_bound().to_pylist()
    assert f"<b>{bytes_text(bound['job_peak_bytes'])}</b>" in page
    peaks = {row["rank"]: row for row in queries.peak().to_pylist()}
    cells = re.findall(r'title="rank (\d+), cuda:0: ([^"]+) at ([^"]+)"', page)
    start = queries.sessions().to_pylist()[0]["started_ns"]
    assert {int(rank): (peak, at) for rank, peak, at in cells} == {
        rank: (bytes_text(row["peak_requested_bytes"]), instant_text(row["peak_time_ns"], start))
        for rank, row in peaks.items()
    }
    assert [row[0] for row in rows_of(page, "ranks")] == ["3", "0", "1", "2"]


def test_the_tables_are_what_ops_says(queries: Queries, page: str) -> None:
    for by in ("category", "operator", "line", "module"):
        wanted = queries.ops(by=by).to_pylist()  # type: ignore[arg-type]
        told = rows_of(page, f"by-{by}")
        assert [row[:3] for row in told] == [
            [row[by] or "-", bytes_text(row["live_bytes_at_peak"]), f"{row['live_allocations_at_peak']:,}"]
            for row in wanted
        ]


def test_curves_are_whole_and_together_the_job(queries: Queries, page: str) -> None:
    ranks, categories = embedded(page, "data")
    assert [one["name"] for one in ranks["series"]] != []
    sums = [sum(values) for values in zip(*(one["bytes"] for one in ranks["series"]), strict=True)]
    assert max(sums) == queries.job_peak().to_pylist()[0]["job_peak_bytes"]
    top = max(sum(values) for values in zip(*(one["bytes"] for one in categories["series"]), strict=True))
    assert top == queries.peak(rank=3).to_pylist()[0]["peak_requested_bytes"]


def test_ranks_over_time_hold_what_they_held(page: str) -> None:
    (heat,) = embedded(page, "heat-data")
    bins = report_heat.BINS
    rows = [heat["peaks"][number * bins : (number + 1) * bins] for number in range(4)]
    log = training(3).log
    before, whole = max(event["requested_bytes"] for event in log.events), log.events[-1]["requested_bytes"]
    assert rows[3][0] == before
    assert set(rows[3][1:-1]) == {whole}, "nothing happens for three seconds"
    assert rows[3][-1] == whole + 70_000_000
    assert set(rows[0][1:]) == {whole}


def test_one_rank_alone_has_its_own_tables_and_a_range_its_own_curves(
    queries: Queries, tmp_path: Path
) -> None:
    page = written(queries, tmp_path / "r.html", ranks=[0], from_ns=BASE_NS + 2_000, until_ns=BASE_NS + 6_000)
    assert [row[0] for row in rows_of(page, "ranks")] == ["0"]
    assert HOSTILE not in [row[0] for row in rows_of(page, "by-operator")]
    (curve,) = embedded(page, "data")
    assert max(curve["times_ns"]) <= 6_000
    assert "peaks and tables cover the whole session" in page


def test_an_allocation_that_failed_has_its_line(page: str) -> None:
    first, *_ = rows_of(page, "failed")
    assert (first[0], first[2]) == ("rank 0, cuda:0", "40.00 MiB")


def test_a_job_on_two_kinds_of_device_has_both(tmp_path: Path) -> None:
    log = RankLog()
    log.alloc("on the host", 50, at=1)
    job = CudaLog()
    job.log = log
    job.alloc("on the device", 60, 4096)
    with connect(database(tmp_path / "r.duckdb", [job])) as queries:
        page = written(queries, tmp_path / "r.html")
    assert "Peak of each rank, cpu" in page
    assert "Peak of each rank, cuda" in page


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3 << 29, "1.50 GiB"), (None, "-")]
)
def test_bytes_read_as_in_the_tables(count: int | None, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(1_500_000, "+0.002 s"), (61_000_000_000, "+1:01.000"), (3_723_004_000_000, "+1:02:03.004")],
)
def test_instants_count_from_the_sessions_start(ns: int, text: str) -> None:
    assert instant_text(BASE_NS + ns, BASE_NS) == text


def test_ranks_have_cards_where_no_sum_over_them_is_known(tmp_path: Path) -> None:
    job = CudaLog()
    job.alloc("empty", 0, 1 << 40)
    with connect(database(tmp_path / "empty.duckdb", [job])) as queries:
        page = written(queries, tmp_path / "r.html")
    assert "Highest rank</span><b>0 B" in page
    assert "Peak of each rank, cuda" in page
    assert "Peak of the job" not in page


@pytest.mark.parametrize(
    ("path", "shown"),
    [("model.py", "model.py:7"), ("torch/nn/functional.py", "[torch/nn/functional.py:7]")],
)
def test_lines_in_brackets_are_explained_where_there_are_any(path: str, shown: str, tmp_path: Path) -> None:
    job = CudaLog()
    job.alloc("block", 8, 1 << 40, stack_id=9)
    frame = {"stack_id": 9, "ordering": 0, "file_path": path, "line_number": 7, "function": "f"}
    with connect(database(tmp_path / "lines.duckdb", [job], stack_frame=[frame])) as queries:
        page = written(queries, tmp_path / "r.html")
    assert [row[0] for row in rows_of(page, "by-line")] == [shown]
    assert ("A line in [brackets]" in page) == shown.startswith("[")


def test_the_header_says_the_state_and_where_it_comes_from(page: str, queries: Queries) -> None:
    (header,) = re.findall(r"<header>(.*?)</header>", page, re.DOTALL)
    (session,) = queries.sessions().to_pylist()
    assert " - live - " not in header, "the source reads as the state"
    source = "recorded by rankmem" if session["source"] == "live" else f"imported from {session['source']}"
    assert f" - {source} - {session['state']} - " in header


def test_host_memory_stands_behind_the_devices(tmp_path: Path) -> None:
    log = RankLog()
    log.alloc("on the host", 5_000, at=1)
    job = CudaLog()
    job.log = log
    job.alloc("on the device", 60, 4096)
    with connect(database(tmp_path / "r.duckdb", [job])) as queries:
        page = written(queries, tmp_path / "r.html")
    assert page.index("Peak of the job, cuda") < page.index("Peak of the job, cpu")
    assert page.index("Peak of each rank, cuda") < page.index("Peak of each rank, cpu")


def test_ranks_over_time_begin_with_what_they_held_before_their_first_event(tmp_path: Path) -> None:
    host, late = RankLog(), CudaLog()
    host.alloc("first", 10, at=1)
    late.log = host
    late.later(3 * SECOND_US)
    late.alloc("on the device", 900, 4096)
    late.later(SECOND_US)
    late.free("on the device")
    with connect(database(tmp_path / "r.duckdb", [late])) as queries:
        page = written(queries, tmp_path / "r.html")
        part = written(queries, tmp_path / "part.html", from_ns=BASE_NS + 3_500_000_000)
    device, _ = (heat["peaks"] for heat in embedded(page, "heat-data"))
    assert device[0] == 0, "nothing was held, and that is known"
    assert min(device) >= 0
    assert max(device) == 900
    assert embedded(part, "heat-data")[0]["peaks"][0] == 900, "held since before the range"
