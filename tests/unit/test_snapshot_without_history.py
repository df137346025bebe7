"""A snapshot without history says what was alive and nothing that happened: peaks, exports and the page show
it, and a format of events says that it cannot."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from import_read import asked, imported
from kept_answers import job_of
from made_snapshots import dump, random_snapshot
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_protos.errors import RankmemError

pytestmark = pytest.mark.slow


def without_history(folder: Path, **fields: Any) -> tuple[Path, int]:
    """A database with such a snapshot of two devices, and how many bytes are alive in it."""
    raw = random_snapshot(3, devices=2)
    raw |= {"device_traces": [[], []], **fields}
    alive = [
        block["requested_size"]
        for segment in raw["segments"]
        for block in segment["blocks"]
        if block["state"].startswith("active")
    ]
    database = folder / "alive.duckdb"
    assert imported(database, dump(folder / "alive.pickle", raw)).failed == []
    return database, sum(alive)


def test_the_peak_of_the_job_is_what_is_alive(tmp_path: Path) -> None:
    database, alive = without_history(tmp_path)
    with connect(database) as queries:
        assert sum(row["requested_bytes"] for row in queries.job_peak().to_pylist()) == alive
        [bound] = queries.job_peak_bound().to_pylist()
        held = queries.job_peak_held(by="category").to_pylist()
    assert (bound["job_peak_bytes"], bound["sum_of_peaks_bytes"]) == (alive, alive)
    assert sum(row["live_bytes"] for row in held) == alive


def test_the_page_has_the_peak(tmp_path: Path) -> None:
    database, alive = without_history(tmp_path)
    with connect(database) as queries:
        export(queries, "html", tmp_path / "page.html")
    assert sum(row["peak_bytes"] for row in job_of(tmp_path / "page.html")) == alive


def test_viewers_get_the_blocks_that_are_alive(tmp_path: Path) -> None:
    database, alive = without_history(tmp_path)
    with connect(database) as queries:
        for kind, out in (
            ("torch-snapshot", "again.pickle"),
            ("chrome-trace", "trace.json"),
            ("memory-timeline", "cuda"),
        ):
            export(queries, kind, tmp_path / out)
    again = tmp_path / "again.duckdb"
    assert imported(again, tmp_path / "again.pickle").failed == []
    for path in (database, again):
        assert asked(path, "SELECT sum(size_bytes)::BIGINT FROM allocation WHERE freed_ns IS NULL") == [
            (alive,)
        ]
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    blocks = [event for event in trace if event["ph"] == "b"]
    assert sum(event["args"]["bytes"] for event in blocks) == alive
    counters = [event for event in trace if event["ph"] == "C" and event["name"].endswith(" requested")]
    assert sum(sum(event["args"].values()) for event in counters) == alive
    changes = []
    for path in sorted((tmp_path / "cuda").glob("*.raw.json.gz")):
        changes += json.loads(gzip.decompress(path.read_bytes()))
    assert sum(change[2] for change in changes) == alive


@pytest.mark.parametrize("kind", ["mindstudio", "skyline"])
def test_a_format_of_events_says_that_it_cannot_hold_it(kind: str, tmp_path: Path) -> None:
    database, _ = without_history(tmp_path)
    out = tmp_path / "out.sqlite"
    with connect(database) as queries, pytest.raises(RankmemError, match="only live blocks") as raised:
        export(queries, kind, out)
    assert "torch-snapshot" in (raised.value.hint or "")
    assert not out.exists()


def test_its_time_is_that_of_its_first_annotation(tmp_path: Path) -> None:
    time_us = 1_700_000_000_000_000
    annotation = {"name": "step", "device": 0}
    database, _ = without_history(
        tmp_path,
        external_annotations=[
            annotation | {"stage": "START", "time_us": time_us},
            annotation | {"stage": "END", "time_us": time_us + 50},
        ],
    )
    assert asked(database, "SELECT DISTINCT peak_time_ns FROM peak_by_rank") == [(time_us * 1000,)]


def test_the_curve_shows_what_is_alive(tmp_path: Path) -> None:
    database, _ = without_history(tmp_path)
    with connect(database) as queries:
        for row in queries.peak().to_pylist():
            points = queries.timeline(rank=0, device=row["device"]).to_pylist()
            requested = [point["bytes"] for point in points if point["group"] == "requested"]
            assert max(requested) == row["peak_requested_bytes"]
