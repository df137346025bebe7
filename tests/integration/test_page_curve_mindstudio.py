"""MindStudio's groupings Overall, Stream and Component: the page's curves are its views, digit by digit."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ascend_files import a_story, write_csvs, write_database
from import_read import imported
from page_reading import page_reader
from rankmem_aggregator.page.answers.mindstudio_curve import thinned
from rankmem_aggregator.page.reading import facts_of
from rankmem_protos.errors import Code, RankmemError

ROOT = Path(__file__).resolve()
RECORDINGS = [
    folder for parent in ROOT.parents if (folder := parent / "shared" / "recordings" / "ascend").is_dir()
]


def views_of(database: Path, session: str, rank: int, by: str) -> list[tuple[str, float, float]]:
    with duckdb.connect(database, read_only=True) as connection:
        return connection.execute(
            f"SELECT legend, time_ms, mb FROM mindstudio.{by}_curve(?, ?) ORDER BY legend, time_ms, mb",
            [session, rank],
        ).fetchall()


def compare(database: Path, *, must_have: tuple[str, ...]) -> None:
    with page_reader(database) as page:
        session = page.session.session_id
        job = page.ask("/job")
        last_ns = facts_of(job)["last_ns"] + 10**6
        for rank in sorted(set(job["rank"].to_pylist())):
            for by in ("overall", "stream", "component"):
                answer = page.ask("/mindstudio_curve", rank=rank, by=by, from_=-(10**15), to=last_ns, px=4096)
                rows = sorted((row["legend"], row["time_ms"], row["mb"]) for row in answer.to_pylist())
                expected = views_of(database, session, rank, by)
                assert rows == sorted(expected)
                assert expected or by not in must_have
                highest: dict[str, float] = {}
                for legend, _, mb in expected:
                    highest[legend] = max(mb, highest.get(legend, mb))
                assert facts_of(answer)["peaks"] == highest


@pytest.mark.parametrize("form", ["database", "text"])
def test_curves_of_an_ascend_recording_are_the_views(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    story = a_story()
    if form == "database":
        write_database(story, folder / "ascend_pytorch_profiler_0.db")
    else:
        write_csvs(story, folder)
    imported(tmp_path / "x.duckdb", tmp_path / "rank0_ascend_pt")
    compare(tmp_path / "x.duckdb", must_have=("overall", "component"))


@pytest.mark.recordings
@pytest.mark.skipif(not RECORDINGS, reason="needs shared/recordings/ascend")
def test_curves_of_mindstudios_own_samples_are_the_views(tmp_path: Path) -> None:
    imported(tmp_path / "x.duckdb", RECORDINGS[0] / "db")
    compare(tmp_path / "x.duckdb", must_have=("overall", "stream", "component"))


def test_of_many_records_each_pixel_keeps_its_first_last_highest_and_lowest() -> None:
    rng = random.Random(4)
    values = [rng.randrange(1000) / 8 for _ in range(5000)]
    times = sorted(rng.random() * 100 for _ in values)
    rows = pa.table({"legend": ["A"] * 5000 + ["B"], "time_ms": [*times, 7.0], "mb": [*values, 1.0]})
    found = thinned(rows, 0.0, 100.0, 50)
    assert found.num_rows <= 4 * 50 + 1
    assert found.filter(pc.equal(found["legend"], "B")).num_rows == 1
    kept = [(row["time_ms"], row["mb"]) for row in found.to_pylist()[:-1]]
    assert [time_ms for time_ms, _ in kept] == sorted(time_ms for time_ms, _ in kept)
    for pixel in range(50):
        inside = [(t, v) for t, v in zip(times, values, strict=True) if int(t / 2) == pixel]
        shown = [(t, v) for t, v in kept if int(t / 2) == pixel]
        assert (shown[0], shown[-1]) == (inside[0], inside[-1])
        assert max(v for _, v in shown) == max(v for _, v in inside)
        assert min(v for _, v in shown) == min(v for _, v in inside)
    assert thinned(rows, 0.0, 100.0, 4000).equals(rows)


def test_a_range_keeps_what_each_curve_held_when_it_began(tmp_path: Path) -> None:
    folder = tmp_path / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    write_database(a_story(), folder / "ascend_pytorch_profiler_0.db")
    imported(tmp_path / "x.duckdb", tmp_path / "rank0_ascend_pt")
    with page_reader(tmp_path / "x.duckdb") as page:
        whole = page.ask("/mindstudio_curve", rank=0, from_=-(10**15), to=10**15).to_pylist()
        times = sorted({row["time_ms"] for row in whole})
        middle = (times[len(times) // 2] + times[len(times) // 2 + 1]) / 2
        part = page.ask("/mindstudio_curve", rank=0, from_=round(middle * 1e6), to=10**15).to_pylist()
    for legend in {row["legend"] for row in whole}:
        before = [row["time_ms"] for row in whole if row["legend"] == legend and row["time_ms"] <= middle]
        after = [row["time_ms"] for row in whole if row["legend"] == legend and row["time_ms"] > middle]
        shown = sorted({row["time_ms"] for row in part if row["legend"] == legend})
        assert shown == sorted({*before[-1:], *after})


def test_a_rank_with_too_many_events_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    write_database(a_story(), folder / "ascend_pytorch_profiler_0.db")
    imported(tmp_path / "x.duckdb", tmp_path / "rank0_ascend_pt")
    monkeypatch.setattr("rankmem_aggregator.page.answers.mindstudio_curve.EVENTS_MAX", 1)
    with page_reader(tmp_path / "x.duckdb") as page, pytest.raises(RankmemError, match="events") as caught:
        page.ask("/mindstudio_curve", rank=0, from_=0, to=10**9)
    assert caught.value.code is Code.EXHAUSTED
    assert "rankmem style" in caught.value.hint
