"""A database file in a lake: written once whatever happens, and seen whole or not at all."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from constructed import store_rows
from lake_story import JOB, STORY, lake_story
from rankmem_aggregator import connect
from rankmem_aggregator.lake import import_ as importing
from rankmem_aggregator.lake.catalog import Catalog, read_catalog
from rankmem_aggregator.lake.delta import DeltaLog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.layout import TABLES, file_schema
from rankmem_aggregator.lake.parquet import write_rows
from rankmem_protos.errors import Code, RankmemError
from repetitions import PROFILE, long_but
from two_sessions import NEW, OLD, two_sessions

pytestmark = pytest.mark.slow

PART_ROWS = 60
COMMITS = 7
"""Of an import of the two sessions that goes on behind its 14th."""


class Killed(BaseException):
    """As if the process had ended here."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_sessions(tmp_path_factory.mktemp("two") / "two.duckdb")


@pytest.fixture
def database(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "two.duckdb"))


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def catalog_of(lake: str) -> Catalog:
    return read_catalog(LakeFiles(lake))


def bytes_of(lake: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(lake).rglob("*")) if path.is_file()}


def events_of(target: str | Path, session: str) -> list[dict[str, Any]]:
    with connect(target) as queries:
        statement = "SELECT * FROM memory_event WHERE session_id = $s ORDER BY ALL"
        rows: list[dict[str, Any]] = queries.sql(statement, {"s": session}).to_pylist()
    return rows


def grow(database: Path) -> None:
    """A free that is stored later."""
    with duckdb.connect(database) as connection:
        statement = "SELECT * FROM memory_event WHERE session_id = $s AND rank = 1"
        (row,) = connection.sql(statement, params={"s": NEW}).to_arrow_table().to_pylist()
        row |= {"seq": 7, "time_ns": row["time_ns"] + 9, "action": "free_completed", "requested_bytes": 0}
        store_rows(connection, "memory_event", [row])


def test_importing_again_writes_nothing(database: Path, lake: str) -> None:
    assert import_database(database, lake).sessions == {OLD: "written", NEW: "written"}
    before = bytes_of(lake)
    done = import_database(database, lake)
    assert done.sessions == {OLD: "already there", NEW: "already there"}
    assert (done.rows, bytes_of(lake)) == (0, before)


def test_a_lake_has_the_rows_in_the_order_of_rank_and_log(tmp_path: Path, lake: str) -> None:
    import_database(lake_story(tmp_path / "story.duckdb"), lake, part_rows=PART_ROWS)
    files = LakeFiles(lake)
    for file in catalog_of(lake).of_table("memory_event"):
        place = duckdb.read_parquet(files.place(file.path))
        ranks = place.project("attempt, rank, seq").fetchall()
        assert ranks == sorted(ranks)


def test_columns_that_must_have_a_value_have_no_levels(database: Path, lake: str) -> None:
    """Which readers would decode for each row."""
    import_database(database, lake)
    for file in catalog_of(lake).of_table("memory_event"):
        stored = pq.ParquetFile(LakeFiles(lake).place(file.path)).schema
        levels = {stored.column(n).name: stored.column(n).max_definition_level for n in range(len(stored))}
        assert (levels["rank"], levels["seq"], levels["requested_bytes"]) == (0, 0, 1)


def session_rows(*sources: str | None) -> pa.RecordBatch:
    whole = file_schema(TABLES["session"])
    rows = [{"session_id": "S", "name": "n", "source": source} for source in sources]
    return pa.RecordBatch.from_pylist(rows, schema=whole)


def test_a_column_that_an_older_database_lacks_is_null_and_a_lost_value_is_refused(lake: str) -> None:
    files = LakeFiles(lake)
    lacking, whole = session_rows(None, None), session_rows("live")
    assert write_rows(files, "session/lacking.parquet", TABLES["session"], iter([lacking]))[0] == 2
    assert pq.read_table(files.place("session/lacking.parquet"))["source"].null_count == 2
    with pytest.raises(RankmemError, match="source") as refused:
        write_rows(files, "session/lost.parquet", TABLES["session"], iter([whole, lacking]))
    assert refused.value.code is Code.INVALID
    assert files.size_of("session/lost.parquet") is None


def test_a_row_is_in_the_segment_of_its_time_on_the_common_clock(tmp_path: Path, lake: str) -> None:
    database = lake_story(tmp_path / "story.duckdb")
    import_database(database, lake, part_rows=PART_ROWS)
    with connect(database) as queries:
        spans = queries.sql(
            "SELECT attempt, rank, offset_ns FROM rank_span WHERE session_id = $s", {"s": STORY}
        )
        offset_of = {(row["attempt"], row["rank"]): row["offset_ns"] for row in spans.to_pylist()}
        assert len(set(offset_of.values())) > 1
    files = [file for file in catalog_of(lake).of_table("memory_event") if file.session_id == STORY]
    assert len({file.segment for file in files}) > 3
    for file in files:
        assert file.from_ns is not None
        assert file.until_ns is not None
        rows = duckdb.read_parquet(LakeFiles(lake).place(file.path))
        times = [
            time + offset_of[at, rank] for at, rank, time in rows.project("attempt, rank, time_ns").fetchall()
        ]
        assert times
        assert file.from_ns <= min(times)
        assert max(times) < file.until_ns


def test_openings_are_what_each_rank_held_where_a_segment_begins(tmp_path: Path, lake: str) -> None:
    """Held against a walk through the events of the database."""
    database = lake_story(tmp_path / "story.duckdb")
    import_database(database, lake, part_rows=PART_ROWS)
    with connect(database) as queries:
        events = queries.sql(
            "SELECT e.attempt, e.rank, e.device, e.seq, e.requested_bytes, e.time_ns + s.offset_ns AS at "
            "FROM memory_event AS e INNER JOIN rank_span AS s USING (session_id, attempt, rank) "
            "WHERE session_id = $s ORDER BY e.seq",
            {"s": STORY},
        ).to_pylist()
    (file,) = [file for file in catalog_of(lake).of_table("opening") if file.session_id == STORY]
    rows = duckdb.read_parquet(LakeFiles(lake).place(file.path)).to_arrow_table().to_pylist()
    tracks = {(event["attempt"], event["rank"], event["device"]) for event in events}
    assert len(rows) == len(tracks) * len({row["of_segment"] for row in rows}) > 30
    for row in rows:
        own = [
            e
            for e in events
            if (e["attempt"], e["rank"], e["device"]) == (row["attempt"], row["rank"], row["device"])
        ]
        before = [e for e in own if e["at"] < row["from_ns"]]
        inside = [e["requested_bytes"] for e in own if row["from_ns"] <= e["at"] < row["until_ns"]]
        assert row["opening_bytes"] == (before[-1]["requested_bytes"] if before else None)
        assert row["opening_seq"] == (before[-1]["seq"] if before else None)
        assert row["highest_bytes"] == max(inside, default=None)


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, *, before: bool) -> Callable[[], None]:
    """Ends the process before or after its commit of this number; returns what lifts that."""
    commits = itertools.count()

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def commit(*arguments: Any, **options: Any) -> Any:
            is_it = next(commits) == number
            if is_it and before:
                raise Killed
            original(*arguments, **options)
            if is_it:
                raise Killed

        return commit

    monkeypatch.setattr(DeltaLog, "commit", counted(DeltaLog.commit))
    for name in ("replace_progress", "commit_session"):
        monkeypatch.setattr(importing, name, counted(getattr(importing, name)))
    return monkeypatch.undo


@pytest.mark.parametrize("before", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_import_that_is_killed_at_any_commit_goes_on(
    database: Path, tmp_path: Path, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = str(tmp_path / "whole")
    import_database(database, whole)
    expected = catalog_of(whole).files
    commits = 0
    step = 1 if PROFILE == "long" else 3
    for number in itertools.count(0, step):
        lake = str(tmp_path / f"lake-{number}")
        lift = killed_at(monkeypatch, number, before=before)
        try:
            import_database(database, lake)
        except Killed:
            pass
        else:
            break
        finally:
            lift()
        commits += 1
        try:
            seen = catalog_of(lake).files
        except RankmemError:
            seen = ()
        assert {f.session_id for f in seen} in (set(), {"_"}, {"_", OLD}, {"_", OLD, NEW})
        assert set(seen) <= set(expected)
        import_database(database, lake)
        assert catalog_of(lake).files == expected
        for table in TABLES.values():
            logged = {file.path for file in DeltaLog(LakeFiles(lake), table).active()}
            assert logged == {file.path for file in expected if file.table_name == table.name}
    assert commits > 15 // step


def test_a_session_that_has_grown_is_replaced_at_once(
    database: Path, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_database(database, lake)
    older = events_of(f"lake:{lake}", NEW)
    grow(database)
    lift = killed_at(monkeypatch, 3, before=False)
    with pytest.raises(Killed):
        import_database(database, lake)
    lift()
    assert events_of(f"lake:{lake}", NEW) == older
    assert import_database(database, lake).sessions == {OLD: "already there", NEW: "replaced"}
    assert events_of(f"lake:{lake}", NEW) == events_of(database, NEW) != older


def test_a_session_that_grows_while_its_import_was_killed_is_written_whole(
    database: Path, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lift = killed_at(monkeypatch, 14, before=False)
    with pytest.raises(Killed):
        import_database(database, lake)
    lift()
    grow(database)
    import_database(database, lake)
    assert events_of(f"lake:{lake}", NEW) == events_of(database, NEW)
    active = {file.path for file in DeltaLog(LakeFiles(lake), TABLES["memory_event"]).active(NEW)}
    assert active == {
        file.path for file in catalog_of(lake).of_table("memory_event") if file.session_id == NEW
    }


@pytest.mark.parametrize("number", long_but(range(COMMITS), COMMITS - 1))
def test_an_import_of_the_grown_session_that_is_killed_as_well_goes_on(
    number: int, database: Path, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in (14, number):
        lift = killed_at(monkeypatch, at, before=True)
        with pytest.raises(Killed):
            import_database(database, lake)
        lift()
        if at == 14:
            grow(database)
    import_database(database, lake)
    assert events_of(f"lake:{lake}", NEW) == events_of(database, NEW)


def test_a_commit_that_another_process_made_first_is_refused(database: Path, lake: str) -> None:
    import_database(database, lake)
    log = DeltaLog(LakeFiles(lake), TABLES["session"])
    (file,) = [file for file in catalog_of(lake).of_table("session") if file.session_id == NEW]
    with pytest.raises(RankmemError) as refused:
        log.commit([file], [], app=f"{file.writer}/{NEW}", sequence=1)
    assert refused.value.code is Code.CONFLICT


def test_a_session_that_another_database_brought_is_refused(
    database: Path, lake: str, tmp_path: Path
) -> None:
    import_database(database, lake)
    before = bytes_of(lake)
    other = two_sessions(tmp_path / "other.duckdb")
    with duckdb.connect(other) as connection:
        connection.execute("UPDATE rankmem_meta SET database_id = 'abc123'")
    with pytest.raises(RankmemError, match=OLD) as refused:
        import_database(other, lake)
    assert refused.value.code is Code.CONFLICT
    kept = {path: content for path, content in bytes_of(lake).items() if path in before}
    assert kept == before


def test_databases_share_a_lake(database: Path, lake: str, tmp_path: Path) -> None:
    story = lake_story(tmp_path / "story.duckdb")
    with duckdb.connect(story) as connection:
        connection.execute("UPDATE rankmem_meta SET database_id = 'abc123'")
    with duckdb.connect(database) as connection:  # hosts of its own: a host has one name
        for table in ("host_info", "rank_info"):
            connection.execute(f"UPDATE {table} SET host_uid = 'alone'")
    import_database(database, lake)
    import_database(story, lake)
    with connect(f"lake:{lake}") as both:
        assert set(both.sessions()["session_id"].to_pylist()) == {OLD, NEW, JOB, STORY}
        for file, sessions in ((database, (OLD, NEW)), (story, (JOB, STORY))):
            with connect(file) as queries:
                for session in sessions:
                    assert both.hosts(session) == queries.hosts(session)
                    assert both.peak(session) == queries.peak(session)


def test_what_an_object_store_cannot_name_is_refused(tmp_path: Path, lake: str) -> None:
    database = two_sessions(tmp_path / "odd.duckdb")
    with duckdb.connect(database) as connection:
        connection.execute("UPDATE session SET session_id = '../../etc'")
    with pytest.raises(RankmemError, match="cannot be the name of a folder"):
        import_database(database, lake)


@pytest.mark.parametrize("session", long_but(["run:1.a_b-c", "a" * 200], "run:1.a_b-c"))
def test_any_id_of_a_session_that_is_recorded_is_a_folder(tmp_path: Path, lake: str, session: str) -> None:
    database = two_sessions(tmp_path / "named.duckdb")
    with duckdb.connect(database) as connection:
        tables = (
            "SELECT DISTINCT schema_name, table_name FROM duckdb_columns() WHERE column_name = 'session_id'"
        )
        owned = "(schema_name, table_name) IN (SELECT (schema_name, table_name) FROM duckdb_tables())"
        for schema, table in connection.execute(f"{tables} AND {owned}").fetchall():
            connection.execute(
                f"UPDATE {schema}.{table} SET session_id = ? WHERE session_id = ?", [session, OLD]
            )
    assert import_database(database, lake).sessions[session] == "written"
    assert import_database(database, lake).sessions[session] == "already there"
    with connect(database) as file, connect(f"lake:{lake}") as queries:
        assert queries.sessions() == file.sessions()
        assert queries.peak(session) == file.peak(session)
    assert {file.partition[0] for file in DeltaLog(LakeFiles(lake), TABLES["session"]).active()} == {
        session,
        NEW,
    }
