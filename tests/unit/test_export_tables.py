"""Parquet, Arrow and CSV hold the tables' rows as they are, each rank's, readable by other engines."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import ipc

from constructed import BASE_NS, SESSION
from export_logs import CudaLog, database, marker, training
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.csv_cells import guarded
from rankmem_aggregator.exports import table_rows
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.exports.table_statements import POSITIONS, times_of
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.sql import install_views
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.store import open_store
from rankmem_aggregator.summaries.schedule import Summaries
from rankmem_protos.summary_tables import SUMMARY_TABLES
from rankmem_protos.tables import TABLES

pytestmark = pytest.mark.slow

OTHER = "0SESSION0002"
FORMULA = "=cmd|' /C calc'!A0"


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    jobs = [training(0), training(1, host_uid="host/1 é", offset_ns=7_000)]
    other = CudaLog(5)
    other.log.session_id = OTHER
    other.alloc("of another session", 1, 4096, stack_id=1)
    clock = [
        {"host_uid": uid, "time_ns": BASE_NS, "offset_ns": 0, "error_ns": 9}
        for uid in ("host-0", "elsewhere")
    ]
    path = tmp_path_factory.mktemp("tables") / "r.duckdb"
    database(
        path,
        [*jobs, other],
        marker=[marker(FORMULA, 2, 9), marker("plain", 4, 5, rank=1)],
        clock_offset=clock,
    )
    with connect(path) as opened:
        yield opened


def stored(queries: Queries, table: str, where: str = "true") -> list[dict[str, Any]]:
    names = schema.ALL_TABLES[table].column_names()
    mine = f"session_id = '{SESSION}'" if "session_id" in names else "true"
    order = ", ".join(f'"{name}"' for name in names)
    return queries.sql(f"SELECT * FROM {table} WHERE {mine} AND {where} ORDER BY {order}").to_pylist()  # type: ignore[no-any-return]


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        rows, key=lambda row: [(value is not None, str(type(value)), value) for value in row.values()]
    )


def in_parquet(folder: Path, table: str) -> list[dict[str, Any]]:
    files = sorted((folder / table).rglob("*.parquet"))
    names = ", ".join(f'"{name}"' for name in schema.ALL_TABLES[table].column_names())
    with duckdb.connect() as engine:
        read = f"SELECT {names} FROM read_parquet(?, hive_partitioning = false) ORDER BY {names}"
        rows = engine.sql(read, params=[[str(file) for file in files]]).to_arrow_table()
    return rows.to_pylist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def parquet(queries: Queries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("parquet") / "out"
    export(queries, "parquet", out, session=SESSION)
    return out


@pytest.mark.parametrize(
    "table", [name for name in TABLES if name not in ("host_info", "clock_offset", "stack_frame")]
)
def test_parquet_has_every_row_of_the_session_and_no_other(
    queries: Queries, parquet: Path, table: str
) -> None:
    rows = stored(queries, table)
    assert bool(rows) is (parquet / table).exists()
    if rows:
        assert in_parquet(parquet, table) == rows


def test_parquet_has_the_summaries_and_the_progress_of_a_whole_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that views read: without them, peaks by category are read from blocks, and no rank has a status."""
    monkeypatch.setattr("rankmem_aggregator.summaries.schedule.DUE_POSITIONS", 0)
    database(tmp_path / "r.duckdb", [training(0)])
    with duckdb.connect(str(tmp_path / "r.duckdb")) as connection:
        connection.execute(
            "INSERT INTO ingest_progress (spool_id, session_id, attempt, rank, last_sequence, final, "
            "updated_ns) VALUES ('spool', ?, 0, 0, 9, true, ?)",
            [SESSION, BASE_NS],
        )
        connection.execute("INSERT INTO spool_start VALUES ('spool', ?, 0, 0, 0, '', '')", [SESSION])
        connection.execute("INSERT INTO level_progress VALUES (?, 0, 0, 4, false)", [SESSION])
        connection.execute(
            "INSERT INTO memory_level BY NAME SELECT session_id, attempt, rank, device, "
            "4 AS width_s, 0 AS cell_ns, seq_first, seq_last, first_ns, last_ns, events, "
            "1 AS peak_bytes, first_ns AS peak_ns, seq_first AS peak_seq, 0 AS low_bytes, 1 AS last_bytes "
            "FROM memory_bucket"
        )
    store = open_store(AggregatorConfig.embedded(tmp_path / "r.duckdb"))
    summaries = Summaries(store)
    while summaries.advance():
        pass
    store.close()
    with connect(tmp_path / "r.duckdb") as opened:
        export(opened, "parquet", tmp_path / "out", session=SESSION)
        export(opened, "parquet", tmp_path / "part", session=SESSION, until_ns=BASE_NS + 10**12)
        missing = {"rankmem_meta", "stack_hash", "pruned_spool"}
        for table in set(schema.ALL_TABLES) - set(TABLES) - missing:
            assert in_parquet(tmp_path / "out", table) == stored(opened, table) != [], table
            assert not (tmp_path / "part" / table).exists(), "a part of a session has no summary of it"


def test_rows_that_belong_to_no_rank_are_those_that_its_ranks_need(queries: Queries, parquet: Path) -> None:
    assert {row["host_uid"] for row in in_parquet(parquet, "host_info")} == {"host-0", "host/1 é"}
    assert {row["host_uid"] for row in in_parquet(parquet, "clock_offset")} == {"host-0"}
    assert {row["stack_id"] for row in in_parquet(parquet, "stack_frame")} == {1, 2}


def test_parquet_is_partitioned_by_session_host_and_rank(parquet: Path) -> None:
    files = [
        path.relative_to(parquet / "memory_event").as_posix()
        for path in (parquet / "memory_event").rglob("*.parquet")
    ]
    assert sorted(files) == [
        f"by_session={SESSION}/host=name-of-host%2F1%20%C3%A9/by_rank=1/part-0.parquet",
        f"by_session={SESSION}/host=name-of-host-0/by_rank=0/part-0.parquet",
    ]


def test_other_engines_read_the_partitions(queries: Queries, parquet: Path) -> None:
    dataset = pyarrow.dataset.dataset(parquet / "memory_event", partitioning="hive")
    assert dataset.count_rows() == len(stored(queries, "memory_event"))
    for name in ("rank", "by_rank"):
        one = dataset.to_table(filter=pyarrow.dataset.field(name) == 1)
        assert set(one["host"].to_pylist()) == {"name-of-host/1 é"}
    with duckdb.connect() as engine:
        glob = str(parquet / "memory_event" / "**" / "*.parquet")
        read = "SELECT host, rank, count(*) FROM read_parquet(?, hive_partitioning = true) GROUP BY ALL"
        assert [
            row[1:] for row in sorted(engine.execute(read, [glob]).fetchall(), key=lambda row: row[1])
        ] == [(rank, len(training(rank).log.events)) for rank in (0, 1)]


@pytest.mark.parametrize("kind", ["csv", "parquet", "duckdb"])
def test_a_file_of_an_older_version_is_exported_with_null_for_what_it_lacks(
    tmp_path: Path, kind: str
) -> None:
    """Nothing brings a file up to date that is only read."""
    path, out = tmp_path / "old.duckdb", tmp_path / "out"
    database(path, [training()])
    with duckdb.connect(str(path)) as old:
        old.execute("ALTER TABLE process_sample DROP COLUMN device_total_bytes")
        old.execute("DROP TABLE component_sample")
    with connect(path) as opened:
        assert export(opened, kind, out, session=None).counts.get("component_sample", 0) == 0
    if kind == "duckdb":
        with connect(out) as copy:
            assert copy.sql("SELECT device_total_bytes FROM process_sample").num_rows == 0
            assert copy.sql("SELECT * FROM component_sample").num_rows == 0
    elif kind == "csv":
        assert "device_total_bytes" in (out / "process_sample.csv").read_text().partition("\n")[0]


def test_what_pandas_reads_of_a_table_are_its_rows(queries: Queries, parquet: Path) -> None:
    """pandas.read_parquet is this call, which takes what folders say as dictionaries."""
    for table in ("memory_event", "session", "host_info"):
        rows = pyarrow.parquet.read_table(parquet / table)
        assert rows.num_rows == len(stored(queries, table))
        assert set(TABLES[table].column_names()) < set(rows.schema.names)


def test_the_views_run_over_the_parquet_files(queries: Queries, parquet: Path, tmp_path: Path) -> None:
    """As docs/formats.md says: what has a file is a view over it, what has none is an empty table."""
    with duckdb.connect(str(tmp_path / "over.duckdb")) as engine:
        engine.execute("SET TimeZone = 'UTC'")
        for table in (TABLES | SUMMARY_TABLES | schema.INTERNAL_TABLES).values():
            glob = parquet / table.name / "**" / "*.parquet"
            if (parquet / table.name).exists():
                engine.execute(
                    f"CREATE VIEW {table.name} AS FROM read_parquet('{glob}', hive_partitioning = false)"
                )
            else:
                for statement in schema.creating_statements(table):
                    engine.execute(statement)
        install_views(engine)
        told = engine.execute(
            "SELECT rank, peak_requested_bytes, peak_time_ns FROM peak_by_rank ORDER BY rank"
        ).fetchall()
        job = engine.execute(f"SELECT DISTINCT job_peak_bytes FROM job_peak('{SESSION}')").fetchall()
    peaks = sorted(queries.peak(SESSION).to_pylist(), key=lambda row: row["rank"])
    assert told == [(row["rank"], row["peak_requested_bytes"], row["peak_time_ns"]) for row in peaks]
    assert job == [(queries.job_peak(SESSION).to_pylist()[0]["job_peak_bytes"],)]


def test_arrow_files_carry_types_meanings_and_units(queries: Queries, tmp_path: Path) -> None:
    export(queries, "arrow", tmp_path / "out", session=SESSION)
    for name, table in TABLES.items():
        with ipc.open_file(tmp_path / "out" / f"{name}.arrow") as file:
            rows = file.read_all()
        assert rows.column_names == list(table.column_names())
        for field, column in zip(rows.schema, table.columns, strict=True):
            assert field.metadata == {b"doc": column.doc.encode(), b"unit": column.unit.encode()}
            plain = pa.string() if pa.types.is_dictionary(column.type) else column.type
            assert field.type == plain
    with ipc.open_file(tmp_path / "out" / "allocation_record.arrow") as file:
        assert sorted_rows(file.read_all().to_pylist()) == sorted_rows(stored(queries, "allocation_record"))


def test_csv_has_a_head_empty_cells_for_null_and_no_formulas(queries: Queries, tmp_path: Path) -> None:
    export(queries, "csv", tmp_path / "out", session=SESSION)
    for name, table in TABLES.items():
        with (tmp_path / "out" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            head, *rows = list(csv.reader(file))
        assert head == list(table.column_names())
        wanted = stored(queries, name) if name not in ("host_info", "clock_offset", "stack_frame") else rows
        assert len(rows) == len(wanted)
    with (tmp_path / "out" / "marker.csv").open(newline="", encoding="utf-8") as file:
        assert [row["name"] for row in csv.DictReader(file)] == [f"'{FORMULA}", "plain"]
    with (tmp_path / "out" / "memory_event.csv").open(newline="", encoding="utf-8") as file:
        pools = {row["pool"] for row in csv.DictReader(file)}
    assert pools == {"", "0.5"}


def test_a_rank_alone_takes_its_rows_alone(queries: Queries, tmp_path: Path) -> None:
    export(queries, "parquet", tmp_path / "out", session=SESSION, ranks=[1])
    assert in_parquet(tmp_path / "out", "memory_event") == stored(queries, "memory_event", "rank = 1")
    assert {row["host_uid"] for row in in_parquet(tmp_path / "out", "host_info")} == {"host/1 é"}


def test_a_range_takes_what_touches_it_on_the_clock_that_ranks_share(
    queries: Queries, tmp_path: Path
) -> None:
    first, last = BASE_NS + 11_000, BASE_NS + 13_000
    export(queries, "parquet", tmp_path / "out", session=SESSION, ranks=[1], from_ns=first, until_ns=last)
    inside = f"rank = 1 AND time_ns + 7000 BETWEEN {first} AND {last}"
    events = in_parquet(tmp_path / "out", "memory_event")
    assert events == stored(queries, "memory_event", inside)
    assert len(events) == 3
    lives = {row["allocation_id"]: row for row in in_parquet(tmp_path / "out", "allocation_record")}
    assert -1 in lives, "a block older than the recording is there throughout"
    assert all(row["allocated_ns"] is None or row["allocated_ns"] + 7000 <= last for row in lives.values())
    ends = [row["allocation_id"] for row in stored(queries, "allocation_end", "rank = 1")]
    assert [row["allocation_id"] for row in in_parquet(tmp_path / "out", "allocation_end")] == ends


def test_in_small_pieces_it_is_the_same(
    queries: Queries, parquet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_rows, "PAGE_ROWS", 3)
    written = export(queries, "parquet", tmp_path / "out", session=SESSION)
    for table in TABLES:
        if (parquet / table).exists():
            assert in_parquet(tmp_path / "out", table) == in_parquet(parquet, table)
    assert written.counts["memory_event"] == len(stored(queries, "memory_event"))


def test_every_long_table_is_read_in_pieces_and_every_column_of_time_is_known() -> None:
    assert set(POSITIONS) <= set(schema.ALL_TABLES)
    for name, position in POSITIONS.items():
        column = next(c for c in schema.ALL_TABLES[name].columns if c.name == position)
        assert not column.nullable
    assert times_of(TABLES["memory_event"]) == ("time_ns", "time_ns")
    assert times_of(TABLES["allocation_record"]) == ("allocated_ns", "freed_ns")
    assert times_of(TABLES["allocation_end"]) is None


@pytest.mark.parametrize(
    ("least", "most", "rows", "wanted"),
    [
        (None, None, 0, [(0, -1)]),
        (5, 5, 1, [(5, 5)]),
        (-2, 8, 4, [(-2, 2), (3, 8)]),
        (0, 1, 9, [(0, 0), (1, 1)]),
    ],
)
def test_pieces_meet_and_cover(
    least: int | None,
    most: int | None,
    rows: int,
    wanted: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_rows, "PAGE_ROWS", 2)
    assert list(table_rows.pages(least, most, rows)) == wanted


def test_rows_that_come_in_pieces_are_written_whole_although_the_first_piece_is_empty() -> None:
    none, some = pa.array([], pa.int64()), pa.array([3, 4], pa.int64())
    rows = pa.table({"bytes": pa.chunked_array([none, some]), "name": pa.chunked_array([["=a", "b"]])})
    out = pa.BufferOutputStream()
    arrow_csv.write_csv(
        guarded(rows), out, arrow_csv.WriteOptions(include_header=False, quoting_style="needed")
    )
    assert out.getvalue().to_pybytes() == b'3,"\'=a"\n4,"b"\n'
