"""A database file that somebody else made: what it may not do to whoever opens it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import duckdb
import pytest

from constructed import RankLog, empty_database, store_logs
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.exports.kinds import KINDS
from rankmem_aggregator.exports.names import PART_CHARS_MAX, part_of_name
from rankmem_aggregator.plots.files import check_out_path
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.sql import mindstudio_names, view_names
from rankmem_aggregator.store.reading_instance import ReadingInstance
from rankmem_aggregator.store.store import open_store
from rankmem_protos.categories import TIMELINE_INDEX
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import SCHEMA_VERSION, TABLES
from repetitions import long_but

pytestmark = pytest.mark.slow

SESSION: Final = "0SESSION000A"
SECRET: Final = "my-own-secret"


def recorded(path: Path) -> Path:
    log = RankLog(session_id=SESSION, ended=20)
    log.alloc("weights", 100, at=1, operator="aten::mm")
    log.alloc("more", 50, at=2, operator="aten::mm")
    log.free("more", at=3)
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("made") / "mem.duckdb")


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / "mem.duckdb"))


@pytest.fixture
def queries(path: Path) -> Iterator[Queries]:
    with connect(path) as opened:
        yield opened


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret.txt"
    file.write_text(SECRET)
    return file


def changed(path: Path, *statements: str) -> Path:
    """The file after its maker ran these."""
    with duckdb.connect(str(path)) as maker:
        for statement in statements:
            maker.execute(statement)
    return path


def files_beside(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}


# Each tried on an open file: nothing beside it is read, nothing is written.
WRITES_OR_READS: Final = (
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "COPY (SELECT 1) TO '{db}'",
    "COPY session TO '{db}' (FORMAT parquet)",
    "COPY stored.main.session TO '{folder}/out.parquet'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{db}'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{db}' (USE_TMP_FILE false)",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{db}.wal' (USE_TMP_FILE false)",
    "/* a */ EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO '{db}' (USE_TMP_FILE false)",
    "EXPLAIN /* SELECT */ ANALYZE -- (\nCOPY (SELECT 1) TO '{db}' (USE_TMP_FILE false)",
    "EXPLAIN\u00a0ANALYZE\u2003COPY\u00a0(SELECT 1) TO '{db}' (USE_TMP_FILE false)",
    "EXPLAIN ANALYZE PREPARE p AS COPY (SELECT 1) TO '{db}' (USE_TMP_FILE false)",
    "COPY (PIVOT session ON name USING count(*)) TO '{db}' (USE_TMP_FILE false)",
    "EXPLAIN ANALYZE COPY (PIVOT session ON name USING count(*)) TO '{db}' (USE_TMP_FILE false)",
    "EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1",
    "EXPORT DATABASE '{folder}/out'",
    "COPY FROM DATABASE stored TO memory",
    "ATTACH '{folder}/other.duckdb'",
    "ATTACH '{db}' AS again",
    "ATTACH ':memory:' AS other",
    "DETACH stored",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{folder}/evil.duckdb_extension'",
    "UPDATE EXTENSIONS",
    "CREATE SECRET (TYPE s3)",
    "SET enable_external_access = true",
    "SET temp_directory = '{folder}'",
    "SET memory_limit = '1TB'",
    "RESET lock_configuration",
    "PRAGMA enable_profiling='json'",
    "CALL enable_logging(storage := 'file', storage_path := '{folder}/log')",
    "FROM read_text('{folder}/secret.txt')",
    "FROM read_csv('{folder}/secret.txt')",
    "FROM '{folder}/secret.txt'",
    "FROM glob('{folder}/*')",
    "SELECT (SELECT content FROM read_text('{folder}/secret.txt')) FROM session",
    "FROM query('FROM read_text(''{folder}/secret.txt'')')",
    "SELECT 1; COPY (SELECT 1) TO '{db}'",
    "COMMIT; CREATE TABLE t AS SELECT 1",
    "CREATE TABLE t AS SELECT 1",
    "CREATE OR REPLACE VIEW session AS SELECT 1",
    "INSERT INTO session (session_id) VALUES ('x')",
    "DELETE FROM session",
    "DELETE FROM stored.main.session",
    "UPDATE stored.main.session SET name = 'x'",
    "DROP VIEW peak_by_rank",
    "DROP TABLE stored.main.session",
    "VACUUM",
)


def test_sql_on_a_file_reads_its_rows_and_nothing_else(
    path: Path, secret: Path, subtests: pytest.Subtests
) -> None:
    before = files_beside(path)
    with connect(path) as queries:
        for sql in WRITES_OR_READS:
            with subtests.test(sql=sql):
                with pytest.raises(RankmemError) as caught:
                    queries.sql(sql.format(folder=path.parent, db=path))
                assert caught.value.code in (Code.DENIED, Code.INVALID)
                assert caught.value.hint
                assert queries.sql("SELECT count(*) AS n FROM session")["n"].to_pylist() == [1]
    assert files_beside(path) == before
    assert not (path.parent / "out").exists()


@pytest.mark.parametrize("explain", ["", "EXPLAIN ", "EXPLAIN ANALYZE ", "EXPLAIN (ANALYZE, FORMAT json) "])
def test_copy_is_refused_with_what_to_use_instead(queries: Queries, explain: str) -> None:
    with pytest.raises(RankmemError, match="COPY") as caught:
        queries.sql(f"{explain}COPY session TO 'session.csv'")
    assert caught.value.code is Code.DENIED
    assert "--out" in caught.value.hint


@pytest.mark.parametrize(
    "sql",
    [
        "EXPLAIN SELECT * FROM session",
        "-- COPY\nexplain analyze FROM session",
        "EXPLAIN (FORMAT json) SELECT 'copy' AS \"copy\", $$copy$$ /* copy */",
        "PIVOT session ON name USING count(*)",
        "SELECT 1 AS copy",
    ],
)
def test_a_statement_that_reads_is_no_copy_for_its_texts(queries: Queries, sql: str) -> None:
    assert queries.sql(sql).num_rows


@pytest.mark.parametrize(
    "view", ["peak_by_rank", "session_overview", "utc_of", "rank_overview", "sum", "max"]
)
def test_a_replaced_view_or_macro_reads_none_of_the_readers_files(
    path: Path, secret: Path, view: str
) -> None:
    content = f"(SELECT content FROM read_text('{secret}'))"
    macro = f"CREATE OR REPLACE MACRO {view}(x) AS {content}"
    as_view = f"CREATE OR REPLACE VIEW {view} AS SELECT * REPLACE ({content} AS session_id) FROM session"
    changed(path, as_view if view in view_names() and view != "utc_of" else macro)
    with connect(path) as queries:
        assert queries.session_id() == SESSION
        assert queries.peak()["peak_requested_bytes"].to_pylist() == [150]
        for asked in (queries.sessions(), queries.peak(), queries.ranks(), queries.steps()):
            assert SECRET not in str(asked.to_pylist())
        is_view = view in view_names() and view != "utc_of"
        with pytest.raises(RankmemError, match="file system operations are disabled") as caught:
            queries.sql(f"FROM stored.main.{view}" if is_view else f"SELECT stored.main.{view}(1)")
        assert caught.value.code is Code.DENIED


@pytest.mark.parametrize("kind", ["csv", "html", "parquet", "duckdb"])
def test_no_export_of_a_strangers_file_holds_the_readers_files(
    path: Path, secret: Path, tmp_path: Path, kind: str
) -> None:
    leak = f"SELECT * REPLACE ((SELECT content FROM read_text('{secret}')) AS operator) FROM packed."
    changed(
        path,
        f"CREATE OR REPLACE VIEW operator_call AS {leak}operator_call",
        f"CREATE OR REPLACE VIEW allocation_record AS {leak}allocation_record",
        f"CREATE OR REPLACE VIEW session_overview AS SELECT content AS session_id FROM read_text('{secret}')",
    )
    out = tmp_path / "out"
    with connect(path) as queries:
        export(queries, kind, out)
    files = [file for file in (out.rglob("*") if out.is_dir() else [out]) if file.is_file()]
    assert files
    assert not any(SECRET.encode() in file.read_bytes() for file in files)


LONG_HOST: Final = "é/" * 150
FORGED: Final = (
    f"UPDATE host_info SET host_name = '{LONG_HOST}'",
    "UPDATE packed.allocation_record SET category = 'evil', phase = 'evil', component = 'evil'",
    "UPDATE packed.memory_event SET component = 'evil', pool = 'evil'",
    "UPDATE packed.memory_event SET device = 'cuda:²'",
    "UPDATE packed.memory_bucket SET device = 'cuda:²'",
    "UPDATE packed.allocation_record SET device = 'cuda:²'",
    "UPDATE packed.allocation_record SET operator = ' =cmd()'",
)


@pytest.mark.parametrize("kind", long_but(sorted(set(KINDS) - {"duckdb"}), *{*KINDS} - {"html"}))
def test_every_export_takes_names_that_nobody_gives(path: Path, tmp_path: Path, kind: str) -> None:
    changed(path, *FORGED)
    out = tmp_path / "out"
    with connect(path) as queries:
        assert export(queries, kind, out).counts
    names = [file.name for file in out.rglob("*")]
    assert all(len(name.encode()) < 255 for name in names)
    for file in out.rglob("*.csv"):
        assert not any(
            cell.startswith(" =") for line in file.read_text().splitlines() for cell in line.split(",")
        )


def test_no_export_replaces_a_database(path: Path, queries: Queries) -> None:
    before = path.read_bytes()
    copy = Path(shutil.copy(path, path.with_name("copy.html")))
    for kind, out in (("html", path), ("duckdb", path), ("html", copy), ("chrome-trace", copy)):
        with pytest.raises(RankmemError, match="is a database") as caught:
            export(queries, kind, out, force=True)
        assert caught.value.code is Code.CONFLICT
    with pytest.raises(RankmemError, match="is a database"):
        check_out_path(copy)
    assert path.read_bytes() == before == copy.read_bytes()
    assert export(queries, "duckdb", copy, force=True)


def test_hosts_whose_long_names_begin_alike_have_folders_of_their_own() -> None:
    one, other = part_of_name(LONG_HOST + "1"), part_of_name(LONG_HOST + "2")
    assert one != other
    assert len(one) <= PART_CHARS_MAX
    assert LONG_HOST.startswith(unquote(one.rpartition("-")[0], errors="strict"))
    assert part_of_name("name/1 é") == "name%2F1%20%C3%A9"


def test_a_category_that_torch_does_not_have_is_unknown_in_its_timeline(path: Path, tmp_path: Path) -> None:
    changed(path, *FORGED[:2])
    for name in ("out.raw.json.gz", "out.json", "out.html"):
        with connect(path) as queries:
            assert export(queries, "memory-timeline", tmp_path / name).counts
    with gzip.open(tmp_path / "out.raw.json.gz") as file:
        assert {entry[3] for entry in json.load(file)} == {TIMELINE_INDEX["unknown"]}


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (
            ["DROP TABLE session", "CREATE VIEW session AS SELECT content AS name FROM read_text('/x')"],
            None,
        ),
        (["ALTER TABLE session ALTER name TYPE BIGINT USING 1"], "main.session.name is BIGINT, not VARCHAR"),
        (
            ["ALTER TABLE session RENAME TO s", "CREATE TABLE session (i INT, name VARCHAR AS ('x'))"],
            "main.session.name is a generated column",
        ),
        (["DROP TABLE rankmem_meta"], "no table rankmem_meta"),
        (["DROP TABLE rankmem_meta", "CREATE VIEW rankmem_meta AS SELECT 9 AS schema_version"], "no table"),
    ],
)  # fmt: skip
def test_only_tables_with_the_declared_columns_are_read(
    path: Path, statements: list[str], why: str | None
) -> None:
    changed(path, *statements)
    if why is None:  # no such table: it has no rows
        with connect(path) as queries:
            assert queries.sessions().num_rows == 0
        return
    with pytest.raises(RankmemError, match=why) as caught:
        connect(path)
    assert caught.value.code is Code.INVALID
    assert str(path) in caught.value.message


def test_a_file_of_a_newer_version_is_refused_with_both_versions(path: Path) -> None:
    changed(path, "UPDATE rankmem_meta SET schema_version = 99")
    with pytest.raises(
        RankmemError, match=f"version 99, this rankmem knows up to {SCHEMA_VERSION}"
    ) as caught:
        connect(path)
    assert caught.value.code is Code.UNSUPPORTED
    with connect(path, unsafe=True) as queries:
        assert queries.sql("FROM session").num_rows == 1


def test_a_file_of_an_older_version_is_answered_by_the_views_of_this_one(path: Path) -> None:
    changed(
        path,
        "UPDATE rankmem_meta SET schema_version = 3",
        "CREATE OR REPLACE TABLE unpacked AS FROM memory_event",
        "DROP VIEW memory_event",
        "DROP TABLE packed.memory_event",
        "ALTER TABLE unpacked RENAME TO memory_event",
        "DROP VIEW incompleteness",
        "DROP VIEW peak_by_rank",
        "DROP TABLE component_sample",
        "ALTER TABLE process_sample DROP COLUMN device_total_bytes",
    )
    with connect(path) as queries:
        assert queries.peak()["peak_requested_bytes"].to_pylist() == [150]
        assert queries.incompleteness().num_rows == 0
        assert queries.timeline(rank=0).num_rows > 0
        assert queries.sql("SELECT device_total_bytes FROM process_sample").num_rows == 0
        assert queries.sql("FROM component_sample").num_rows == 0


def test_in_a_file_of_an_older_version_a_block_is_known_as_the_source_says(path: Path) -> None:
    lacking = [f"ALTER TABLE packed.allocation_record DROP COLUMN {c}" for c in ("attribution", "like_id")]
    changed(path, "UPDATE rankmem_meta SET schema_version = 16", *lacking)
    asked = "SELECT DISTINCT attribution, like_id FROM "
    nothing = [{"attribution": None, "like_id": None}]
    with connect(path) as queries:
        for view in ("allocation_record", "allocation"):
            assert queries.sql(asked + view).to_pylist() == nothing
        assert queries.live(0).select(["attribution", "like_id"]).to_pylist()[:1] == nothing
    open_store(AggregatorConfig(database_path=path)).close()  # upgrades it
    with duckdb.connect(str(path), read_only=True) as connection:
        assert connection.sql(f"{asked} packed.allocation_record").fetchall() == [(None, None)]


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("CREATE TRIGGER t AFTER INSERT ON session FOR EACH STATEMENT DELETE FROM rank_info", "a trigger t"),
        ("CREATE MACRO max(x) AS 7", "a macro max"),
        ('CREATE MACRO "Max"(x) AS 7', "a macro Max"),
    ],
)
def test_what_would_run_when_we_write_is_refused_before_it_does(
    path: Path, statement: str, what: str
) -> None:
    changed(path, statement)
    with pytest.raises(RankmemError, match=what) as caught:
        open_store(AggregatorConfig(database_path=path))
    assert caught.value.code is Code.INVALID
    with connect(path) as queries:
        assert queries.peak()["peak_requested_bytes"].to_pylist() == [150]


def test_a_database_that_is_written_is_confined_before_its_tables_are_looked_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankmem_aggregator.store import schema

    seen: list[object] = []
    prepare = schema.prepare

    def looking(connection: duckdb.DuckDBPyConnection, *, has_views: bool) -> schema.DatabaseFacts:
        seen.extend(connection.execute("SELECT current_setting('enable_external_access')").fetchall())
        return prepare(connection, has_views=has_views)

    monkeypatch.setattr(schema, "prepare", looking)
    open_store(AggregatorConfig(database_path=path)).close()
    assert seen == [(False,)]


def test_all_that_is_documented_is_there_whoever_asks_first(path: Path) -> None:
    names = {name for name in view_names() if name not in ("utc_of",)} | set(TABLES)
    with connect(path) as queries:
        asked = (
            "SELECT lower(view_name) AS name FROM duckdb_views() WHERE NOT internal "
            "UNION SELECT lower(function_name) FROM duckdb_functions() WHERE database_name = 'memory'"
        )
        found = set(queries.sql(asked)["name"].to_pylist())
        assert names <= found
        assert {name.lower() for name in mindstudio_names()} <= found
        comments = (
            "SELECT count(comment) = count(*) AS all_have FROM duckdb_columns() "
            "WHERE database_name = 'memory' AND schema_name = 'main' AND table_name IN ('gap', 'step')"
        )
        assert queries.sql(comments)["all_have"].to_pylist() == [True]


def test_our_own_questions_make_no_more_views_than_they_read(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[frozenset[str]] = []
    make = ReadingInstance._make

    def counting(self: ReadingInstance, names: frozenset[str]) -> None:
        made.append(names)
        make(self, names)

    monkeypatch.setattr(ReadingInstance, "_make", counting)
    for ask in (queries.sessions, queries.ranks, queries.peak, queries.job_peak, queries.ops):
        ask()
    assert made
    assert all(len(names) < len(view_names()) for names in made)
    assert not any(name.startswith("mindstudio") for names in made for name in names)


def test_a_table_is_found_by_its_name_alone(queries: Queries) -> None:
    for name in ("mindstudio.memory_record", "packed.memory_event", *TABLES):
        assert queries.sql(f"SELECT * FROM {name} LIMIT 1").num_columns


def test_a_name_that_is_no_word_of_the_statement_is_found_too(queries: Queries) -> None:
    assert queries.sql("FROM query_table('peak_by' || '_rank')").num_rows == 1
    assert queries.sql('FROM "PEAK_by_rank"').num_rows == 1


def test_no_variable_of_this_process_is_a_table(queries: Queries) -> None:
    import pyarrow as pa

    mine = pa.table({"secret": [1]})
    with pytest.raises(RankmemError, match="mine"):
        queries.sql("FROM mine")
    assert mine.num_rows == 1


def test_two_readers_of_one_process_may_open_one_file(path: Path) -> None:
    with connect(path) as one, connect(path) as other:
        assert one.session_id() == other.session_id()


def test_a_file_named_like_another_kind_of_database_is_opened_as_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recorded(tmp_path / "plain.duckdb").rename(tmp_path / "sqlite:it's.duckdb")
    monkeypatch.chdir(tmp_path)
    with connect(Path(path.name)) as queries:
        assert queries.session_id() == SESSION


def test_unsafe_is_duckdb_bare(path: Path, secret: Path) -> None:
    changed(path, "CREATE VIEW mine AS SELECT 7 AS seven")
    with connect(path, unsafe=True) as queries:
        assert queries.sql("FROM mine").num_rows == 1
        assert queries.sql(f"SELECT content FROM read_text('{secret}')").to_pylist() == [{"content": SECRET}]
        with pytest.raises(RankmemError, match="read-only"):
            queries.sql("DELETE FROM session")
    with pytest.raises(RankmemError, match="confines") as caught:
        connect("127.0.0.1:7077", unsafe=True)
    assert caught.value.code is Code.INVALID
