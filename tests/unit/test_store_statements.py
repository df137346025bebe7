"""Statements that are made once store what is put in now, and survive what happens between two commits."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from rankmem_aggregator.store import schema
from rankmem_aggregator.store.statements import FEW_ROWS_MAX
from rankmem_aggregator.store.store import Store
from rankmem_protos.tables import HOST_INFO, STEP, TABLES, Table

pytestmark = pytest.mark.slow


def _steps(*steps: int, ended_ns: int | None = 7) -> pa.Table:
    rank = {"session_id": "0SESSION", "attempt": 0, "rank": 0, "ended_ns": ended_ns}
    return _rows(STEP, [rank | {"step": step} for step in steps])


def _rows(table: Table, rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=table.arrow_schema())


def _stored_steps(store: Store) -> list[int]:
    return [row["step"] for row in store.read("SELECT step FROM step ORDER BY step").to_pylist()]


def test_each_write_stores_its_own_rows_of_a_table_and_nothing_of_the_one_before(store: Store) -> None:
    store.write({"step": _steps(1, 2)})
    store.write({"step": _steps(*range(3, 5000))})
    store.write({"step": _steps(5000, ended_ns=None)})
    assert _stored_steps(store) == list(range(1, 5001))
    last = store.read("SELECT ended_ns FROM step WHERE step = 5000").to_pylist()
    assert last == [{"ended_ns": None}]


def test_what_was_rolled_back_is_not_stored_and_can_be_written_again(store: Store) -> None:
    store.write({"step": _steps(1)})
    without_key = _rows(HOST_INFO, [{"host_uid": None, "host_name": "a"}])
    for _ in range(2):  # the statement of host_info is made within the write that fails
        with pytest.raises(duckdb.ConstraintException):
            store.write({"step": _steps(2), "host_info": without_key})
    assert _stored_steps(store) == [1]
    store.write({"step": _steps(2), "host_info": _rows(HOST_INFO, [{"host_uid": "h", "host_name": "a"}])})
    assert _stored_steps(store) == [1, 2]
    assert store.read("SELECT host_name FROM host_info").to_pylist() == [{"host_name": "a"}]


def test_rows_replace_those_of_their_key_however_the_table_has_grown_since_the_first_write(
    store: Store,
) -> None:
    for number in range(60):
        hosts: list[dict[str, object]] = [
            {"host_uid": f"h{n}", "host_name": f"{n} at {number}"} for n in (number, 0, 30)
        ]
        unique = {str(host["host_uid"]): host for host in hosts}
        store.write({"host_info": _rows(HOST_INFO, list(unique.values()))})
        if number == 40:
            store.cursor().execute("CHECKPOINT")
    rows = store.read("SELECT host_uid, host_name FROM host_info").to_pylist()
    found = {row["host_uid"]: row["host_name"] for row in rows}
    assert len(rows) == 60
    assert found == {f"h{n}": f"{n} at {n}" for n in range(60)} | {"h0": "0 at 59", "h30": "30 at 59"}


def test_prepared_statements_go_on_after_the_schema_changed(store: Store) -> None:
    store.write({"step": _steps(1)})
    with store.cursor() as cursor:
        cursor.execute("CREATE VIEW later AS SELECT * FROM step")
        cursor.execute("ALTER TABLE step ADD COLUMN more BIGINT")
    store.write({"step": _steps(2)})
    assert _stored_steps(store) == [1, 2]


def test_a_client_s_cursor_does_not_see_the_rows_that_come_in(store: Store) -> None:
    store.write({"step": _steps(1)})
    with store.cursor() as cursor, pytest.raises(duckdb.CatalogException):
        cursor.execute("SELECT * FROM rankmem_incoming_step")


def test_the_log_is_packed_between_commits_once_it_is_long_enough(store: Store) -> None:
    log = store.path.with_name(store.path.name + ".wal")
    store.write({"step": _steps(*range(10_000))})
    assert not store.checkpoint(log.stat().st_size + 1)
    assert log.stat().st_size > 10_000
    assert store.checkpoint(log.stat().st_size)
    assert not log.exists() or log.stat().st_size < 10_000
    assert _stored_steps(store) == list(range(10_000))


def test_a_checkpoint_beside_another_transaction_keeps_what_is_committed_and_no_more(store: Store) -> None:
    store.write({"step": _steps(1)})
    with store.cursor() as other:
        other.execute("BEGIN TRANSACTION")
        other.execute("INSERT INTO step (session_id, attempt, rank, step) VALUES ('0SESSION', 0, 0, 9)")
        store.checkpoint(1)
        store.write({"step": _steps(2)})
        other.execute("ROLLBACK")
    store.close()
    with duckdb.connect(store.path, read_only=True) as file:
        assert file.sql("SELECT step FROM step ORDER BY step").fetchall() == [(1,), (2,)]


def test_rows_on_either_side_of_what_counts_as_few_are_all_stored_once(store: Store) -> None:
    begins = [0]
    for count in (FEW_ROWS_MAX - 1, FEW_ROWS_MAX, FEW_ROWS_MAX + 1, 0, 1):
        begins.append(begins[-1] + count)
        store.write({"step": _steps(*range(begins[-2], begins[-1]))})
    assert _stored_steps(store) == list(range(begins[-1]))


def test_few_rows_are_not_collected_apart_and_appended_twice() -> None:
    with duckdb.connect(config={"threads": 2}) as connection:
        schema.prepare(connection)
        for table in (table for table in TABLES.values() if not table.key):
            connection.register(schema.INCOMING, table.arrow_schema().empty_table())
            plans = [
                connection.execute(f"EXPLAIN {schema.append_statement(table, few=few)}").fetchall()[0][1]
                for few in (True, False)
            ]
            assert ["Batch Insert" in plan for plan in plans] == [False, True], table.name
