"""What is stored packed is read back exactly, whatever the numbers; and the file is the smaller for it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constructed import store_rows
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.packing import PACKED
from rankmem_aggregator.store.store import open_store
from rankmem_protos.tables import TABLES

pytestmark = pytest.mark.slow

FILL: dict[Any, Any] = {pa.int64(): 1, pa.int32(): 2, pa.bool_(): False}
"""A value for a column that must have one."""

anything = st.one_of(st.none(), st.integers(-(2**62), 2**62))
"""Beyond it, sums of a packed form may leave 64 bits: the database then refuses the row."""
size = st.one_of(st.none(), st.integers(0, 2**56), st.sampled_from([0, 4, 8, 4096, 2**20]))
address = st.one_of(
    anything,
    st.integers(-(2**57), 2**57 - 1).map(lambda n: 64 * n),
    st.sampled_from([0, 1, -1, 63, 64, -64, 65, 2**57, 2**57 - 1, -(2**57), 2**62, 2**63 - 64, -(2**63)]),
)
VALUES = {
    "component": st.sampled_from(["pytorch", "cuda_graph", "mem_pool", "pinned_host", "app", ""]),
    "address": address,
    "size_bytes": size,
    "allocated_bytes": size,
    "freed_bytes": size,
    "sequence_first": anything.map(lambda n: None if n is None else n // 2),
    "sequence_last": anything.map(lambda n: None if n is None else n // 2),
    "started_ns": anything.map(lambda n: None if n is None else n // 2),
    "ended_ns": anything.map(lambda n: None if n is None else n // 2),
    **{
        name: st.integers(-(2**61), 2**61)
        for name in (
            "seq_first",
            "seq_last",
            "first_ns",
            "last_ns",
            "requested_peak_seq",
            "requested_peak_ns",
        )
    },
    **{name: st.integers(0, 2**56) for name in ("requested_peak_bytes", "requested_last_bytes")},
    **{
        f"{figure}_{kind}_bytes": size
        for figure in ("allocated", "active", "reserved")
        for kind in ("peak", "last")
    },
}


def rows_of(table: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    declared = TABLES[table]
    filled = {c.name: st.just(FILL.get(c.type, "text")) for c in declared.columns}
    return st.lists(
        st.fixed_dictionaries(
            {name: VALUES.get(name, values) for name, values in filled.items()},
        ),
        min_size=1,
        max_size=20,
    )


def read_back(connection: duckdb.DuckDBPyConnection, table: str) -> list[dict[str, Any]]:
    return connection.sql(schema.select_statement(TABLES[table])).to_arrow_table().to_pylist()


@pytest.mark.parametrize("table", PACKED)
@given(data=st.data())
def test_rows_are_read_as_they_were_stored(
    connection: duckdb.DuckDBPyConnection, table: str, data: st.DataObject
) -> None:
    rows = data.draw(rows_of(table))
    connection.execute("BEGIN")
    try:
        store_rows(connection, table, rows)
        assert read_back(connection, table) == rows
    finally:
        connection.execute("ROLLBACK")


def test_every_packed_column_is_one_whose_values_the_test_above_varies() -> None:
    assert {column for columns in PACKED.values() for column in columns} <= set(VALUES)


def test_an_address_that_no_machine_has_is_refused_and_not_stored_as_another_one(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    row = {c.name: FILL.get(c.type, "text") for c in TABLES["memory_event"].columns}
    with pytest.raises(duckdb.Error, match=r"[Oo]verflow|out of range"):
        store_rows(connection, "memory_event", [row | {"address": 2**63 - 1}])
    assert read_back(connection, "memory_event") == []


def plan_of(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    return str(connection.execute(f"EXPLAIN {sql}").fetchall()[0][1])


def test_a_question_that_needs_no_packed_column_reads_the_stored_ones_alone(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    asked = "SELECT rank, seq, time_ns, requested_bytes FROM {} WHERE seq BETWEEN 5 AND 9 AND rank = 3"
    of_view = plan_of(connection, asked.format("memory_event"))
    assert of_view == plan_of(connection, asked.format("packed.memory_event"))
    assert "CAST" not in of_view.upper()


def stored_bytes(path: Path, sizes: Sequence[int]) -> int:
    """Bytes of the blocks behind memory_event.size_bytes in a new database with one event a size."""
    store = open_store(AggregatorConfig(database_path=path))
    row = {c.name: FILL.get(c.type, "text") for c in TABLES["memory_event"].columns}
    events = [row | {"seq": seq, "size_bytes": size_bytes} for seq, size_bytes in enumerate(sizes)]
    store.write({"memory_event": pa.Table.from_pylist(events, TABLES["memory_event"].arrow_schema())})
    store.close()
    with duckdb.connect(path, read_only=True) as file:
        assert file.sql("SELECT block_size FROM pragma_database_size()").fetchall() == [(65_536,)]
        blocks = file.sql(
            "SELECT DISTINCT block_id FROM pragma_storage_info('packed.memory_event') "
            "WHERE column_name = 'size_bytes' AND segment_type = 'VARCHAR'"
        ).fetchall()
    return len(blocks) * schema.BLOCK_BYTES


def test_few_sizes_take_a_fraction_of_what_many_take(tmp_path: Path) -> None:
    random.seed(1)
    few = [random.choice([4, 8, 512, 196_608, 2**20]) for _ in range(120_000)]
    many = [random.randrange(2**20) for _ in range(120_000)]
    assert 3 * stored_bytes(tmp_path / "few", few) <= stored_bytes(tmp_path / "many", many)
