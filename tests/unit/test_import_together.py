"""Which recordings of one import become one session, and what is said of it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from import_read import asked, imported
from made_snapshots import dump, random_snapshot
from rankmem_cli.run.import_plan import lines_of
from rankmem_imports.job_names import buckets, named_rank
from rankmem_imports.planning import Plan, plan
from rankmem_imports.search import search

BASE_NS = 1_700_000_000 * 10**9


def planned(*paths: Path, **options: str) -> Plan:
    return plan(search([str(path) for path in paths]).found, **options)


def sessions(found: Plan) -> list[list[tuple[int, str]]]:
    """Of each session the ranks with their files' names, the folder before them."""
    return [
        [(member.rank, f"{member.found.path.parent.name}/{member.found.path.name}") for member in job.members]
        for job in found.sessions
    ]


def trace(path: Path, began_s: float, *, lasts_s: float = 1.0, job: tuple[int, int] | None = None) -> Path:
    """A profiler's trace; ``job`` is its rank and world size."""
    span = {
        "ph": "X",
        "cat": "Trace",
        "name": "PyTorch Profiler (0)",
        "ts": 1e6 * began_s,
        "dur": 1e6 * lasts_s,
    }
    content: dict[str, Any] = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": [span],
        "file": str(path),
    }
    if job is not None:
        content["distributedInfo"] = {"backend": "nccl", "rank": job[0], "world_size": job[1]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def untimed(path: Path, seed: int) -> Path:
    """A snapshot without times, as torch_npu writes them."""
    snapshot = random_snapshot(seed, events=30)
    for entries in snapshot["device_traces"]:
        for entry in entries:
            entry.pop("time_us", None)
    return dump(path, snapshot)


def test_unrelated_snapshots_are_sessions_of_their_own(tmp_path: Path) -> None:
    untimed(tmp_path / "expandable.pkl", 1)
    untimed(tmp_path / "empty_cache.pkl", 2)
    dump(tmp_path / "large.pickle", random_snapshot(3, events=30))
    found = planned(tmp_path)
    assert [len(job.members) for job in found.sessions] == [1, 1, 1]
    assert {member.rank for job in found.sessions for member in job.members} == {0}
    assert lines_of(found) == [
        "torch-snapshot: 3 recordings are a session each: nothing shows that they belong together",
        "--session NAME puts recordings of one format into one session",
    ]


def test_snapshots_whose_names_differ_in_the_rank_are_one_session_with_or_without_times(
    tmp_path: Path,
) -> None:
    untimed(tmp_path / "npu" / "snapshot_rank0.pkl", 1)
    untimed(tmp_path / "npu" / "snapshot_rank1.pkl", 2)
    found = planned(tmp_path)
    assert sessions(found) == [[(0, "npu/snapshot_rank0.pkl"), (1, "npu/snapshot_rank1.pkl")]]
    [line] = lines_of(found)
    assert "2 recordings together: their paths differ in the rank alone" in line
    assert "snapshot_rankN.pkl" in line


def test_numbers_that_are_no_ranks_join_nothing(tmp_path: Path) -> None:
    for name in ("step10.pickle", "step20.pickle", "1.pickle", "2.pickle", "run1.pickle", "run2.pickle"):
        untimed(tmp_path / name, int("".join(filter(str.isdigit, name))) + len(name))
    assert [len(job.members) for job in planned(tmp_path).sessions] == [1] * 6


def test_two_snapshots_of_one_rank_are_two_sessions(tmp_path: Path) -> None:
    for step in (10, 20):
        for rank in (0, 1):
            untimed(tmp_path / "x" / f"rank{rank}_step{step}.pickle", 10 * rank + step)
    found = [[(rank, path.split("_")[1]) for rank, path in one] for one in sessions(planned(tmp_path))]
    assert sorted(found) == [
        [(0, "step10.pickle"), (1, "step10.pickle")],
        [(0, "step20.pickle"), (1, "step20.pickle")],
    ]


def test_process_ids_in_names_do_not_part_the_ranks(tmp_path: Path) -> None:
    untimed(tmp_path / "rank0_pid431.pickle", 1)
    untimed(tmp_path / "rank1_pid977.pickle", 2)
    assert [len(job.members) for job in planned(tmp_path).sessions] == [2]


def test_a_device_in_a_name_is_a_rank_beside_another_and_none_alone(tmp_path: Path) -> None:
    untimed(tmp_path / "gpu2.pickle", 1)
    assert sessions(planned(tmp_path))[0][0][0] == 0
    untimed(tmp_path / "gpu3.pickle", 2)
    assert [[rank for rank, _ in one] for one in sessions(planned(tmp_path))] == [[2, 3]]


def test_files_that_say_the_same_of_their_job_are_one_session_whatever_their_names(tmp_path: Path) -> None:
    trace(tmp_path / "a" / "x.json", 0, job=(0, 2))
    trace(tmp_path / "b" / "y.json", 0.5, job=(1, 2))
    trace(tmp_path / "z.json", 0.5, job=(1, 4))
    found = planned(tmp_path)
    assert sorted(len(job.members) for job in found.sessions) == [1, 2]
    [together] = [job for job in found.sessions if len(job.members) == 2]
    assert together.why == ("they state that they are from a job of 2 ranks",)


def test_two_jobs_with_the_same_ranks_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for job in ("first", "second"):
        for rank in (0, 1):
            trace(tmp_path / job / f"{rank}-{rank}.json", 0.1 * rank, job=(rank, 2))
    assert sessions(planned(tmp_path)) == [
        [(0, "first/0-0.json"), (1, "first/1-1.json")],
        [(0, "second/0-0.json"), (1, "second/1-1.json")],
    ]


def test_where_nothing_tells_two_jobs_with_the_same_ranks_apart_none_is_guessed(tmp_path: Path) -> None:
    for name, rank in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
        trace(tmp_path / f"{name}.json", 0.1 * rank, job=(rank, 2))
    found = planned(tmp_path)
    assert [len(job.members) for job in found.sessions] == [1] * 4
    assert any("rank 0 is claimed by" in line for line in lines_of(found))


def test_recordings_of_the_same_time_are_one_session_and_of_others_not(tmp_path: Path) -> None:
    trace(tmp_path / "a.json", 0)
    trace(tmp_path / "b.json", 0.5)
    trace(tmp_path / "c.json", 20)
    found = planned(tmp_path)
    assert sessions(found) == [
        [(0, f"{tmp_path.name}/a.json"), (1, f"{tmp_path.name}/b.json")],
        [(0, f"{tmp_path.name}/c.json")],
    ]
    assert found.sessions[0].why == ("they were recorded at the same time",)


def test_a_job_of_one_rank_is_alone_at_any_time(tmp_path: Path) -> None:
    trace(tmp_path / "rank0.json", 0, job=(0, 1))
    trace(tmp_path / "rank1.json", 0)
    assert [len(job.members) for job in planned(tmp_path).sessions] == [1, 1]


def test_a_missing_cycle_of_one_rank_shifts_no_other(tmp_path: Path) -> None:
    for cycle, rank in ((0, 0), (1, 0), (1, 1), (2, 0), (2, 1)):
        trace(tmp_path / f"w{rank}.{cycle}.json", 10 * cycle + 0.2 * rank, job=(rank, 2))
    assert [[path.split("/")[1] for _, path in one] for one in sessions(planned(tmp_path))] == [
        ["w0.0.json"],
        ["w0.1.json", "w1.1.json"],
        ["w0.2.json", "w1.2.json"],
    ]


def test_snapshots_with_overlapping_times_are_one_session(tmp_path: Path) -> None:
    snapshot = random_snapshot(1, events=30)
    dump(tmp_path / "a.pickle", snapshot)
    shifted = json.loads(json.dumps(snapshot))
    for entries in shifted["device_traces"]:
        for entry in entries:
            entry["time_us"] += 5
    dump(tmp_path / "b.pickle", shifted)
    dump(tmp_path / "later.pickle", random_snapshot(90, events=30))
    assert sorted(len(job.members) for job in planned(tmp_path).sessions) == [1, 2]


def test_the_history_of_one_process_dumped_twice_is_no_two_ranks(tmp_path: Path) -> None:
    whole = random_snapshot(1, events=30)
    part = json.loads(json.dumps(whole))
    part["device_traces"] = [entries[:20] for entries in part["device_traces"]]
    dump(tmp_path / "first.pickle", part)
    dump(tmp_path / "second.pickle", whole)
    assert [len(job.members) for job in planned(tmp_path).sessions] == [1, 1]


@pytest.mark.parametrize("has_times", [True, False])
def test_the_same_recording_twice_is_one_rank(has_times: bool, tmp_path: Path) -> None:
    first = tmp_path / "a.pickle"
    if has_times:
        dump(first, random_snapshot(1, events=30))
    else:
        untimed(first, 1)
    shutil.copy(first, tmp_path / "b.pickle")
    found = planned(tmp_path)
    assert sessions(found) == [[(0, f"{tmp_path.name}/a.pickle")]]
    assert found.repeated == [(tmp_path / "b.pickle", first)]
    report = imported(tmp_path / "x.duckdb", first, tmp_path / "b.pickle")
    assert report.failed == []
    assert asked(tmp_path / "x.duckdb", "SELECT rank FROM rank_info") == [(0,)]
    assert lines_of(found) == [f"{tmp_path / 'b.pickle'}: already imported: the same recording as {first}"]


def test_the_same_snapshot_packed_is_one_recording(tmp_path: Path) -> None:
    first = dump(tmp_path / "a.pickle", random_snapshot(1, events=30))
    (tmp_path / "b.pickle.gz").write_bytes(gzip.compress(first.read_bytes()))
    assert planned(tmp_path).repeated == [(tmp_path / "b.pickle.gz", first)]


def test_ranks_that_did_the_same_without_times_are_still_two(tmp_path: Path) -> None:
    untimed(tmp_path / "rank0.pickle", 1)
    shutil.copy(tmp_path / "rank0.pickle", tmp_path / "rank1.pickle")
    assert [[rank for rank, _ in one] for one in sessions(planned(tmp_path))] == [[0, 1]]


def test_a_session_that_is_given_takes_all_of_one_kind(tmp_path: Path) -> None:
    untimed(tmp_path / "rank4.pickle", 1)
    untimed(tmp_path / "other.pickle", 2)
    trace(tmp_path / "a.json", 0)
    trace(tmp_path / "b.json", 90_000)
    found = planned(*tmp_path.glob("*.pickle"), session="mine")
    assert sorted(rank for rank, _ in sessions(found)[0]) == [0, 4]
    found = planned(*tmp_path.glob("*.json"), session="mine")
    assert [len(job.members) for job in found.sessions] == [2]
    assert found.sessions[0].why == ("--session",)


def test_a_rank_that_the_file_says_stands_before_the_one_in_its_path(tmp_path: Path) -> None:
    trace(tmp_path / "rank7.json", 0, job=(3, 8))
    assert sessions(planned(tmp_path)) == [[(3, f"{tmp_path.name}/rank7.json")]]


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("run/rank3.pickle", 3),
        ("run/snapshot_rank_12.pkl", 12),
        ("run/Rank-0/trace.json", 0),
        ("run/local_rank5.pickle", 5),
        ("run/localrank5.pickle", 5),
        ("worker2/rank3/trace.json", 3),
        ("run/worker0.pt.trace.json", 0),
        ("crank3.pickle", None),
        ("ranking.pickle", None),
        ("3.pickle", None),
        ("step3.pickle", None),
    ],
)
def test_a_rank_in_a_path_has_a_word_for_it(path: str, rank: int | None) -> None:
    assert named_rank(Path(path)) == rank


def test_paths_are_held_against_each_other_without_their_ranks() -> None:
    def found(names: Sequence[str]) -> list[list[str]]:
        return [[str(path) for path in of] for _, of in buckets([Path(n) for n in names], lambda path: path)]

    assert found(["a/rank0.p", "a/rank1.p", "b/rank0.p"]) == [["a/rank0.p", "a/rank1.p"]]
    assert found(["rank0/x_rank0.p", "rank1/x_rank1.p"]) == [["rank0/x_rank0.p", "rank1/x_rank1.p"]]
    assert found(["run1/rank0.p", "run2/rank1.p"]) == []
    assert found(["rank0.p", "rank1.q"]) == []
