"""Empty databases that are kept: a copy is what would have been made, and nobody else's views are run."""

from __future__ import annotations

import errno
import re
import tempfile
import threading
from pathlib import Path
from typing import Any, NoReturn

import duckdb
import pytest

from constructed import SESSION, RankLog, store_logs
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.sql import mindstudio_text, view_text
from rankmem_aggregator.store import schema, templates
from rankmem_aggregator.store.store import Store, open_store
from rankmem_protos.errors import RankmemError

CATALOG = (
    "SELECT schema_name, table_name, comment FROM duckdb_tables() WHERE NOT internal ORDER BY ALL",
    "SELECT schema_name, view_name, column_count, list_sort(regexp_extract_all(sql, '\\w+')), comment "
    "FROM duckdb_views() WHERE NOT internal ORDER BY ALL",
    "SELECT schema_name, table_name, column_name, data_type, is_nullable, comment FROM duckdb_columns() "
    "WHERE NOT internal ORDER BY ALL",
    "SELECT schema_name, function_name, parameters, list_sort(regexp_extract_all(macro_definition, '\\w+')), "
    "comment FROM duckdb_functions() WHERE NOT internal ORDER BY ALL",
)


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


@pytest.fixture
def cache(caches: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One for all tests of this file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    return caches / "rankmem"


@pytest.fixture
def path(cache: Path, tmp_path: Path) -> Path:
    return tmp_path / "mem.duckdb"


def opened(path: Path) -> Store:
    return open_store(AggregatorConfig(database_path=path))


def catalog(path: Path) -> list[list[Any]]:
    """Words of definitions are sorted: DuckDB keeps the columns of an EXCLUDE in no order."""
    with duckdb.connect(path, read_only=True) as connection:
        return [connection.execute(statement).fetchall() for statement in CATALOG]


def test_a_copy_has_the_tables_views_columns_types_and_comments_that_are_made_without_one(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(path).close()
    with monkeypatch.context() as without:
        without.setenv("XDG_CACHE_HOME", "/proc/nothing")
        opened(tmp_path / "made.duckdb").close()
    assert catalog(path) == catalog(tmp_path / "made.duckdb")


def test_each_copy_is_a_database_of_its_own(path: Path, tmp_path: Path) -> None:
    one, other = opened(path), opened(tmp_path / "other.duckdb")
    assert one.facts.database_id != other.facts.database_id
    one.close()
    other.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_views_that_are_there_are_not_installed_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(path).close()
    monkeypatch.setattr("rankmem_aggregator.store.instance.install_views", lambda _: pytest.fail("installed"))
    for _ in range(3):
        store = opened(path)
        assert store.read("SELECT * FROM peak_by_rank").num_rows == 0
        store.close()


CHANGES = (
    "CREATE OR REPLACE VIEW peak_by_rank AS SELECT 'lie' AS session_id",
    "CREATE OR REPLACE MACRO live_at(a, b, c, d, e) AS TABLE SELECT 'lie' AS session_id",
    "CREATE OR REPLACE MACRO utc_of(time_ns) AS 'lie'",
    "CREATE OR REPLACE VIEW mindstudio.NPU_MEM AS SELECT 'lie' AS type",
    "CREATE OR REPLACE VIEW memory_event AS SELECT * REPLACE ('lie' AS component) FROM packed.memory_event",
    "CREATE OR REPLACE VIEW memory_event AS SELECT '* EXCLUDE (' AS lie",
    "DROP VIEW peak_by_rank",
)
ALIKE = (
    "CREATE OR REPLACE MACRO utc_of(time_ns UTINYINT) AS {utc_of}",
    "CREATE OR REPLACE MACRO step_total(of_session, of_rank := 7) AS TABLE {step_total}",
    "CREATE OR REPLACE MACRO group_of(of_group, operator, module, line, category, phase, step, annotation, "
    "stream, component, preexisting := true) AS {group_of}",
    "CREATE OR REPLACE MACRO mindstudio.component_peak(of_session, of_rank, threshold_bytes := 0) AS TABLE "
    "{component_peak}",
)
"""These leave definition and comment as they are."""


def test_a_view_that_is_not_this_version_s_is_found_and_installed_again(
    path: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    opened(path).close()
    content = path.read_bytes()
    with duckdb.connect(path, read_only=True) as connection:
        of_macro = dict(
            connection.execute(
                "SELECT function_name, macro_definition FROM duckdb_functions() WHERE NOT internal"
            ).fetchall()
        )
    texts = [*map(view_text, ("utc_of", "step_total", "group_of")), mindstudio_text("component_peak")]
    comments = [text.partition("COMMENT ON")[2] for text in texts]
    alike = [change.format_map(of_macro) for change in ALIKE]
    changes = [
        *CHANGES,
        *(f"{change}; COMMENT ON {text}" for change, text in zip(alike, comments, strict=True)),
    ]
    for number, change in enumerate(changes):
        (copy := tmp_path / f"stranger{number}.duckdb").write_bytes(content)
        with subtests.test(change=change), duckdb.connect(copy) as stranger:
            assert templates.has_views(stranger, copy.stem)
            stranger.execute(change)
            assert not templates.has_views(stranger, copy.stem)
    with duckdb.connect(path) as stranger:
        for change in reversed(changes):
            stranger.execute(change)
    opened(path).close()
    opened(tmp_path / "untouched.duckdb").close()
    assert catalog(path) == catalog(tmp_path / "untouched.duckdb")


def test_another_default_value_of_a_macro_is_replaced_though_duckdb_does_not_show_it(path: Path) -> None:
    opened(path).close()
    (head,) = re.findall(r"^CREATE .*", view_text("live_at_peak"), re.MULTILINE)
    logs = [RankLog(rank=rank) for rank in range(2)]
    for log in logs:
        log.alloc("weights", 100, at=10)
    with duckdb.connect(path) as stranger:
        store_logs(stranger, logs)
        other = head.replace("of_rank := NULL", "of_rank := 0")
        assert other != head
        stranger.execute(view_text("live_at_peak").replace(head, other))
    store = opened(path)
    assert store.read(f"FROM live_at_peak('{SESSION}')").num_rows == 2
    store.close()


def test_a_user_s_own_views_stay_and_cost_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(path).close()
    with duckdb.connect(path) as user:
        user.execute("CREATE VIEW mine AS SELECT 1 AS a")
    monkeypatch.setattr("rankmem_aggregator.store.instance.install_views", lambda _: pytest.fail("installed"))
    store = opened(path)
    assert store.read("FROM mine").to_pylist() == [{"a": 1}]
    store.close()


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, for a database of one table."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(templates, "make", lambda connection: connection.execute("CREATE TABLE made (a INT)"))
    (tmp_path / "cache" / "rankmem").mkdir(parents=True)
    return tmp_path / "cache" / "rankmem"


def test_what_is_kept_and_torn_is_made_again(small: Path, tmp_path: Path) -> None:
    assert templates.place(tmp_path / "one.duckdb")
    (kept,) = small.glob("empty-*")
    whole = kept.read_bytes()
    for torn in (whole[: len(whole) // 2], whole[:-1] + b"x", b""):
        kept.write_bytes(torn)
        assert templates.place(tmp_path / f"{len(torn)}.duckdb")
        with duckdb.connect(tmp_path / f"{len(torn)}.duckdb") as connection:
            assert connection.execute("FROM made").fetchall() == []
        assert len(kept.read_bytes()) == len(whole)


def test_a_cache_that_others_may_write_is_not_used(path: Path, cache: Path, tmp_path: Path) -> None:
    opened(path).close()
    cache.chmod(0o777)
    try:
        assert not templates.place(tmp_path / "new.duckdb")
        with duckdb.connect(path) as connection:
            assert not templates.has_views(connection, path.stem)
    finally:
        cache.chmod(0o700)
    assert templates.place(tmp_path / "new.duckdb")


@pytest.mark.parametrize("there", ["mem.duckdb", "mem.duckdb.wal"])
def test_nothing_is_put_where_a_file_is(path: Path, there: str) -> None:
    path.with_name(there).write_bytes(b"a user's")
    assert not templates.place(path)
    assert [(file.name, file.read_bytes()) for file in path.parent.iterdir()] == [(there, b"a user's")]


def test_a_path_that_cannot_be_looked_at_is_duckdb_s_to_refuse(path: Path) -> None:
    assert not templates.place(path.with_name("x" * 300))
    with pytest.raises(RankmemError, match="cannot be opened"):
        opened(path.with_name("x" * 300))


def test_of_many_that_make_one_file_one_does(path: Path) -> None:
    placed: list[bool] = []
    threads = [threading.Thread(target=lambda: placed.append(templates.place(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(placed) == [False] * 7 + [True]
    assert list(path.parent.iterdir()) == [path]
    with duckdb.connect(path) as connection:
        assert schema.prepare(connection, has_views=True).database_id


def test_few_of_older_versions_stay(small: Path, tmp_path: Path) -> None:
    for number in range(templates.KEPT_MAX + 2):
        (small / f"empty-{number}").write_bytes(b"older")
    assert templates.place(tmp_path / "one.duckdb")
    assert len(list(small.glob("empty-*"))) == templates.KEPT_MAX
    assert templates.place(tmp_path / "next.duckdb")


def test_a_file_is_read_where_no_temporary_folder_can_be_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(path).close()

    def refused(**options: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refused)
    with connect(path) as queries:
        assert queries.sql("SELECT count(*) AS blocks FROM allocation")["blocks"].to_pylist() == [0]


SHOWN = (
    "SELECT schema_name, view_name, column_count, comment FROM duckdb_views() "
    "WHERE NOT internal ORDER BY ALL",
    *CATALOG[2:],
    "FROM mindstudio.SESSION_TIME_INFO ORDER BY ALL",
    "FROM peak_by_rank ORDER BY ALL",
)


def shown(path: Path) -> list[list[Any]]:
    """What a reader of a file finds in the catalog, and in views."""
    with connect(path) as queries:
        return [queries.sql(statement).to_pylist() for statement in SHOWN]


def test_a_file_is_read_with_kept_views_as_with_those_made_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RankLog(rank=0)
    log.alloc("weights", 100, at=10)
    opened(path).close()
    with duckdb.connect(path) as connection:
        store_logs(connection, [log])
    assert templates.place_reading(path.with_name("reading.duckdb"))
    with_kept = shown(path)
    monkeypatch.setattr(templates, "place_reading", lambda path: False)
    with_taken = shown(path)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    assert with_kept == with_taken == shown(path)
    assert {row["session_id"] for row in with_kept[-1]} == {SESSION}


def test_a_file_that_lacks_a_column_or_a_table_gets_views_of_its_own(path: Path) -> None:
    log = RankLog(rank=0)
    log.alloc("weights", 100, at=10)
    opened(path).close()
    with duckdb.connect(path) as connection:
        store_logs(connection, [log])
    (older := path.with_name("older.duckdb")).write_bytes(path.read_bytes())
    with duckdb.connect(older) as connection:
        connection.execute("ALTER TABLE rank_info DROP COLUMN exit_code")
        connection.execute("DROP TABLE clock_offset")
    with connect(path) as today, connect(older) as then:
        assert then.peak().equals(today.peak())
        assert then.sql("SELECT exit_code FROM rank_info")["exit_code"].to_pylist() == [None]
        assert then.sql("FROM clock_offset").num_rows == 0
