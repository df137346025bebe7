"""Files that are no use to an import: what is skipped, what is an error, and what neither leaves behind."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ascend_files import a_story, write_csvs, write_database
from import_read import asked
from made_snapshots import dump, random_snapshot
from rankmem_cli.args.options import target as target_of
from rankmem_cli.main import app
from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Identity
from rankmem_protos.errors import RankmemError

pytestmark = pytest.mark.slow


def run_import(database: Path, *paths: Path | str) -> Any:
    return CliRunner().invoke(app, ["import", *(str(path) for path in paths), "--db", str(database)])


def memory_free_trace(path: Path) -> Path:
    """A whole trace of somebody who did not ask for memory."""
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 1,
        "args": {},
    }
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    return path


def damaged_gzip(path: Path) -> Path:
    """A gzip file whose data is none from early on."""
    data = bytearray(gzip.compress(b"Component,Timestamp(us)\n" * 400))
    data[12:40] = b"\xff" * 28
    path.write_bytes(data)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one good recording."""
    dump(tmp_path / "run" / "rank0.pickle", random_snapshot(1, events=30))
    return tmp_path / "run"


def test_a_damaged_gzip_beside_an_ascend_recording_stops_nothing(tmp_path: Path) -> None:
    for form, write in (("db", write_database), ("csv", write_csvs)):
        output = tmp_path / form / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        write(a_story(), output / "ascend_pytorch_profiler_0.db" if form == "db" else output)
        damaged_gzip(output / "trace_view.json.gz")
        done = run_import(tmp_path / f"{form}.duckdb", tmp_path / form)
        assert done.exit_code == 0, done.stderr
        assert "zlib" not in done.stderr
        assert "trace_view.json.gz: unrecognised format, skipped" in done.stderr
        assert asked(tmp_path / f"{form}.duckdb", "SELECT count(*) > 0 FROM memory_event") == [(True,)]


def test_in_a_folder_files_that_hold_nothing_to_import_are_skipped_like_foreign_ones(folder: Path) -> None:
    memory_free_trace(folder / "trace.json")
    (folder / "notes.txt").write_text("hello")
    write_empty_profile(folder / "profile.db")
    done = run_import(folder.parent / "x.duckdb", folder)
    assert done.exit_code == 0, done.stderr
    assert "none of memory" in done.stderr
    assert done.stderr.count(", skipped") == 3
    assert run_import(folder.parent / "x.duckdb", f"{folder}/*").exit_code == 0


def test_a_file_that_is_named_and_holds_nothing_to_import_is_an_error(folder: Path) -> None:
    trace = memory_free_trace(folder / "trace.json")
    for named in (trace, write_empty_profile(folder / "profile.db"), folder / "absent.pickle"):
        done = run_import(folder.parent / "x.duckdb", folder / "rank0.pickle", named)
        assert done.exit_code == 1
        assert "skipped" not in done.stderr
        assert str(named) in done.stderr


def test_a_recording_in_a_folder_that_is_broken_is_an_error(folder: Path) -> None:
    whole = (folder / "rank0.pickle").read_bytes()
    (folder / "rank1.pickle").write_bytes(whole[: len(whole) // 2])
    done = run_import(folder.parent / "x.duckdb", folder)
    assert done.exit_code == 1
    assert f"rankmem: {folder / 'rank1.pickle'}: " in done.stderr


def test_a_folder_without_anything_to_import_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    memory_free_trace(tmp_path / "run" / "trace.json")
    done = run_import(tmp_path / "x.duckdb", tmp_path / "run")
    assert done.exit_code == 1
    assert "skipped" in done.stderr


def test_what_is_refused_leaves_no_empty_database(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "rank0.pickle").read_bytes()
    (folder / "rank0.pickle").write_bytes(whole[: len(whole) // 2])
    database = tmp_path / "new.duckdb"
    for path in (folder / "rank0.pickle", memory_free_trace(tmp_path / "trace.json"), folder):
        assert run_import(database, path).exit_code == 1
        assert not database.exists()
    (folder / "rank0.pickle").write_bytes(whole)
    assert run_import(database, folder).exit_code == 0
    assert database.exists()


def test_names_that_are_no_utf8_are_imported_and_shown(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/run\xff"
    os.mkdir(folder)
    dump(Path(os.fsdecode(folder + b"/a\xfe.pickle")), random_snapshot(1, events=30))
    memory_free_trace(Path(os.fsdecode(folder + b"/b\xfe.json")))
    Path(os.fsdecode(folder + b"/c\xfe.txt")).write_text("hello")
    Path(os.fsdecode(folder + b"/d\xfe.pickle")).write_bytes(b"\x80\x04segments")
    output = Path(os.fsdecode(folder + b"/e\xfe"))
    output.mkdir()
    write_csvs(a_story(), output)
    profile = Path(os.fsdecode(folder + b"/f\xfe"))
    profile.mkdir()
    write_database(a_story(), profile / os.fsdecode(b"g\xfe.db"))
    database = tmp_path / "x.duckdb"
    done = run_import(database, os.fsdecode(folder))
    assert done.exit_code == 1, "one is broken"
    assert done.stdout.count("\n") == 3
    assert "unexpected" not in done.stderr
    assert "a\\udcfe.pickle" in done.stderr
    shown = CliRunner().invoke(app, ["sessions", "--db", str(database), "--format", "json"])
    assert shown.exit_code == 0
    assert len(json.loads(shown.stdout)) == 3


def test_options_that_are_no_utf8_are_used_or_refused_in_words(folder: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(b"a\xff")
    database = tmp_path / "x.duckdb"
    done = CliRunner().invoke(
        app, ["import", str(folder), "--db", str(database), "--session", odd, "--name", odd]
    )
    assert done.exit_code == 0, done.output
    with pytest.raises(RankmemError, match="path is not valid UTF-8"):
        target_of(tmp_path / f"{odd}.duckdb", None)


@pytest.mark.parametrize("content", ['[["a"]]', "[[1, 2], 3]", '[[1, 2, 3, "x"]]', "[[1, 2, 3, 99]]"])
def test_what_is_wrong_with_a_timeline_is_told_without_pythons_words(content: str, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_text(content)
    [recording] = FORMATS["memory-timeline"].open([path])
    with pytest.raises(RankmemError) as caught:
        list(recording.parts(Identity("S", 0, 0)))
    for word in ("Error", "int()", "object", "literal", "subscript", "<class"):
        assert word not in caught.value.message


@pytest.mark.parametrize(
    "snapshot",
    [
        {"segments": [{"device": 0}], "device_traces": []},
        {"segments": [], "device_traces": 5},
        {"segments": [{"device": "x"}], "device_traces": [[]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": None, "size": 1, "stream": 0}]]},
        {"segments": [[1]], "device_traces": []},
    ],
)
def test_what_is_wrong_with_a_snapshot_is_told_without_pythons_words(
    snapshot: dict[str, Any], tmp_path: Path
) -> None:
    [recording] = FORMATS["torch-snapshot"].open([dump(tmp_path / "a.pickle", snapshot)])
    with pytest.raises(RankmemError) as caught:
        list(recording.parts(Identity("S", 0, 0)))
    assert "a.pickle is no memory snapshot of PyTorch" in caught.value.message
    for word in ("Error", "int()", "object", "literal", "subscript", "<class", "indices", "range"):
        assert word not in caught.value.message


def write_empty_profile(path: Path) -> Path:
    """An Ascend database of somebody who did not ask for memory."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS STRING_IDS (id INTEGER, value TEXT)")
        connection.execute("CREATE TABLE IF NOT EXISTS NPU_INFO (id INTEGER, name TEXT)")
    return path
