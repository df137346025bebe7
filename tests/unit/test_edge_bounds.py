"""The job's peak where events are on their hosts: bounds, which meet once what can hold it is here."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constructed import SESSION, RankLog, clear, empty_database, store_logs, store_rows
from job_peak_oracle import jobs
from rankmem_aggregator.lake.not_here import MISSING_AS, refusing
from rankmem_aggregator.sql import query_text
from rankmem_aggregator.store import schema
from rankmem_protos.tables import MEMORY_EVENT
from repetitions import examples

pytestmark = pytest.mark.slow
CUTS = (2, 5, 6, 9)
"""Positions at which stretches begin, of all logs, after the first one."""
LAST = 1 << 40
Stretch = tuple[int, int, int, int]
"""Attempt, rank, first and last position."""


@pytest.fixture(scope="module")
def whole() -> Iterator[duckdb.DuckDBPyConnection]:
    with empty_database() as connection:
        yield connection


@pytest.fixture(scope="module")
def partial() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that sees its events as a lake does: those of stretches that are here."""
    with empty_database() as connection:
        columns = ", ".join(f"{c.name} {schema.duckdb_type(c.type)}" for c in MEMORY_EVENT.columns)
        connection.execute(f"CREATE TABLE event_here ({columns})")
        rows = refusing(MEMORY_EVENT, "FROM event_here", "FROM availability", "FROM memory_bucket")
        connection.execute(f"CREATE OR REPLACE VIEW memory_event AS {rows}")
        yield connection


def stretches_of(logs: Sequence[RankLog]) -> list[Stretch]:
    firsts = (0, *CUTS)
    lasts = (*(cut - 1 for cut in CUTS), LAST)
    return [(log.attempt, log.rank, a, b) for log in logs for a, b in zip(firsts, lasts, strict=True)]


def store_partly(
    connection: duckdb.DuckDBPyConnection, logs: Sequence[RankLog], missing: set[Stretch]
) -> None:
    clear(connection)
    connection.execute("DELETE FROM event_here")
    store_logs(connection, logs, cuts=CUTS)
    places = []
    for attempt, rank, first, last in stretches_of(logs):
        row = {
            "session_id": SESSION, "attempt": attempt, "rank": rank, "sequence_first": first,
            "sequence_last": last, "place": "host", "spool_id": f"{attempt}-{rank}", "size_bytes": 1,
        }  # fmt: skip
        is_here = (attempt, rank, first, last) not in missing
        places += [row, row | {"place": "here"}] if is_here else [row]
    store_rows(connection, "availability", places)
    here = [
        event
        for log in logs
        for event in log.events
        if not any((a, r) == (log.attempt, log.rank) and f <= event["seq"] <= n for a, r, f, n in missing)
    ]
    if here:
        connection.register("rows_here", pa.Table.from_pylist(here, schema=MEMORY_EVENT.arrow_schema()))
        connection.execute("INSERT INTO event_here BY NAME FROM rows_here")
        connection.unregister("rows_here")


def peak(connection: duckdb.DuckDBPyConnection, missing_as: str | None = None) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        if missing_as is not None:
            cursor.execute(f"SET VARIABLE {MISSING_AS} = '{missing_as}'")
        rows: list[dict[str, Any]] = (
            cursor.sql(query_text("job_peak"), params={"session": SESSION}).to_arrow_table().to_pylist()
        )
        return rows


def bytes_of(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {row["device_type"]: row["job_peak_bytes"] for row in rows}


def at_peak(connection: duckdb.DuckDBPyConnection, reached: Sequence[dict[str, Any]]) -> set[Stretch]:
    least = [{"device_type": name, "bytes": bytes_} for name, bytes_ in bytes_of(reached).items()]
    rows = connection.sql(
        query_text("stretches_at_peak"), params={"session": SESSION, "least": json.dumps(least)}
    )
    return {
        (row["attempt"], row["rank"], row["sequence_first"], row["sequence_last"])
        for row in rows.to_arrow_table().to_pylist()
    }


@given(logs=jobs(), dice=st.randoms(use_true_random=False), share=st.sampled_from([0.2, 0.5, 1.0]))
@examples(0.17)
def test_bounds_hold_and_meet_once_what_can_hold_the_peak_is_here(
    whole: duckdb.DuckDBPyConnection,
    partial: duckdb.DuckDBPyConnection,
    logs: list[RankLog],
    dice: random.Random,
    share: float,
) -> None:
    clear(whole)
    store_logs(whole, logs, cuts=CUTS)
    expected = peak(whole)
    missing = {stretch for stretch in stretches_of(logs) if dice.random() < share}
    store_partly(partial, logs, missing)
    lowest, highest = peak(partial, "lowest"), peak(partial, "highest")
    assert bytes_of(lowest).keys() == bytes_of(highest).keys() == bytes_of(expected).keys()
    for device_type, bytes_ in bytes_of(expected).items():
        assert bytes_of(lowest)[device_type] <= bytes_ <= bytes_of(highest)[device_type]
    if lowest == highest:
        assert lowest == expected
    needed = at_peak(partial, lowest)
    assert needed <= missing
    store_partly(partial, logs, missing - needed)
    assert peak(partial, "lowest") == peak(partial, "highest") == expected
    assert not at_peak(partial, expected)


def test_without_bounds_events_that_are_not_here_are_refused(partial: duckdb.DuckDBPyConnection) -> None:
    log = RankLog(rank=0)
    log.totals("cpu", [(10, 100), (20, 5)])
    store_partly(partial, [log], {(0, 0, 0, CUTS[0] - 1)})
    with pytest.raises(duckdb.Error, match=f"rows-not-here {SESSION} 0 0 1 0 5"):
        peak(partial)
