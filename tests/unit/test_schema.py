"""The database's tables are those declared, commented throughout, and an older file is brought up to date."""

from __future__ import annotations

import duckdb
import pytest

from rankmem_aggregator.store import schema
from rankmem_aggregator.store.packing import PACKED, is_packed
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import SCHEMA_VERSION, TABLES


def columns_of(
    connection: duckdb.DuckDBPyConnection, table: str, of_schema: str = "main"
) -> dict[str, tuple[str, bool, str | None]]:
    rows = connection.execute(
        "SELECT column_name, data_type, is_nullable, comment FROM duckdb_columns() "
        "WHERE table_name = ? AND schema_name = ?",
        [table, of_schema],
    ).fetchall()
    return {name: (kind, nullable, comment) for name, kind, nullable, comment in rows}


def test_every_declared_column_is_there_with_its_type_and_comment() -> None:
    with duckdb.connect() as connection:
        schema.prepare(connection)
        for table in schema.ALL_TABLES.values():
            present = columns_of(connection, table.name)
            assert tuple(present) == table.column_names()
            for column in table.columns:
                kind, nullable, comment = present[column.name]
                assert kind == schema.duckdb_type(column.type)
                assert nullable == (column.nullable or is_packed(table.name))  # of a view all are nullable
                assert comment is not None
                assert comment.startswith(column.doc)
        comments = connection.execute(
            "SELECT comment FROM duckdb_tables() UNION ALL "
            "SELECT comment FROM duckdb_columns() WHERE schema_name IN ('main', 'packed') AND NOT internal "
            "UNION ALL SELECT comment FROM duckdb_views() WHERE NOT internal"
        ).fetchall()
        assert all(comment for (comment,) in comments)


def test_a_packed_table_refuses_the_nulls_that_the_declared_one_must_not_have() -> None:
    with duckdb.connect() as connection:
        schema.prepare(connection)
        for name in PACKED:
            present = columns_of(connection, name, "packed")
            assert {column: present[column][1] for column in present} == {
                column.name: column.nullable or column.name == "component" for column in TABLES[name].columns
            }


def test_bytes_and_times_are_64_bit_integers_and_names_plain_text() -> None:
    types = {c.name: schema.duckdb_type(c.type) for table in TABLES.values() for c in table.columns}
    assert {kind for name, kind in types.items() if name.endswith(("_bytes", "_ns"))} == {"BIGINT"}
    assert types["operator"] == types["device"] == "VARCHAR"


def test_a_prepared_file_keeps_its_id_when_prepared_again() -> None:
    with duckdb.connect() as connection:
        first = schema.prepare(connection)
        assert schema.prepare(connection) == first
        assert connection.execute("SELECT count(*) FROM rankmem_meta").fetchone() == (1,)


def test_two_databases_have_different_ids() -> None:
    with duckdb.connect() as one, duckdb.connect() as other:
        assert schema.prepare(one).database_id != schema.prepare(other).database_id


def test_an_older_file_gets_the_tables_and_columns_that_came_since_and_keeps_its_rows() -> None:
    with duckdb.connect() as connection:
        schema.prepare(connection)
        connection.execute("DROP TABLE weight")
        connection.execute("ALTER TABLE session DROP COLUMN torch_version")
        connection.execute("INSERT INTO session (session_id, source) VALUES ('s', 'live')")
        connection.execute("UPDATE rankmem_meta SET schema_version = 0")
        facts = schema.prepare(connection)
        assert facts.schema_version == SCHEMA_VERSION
        assert connection.execute("SELECT schema_version FROM rankmem_meta").fetchone() == (SCHEMA_VERSION,)
        assert connection.execute("SELECT session_id, torch_version FROM session").fetchall() == [("s", None)]
        assert "name" in columns_of(connection, "weight")
        assert columns_of(connection, "session")["torch_version"][2]


def test_a_newer_file_is_refused_and_left_as_it_is() -> None:
    with duckdb.connect() as connection:
        schema.prepare(connection)
        connection.execute("UPDATE rankmem_meta SET schema_version = ?", [SCHEMA_VERSION + 1])
        with pytest.raises(RankmemError, match=f"version {SCHEMA_VERSION + 1}") as caught:
            schema.prepare(connection)
        assert caught.value.code is Code.UNSUPPORTED
        assert connection.execute("SELECT schema_version FROM rankmem_meta").fetchone() == (
            SCHEMA_VERSION + 1,
        )


def test_a_packed_table_gets_the_columns_that_came_since_and_its_view_shows_them() -> None:
    with duckdb.connect() as connection:
        schema.prepare(connection)
        connection.execute("ALTER TABLE packed.memory_event DROP COLUMN thread")
        connection.execute(
            "INSERT INTO packed.memory_event BY NAME SELECT 's' AS session_id, 0 AS attempt, 0 AS rank, "
            "'cpu' AS device, 0 AS seq, 1 AS time_ns, 'alloc' AS action, 'pytorch' AS component, "
            "'12' AS size_bytes"
        )
        schema.prepare(connection)
        assert connection.execute("SELECT size_bytes, thread FROM memory_event").fetchall() == [(12, None)]
        assert columns_of(connection, "memory_event")["thread"][2]


def test_a_file_that_keeps_events_unpacked_is_refused_and_left_as_it_is() -> None:
    with duckdb.connect() as connection:
        schema.prepare(connection)
        connection.execute("DROP VIEW memory_event")
        connection.execute("CREATE TABLE memory_event (seq BIGINT)")
        with pytest.raises(RankmemError, match="memory_event in the form") as caught:
            schema.prepare(connection)
        assert caught.value.code is Code.UNSUPPORTED
        assert connection.execute("SELECT count(*) FROM memory_event").fetchone() == (0,)


def test_a_foreign_database_with_our_names_is_refused() -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE session (whatever INTEGER)")
        with pytest.raises(RankmemError, match="did not make"):
            schema.prepare(connection)
        assert connection.execute("SELECT count(*) FROM duckdb_tables()").fetchone() == (1,)


def test_quotes_in_names_and_comments_stay_text() -> None:
    assert schema.quoted('a"b') == '"a""b"'
    assert schema.literal("it's") == "'it''s'"


def test_summaries_of_an_older_version_are_made_anew() -> None:
    with duckdb.connect() as connection:
        schema.prepare(connection)
        connection.execute("INSERT INTO summary_progress VALUES ('S', 0, 0, 7, true)")
        schema.prepare(connection)
        assert connection.execute("SELECT count(*) FROM summary_progress").fetchall() == [(1,)]
        connection.execute(f"UPDATE rankmem_meta SET schema_version = {schema.SUMMARIES_SINCE - 1}")
        schema.prepare(connection)
        assert connection.execute("SELECT count(*) FROM summary_progress").fetchall() == [(0,)]
