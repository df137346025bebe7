"""``rankmem lake prune`` and ``vacuum``: sessions gone at once, files only when nobody can need them."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from lake_pieces import catalog_of, in_pieces, store_end, write_piece
from rankmem_aggregator import connect
from rankmem_aggregator.lake import compact as compacting
from rankmem_aggregator.lake import prune as pruning
from rankmem_aggregator.lake.catalog import (
    add_progress,
    exchange_progress,
    open_progress,
    read_catalog,
)
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.compact import compact_lake
from rankmem_aggregator.lake.delta import LOG_SETTINGS, DeltaLog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.lanes import PRUNED_NUMBER, Lanes, lane
from rankmem_aggregator.lake.late_details import detail_lane
from rankmem_aggregator.lake.layout import TABLES
from rankmem_aggregator.lake.prune import prune_lake
from rankmem_aggregator.lake.queries import LakeQueries
from rankmem_aggregator.lake.vacuum import vacuum_lake
from rankmem_aggregator.retention.limits import Limits
from rankmem_protos.errors import Code, RankmemError
from two_sessions import NEW, OLD, two_sessions

pytestmark = pytest.mark.slow
PIECES = 3
NOTHING = Limits()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OLD ended 40 days ago, NEW 2 days ago; a rank of each."""
    path = two_sessions(tmp_path_factory.mktemp("made") / "two.duckdb")
    store_end(path, OLD, 40)
    store_end(path, NEW, 2)
    return path


@pytest.fixture(scope="module")
def made(database: Path) -> Path:
    folder = database.parent
    import_database(database, str(folder / "imported"))
    in_pieces(folder / "imported", str(folder / "lake"), random.Random(1), PIECES)
    return folder / "lake"


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(made, tmp_path / "lake"))


def sessions_of(lake: str) -> set[str]:
    with LakeQueries(lake) as queries:
        return set(queries.sql("SELECT session_id FROM session")["session_id"].to_pylist())


def age(lake: str, hours: float) -> None:
    """Makes all files of the tables older, but for the logs."""
    when = time.time() - hours * 3600
    for path in Path(lake).rglob("*"):
        if path.is_file() and "_delta_log" not in path.parts:
            os.utime(path, (when, when))


def paths_of(lake: str) -> set[str]:
    files = LakeFiles(lake)
    return {found.path for name in TABLES for found in files.listing(name) if "_delta_log" not in found.path}


def test_a_pruned_session_is_gone_and_remembered(lake: str) -> None:
    before = catalog_of(lake)
    done = prune_lake(lake, NOTHING, [OLD])
    assert (done.session_ids, done.num_kept, done.num_running) == ((OLD,), 1, 0)
    assert done.bytes_before - done.bytes_after > 0
    assert sessions_of(lake) == {NEW}
    assert {f.table_name for f in catalog_of(lake).of_session(OLD)} == {"pruned_spool"}
    assert set(catalog_of(lake).of_session(NEW)) == set(before.of_session(NEW))
    with connect(f"lake:{lake}") as queries:
        (row,) = queries.sql("SELECT * FROM pruned_spool").to_pylist()
        assert queries.sql("SELECT * FROM memory_event WHERE session_id = $s", {"s": OLD}).num_rows == 0
    assert (row["spool_id"], row["last_sequence"], row["final"]) == (f"spool-{OLD}", 7, True)
    assert (row["secret_hash"], row["has_rows"]) == ("abc", False)
    assert all(
        DeltaLog(LakeFiles(lake), t).active(OLD) == [] for t in TABLES.values() if t.name != "pruned_spool"
    )


def test_what_comes_later_of_a_pruned_session_meets_a_number_that_is_above_all(lake: str) -> None:
    files = LakeFiles(lake)
    with connect(f"lake:{lake}") as queries:
        spools = queries.sql(f"SELECT spool_id FROM ingest_progress WHERE session_id = '{OLD}'").to_pylist()
    prune_lake(lake, NOTHING, [OLD])
    lanes = Lanes(files)
    assert spools
    for name in (f(row["spool_id"]) for row in spools for f in (lane, detail_lane)):
        assert lanes.read_number(name) == PRUNED_NUMBER


@pytest.mark.parametrize(
    ("limits", "gone"),
    [
        (Limits(days=30), (OLD,)),
        (Limits(days=1), (OLD, NEW)),
        (Limits(days=60), ()),
        (Limits(sessions=1), (OLD,)),
        (Limits(size_bytes=1), (OLD, NEW)),
        (Limits(size_bytes=1 << 40), ()),
    ],
)
def test_limits_mean_what_they_do_for_a_database(lake: str, limits: Limits, gone: tuple[str, ...]) -> None:
    assert prune_lake(lake, limits).session_ids == gone
    assert sessions_of(lake) == {OLD, NEW} - set(gone)


def test_a_size_limit_prunes_no_more_than_it_takes(lake: str) -> None:
    catalog = catalog_of(lake)
    kept = sum(file.size_bytes for file in catalog.files if file.session_id != OLD)
    assert prune_lake(lake, Limits(size_bytes=kept + 1)).session_ids == (OLD,)


def test_running_and_unknown_sessions_are_refused(lake: str) -> None:
    (like, *_) = [f for f in catalog_of(lake).of_table("ingest_progress") if f.session_id == NEW]
    row = {
        "spool_id": "other", "session_id": NEW, "attempt": 1, "rank": 0, "last_sequence": 1, "final": False,
        "updated_ns": time.time_ns() - 3600 * 10**9, "secret_hash": None,
    }  # fmt: skip
    write_piece(lake, [(like, [row])], PIECES + 1)
    assert prune_lake(lake, Limits(days=0.01)).num_running == 1
    assert sessions_of(lake) == {NEW}
    for session, code in ((NEW, Code.CONFLICT), ("nobody", Code.NOT_FOUND)):
        with pytest.raises(RankmemError, match=session) as refused:
            prune_lake(lake, NOTHING, [session])
        assert refused.value.code is code


def test_a_pruned_session_is_not_imported_again_until_it_is_forgotten(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")
    import_database(database, lake)
    prune_lake(lake, NOTHING, [OLD])
    assert prune_lake(lake, NOTHING).session_ids == ()
    assert import_database(database, lake).sessions == {OLD: "pruned", NEW: "already there"}
    monkeypatch.setattr(pruning, "REMEMBERED_DAYS", 0)
    assert prune_lake(lake, NOTHING).session_ids == ()
    assert import_database(database, lake).sessions == {OLD: "written", NEW: "already there"}
    assert sessions_of(lake) == {OLD, NEW}


def test_a_session_that_goes_on_meanwhile_is_not_pruned(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (like, *_) = [f for f in catalog_of(lake).of_table("session") if f.session_id == OLD]
    exchange = pruning.exchange_progress

    def late(*arguments: Any, **options: Any) -> bool:
        write_piece(lake, [(like, [{"session_id": OLD, "command": "again"}])], PIECES + 1)
        return exchange(*arguments, **options)

    monkeypatch.setattr(pruning, "exchange_progress", late)
    with pytest.raises(RankmemError, match="meanwhile") as refused:
        prune_lake(lake, NOTHING, [OLD])
    assert refused.value.code is Code.CONFLICT
    assert sessions_of(lake) == {OLD, NEW}


def test_a_reader_keeps_what_was_pruned(lake: str) -> None:
    with LakeQueries(lake, version=catalog_of(lake).version) as queries:
        prune_lake(lake, NOTHING, [OLD])
        vacuum_lake(lake)
        assert set(queries.sessions()["session_id"].to_pylist()) == {OLD, NEW}
        assert queries.sql("SELECT DISTINCT session_id FROM memory_event").num_rows == 2


def test_what_was_joined_and_pruned_goes_after_a_day(lake: str) -> None:
    files = LakeFiles(lake)
    before = paths_of(lake)
    compact_lake(lake)
    prune_lake(lake, NOTHING, [OLD])
    named = {file.path for file in catalog_of(lake).files}
    assert vacuum_lake(lake).files == ()
    age(lake, 23)
    assert vacuum_lake(lake).files == ()
    age(lake, 25)
    assert vacuum_lake(lake, kept_hours=24).files == ()  # their exchange is of today
    shown = vacuum_lake(lake, kept_hours=0, dry_run=True)
    assert before | named <= paths_of(lake)
    done = vacuum_lake(lake, kept_hours=0)
    assert done == shown
    assert done.size_bytes > 0
    assert paths_of(lake) == named == {file.path for file in catalog_of(lake).files}
    assert check_lake(lake).faults == ()
    progress = {found.path for found in files.listing("lake_progress") if "_delta_log" not in found.path}
    assert len(progress) == len(open_progress(files).file_uris())
    assert vacuum_lake(lake, kept_hours=0).files == ()


def test_orphans_of_dead_writers_go_after_a_day_and_nothing_foreign(lake: str) -> None:
    folder = Path(lake) / Path(catalog_of(lake).of_table("memory_event")[0].path).parent
    orphans = [folder / "000000009-aa-bb.parquet", folder / ".000000009-aa-bb.parquet.123.tmp"]
    foreign = [
        folder / "mine.txt",
        folder / ".keep",
        Path(lake) / "memory_event" / "x.parquet",
        Path(lake) / "y",
    ]
    for path in (*orphans, *foreign):
        path.write_bytes(b"PAR1")
    named = {file.path for file in catalog_of(lake).files}
    assert vacuum_lake(lake).files == ()
    age(lake, 25)
    assert [Path(lake) / file.path for file in vacuum_lake(lake).files] == sorted(orphans)
    assert not any(path.exists() for path in orphans)
    assert all(path.exists() for path in foreign)
    assert named <= paths_of(lake)


def test_what_a_writer_has_not_yet_made_count_stays(lake: str) -> None:
    """An import that was killed: its files are in the tables' logs, and it goes on another day."""
    files = LakeFiles(lake)
    (like, *_) = catalog_of(lake).of_table("memory_event")
    pending = dataclasses.replace(like, path=like.path.replace(".parquet", "0.parquet"))
    shutil.copy(Path(lake) / like.path, Path(lake) / pending.path)
    DeltaLog(files, TABLES["memory_event"]).commit([pending], [])
    age(lake, 100)
    assert vacuum_lake(lake).files == ()
    assert pending.path in {file.path for file in DeltaLog(files, TABLES["memory_event"]).active()}


@pytest.mark.parametrize("what", ["compact", "prune"])
def test_a_vacuum_ends_what_a_kill_kept_from_the_logs(
    lake: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    module = compacting if what == "compact" else pruning
    monkeypatch.setattr(module, "exchange_in_logs", lambda *about: None)
    if what == "compact":
        compact_lake(lake)
    else:
        prune_lake(lake, NOTHING, [OLD])
    logs = {name: DeltaLog(LakeFiles(lake), table) for name, table in TABLES.items()}
    named = {file.path for file in catalog_of(lake).files}
    assert {file.path for log in logs.values() for file in log.active()} != named
    vacuum_lake(lake, dry_run=True)
    assert {file.path for log in logs.values() for file in log.active()} != named
    vacuum_lake(lake)
    assert {file.path for log in logs.values() for file in log.active()} == named


def test_a_log_gets_the_settings_that_keep_it_short(lake: str) -> None:
    opened = open_progress(LakeFiles(lake))
    assert opened.metadata().configuration == LOG_SETTINGS
    opened.alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})
    vacuum_lake(lake)
    assert open_progress(LakeFiles(lake)).metadata().configuration == LOG_SETTINGS


def test_what_is_no_lake_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "memory_event").mkdir()
    for act in (vacuum_lake, compact_lake):
        with pytest.raises(RankmemError, match="no lake of rankmem"):
            act(str(tmp_path))


def test_joining_lake_progress_keeps_what_an_older_rankmem_wrote(lake: str) -> None:
    files = LakeFiles(lake)
    (like, *_) = catalog_of(lake).files
    older = dataclasses.replace(like, session_id="0OLDER", path=like.path.replace(like.session_id, "0OLDER"))
    older = dataclasses.replace(older, layout_version=1)
    add_progress(files, [older], app="older", sequence=1)
    assert exchange_progress(files, (), ())
    assert older in read_catalog(files, is_answered=False).files
    assert len(open_progress(files).file_uris()) == 1


def test_a_session_with_a_file_of_a_table_that_is_not_known_is_pruned(lake: str) -> None:
    like = next(file for file in catalog_of(lake).of_table("session") if file.session_id == OLD)
    foreign = dataclasses.replace(like, table_name="later", path=like.path.replace("session/", "later/", 1))
    add_progress(LakeFiles(lake), [foreign], app="later", sequence=1)
    prune_lake(lake, NOTHING, [OLD])
    assert catalog_of(lake).session_ids() == [NEW]
    assert foreign not in catalog_of(lake).files
