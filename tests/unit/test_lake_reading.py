"""What a lake may not do to whoever reads it, and what it says where files are gone, torn, newer or older."""

from __future__ import annotations

import dataclasses
import gc
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_checks import num_rows, quick_differences, with_hashes
from lake_story import JOB, STORY, lake_story
from rankmem_aggregator import connect
from rankmem_aggregator.lake import files as lake_files
from rankmem_aggregator.lake import queries as lake_queries
from rankmem_aggregator.lake.catalog import read_catalog, replace_progress
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.compact import compact_lake
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.lanes import Lanes
from rankmem_aggregator.lake.layout import LAYOUT_VERSION, DataFile
from rankmem_aggregator.lake.vacuum import vacuum_lake
from rankmem_aggregator.query.types import SessionId
from rankmem_aggregator.sql import query_text
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import SCHEMA_VERSION
from seaweed import reached_at
from two_sessions import NEW, OLD, two_sessions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    import_database(two_sessions(folder / "two.duckdb"), str(folder / "lake"))
    return folder / "lake"


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "lake"))


def file_of(lake: Path, table: str, session: str) -> Path:
    files = read_catalog(LakeFiles(str(lake)))
    (found,) = [file for file in files.of_table(table) if file.session_id == session]
    return lake / found.path


EVENTS = "SELECT * FROM memory_event"


def refusal(lake: Path, text: str = "SELECT count(*) FROM memory_event", **given: str) -> RankmemError:
    with pytest.raises(RankmemError) as refused, connect(f"lake:{lake}") as queries:
        queries.sql(text, given)
    return refused.value


def replaced(lake: Path, session: str, change: Callable[[DataFile], DataFile]) -> None:
    """Another lake_progress for a session."""
    files = LakeFiles(str(lake))
    present = read_catalog(files).of_session(session)
    new = [change(file) for file in present]
    replace_progress(files, session, present[0].writer, new, app=f"test/{session}", sequence=1)


def test_a_missing_file_fails_the_question_and_is_named(lake: Path) -> None:
    gone = file_of(lake, "memory_event", OLD)
    gone.unlink()
    for told in (refusal(lake), refusal(lake, query_text("job_peak"), session=OLD)):
        assert told.code is Code.INVALID
        assert str(gone) in told.message
        assert "missing" in told.message
    checked = check_lake(str(lake))
    assert [(fault.what, lake / fault.path) for fault in checked.faults] == [("missing", gone)]


def test_a_question_about_a_session_needs_no_file_of_another(lake: Path) -> None:
    with connect(f"lake:{lake}") as queries:
        expected = queries.peak(queries.session_id(OLD))
    for table in ("memory_event", "memory_bucket"):
        file_of(lake, table, NEW).unlink()
    with connect(f"lake:{lake}") as queries:
        assert queries.peak(SessionId(OLD)) == expected
        with pytest.raises(RankmemError, match="missing"):
            queries.peak(SessionId(NEW))
        with pytest.raises(RankmemError, match="missing"):
            queries.sql("SELECT * FROM peak_by_rank WHERE session_id = $session", {"session": OLD})


def test_a_statement_of_the_user_is_about_all_sessions_whatever_its_parameters(lake: Path) -> None:
    with connect(f"lake:{lake}") as queries:
        rows = queries.sql("SELECT session_id FROM session WHERE session_id <> $session", {"session": OLD})
    assert rows["session_id"].to_pylist() == [NEW]


@pytest.mark.parametrize("cut", [1, 9, 300])
def test_a_torn_file_fails_the_question_and_is_named(lake: Path, cut: int) -> None:
    torn = file_of(lake, "memory_event", OLD)
    torn.write_bytes(torn.read_bytes()[:-cut])
    told = refusal(lake)
    assert told.code is Code.INVALID
    assert str(torn) in told.message
    assert "torn" in told.message
    assert [lake / fault.path for fault in check_lake(str(lake)).faults] == [torn]


def test_a_check_finds_a_changed_byte(lake: Path) -> None:
    changed = file_of(lake, "allocation_record", OLD)
    content = bytearray(changed.read_bytes())
    column = pq.ParquetFile(changed).metadata.row_group(0).column(0)
    content[column.data_page_offset + 30] ^= 0xFF
    changed.write_bytes(content)
    (fault,) = check_lake(str(lake)).faults
    assert lake / fault.path == changed


def test_another_parquet_file_in_the_place_of_one_fails_the_question(lake: Path) -> None:
    foreign = file_of(lake, "memory_event", OLD)
    pq.write_table(pa.table({"session_id": [OLD], "rank": [0]}), foreign)
    assert str(foreign) in refusal(lake).message


@pytest.mark.parametrize(
    "text", [EVENTS, "FROM query_table('memory'||'_event')", """FROM "query"('FROM '||'memory_event')"""]
)
def test_sizes_are_compared_for_every_question(lake: Path, text: str) -> None:
    own = file_of(lake, "memory_event", OLD)
    content = own.read_bytes()
    with connect(f"lake:{lake}") as queries:
        expected = queries.sql(text)
        pq.write_table(pq.read_table(own, partitioning=None).slice(1), own)
        with pytest.raises(RankmemError, match="it is torn, or another file") as refused:
            queries.sql(text)
        assert refused.value.code is Code.INVALID
        assert str(own) in refused.value.message
        own.unlink()
        with pytest.raises(RankmemError, match=f"{own} is missing"):
            queries.sql(text)
        own.write_bytes(content)
        assert queries.sql(text) == expected


def test_a_file_that_is_not_named_is_not_read(lake: Path) -> None:
    own = file_of(lake, "memory_event", OLD)
    with connect(f"lake:{lake}") as queries:
        before = queries.sql("SELECT count(*) AS n FROM memory_event")
    shutil.copy(own, own.with_name("000000099-0-0.parquet"))
    with connect(f"lake:{lake}") as queries:
        assert queries.sql("SELECT count(*) AS n FROM memory_event") == before


def test_a_link_that_leads_out_of_the_lake_is_not_followed(lake: Path, tmp_path: Path) -> None:
    own = file_of(lake, "memory_event", OLD)
    own.rename(tmp_path / "elsewhere.parquet")
    own.symlink_to(tmp_path / "elsewhere.parquet")
    assert str(own) in refusal(lake).message


def test_what_is_no_lake_is_refused_by_name(tmp_path: Path) -> None:
    database = two_sessions(tmp_path / "two.duckdb")
    (tmp_path / "folder").mkdir()
    pq.write_table(pa.table({"rank": [0]}), tmp_path / "folder" / "memory_event.parquet")
    for place, code in (
        ("nothing", Code.NOT_FOUND),
        ("folder", Code.INVALID),
        ("two.duckdb", Code.NOT_FOUND),
    ):
        with pytest.raises(RankmemError, match=place) as refused:
            connect(f"lake:{tmp_path / place}")
        assert refused.value.code is code
    assert database.is_file()


def test_what_is_no_lake_is_refused_with_both_that_write_one(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(RankmemError) as refused:
            connect(f"lake:{place}")
        assert "rankmem lake import" in refused.value.hint
        assert "rankmem serve --lake" in refused.value.hint


def broken_log(lake: Path, table: str) -> Path:
    """The table's log, the newest commit of which is damaged."""
    folder = lake / table / "_delta_log"
    max(folder.glob("*.json")).write_text('{"add": {broken')
    return folder.parent


def test_a_damaged_log_is_named_and_no_check_is_advised_that_would_fail_the_same_way(lake: Path) -> None:
    place = broken_log(lake, "lake_progress")
    for ask in (connect, check_lake, vacuum_lake, compact_lake):
        with pytest.raises(RankmemError) as refused:
            ask(f"lake:{lake}")  # type: ignore[operator]
        assert refused.value.code is Code.INVALID
        assert refused.value.message.startswith(f"cannot read {place}: Kernel error: ")
        assert "\n" not in refused.value.message
        assert "<unknown>" not in refused.value.message
        assert "lake check" not in refused.value.hint


def test_a_damaged_log_of_a_table_is_named_by_what_writes_it(lake: Path, tmp_path: Path) -> None:
    place = broken_log(lake, "session")
    story = lake_story(tmp_path / "story.duckdb")
    for ask in (vacuum_lake, lambda to: import_database(story, to)):
        with pytest.raises(RankmemError) as refused:
            ask(str(lake))
        assert refused.value.code is Code.INVALID
        assert refused.value.message.startswith(f"cannot read {place}: Kernel error: ")
    with connect(f"lake:{lake}") as queries:  # no reader needs it
        assert queries.sessions().num_rows == 2


@pytest.mark.parametrize("ask", [connect, check_lake, vacuum_lake, compact_lake, Lanes])
def test_a_store_that_is_away_is_named_with_what_to_look_at(
    ask: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lake_files.READING, "retry_timeout", "0s")
    lake = "s3://bucket/lake"
    with reached_at("http://127.0.0.1:9"), pytest.raises(RankmemError) as refused:
        ask(LakeFiles(lake) if ask is Lanes else lake)
    assert refused.value.code is Code.UNAVAILABLE
    assert refused.value.message.startswith(f"cannot read {lake}/lake_progress: ")
    assert "\n" not in refused.value.message
    for word in ("AWS_ENDPOINT_URL", "AWS_REGION", "credentials"):
        assert word in refused.value.hint
    assert "lake check" not in refused.value.hint


def test_a_store_that_fails_once_the_table_was_not_found_is_away_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(files: LakeFiles) -> bool:
        raise OSError("Generic S3 error\n  NoSuchBucket")

    monkeypatch.setattr(LakeFiles, "is_there", away)
    with pytest.raises(RankmemError, match="Generic S3 error: NoSuchBucket") as refused:
        connect(f"lake:{tmp_path}")
    assert refused.value.code is Code.UNAVAILABLE


def test_a_lake_of_a_newer_schema_is_refused(lake: Path) -> None:
    newer = SCHEMA_VERSION + 1
    replaced(lake, NEW, lambda file: dataclasses.replace(file, schema_version=newer))
    told = refusal(lake)
    assert told.code is Code.UNSUPPORTED
    assert str(newer) in told.message


def without_layout(lake: Path) -> None:
    """lake_progress as a version wrote it that knew one layout."""
    rows = pa.table(deltalake.DeltaTable(lake / "lake_progress").to_pyarrow_table())
    shutil.rmtree(lake / "lake_progress")
    states = pa.array([f"older-{state}" for state in rows["state"].to_pylist()])
    rows = rows.set_column(rows.column_names.index("state"), "state", states)
    deltalake.write_deltalake(lake / "lake_progress", rows.drop_columns(["layout_version"]))


def test_a_lake_of_a_newer_layout_is_refused(lake: Path) -> None:
    newer = LAYOUT_VERSION + 1
    replaced(lake, NEW, lambda file: dataclasses.replace(file, layout_version=newer))
    told = refusal(lake)
    assert told.code is Code.UNSUPPORTED
    assert f"layout version {newer}" in told.message


def test_a_lake_of_a_layout_that_would_be_read_wrongly_is_refused_until_it_is_imported_again(
    tmp_path: Path,
) -> None:
    database, lake = two_sessions(tmp_path / "two.duckdb"), tmp_path / "lake"
    import_database(database, str(lake))
    with connect(f"lake:{lake}") as queries:
        expected = queries.peak(SessionId(OLD))
    without_layout(lake)
    told = refusal(lake)
    assert told.code is Code.UNSUPPORTED
    assert f"session {min(OLD, NEW)} in layout 1" in told.message
    assert {fault.what.partition(",")[0] for fault in check_lake(str(lake)).faults} == {"layout 1"}
    assert import_database(database, str(lake)).sessions == {OLD: "replaced", NEW: "replaced"}
    assert check_lake(str(lake)).faults == ()
    with connect(f"lake:{lake}") as queries:
        assert queries.peak(SessionId(OLD)) == expected


def without_column(lake: Path, session: str) -> None:
    """The lake as a version wrote it that did not know stack_id of memory_event."""

    def older(file: DataFile) -> DataFile:
        if file.table_name == "memory_event":
            place = lake / file.path
            pq.write_table(pq.read_table(place, partitioning=None).drop_columns(["stack_id"]), place)
            file = dataclasses.replace(file, size_bytes=place.stat().st_size)
        return dataclasses.replace(file, schema_version=SCHEMA_VERSION - 1)

    replaced(lake, session, older)


@pytest.mark.parametrize("sessions", [(OLD,), (OLD, NEW)])
def test_columns_that_an_older_lake_lacks_are_null(lake: Path, sessions: tuple[str, ...]) -> None:
    statement = "SELECT * EXCLUDE (stack_id) FROM memory_event ORDER BY ALL"
    with connect(f"lake:{lake}") as queries:
        before = queries.sql(statement)
    for session in sessions:
        without_column(lake, session)
    with connect(f"lake:{lake}") as queries:
        assert queries.sql(statement) == before
        assert queries.sql("SELECT DISTINCT stack_id FROM memory_event")["stack_id"].to_pylist() == [None]


@pytest.mark.parametrize(
    "path", ["/etc/hostname", "memory_event/../../x.parquet", "memory_event/session_id=a/*.parquet"]
)
def test_a_lake_that_names_files_elsewhere_is_refused(lake: Path, path: str) -> None:
    replaced(lake, NEW, lambda file: dataclasses.replace(file, path=path))
    with pytest.raises(RankmemError, match="names a file outside of it"):
        connect(f"lake:{lake}")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_parquet('{lake}/lake_progress/*.parquet')",
        "SELECT * FROM read_text('{lake}/lake_progress/_delta_log/00000000000000000000.json')",
        "SELECT * FROM glob('{lake}/*')",
        "COPY (SELECT 1) TO '{lake}/x.csv'",
        "COPY (SELECT 1) TO '{file}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{file}'",
        "ATTACH '{lake}/x.duckdb'",
        "CREATE TABLE x (i INTEGER)",
        "CREATE OR REPLACE VIEW memory_event AS SELECT 1",
        "SET enable_external_access = true",
        "SET allowed_paths = ['/etc/hostname']",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA enable_profiling; PRAGMA profiling_output = '{file}'; SELECT 1",
    ],
)
def test_statements_reach_nothing_but_the_files_that_count(lake: Path, statement: str) -> None:
    """Each is refused, and the lake is as it was."""
    before = {path: path.read_bytes() for path in lake.rglob("*") if path.is_file()}
    file = file_of(lake, "memory_event", OLD)
    with connect(f"lake:{lake}") as queries, pytest.raises(RankmemError) as refused:
        queries.sql(statement.format(lake=lake, file=file))
    assert refused.value.code in (Code.DENIED, Code.INVALID)
    assert {path: path.read_bytes() for path in lake.rglob("*") if path.is_file()} == before


def test_a_reader_that_stays_open_sees_what_is_imported_later(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_queries, "FRESH_S", 0.0)
    lake = Path(shutil.copytree(made, tmp_path / "lake"))
    story = lake_story(tmp_path / "story.duckdb")
    with duckdb.connect(story) as connection:
        connection.execute("UPDATE rankmem_meta SET database_id = 'abc'")
    with connect(f"lake:{lake}") as queries, lake_queries.LakeQueries(str(lake), version=0) as none:
        batches = queries.stream("SELECT * FROM memory_event ORDER BY ALL")
        next(batches)
        import_database(story, str(lake))
        assert {STORY, JOB, OLD, NEW} == set(queries.sessions()["session_id"].to_pylist())
        assert list(batches) == []
        assert none.sessions().num_rows == 0


def test_a_lake_becomes_a_database_again(tmp_path: Path) -> None:
    database = lake_story(tmp_path / "story.duckdb")
    import_database(database, str(tmp_path / "lake"), part_rows=60)
    with connect(f"lake:{tmp_path / 'lake'}") as lake:
        lake.copy_to(tmp_path / "back.duckdb")
    hashed = with_hashes(database, tmp_path / "hashed.duckdb")
    with connect(tmp_path / "back.duckdb") as back, connect(hashed) as file:
        assert num_rows(back) == num_rows(file) > 1000
        assert quick_differences(file, back, STORY) == []
        assert back.live(0, STORY) == file.live(0, STORY)


def test_a_reader_leaves_no_folder_behind(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with connect(f"lake:{made}") as queries:
        queries.peak(OLD)
        folders = list(tmp_path.iterdir())
        assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
        assert len(folders) == 2  # all sessions, and the one
    del queries
    gc.collect()
    assert list(tmp_path.iterdir()) == []
