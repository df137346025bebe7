"""The verbs over a real file: what they print is what was worked out by hand for two small logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from constructed import BASE_NS, RankLog, empty_database, store_logs, store_rows
from rankmem_cli.main import app
from repetitions import long_but

DEVICE = "cuda:0"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 0 peaks with 160 bytes at 20 ns, rank 1 with 170 at 45, both together with 320 at 45."""
    path = tmp_path_factory.mktemp("cli") / "mem.duckdb"
    first = RankLog(rank=0, host_uid="host-0", ended=90)
    first.coordinates = {"dp": 0}
    weights = {"device": DEVICE, "operator": "aten::empty", "category": "parameter", "phase": "other"}
    first.alloc("weights", 100, at=10, module="net", step=0, **weights)
    activation = {"device": DEVICE, "operator": "aten::mm", "category": "activation", "phase": "forward"}
    first.alloc("activation", 60, at=20, module="net.fc", step=0, **activation)
    first.free("activation", at=30)
    gradient = {"device": DEVICE, "operator": "aten::mm", "category": "gradient", "phase": "backward"}
    first.alloc("gradient", 50, at=40, module="net.fc", step=0, **gradient)
    first.step_ends(0, at=50)
    first.free("gradient", at=60)
    first.step_ends(1, at=70)
    second = RankLog(rank=1, host_uid="host-1", ended=90)
    second.coordinates = {"dp": 1}
    second.alloc("weights", 80, at=15, module="net", step=0, **weights)
    second.alloc("activation", 90, at=45, module="net.fc", step=0, **activation)
    second.oom(500, at=46, device=DEVICE, operator="aten::mm", device_free_bytes=30)
    second.free("activation", at=55)
    for log in (first, second):
        for name, row in log.allocations.items():
            log.means(name, row["category"], at=0, since_alloc=True)
    with empty_database(str(path)) as connection:
        store_logs(connection, [first, second])
        weight = {"session_id": first.session_id, "attempt": 0, "rank": 0, "name": "net.fc.weight"}
        sizes = {"size_bytes": 100, "grad_size_bytes": 50, "dtype": "float32", "shape": "[5, 5]"}
        store_rows(connection, "weight", [weight | sizes])
    return path


def run(database: Path, *arguments: str) -> Result:
    done = CliRunner(env={"COLUMNS": "100"}).invoke(
        app, [*arguments, "--db", str(database)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done


def rows(database: Path, *arguments: str) -> list[dict[str, Any]]:
    return json.loads(run(database, *arguments, "--format", "json").stdout)  # type: ignore[no-any-return]


def test_a_category_has_what_it_held_at_the_ranks_peak_and_its_own_peak(database: Path) -> None:
    found = {row["group_name"]: row for row in rows(database, "peak", "--by", "category", "--rank", "0")}
    figures = {name: (row["bytes_at_rank_peak"], row["peak_bytes"]) for name, row in found.items()}
    assert figures == {"parameter": (100, 100), "activation": (60, 60), "gradient": (0, 50)}
    assert found["gradient"]["peak_time_ns"] == BASE_NS + 40
    assert {row["rank_peak_bytes"] for row in found.values()} == {160}


@pytest.mark.parametrize(
    ("by", "names"), [("host", ["name-of-host-0", "name-of-host-1"]), ("dp", ["0", "1"])]
)
def test_ranks_peak_together_by_host_and_by_coordinate(database: Path, by: str, names: list[str]) -> None:
    found = {row["group_name"]: row["peak_bytes"] for row in rows(database, "peak", "--by", by)}
    assert found == dict(zip(names, (160, 170), strict=True))


@pytest.mark.parametrize(
    "by",
    long_but(
        ["device", "stream", "component", "phase", "tp", "pp", "cp", "ep", "rank"], "stream", "phase", "tp"
    ),
)
def test_every_other_grouping_of_peaks_has_an_answer(database: Path, by: str) -> None:
    assert rows(database, "peak", "--by", by)


def test_blocks_are_grouped_by_what_the_user_says(database: Path) -> None:
    by_phase = {row["phase"]: row["live_bytes_at_peak"] for row in rows(database, "ops", "--by", "phase")}
    assert by_phase == {"other": 180, "forward": 150, "backward": 0}
    by_step = rows(database, "ops", "--by", "step")
    assert [(row["step"], row["live_bytes_at_peak"]) for row in by_step] == [("0", 330)]
    for by in ("module", "category", "annotation", "line", "operator", "rank"):
        assert sum(row["live_bytes_at_peak"] for row in rows(database, "ops", "--by", by)) == 330


def test_the_jobs_peak_is_taken_apart(database: Path) -> None:
    shares = {row["rank"]: row["requested_bytes"] for row in rows(database, "job-peak")}
    assert shares == {0: 150, 1: 170}
    held = {row["group_name"]: row["live_bytes"] for row in rows(database, "job-peak", "--by", "category")}
    assert held == {"parameter": 180, "activation": 90, "gradient": 50}
    done = run(database, "job-peak")
    assert "cuda: 320 B on 2 ranks" in done.stderr
    assert "add up to 330 B, 10 B (3.1%) more" in done.stderr
    assert "held at that instant, by category" in done.stderr


def test_a_timeline_has_every_event_of_every_category(database: Path) -> None:
    found = rows(database, "timeline", "--by", "category", "--rank", "0")
    points = [(row["group"], row["time_ns"] - BASE_NS, row["bytes"]) for row in found]
    for point in (
        ("activation", 20, 60),
        ("activation", 30, 0),
        ("gradient", 40, 50),
        ("parameter", 10, 100),
    ):
        assert point in points
    done = run(database, "timeline", "--by", "category", "--rank", "0")
    assert "160 B ┤" in done.stdout
    assert f"rank 0, {DEVICE} on name-of-host-0, by category" in done.stderr


def test_a_part_of_a_timeline_begins_with_what_was_held(database: Path) -> None:
    arguments = ["timeline", "--by", "category", "--rank", "0", "--from", "25ns", "--until", "45ns"]
    done = run(database, *arguments)
    assert "160 B ┤" in done.stdout
    times = [row["time_ns"] - BASE_NS for row in rows(database, *arguments)]
    assert 20 not in times
    assert 60 not in times


def test_the_tree_of_modules_adds_up(database: Path) -> None:
    found = {row["module"]: (row["own_bytes"], row["total_bytes"]) for row in rows(database, "modules")}
    assert found["net"] == (180, 330)
    assert found["net.fc"] == (150, 150)
    lines = run(database, "modules").stdout.splitlines()
    assert any("  fc " in line and "150 B" in line for line in lines)


def test_weights_and_steps_are_told(database: Path) -> None:
    (weight,) = rows(database, "weights")
    assert (weight["name"], weight["size_bytes"], weight["grad_size_bytes"]) == ("net.fc.weight", 100, 50)
    steps = {row["step"]: row for row in rows(database, "steps", "--rank", "0")}
    assert (steps[0]["peak_bytes"], steps[0]["end_bytes"]) == (160, 150)
    assert steps[1]["end_growth_bytes"] == -50
    assert "-50 B" in run(database, "steps", "--rank", "0").stdout


def test_a_failed_allocation_is_taken_apart_with_what_the_others_held(database: Path) -> None:
    (failure,) = rows(database, "oom")
    assert (failure["rank"], failure["size_bytes"], failure["device_free_bytes"]) == (1, 500, 30)
    done = run(database, "oom")
    assert "aten::mm asked for 500 B (rounded up by the allocator) with 170 B alive" in done.stderr
    held = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "90 B" in held["activation"]
    assert "150 B" in held["0"]
    assert "free on cuda:0: 30 B" in done.stderr
    by_rank = {row["rank"]: row["requested_bytes"] for row in rows(database, "oom", "--by", "rank")}
    assert by_rank == {0: 150, 1: 170}
    by_category = {row["group_name"]: row["live_bytes"] for row in rows(database, "oom", "--by", "category")}
    assert by_category == {"activation": 90, "parameter": 80}
    assert rows(database, "oom", "--rank", "0") == []


@pytest.mark.parametrize("end", ["html", "png", "csv", "parquet"])
def test_a_timeline_is_written_as_a_file(database: Path, tmp_path: Path, end: str) -> None:
    run(database, "timeline", "--by", "stream", "--out", str(tmp_path / f"x.{end}"))
    assert (tmp_path / f"x.{end}").stat().st_size > 100


@pytest.mark.parametrize(
    "verb", ["peak", "ops", "job-peak", "timeline", "modules", "weights", "steps", "oom"]
)
def test_csv_has_the_names_of_the_json(database: Path, verb: str) -> None:
    header = run(database, verb, "--format", "csv").stdout.splitlines()[0].split(",")
    assert header == list(rows(database, verb)[0])
