"""``rankmem lake compact``: the same rows in fewer files, exchanged at once, safe beside others."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import deltalake
import duckdb
import pytest
from deltalake.exceptions import CommitFailedError

from lake_checks import num_rows
from lake_pieces import LANES, WRITER, catalog_of, in_pieces, write_piece
from lake_story import JOB, STORY, lake_story
from rankmem_aggregator import connect
from rankmem_aggregator.lake import compact as compacting
from rankmem_aggregator.lake.catalog import Catalog, add_progress, open_progress
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.compact import compact_lake, due
from rankmem_aggregator.lake.delta import DeltaLog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.layout import TABLES, digest, order_of
from rankmem_aggregator.lake.queries import LakeQueries
from rankmem_protos.errors import Code, RankmemError
from repetitions import long_but
from two_sessions import NEW, OLD, two_sessions

pytestmark = pytest.mark.slow
PIECES = 6
PART_ROWS = 200


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story in one piece, cut by hosts and by time."""
    folder = tmp_path_factory.mktemp("whole")
    import_database(lake_story(folder / "story.duckdb"), str(folder / "imported"), part_rows=PART_ROWS)
    in_pieces(folder / "imported", str(folder / "lake"), random.Random(2), 1)
    appended = [name for name, table in TABLES.items() if not table.key]
    found, expected = rows_of(str(folder / "lake")), rows_of(str(folder / "imported"))
    assert [name for name in appended if found[name] != expected[name]] == []
    return folder / "lake"


@pytest.fixture(scope="module")
def small_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small sessions in pieces."""
    folder = tmp_path_factory.mktemp("small")
    import_database(two_sessions(folder / "two.duckdb"), str(folder / "imported"))
    in_pieces(folder / "imported", str(folder / "lake"), random.Random(1), PIECES)
    return folder / "lake"


@pytest.fixture
def small(small_original: Path, tmp_path: Path) -> str:
    """A copy of the test's own."""
    return str(shutil.copytree(small_original, tmp_path / "lake"))


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no session were over."""
    monkeypatch.setattr(compacting, "sessions_over", lambda *about: frozenset())


@pytest.fixture(params=[False, True])
def is_over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether all sessions are over."""
    over = frozenset({OLD, NEW, STORY, JOB}) if request.param else frozenset()
    monkeypatch.setattr(compacting, "sessions_over", lambda *about: over)
    return bool(request.param)


def parts_of(catalog: Catalog) -> list[tuple[str, str, int, int]]:
    return [(f.table_name, f.session_id, f.segment, f.hosts) for f in catalog.files]


def rows_of(lake: str) -> dict[str, object]:
    """The rows of all tables, and how many files they are in does not matter."""
    with LakeQueries(lake) as queries:
        instance = queries._instance_of(None)
        return {
            name: instance._connection.sql(f"{instance.rows_of(table)} ORDER BY ALL").fetchall()
            for name, table in TABLES.items()
        }


def test_a_compacted_lake_has_the_rows_of_the_whole(whole: Path, tmp_path: Path, is_over: bool) -> None:
    lake = str(tmp_path / "lake")
    in_pieces(whole, lake, random.Random(3), PIECES)
    before = catalog_of(lake)
    assert rows_of(lake) == rows_of(str(whole))
    done = compact_lake(lake, part_rows=PART_ROWS)
    after = catalog_of(lake)
    assert (done.num_old - done.num_new, done.faults) == (len(before.files) - len(after.files), [])
    assert len(parts_of(after)) == len(set(parts_of(after)))
    assert set(parts_of(after)) == set(parts_of(before)) == set(parts_of(catalog_of(whole)))
    assert rows_of(lake) == rows_of(str(whole))
    assert check_lake(lake).faults == ()
    assert compact_lake(lake, part_rows=PART_ROWS).num_old == 0
    assert {file.writer for file in after.of_session(STORY)} == {compacting.WRITER if is_over else WRITER}
    with connect(f"lake:{whole}") as first, connect(f"lake:{lake}") as second:
        assert second.job_peak(STORY) == first.job_peak(STORY)
        assert second.peak_by(STORY, by="category") == first.peak_by(STORY, by="category")
        assert second.status(STORY, now_ns=0) == first.status(STORY, now_ns=0)


@pytest.mark.usefixtures("running")
def test_a_joined_file_has_the_order_of_the_layout_and_the_facts_of_its_pieces(
    whole: Path, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    in_pieces(whole, lake, random.Random(4), PIECES)
    facts = {
        (f.table_name, f.segment, f.hosts): (f.from_ns, f.until_ns, f.host_uids)
        for f in catalog_of(lake).of_session(STORY)
    }
    least = {
        (f.table_name, f.segment, f.hosts): f.sequence for f in reversed(catalog_of(lake).of_session(STORY))
    }
    compact_lake(lake, [STORY])
    for file in catalog_of(lake).of_session(STORY):
        columns = ", ".join(order_of(TABLES[file.table_name]))
        place = duckdb.read_parquet(f"{lake}/{file.path}")
        rows = place.project(columns).fetchall()
        assert rows == sorted(rows), file.path
        assert facts[file.table_name, file.segment, file.hosts] == (
            file.from_ns,
            file.until_ns,
            file.host_uids,
        )
        assert (file.writer, file.sequence) == (WRITER, least[file.table_name, file.segment, file.hosts])
        assert file.path.rpartition("/")[2].startswith(f"{file.sequence:09d}-")


def test_the_other_engines_see_what_counts_and_lanes_keep_their_sequence(small: str) -> None:
    compact_lake(small)
    files = LakeFiles(small)
    catalog = catalog_of(small)
    for name, table in TABLES.items():
        log = DeltaLog(files, table)
        assert {file.path for file in log.active()} == {file.path for file in catalog.of_table(name)}
        if catalog.of_table(name):
            assert log.last_sequence(LANES) > 0
    assert open_progress(files).transaction_version(LANES) == PIECES


@pytest.mark.usefixtures("is_over")
@pytest.mark.parametrize("is_late", long_but([False, True], True))
def test_what_comes_after_a_compaction_replaces_and_is_joined_again(small: str, is_late: bool) -> None:
    """Also from a writer that took its sequence long before: its commit was late."""
    (like, *_) = [f for f in catalog_of(small).of_table("session") if f.session_id == NEW]
    write_piece(small, [(like, [{"session_id": NEW, "command": "other"}])], PIECES + 5)
    sequence = like.sequence + 1 if is_late else PIECES + 6
    compact_lake(small)
    with connect(f"lake:{small}") as queries:
        (row,) = queries.sql("SELECT * FROM session WHERE session_id = $s", {"s": NEW}).to_pylist()
    write_piece(small, [(like, [row | {"command": "later"}])], sequence, app="late")
    for _ in range(2):
        with connect(f"lake:{small}") as queries:
            found = queries.sql("SELECT command FROM session WHERE session_id = $s", {"s": NEW})
        assert found["command"].to_pylist() == ["later"]
        compact_lake(small, [NEW])
    assert len([f for f in catalog_of(small).of_table("session") if f.session_id == NEW]) == 1


@pytest.mark.usefixtures("is_over")
def test_what_two_groups_of_hosts_know_of_a_session_is_one_row(small: str) -> None:
    (like, *_) = [f for f in catalog_of(small).of_table("session") if f.session_id == NEW]
    rows = [{"session_id": NEW, "command": f"group {hosts}"} for hosts in range(2)]
    new = [(dataclasses.replace(like, hosts=hosts), [row]) for hosts, row in enumerate(rows)]
    for number, piece in enumerate(new):
        write_piece(small, [piece], PIECES + 1 + number)
    for _ in range(2):
        with connect(f"lake:{small}") as queries:
            found = queries.sql("SELECT command FROM session WHERE session_id = $s", {"s": NEW})
        assert found["command"].to_pylist() == ["group 1"]
        compact_lake(small)


@pytest.mark.usefixtures("running")
def test_a_large_file_stays(small: str) -> None:
    compact_lake(small)
    (like,) = [f for f in catalog_of(small).of_table("memory_event") if f.session_id == OLD]
    with connect(f"lake:{small}") as queries:
        rows = queries.sql("SELECT * FROM memory_event WHERE session_id = $s", {"s": OLD}).to_pylist()
    many = [row | {"seq": 100 + number} for row in rows for number in range(2000)]
    (large,) = write_piece(small, [(like, many)], PIECES + 1)
    for number in range(2, 4):
        write_piece(small, [(like, rows)], PIECES + number)
    compact_lake(small, large_bytes=large.size_bytes)
    found = [f for f in catalog_of(small).of_table("memory_event") if f.session_id == OLD]
    assert sorted(file.num_rows for file in found) == [3 * len(rows), len(many)]
    assert large in found
    assert compact_lake(small, large_bytes=large.size_bytes).num_new == 0


def test_what_was_imported_stays_and_can_be_imported_again(tmp_path: Path) -> None:
    database = two_sessions(tmp_path / "two.duckdb")
    lake = str(tmp_path / "lake")
    import_database(database, lake)
    before = catalog_of(lake)
    assert compact_lake(lake).num_old == 0
    assert catalog_of(lake) == before
    assert set(import_database(database, lake).sessions.values()) == {"already there"}


def test_a_reader_keeps_the_version_it_opened(small: str) -> None:
    before = catalog_of(small)
    with LakeQueries(small, version=before.version) as queries:
        compact_lake(small)
        assert num_rows(queries) == num_rows(LakeQueries(small))
    assert catalog_of(small) != before


def test_a_session_that_is_not_there_is_refused(small: str) -> None:
    with pytest.raises(RankmemError, match="no session nobody") as refused:
        compact_lake(small, ["nobody"])
    assert refused.value.code is Code.NOT_FOUND


def test_of_two_compactions_at_once_one_counts(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one runs between the first one's files and its commit."""
    assert due(catalog_of(small).of_table("memory_event"))  # of which no row may be there twice
    expected = rows_of(small)
    exchange = compacting.exchange_progress
    monkeypatch.setattr(compacting, "exchange_progress", lambda *a, **o: (inner(), exchange(*a, **o))[1])

    def inner() -> None:
        monkeypatch.setattr(compacting, "exchange_progress", exchange)
        assert compact_lake(small).num_new > 0

    compact_lake(small)
    assert rows_of(small) == expected
    named = {file.path for file in catalog_of(small).files}
    there = {
        str(path.relative_to(small)) for path in Path(small).rglob("*-*.parquet") if "_delta" not in str(path)
    }
    mark = digest(compacting.WRITER)
    assert {path for path in there if mark in path} == {path for path in named if mark in path}


def test_what_a_writer_adds_meanwhile_stays(
    small: str, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    (like,) = [f for f in catalog_of(small).of_table("memory_event") if f.session_id == OLD][:1]
    with connect(f"lake:{small}") as queries:
        rows = queries.sql("SELECT * FROM memory_event WHERE session_id = $s", {"s": OLD}).to_pylist()
    rewrite = compacting.exchange_progress
    calls: list[object] = []

    def exchange(*arguments: Any, **options: Any) -> bool:
        calls.append(write_piece(small, [(like, rows[:1])], PIECES + 1 + len(calls)))
        return rewrite(*arguments, **options)

    monkeypatch.setattr(compacting, "exchange_progress", exchange)
    compact_lake(small, [OLD])
    assert len(calls) == (2 if is_over else 1)
    # What is cut is exchanged whole or not at all.
    assert compacting.WRITER not in {file.writer for file in catalog_of(small).files}
    with connect(f"lake:{small}") as queries:
        found = queries.sql("SELECT * FROM memory_event WHERE session_id = $s", {"s": OLD})
    assert found.num_rows == len(rows) + len(calls)


@pytest.mark.parametrize("fault", long_but(["torn", "missing", "changed"], "torn"))
def test_a_faulty_file_is_named_and_its_part_left_alone(small: str, fault: str, is_over: bool) -> None:
    group = due(catalog_of(small).of_table("memory_event"))[0]
    other = due(catalog_of(small).of_table("session"))[0]
    place = Path(small) / group[0].path
    content = bytearray(place.read_bytes())
    if fault == "missing":
        place.unlink()
    elif fault == "torn":
        place.write_bytes(content[:-3])
    else:
        content[40] ^= 0xFF
        place.write_bytes(content)
    done = compact_lake(small)
    assert [item.path for item in done.faults] == [group[0].path]
    assert set(group) <= set(catalog_of(small).files)
    if not is_over:
        assert set(other).isdisjoint(catalog_of(small).files)


def test_an_exchange_whose_answer_was_lost_deletes_nothing_that_counts(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy answers late, the store then says that the version is there: it is our own."""
    write, calls = deltalake.write_deltalake, itertools.count()

    def answered_late(*given: Any, **options: Any) -> None:
        write(*given, **options)
        if next(calls) == 0:
            raise CommitFailedError("the version is there already")

    with connect(f"lake:{small}") as queries:
        before = num_rows(queries)
    monkeypatch.setattr(deltalake, "write_deltalake", answered_late)
    compact_lake(small)
    assert check_lake(small).faults == ()
    with connect(f"lake:{small}") as queries:
        assert num_rows(queries) == before


@pytest.mark.parametrize("fault", long_but(["full", "truncated", "uncommitted"], "truncated", "uncommitted"))
def test_a_store_that_fails_leaves_what_counts_as_it_was(
    small: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    before = catalog_of(small)
    if fault == "uncommitted":
        monkeypatch.setattr(deltalake, "write_deltalake", _raise_full)
    else:
        monkeypatch.setattr(LakeFiles, "output", _full if fault == "full" else _truncated)
    with pytest.raises(
        RankmemError, match="cannot write" if fault != "truncated" else "not as it was"
    ) as failed:
        compact_lake(small)
    assert failed.value.code is Code.EXHAUSTED
    monkeypatch.undo()
    assert catalog_of(small) == before
    assert check_lake(small).faults == ()
    assert compact_lake(small).num_new > 0


def _raise_full(*arguments: Any, **options: Any) -> None:
    raise OSError("No space left on device")


@contextlib.contextmanager
def _full(files: LakeFiles, path: str) -> Iterator[Any]:
    yield mock.Mock(write=_raise_full)


@contextlib.contextmanager
def _truncated(files: LakeFiles, path: str) -> Iterator[Any]:
    """A store that takes all bytes, and keeps but the last."""
    taken = io.BytesIO()
    yield taken
    place = Path(files.place(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(taken.getvalue()[:-1])


def test_files_of_a_table_that_is_not_known_stay(small: str, is_over: bool) -> None:
    like = catalog_of(small).of_table("memory_event")[0]
    paths = [like.path.replace("memory_event", name) for name in ("later_table", "another_table")]
    foreign = [dataclasses.replace(like, table_name=path.partition("/")[0], path=path) for path in paths]
    foreign.append(dataclasses.replace(foreign[0], path=paths[0].replace(".parquet", "0.parquet")))
    for file in foreign:
        Path(small, file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(small, like.path), Path(small, file.path))
    add_progress(LakeFiles(small), foreign, app="later", sequence=1)
    expected = rows_of(small)
    assert compact_lake(small).num_new > 0
    assert set(foreign) <= set(catalog_of(small).files)
    assert rows_of(small) == expected
