"""``rankmem lake import`` and ``compact`` are killed, or run beside others: a lake is never half seen."""

from __future__ import annotations

import operator
import random
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from lake_checks import num_rows
from lake_pieces import in_pieces, store_end
from lake_story import JOB, STORY, lake_story
from rankmem_aggregator import connect
from rankmem_aggregator.lake.catalog import Catalog, read_catalog
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.compact import compact_lake
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.layout import DataFile
from rankmem_aggregator.lake.prune import prune_lake
from rankmem_aggregator.lake.queries import LakeQueries
from rankmem_aggregator.lake.vacuum import vacuum_lake
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.retention.limits import Limits
from rankmem_protos.errors import RankmemError
from two_sessions import NEW, OLD, two_sessions
from waiting import until

TRIES, FASTER = 8, 0.8
"""Tries of a kill, and the share of its time that a process is given after one that had ended first."""


def start(database: Path, lake: Path) -> subprocess.Popen[bytes]:
    """The import, in a process of its own."""
    return start_verb("import", str(database), "--lake", str(lake))


def start_verb(*arguments: str) -> subprocess.Popen[bytes]:
    """A verb of the lake, in a process of its own."""
    command = [sys.executable, "-m", "rankmem_cli", "lake", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def seen(lake: Path) -> Catalog:
    try:
        return read_catalog(LakeFiles(str(lake)))
    except RankmemError:  # it has not begun
        return Catalog(-1, ())


@pytest.mark.parametrize("kills", [2, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_a_killed_import_goes_on_until_the_lake_is_whole(tmp_path: Path, kills: int) -> None:
    chance = random.Random(7)
    database = lake_story(tmp_path / "story.duckdb")
    began = time.monotonic()
    import_database(database, str(tmp_path / "whole"))
    expected = seen(tmp_path / "whole").files
    lake = tmp_path / "lake"
    alone_s = 2 * (time.monotonic() - began)  # with the start of a process
    killed = 0
    for _ in range(TRIES * kills):
        if killed == kills:
            break
        process = start(database, lake)
        time.sleep(chance.uniform(0.3, 1) * alone_s)
        killed += process.poll() is None
        alone_s *= 1 if process.returncode is None else FASTER
        process.kill()
        process.communicate()
        assert set(seen(lake).files) <= set(expected)
    process = start(database, lake)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert killed == kills
    assert seen(lake).files == expected
    assert check_lake(str(lake)).faults == ()


def test_imports_of_several_databases_at_once_are_all_there(tmp_path: Path) -> None:
    story = lake_story(tmp_path / "story.duckdb")
    with duckdb.connect(story) as connection:
        connection.execute("UPDATE rankmem_meta SET database_id = 'abc123'")
    two = two_sessions(tmp_path / "two.duckdb")
    lake = tmp_path / "lake"
    for process in [start(database, lake) for database in (story, two)]:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
    assert check_lake(str(lake)).faults == ()
    with connect(f"lake:{lake}") as queries:
        assert set(queries.sessions()["session_id"].to_pylist()) == {JOB, STORY, OLD, NEW}


def test_of_two_imports_of_one_database_both_end_with_the_same_lake(tmp_path: Path) -> None:
    """One may be refused; then the other has written it."""
    database = lake_story(tmp_path / "story.duckdb")
    import_database(database, str(tmp_path / "whole"))
    lake = tmp_path / "lake"
    codes = []
    for process in [start(database, lake) for _ in range(2)]:
        output, _ = process.communicate(timeout=120)
        codes.append(process.returncode)
        assert process.returncode == 0 or b"another process" in output, output
    assert 0 in codes or start(database, lake).wait(120) == 0
    # Whether the one that stayed had to begin again is in its files' sequence and names.
    assert _parts(lake) == _parts(tmp_path / "whole")
    assert check_lake(str(lake)).faults == ()


def _parts(lake: Path) -> list[DataFile]:
    return [replace(file, path="", sequence=0) for file in seen(lake).files]


def ended(process: subprocess.Popen[bytes]) -> bool:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return True


def in_small_files(folder: Path, name: str, pieces: int) -> Path:
    """The story as an aggregator leaves it."""
    if not (folder / "whole").exists():
        database = lake_story(folder / "story.duckdb")
        store_end(database, JOB, 2)  # the other may go on
        import_database(database, str(folder / "whole"), part_rows=200)
    in_pieces(folder / "whole", str(folder / name), random.Random(pieces), pieces)
    return folder / name


def questions_of(queries: Queries) -> list[object]:
    return [queries.job_peak(STORY), queries.peak_by(STORY, by="category"), queries.ranks(STORY)]


def answers_of(lake: Path) -> list[object]:
    with connect(f"lake:{lake}") as queries:
        return [num_rows(queries), *questions_of(queries)]


@pytest.mark.parametrize("kills", [2, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_a_killed_compaction_leaves_all_as_it_was_or_as_it_will_be(tmp_path: Path, kills: int) -> None:
    chance = random.Random(8)
    lake = in_small_files(tmp_path, "lake", 5)
    shutil.copytree(lake, tmp_path / "alone")
    expected, parts = answers_of(lake), seen(lake).files
    began = time.monotonic()
    assert ended(start_verb("compact", "--lake", str(tmp_path / "alone")))
    alone_s = time.monotonic() - began
    compacted = {(f.table_name, f.session_id, f.segment, f.hosts) for f in seen(tmp_path / "alone").files}
    killed = 0
    for _ in range(TRIES * kills):
        if killed == kills:
            break
        if not set(seen(lake).files) & set(parts):  # all is joined: again from the start
            shutil.rmtree(lake)
            lake = in_small_files(tmp_path, "lake", 5)
            parts = seen(lake).files
        process = start_verb("compact", "--lake", str(lake))
        time.sleep(chance.uniform(0.3, 1) * alone_s)
        killed += process.poll() is None
        alone_s *= 1 if process.returncode is None else FASTER
        process.kill()
        process.communicate()
        assert answers_of(lake) == expected
        assert check_lake(str(lake)).faults == ()
    assert ended(start_verb("compact", "--lake", str(lake)))
    assert killed == kills
    files = seen(lake).files
    assert {(f.table_name, f.session_id, f.segment, f.hosts) for f in files} == compacted
    assert len(files) == len(compacted)
    assert answers_of(lake) == expected


def test_questions_are_answered_the_same_while_a_lake_is_compacted_vacuumed_and_pruned(
    tmp_path: Path,
) -> None:
    lake = in_small_files(tmp_path, "lake", 4)
    expected = answers_of(lake)[1:]
    failures: list[object] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            with connect(f"lake:{lake}") as queries:
                for _ in range(3):
                    found = questions_of(queries)
                    if found != expected:
                        failures.append(found)

    asking = [threading.Thread(target=ask, name=f"asking-{number}") for number in range(2)]
    for thread in asking:
        thread.start()
    try:
        # Two at once, then what deletes files and another session.
        for verbs in (
            (["compact"], ["compact"]),
            (["vacuum"], ["prune", "--session", JOB]),
            (["compact"], ["vacuum"]),
        ):
            assert all(ended(process) for process in [start_verb(*v, "--lake", str(lake)) for v in verbs])
    finally:
        is_over.set()
        for thread in asking:
            thread.join()
    assert failures == []
    assert {file.session_id for file in seen(lake).of_table("session")} == {STORY}
    assert check_lake(str(lake)).faults == ()


def test_questions_are_answered_the_same_while_vacuum_deletes_what_was_joined_and_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers have the newest version: of others nothing is kept."""
    lake = in_small_files(tmp_path, "lake", 4)
    _, *expected = answers_of(lake)
    before = {file.path for file in seen(lake).files}
    compact_lake(str(lake))
    prune_lake(str(lake), Limits(), [JOB])
    newest = seen(lake)
    gone = before - {file.path for file in newest.files}
    asked, failures = [0, 0], list[object]()
    is_over, delete = threading.Event(), LakeFiles.delete

    def delete_beside_questions(files: LakeFiles, path: str) -> None:
        time.sleep(1.0 / len(gone))
        delete(files, path)

    def ask(number: int) -> None:
        while not is_over.is_set():
            try:
                with LakeQueries(str(lake), version=newest.version) as queries:
                    found = questions_of(queries)
            except RankmemError as exc:
                found = [exc]
            failures.extend([found] if found != expected else [])
            asked[number] += 1

    def asked_again() -> None:
        before = list(asked)
        until("both have asked again", lambda: all(map(operator.lt, before, asked)))

    monkeypatch.setattr(LakeFiles, "delete", delete_beside_questions)
    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask, number) for number in range(2)]
        try:
            asked_again()
            vacuums = [threads.submit(vacuum_lake, str(lake), kept_hours=0) for _ in range(2)]
            deleted = {file.path for vacuum in vacuums for file in vacuum.result().files}
            asked_again()
        finally:
            is_over.set()
    assert [reader.result() for reader in asking] == [None, None]
    assert failures == []
    assert gone
    assert gone <= deleted
    assert not any((lake / path).exists() for path in gone)
    assert check_lake(str(lake)).faults == ()
