"""Memory timelines hold each change of each category, in torch.profiler's layout."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from constructed import BASE_NS, RankLog
from export_logs import CudaLog, database, training
from rankmem_agent.spool.layout import Category
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.categories import CATEGORIES, TIMELINE_INDEX
from rankmem_protos.errors import Code, RankmemError

pytestmark = pytest.mark.slow

PARAMETER, INPUT, ACTIVATION, GRADIENT, UNKNOWN = 0, 2, 4, 5, 7
T = BASE_NS // 1000


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    log = RankLog()
    log.preexisting("weight", 100, category="parameter")
    log.preexisting("batch", 7)
    log.alloc("a", 30, at=1_000, category="temporary")
    log.means("a", "activation", at=1_000, since_alloc=True)
    log.alloc("b", 5, at=1_400)
    log.means("b", "gradient", at=2_000)
    log.means("batch", "input", at=2_500)
    log.free("a", at=3_000, told_later=True)
    log.free("b", at=3_000)
    job = CudaLog(device="cpu")
    job.log = log
    path = database(tmp_path_factory.mktemp("timeline") / "r.duckdb", [job, training(1)])
    with connect(path) as opened:
        yield opened


def written(queries: Queries, out: Path, **asked: Any) -> Any:
    export(queries, "memory-timeline", out, force=True, **asked)
    data = out.read_bytes()
    return json.loads(gzip.decompress(data) if out.suffix == ".gz" else data)


def test_a_raw_file_holds_each_change_and_what_was_there_before(queries: Queries, tmp_path: Path) -> None:
    assert written(queries, tmp_path / "x.raw.json.gz", ranks=[0]) == [
        [-1, 1, 7, UNKNOWN],
        [-1, 1, 100, PARAMETER],
        [BASE_NS + 1_000, 2, 30, ACTIVATION],
        [BASE_NS + 1_400, 2, 5, UNKNOWN],
        [BASE_NS + 2_000, 3, -5, UNKNOWN],
        [BASE_NS + 2_000, 3, 5, GRADIENT],
        [BASE_NS + 2_500, 3, -7, UNKNOWN],
        [BASE_NS + 2_500, 3, 7, INPUT],
        [BASE_NS + 3_000, 4, -30, ACTIVATION],
        [BASE_NS + 3_000, 4, -5, GRADIENT],
    ]


def test_totals_stand_at_each_microsecond_behind_a_zero(queries: Queries, tmp_path: Path) -> None:
    times, totals = written(queries, tmp_path / "x.json", ranks=[0])
    assert times == [T + 1, T + 1, T + 2, T + 3]
    assert totals == [
        [0, 100, 0, 0, 0, 0, 0, 0, 7],
        [0, 100, 0, 0, 0, 30, 0, 0, 12],
        [0, 100, 0, 7, 0, 30, 5, 0, 0],
        [0, 100, 0, 7, 0, 0, 0, 0, 0],
    ]
    assert written(queries, tmp_path / "x.json.gz", ranks=[0]) == [times, totals]
    assert (tmp_path / "x.json").read_text() == json.dumps([times, totals])


def test_a_range_begins_with_what_was_there_and_meant_then(queries: Queries, tmp_path: Path) -> None:
    asked = {"ranks": [0], "from_ns": BASE_NS + 3_000}
    assert written(queries, tmp_path / "x.raw.json.gz", **asked) == [
        [-1, 1, 7, INPUT],
        [-1, 1, 100, PARAMETER],
        [-1, 1, 30, ACTIVATION],
        [-1, 1, 5, GRADIENT],
        [BASE_NS + 3_000, 4, -30, ACTIVATION],
        [BASE_NS + 3_000, 4, -5, GRADIENT],
    ]


def test_a_block_of_cuda_counts_until_its_free_is_requested(queries: Queries, tmp_path: Path) -> None:
    raw = written(queries, tmp_path / "x.raw.json.gz", ranks=[1])
    log = training(1).log
    asked = [event["time_ns"] for event in log.events if event["action"] == "free_requested"]
    assert [entry[0] for entry in raw if entry[1] == 4] == asked


def test_changes_add_up_to_the_logs_own_totals_at_every_instant(queries: Queries, tmp_path: Path) -> None:
    times, totals = written(queries, tmp_path / "x.json", ranks=[0])
    held = queries.sql(
        "SELECT time_ns // 1000 AS us, requested_bytes FROM memory_event WHERE rank = 0 ORDER BY seq"
    )
    last = {row["us"]: row["requested_bytes"] for row in held.to_pylist()}
    told = {time: sum(row) for time, row in zip(times, totals, strict=True)}
    assert {time: told[time] for time in last} == last


def test_a_page_holds_a_picture(queries: Queries, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="an extra: pip install 'rankmem[plots]'")
    export(queries, "memory-timeline", tmp_path / "x.html", ranks=[0])
    text = (tmp_path / "x.html").read_text()
    assert re.search(r"<img src='data:image/png;base64,iVBORw0KGgo[^']{1000,}'>", text)


def test_a_folder_takes_a_file_a_rank_and_a_file_the_highest(queries: Queries, tmp_path: Path) -> None:
    export(queries, "memory-timeline", tmp_path / "all")
    assert sorted(path.name for path in (tmp_path / "all").glob("*.gz")) == [
        "rank-0.raw.json.gz", "rank-1.raw.json.gz",
    ]  # fmt: skip
    one = export(queries, "memory-timeline", tmp_path / "x.json")
    assert any("cuda:0 of rank 1, the highest" in remark for remark in one.remarks)


def test_the_table_of_categories_is_in_the_order_of_their_numbers_in_a_spool() -> None:
    assert [category.name.lower() for category in Category] == list(CATEGORIES)


def test_the_order_of_categories_is_torchs() -> None:
    profiler = pytest.importorskip("torch.profiler._memory_profiler", reason="gone from this torch")
    theirs = {
        ("unknown" if key is None else key.name.lower()): n for key, n in profiler._CATEGORY_TO_INDEX.items()
    }
    assert theirs == TIMELINE_INDEX
    assert [action.value for action in profiler.Action] == [1, 2, 3, 4]


def test_what_torch_has_no_name_for_is_unknown_in_its_files(tmp_path: Path) -> None:
    log = RankLog()
    log.preexisting("cache", 100, category="kv_cache")
    log.alloc("keys", 30, at=1_000)
    log.means("keys", "kv_cache", at=2_000)
    log.free("keys", at=3_000)
    job = CudaLog(device="cpu")
    job.log = log
    with connect(database(tmp_path / "r.duckdb", [job])) as opened:
        assert written(opened, tmp_path / "x.raw.json.gz", ranks=[0]) == [
            [-1, 1, 100, UNKNOWN],
            [BASE_NS + 1_000, 2, 30, UNKNOWN],
            [BASE_NS + 3_000, 4, -30, UNKNOWN],
        ]


def test_nothing_is_written_for_a_rank_without_events(queries: Queries, tmp_path: Path) -> None:
    with pytest.raises(RankmemError) as caught:
        written(queries, tmp_path / "x.json", ranks=[0], from_ns=BASE_NS + 10**12)
    assert caught.value.code is Code.NOT_FOUND
