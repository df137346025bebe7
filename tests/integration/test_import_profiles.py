"""Profiles of other tools through `rankmem import` into a database: every view answers on them."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import made_profiles
from fuzz_imports import fuzz
from import_read import asked, imported
from made_profiles import memory, op, saved, step, written
from rankmem_cli.main import app
from rankmem_imports.tensorflow.lives import Lives
from rankmem_imports.tensorflow.stats import nodes_of
from repetitions import long_but
from tensorflow_maximums import maximums


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "db.duckdb"


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def test_two_ranks_of_traces_are_one_session_with_its_peak(tmp_path: Path, database: Path) -> None:
    for rank in range(2):
        events = [
            op("aten::mm", 10, 20),
            memory(11 + rank, 1000 * (rank + 1), 1000 * (rank + 1), 1),
            memory(15, 500, 1000 * (rank + 1) + 500, 2),
            memory(40, -500, 1000 * (rank + 1), 2),
        ]
        written(folder(tmp_path, f"r{rank}"), events, distributedInfo={"rank": rank, "world_size": 2})
    report = imported(database, tmp_path / "r0", tmp_path / "r1")
    assert not report.failed
    assert asked(database, "SELECT source, world_size FROM session") == [("kineto", 2)]
    peaks = "SELECT rank, device, peak_requested_bytes FROM peak_by_rank ORDER BY rank"
    assert asked(database, peaks) == [(0, "cuda:0", 1500), (1, "cuda:0", 2500)]
    [(session,)] = asked(database, "SELECT session_id FROM session")
    held = "SELECT operator, sum(live_bytes_at_peak) FROM operator_at_peak($session) GROUP BY operator"
    assert asked(database, held, session=session) == [("aten::mm", 4000)]
    assert asked(database, "SELECT DISTINCT complete, end_reason FROM rank_info") == [(False, "imported")]


def test_a_profile_is_stored_once(tmp_path: Path, database: Path) -> None:
    path = made_profiles.export(tmp_path)
    imported(database, path)
    counts = "SELECT (SELECT count(*) FROM kernel_launch), (SELECT count(*) FROM marker)"
    before = asked(database, counts)
    assert before == [(2, 4)]
    imported(database, path)
    assert asked(database, counts) == before


def test_an_export_of_nsight_answers_for_memory_and_kernels(tmp_path: Path, database: Path) -> None:
    assert not imported(database, made_profiles.export(tmp_path)).failed
    peaks = "SELECT rank, device, peak_requested_bytes FROM peak_by_rank ORDER BY rank, device"
    assert asked(database, peaks) == [(0, "cuda:0", 1800), (0, "pinned", 64), (1, "cuda:0", 30)]
    kernels = "SELECT direction, operator, layer, forward_kernel_id FROM kernel_origin ORDER BY kernel_id"
    assert asked(database, kernels) == [
        ("forward", "linear", "decoder", None),
        ("backward", "linear", "decoder", 1),
    ]
    numbers = "SELECT sequence_ids::BIGINT[], layers::VARCHAR[] FROM kernel_launch ORDER BY kernel_id LIMIT 1"
    assert asked(database, numbers) == [([7], ["decoder"])]


def test_a_step_of_tensorflow_has_its_maximum_as_peak(tmp_path: Path, database: Path) -> None:
    path = saved(tmp_path, step(5), "pbtxt")
    lives = Lives()
    for device, node in nodes_of(path):
        lives.add(device, node)
    expected = maximums(lives.end())
    assert not imported(database, path).failed
    peaks = "SELECT allocator, peak_requested_bytes FROM peak_by_rank JOIN device_info USING (device)"
    assert dict(asked(database, peaks)) == {name: maximum.num_bytes for name, maximum in expected.items()}


def test_a_broken_profile_stores_nothing_and_the_others_go_on(tmp_path: Path, database: Path) -> None:
    good = written(folder(tmp_path, "good"), [memory(1, 8, 8, 1)])
    broken = written(folder(tmp_path, "broken"), [memory(1, 8, 8, 1), memory(2, 8, 16, 2)])
    broken.write_bytes(broken.read_bytes()[:-40])
    report = imported(database, good, broken)
    assert report.failed
    assert asked(database, "SELECT count(*) FROM memory_event") == [(1,)]


@pytest.mark.parametrize("kind", long_but(["trace", "trace.gz", "nsys", "pb", "pbtxt"], "trace", "pb"))
def test_mutations_of_a_profile_are_imported_or_refused(tmp_path: Path, kind: str) -> None:
    made = folder(tmp_path, "made")
    if kind.startswith("trace"):
        calls = [op(f"aten::op{n}", 10 * n, 8) for n in range(20)]
        path = written(made, [*calls, *(memory(10 * n + 1, 8, 8 * n + 8, n) for n in range(20))])
        if kind == "trace.gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    else:
        path = made_profiles.export(made) if kind == "nsys" else saved(made, step(6), kind)
    outcome = fuzz(path, 60)
    assert outcome.faults == []
    assert sum(outcome.refused.values()) + outcome.imported + outcome.unknown >= 60


@pytest.mark.parametrize(
    "verb", ["peak", "ops", "job-peak", "live --rank 0", "steps", "timeline", "export html x.html"]
)
def test_every_answer_of_a_profile_of_kernels_says_how_to_ask_for_them(
    tmp_path: Path, database: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not imported(database, made_profiles.nvprof_profile(tmp_path)).failed
    [(session,)] = asked(database, "SELECT session_id FROM session")
    done = CliRunner().invoke(app, [*verb.split(), "--db", str(database)])
    said = " ".join(f"{done.output} {done.exception}".split())
    assert f"FROM kernel_total('{session}'" in said
    (command,) = set(re.findall(r'rankmem (sql --db \S+ "[^"]+")', said))
    told = CliRunner().invoke(app, shlex.split(command))
    assert told.exit_code == 0
    assert "num_kernels" in told.output
