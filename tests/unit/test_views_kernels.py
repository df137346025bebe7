"""Kernels of imported profiles: backward ones are led to the layer of their forward, times add up by
group."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from constructed import BASE_NS, SESSION, clear, store_rows

NAMES = ("layer", "operator", "call_site", "direction", "sequence_ids")


@pytest.fixture
def database(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Two steps: forward of layer a and b (numbers 5 and 6), an update that carries 5 again, backward of
    both."""
    clear(connection)
    connection.execute("DELETE FROM kernel_launch")
    kernels = [
        kernel(
            1, 10, 3, layer="a", operator="mm", call_site="t.py:1", direction="forward", sequence_ids="[5]"
        ),
        kernel(
            2, 20, 4, layer="b", operator="relu", call_site="t.py:2", direction="forward", sequence_ids="[6]"
        ),
        kernel(3, 30, 5, operator="Relu", direction="backward", sequence_ids="[6]"),
        kernel(4, 40, 6, operator="Mm", direction="backward", sequence_ids="[5]"),
        kernel(5, 50, 7, layer="update", operator="mul_", direction="forward", sequence_ids="[5]"),
        kernel(6, 60, 8, operator="add_", direction="backward", sequence_ids="[0]"),
        kernel(7, None, 9),
    ]
    store_rows(connection, "kernel_launch", kernels)
    return connection


def kernel(kernel_id: int, launched: int | None, duration: int, **said: str) -> dict[str, Any]:
    """A row of kernel_launch."""
    started = BASE_NS + (launched or 100) + 1
    return {
        "session_id": SESSION,
        "attempt": 0,
        "rank": 0,
        "device": "cuda:0",
        "kernel_id": kernel_id,
        "kernel": "k",
        "started_ns": started,
        "ended_ns": started + duration,
        "launched_ns": None if launched is None else BASE_NS + launched,
        "stream": 7,
    } | {name: said.get(name) for name in NAMES}


def test_a_backward_kernel_has_the_layer_of_the_last_forward_with_its_number(
    database: duckdb.DuckDBPyConnection,
) -> None:
    found = database.execute(
        "SELECT kernel_id, layer, operator, call_site, forward_kernel_id FROM kernel_origin ORDER BY ALL"
    ).fetchall()
    assert found == [
        (1, "a", "mm", "t.py:1", None),
        (2, "b", "relu", "t.py:2", None),
        (3, "b", "relu", "t.py:2", 2),
        (4, "a", "mm", "t.py:1", 1),
        (5, "update", "mul_", None, None),
        (6, None, "add_", None, None),
        (7, None, None, None, None),
    ]


def test_times_add_up_by_layer_forward_and_backward(database: duckdb.DuckDBPyConnection) -> None:
    rows = database.execute(
        "SELECT * EXCLUDE (rank, device) FROM kernel_total($session)",
        {"session": SESSION},
    ).fetchall()
    assert rows == [
        (None, 2, 17, 0, 8, 9),
        ("a", 2, 9, 3, 6, 6),
        ("b", 2, 9, 4, 5, 5),
        ("update", 1, 7, 7, 0, 7),
    ]


@pytest.mark.parametrize("group", ["layer", "operator", "call_site", "short_name", "stream"])
def test_every_group_has_all_the_time(database: duckdb.DuckDBPyConnection, group: str) -> None:
    total = database.execute(
        "SELECT sum(total_ns) FROM kernel_total($session, of_group := $group)",
        {"session": SESSION, "group": group},
    ).fetchone()
    assert total == (sum(range(3, 10)),)


def test_an_unknown_group_is_refused(database: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.InvalidInputException, match="it takes layer, operator"):
        database.execute("SELECT * FROM kernel_total($session, of_group := 'x')", {"session": SESSION})
