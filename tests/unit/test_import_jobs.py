"""Which files are recordings, which ranks they are, and what becomes of those that are broken."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from import_read import asked, imported
from made_snapshots import dump, random_snapshot
from rankmem_agent.session_ids import is_session_id
from rankmem_cli.main import app
from rankmem_imports.planning import Plan, plan
from rankmem_imports.search import search
from rankmem_protos.errors import Code, RankmemError

pytestmark = pytest.mark.slow


def ranks_of(paths: Sequence[Path | str], **options: str) -> tuple[Plan, dict[str, int]]:
    """The plan, and each file's rank."""
    planned = plan(search([str(path) for path in paths]).found, **options)
    members = [member for job in planned.sessions for member in job.members]
    return planned, {member.recording.source.name: member.rank for member in members}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three snapshots, whose names have their ranks."""
    for rank in (1, 2, 10):
        dump(tmp_path / "run" / f"rank{rank}.pickle", random_snapshot(rank, events=30))
    return tmp_path / "run"


def test_files_that_say_nothing_have_the_rank_that_their_path_names(folder: Path) -> None:
    planned, ranks = ranks_of([folder])
    assert ranks == {"rank1.pickle": 1, "rank2.pickle": 2, "rank10.pickle": 10}
    assert {member.rank_from for job in planned.sessions for member in job.members} == {"from its path"}
    _, matched = ranks_of([folder / "rank1*.pickle"])
    assert matched == {"rank1.pickle": 1, "rank10.pickle": 10}


def test_ranks_that_nothing_names_are_places_in_natural_order(folder: Path) -> None:
    for path in folder.iterdir():
        path.rename(path.with_name(path.name.replace("rank", "part")))
    planned, ranks = ranks_of([folder], session="one")
    assert ranks == {"part1.pickle": 0, "part2.pickle": 1, "part10.pickle": 2}
    assert {member.rank_from for job in planned.sessions for member in job.members} == {
        "by its place among the files"
    }
    _, given = ranks_of([folder / "part10.pickle", folder / "part1.pickle"], session="one")
    assert given == {"part10.pickle": 0, "part1.pickle": 1}


def test_a_pattern_finds_the_rank_in_the_path(folder: Path) -> None:
    planned, ranks = ranks_of([folder], rank_from=r"rank(\d+)\.")
    assert ranks == {"rank1.pickle": 1, "rank2.pickle": 2, "rank10.pickle": 10}
    assert [job.name for job in planned.sessions] == ["run"]
    planned, ranks = ranks_of([folder], rank_from=r"rank1(\d*)\.")
    assert ranks == {"rank10.pickle": 0}
    assert {path.name for path, _ in planned.failed} == {"rank1.pickle", "rank2.pickle"}
    for pattern in ("rank", "(a)(b)", "("):
        with pytest.raises(RankmemError, match="--rank-from"):
            ranks_of([folder], rank_from=pattern)


def test_of_two_files_of_one_rank_the_second_is_an_error(folder: Path) -> None:
    dump(folder / "rank01.pickle", random_snapshot(1, events=31))
    planned, ranks = ranks_of([folder], rank_from=r"rank0?(\d+)")
    assert sorted(ranks.values()) == [1, 2, 10]
    [(path, error)] = planned.failed
    assert path.name in ("rank1.pickle", "rank01.pickle")
    assert error.code is Code.CONFLICT
    assert "from the same rank as" in error.message


def test_recordings_made_hours_apart_are_of_several_jobs(tmp_path: Path) -> None:
    for name, began_s in (("rank0", 0), ("rank1", 1800), ("rank2", 3600), ("rank3", 90_000)):
        span = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 1e6 * began_s, "dur": 10.0}
        trace = {"schemaVersion": 1, "traceEvents": [span], "baseTimeNanoseconds": 1_700_000_000 * 10**9}
        (tmp_path / f"{name}.json").write_text(json.dumps(trace))
    planned, ranks = ranks_of([tmp_path])
    assert ranks == {"rank0.json": 0, "rank1.json": 1, "rank2.json": 2, "rank3.json": 3}
    assert [len(job.members) for job in planned.sessions] == [3, 1]
    assert len({job.session_id for job in planned.sessions}) == 2
    together, _ = ranks_of([tmp_path], session="all of it")
    assert [len(job.members) for job in together.sessions] == [4]


def test_a_pipe_is_an_error_and_hangs_nothing(folder: Path) -> None:
    os.mkfifo(folder / "pipe.pickle")
    assert len(ranks_of([folder])[1]) == 3
    for named in (folder / "pipe.pickle", folder / "*.pickle"):
        [(path, error)] = search([str(named)]).failed
        assert path.name == "pipe.pickle"
        assert error.code is Code.UNSUPPORTED


def profiled(path: Path, began_s: float, pid: int, rank: int | None = None) -> Path:
    """A second of a process, as torch.profiler frames it."""
    label = {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": "CPU"}}
    span = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 1e6 * began_s, "dur": 1e6}
    trace = {"schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000 * 10**9, "traceEvents": [label, span]}
    trace |= {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    path.write_text(json.dumps(trace))
    return path


@pytest.mark.parametrize("says_rank", [True, False])
def test_the_cycles_of_a_profiler_are_sessions_and_no_ranks(says_rank: bool, tmp_path: Path) -> None:
    for cycle in range(3):
        for rank in range(2):
            began_s = 10 * cycle + 0.25 * rank
            profiled(tmp_path / f"w{rank}.{cycle}.json", began_s, 50 + rank, rank if says_rank else None)
    planned, _ = ranks_of([tmp_path])
    assert planned.failed == []
    names = [[(m.rank, m.recording.source.name) for m in job.members] for job in planned.sessions]
    assert names == [[(0, f"w0.{cycle}.json"), (1, f"w1.{cycle}.json")] for cycle in range(3)]


def test_one_process_twice_at_a_time_is_one_recording(tmp_path: Path) -> None:
    first = profiled(tmp_path / "a.json", 5, 50)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(first.read_bytes()))
    profiled(tmp_path / "c.json", 5, 51)
    planned, ranks = ranks_of([tmp_path])
    assert ranks == {"a.json": 0, "c.json": 1}
    assert planned.failed == []
    assert planned.repeated == [(tmp_path / "b.json.gz", first)]


def test_the_session_is_of_the_content_whatever_the_names(folder: Path, tmp_path: Path) -> None:
    first, _ = ranks_of([folder])
    shutil.copytree(folder, tmp_path / "moved")
    second, _ = ranks_of([tmp_path / "moved"])
    assert first.sessions[0].session_id == second.sessions[0].session_id
    assert is_session_id(first.sessions[0].session_id)
    (folder / "rank1.pickle").unlink()
    third, _ = ranks_of([folder])
    assert third.sessions[0].session_id != first.sessions[0].session_id
    given, _ = ranks_of([folder], session="my job", name="mine")
    assert given.sessions[0].session_id != third.sessions[0].session_id
    assert given.sessions[0].name == "mine"


def test_two_kinds_are_two_sessions_and_cannot_be_put_into_one(folder: Path) -> None:
    (folder / "timeline.json").write_text("[[1, 2, 3, 0]]")
    planned, _ = ranks_of([folder])
    assert sorted(job.format for job in planned.sessions) == ["memory-timeline", "torch-snapshot"]
    with pytest.raises(RankmemError, match="2 jobs"):
        ranks_of([folder], session="one")


def test_files_are_told_by_content_through_gzip_and_hidden_ones_left_out(tmp_path: Path) -> None:
    (tmp_path / "looks-like.pickle").write_bytes(gzip.compress(b"[[1, 2, 3, 0]]"))
    (tmp_path / ".hidden.json").write_text("[[1, 2, 3, 0]]")
    (tmp_path / "notes.txt").write_text("hello")
    looked = search([str(tmp_path), str(tmp_path / "looks-like.pickle"), str(tmp_path / "absent*")])
    assert [one.format.name for one in looked.found] == ["memory-timeline"]
    assert [path.name for path in looked.unrecognised] == ["notes.txt"]
    [(path, error)] = looked.failed
    assert path.name == "absent*"
    assert error.code is Code.NOT_FOUND


def test_a_broken_file_stores_nothing_and_the_others_go_on(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "rank2.pickle").read_bytes()
    (folder / "rank2.pickle").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.pickle").touch()
    (folder / "notes.txt").write_text("hello")
    database = tmp_path / "some.duckdb"
    done = CliRunner().invoke(app, ["import", str(folder), "--db", str(database), "--name", "three"])
    assert done.exit_code == 1
    [session_id] = done.stdout.split()
    assert "rank2.pickle: not a whole pickle" in done.stderr
    assert "empty.pickle: unrecognised format" in done.stderr
    assert "notes.txt: unrecognised format" in done.stderr
    assert asked(database, "SELECT session_id, rank FROM rank_info ORDER BY rank") == [
        (session_id, 1),
        (session_id, 10),
    ]
    counts = "SELECT rank, count(*) FROM memory_event GROUP BY rank ORDER BY rank"
    assert [rank for rank, _ in asked(database, counts)] == [1, 10]
    (folder / "rank2.pickle").write_bytes(whole)
    assert imported(database, folder, name="three", session=session_id).failed == []
    assert [rank for rank, _ in asked(database, counts)] == [1, 2, 10]
    other = dump(tmp_path / "other-rank1.pickle", random_snapshot(77, events=30))
    [(_, error)] = imported(database, other, session=session_id).failed
    assert error.code is Code.CONFLICT
    assert [rank for rank, _ in asked(database, counts)] == [1, 2, 10]


def test_a_file_of_no_kind_that_is_named_is_an_error_and_so_is_nothing_at_all(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    runner = CliRunner()
    database = ["--db", str(tmp_path / "none.duckdb")]
    done = runner.invoke(app, ["import", str(tmp_path / "notes.txt"), *database])
    assert done.exit_code == 1
    assert "formats that are read: torch-snapshot" in done.stderr
    (tmp_path / "sub").mkdir()
    done = runner.invoke(app, ["import", str(tmp_path / "sub"), *database])
    assert done.exit_code == 1
    assert not (tmp_path / "none.duckdb").exists()
