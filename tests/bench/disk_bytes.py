"""Bytes an event takes on disk, over all tables, of a real training recorded the real way.

Two ranks train under ``rankmem run``, recorded with everything on; then the file is checkpointed and
weighed, and every table is written as Parquet. The figures of a table come from its blocks. The same training
runs once more into an aggregator of its own, whose row groups are smaller. Beside it: PyTorch's own snapshot
pickles take 89 to 164 bytes an event (measured on recordings of real trainings, CUDA).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

import duckdb
from harness import Figure, Options, main, say
from processes import aggregator, environment, recording_environment, torchrun, train, wait_until_quiet

from rankmem_aggregator.store import schema
from rankmem_protos.tables import Table

MODEL: Final = ("--batch", "4")
STEPS: Final = 300  # some 900,000 events a rank
QUICK_STEPS: Final = 60
PICKLE_BYTES: Final = 89.0
_EXPORT: Final = """
COPY (FROM query_table($table)) TO $path (
    FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 9, PARQUET_VERSION v2, ROW_GROUP_SIZE 1000000
)
"""
_EXPORT_BY_RANK: Final = """
COPY (FROM query_table($table) ORDER BY rank, COLUMNS('^(seq|allocation_id|call_id|seq_first)$'))
TO $path (
    FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 9, PARQUET_VERSION v2, ROW_GROUP_SIZE 1000000
)
"""
SHOWN: Final = ("memory_event", "allocation_record", "operator_call", "allocation_end", "memory_bucket")


def measure(options: Options) -> list[Figure]:
    """All figures of this benchmark."""
    database = options.folder / "training.duckdb"
    record(options, database)
    served = options.folder / "served.duckdb"
    _record_served(options, served)
    with duckdb.connect(str(database)) as connection:
        connection.execute("CHECKPOINT")
        events = int(connection.sql("SELECT count(*) FROM memory_event").fetchall()[0][0])
        blocks = {name: _block_bytes(connection, table) for name, table in schema.ALL_TABLES.items()}
        used, parquet = _used_bytes(connection), _parquet_bytes(connection, options.folder)
    file_bytes = database.stat().st_size
    say(f"{events:,} events, file {file_bytes:,} bytes")
    figures = [
        Figure(
            what="DuckDB, all tables",
            value=used / events,
            unit="bytes an event",
            at_most=35,
            note=f"{events:,} events; the file itself, free blocks included: {file_bytes / events:.1f}",
        ),
        Figure(
            what="DuckDB, all tables, rankmem serve",
            value=_weigh(served),
            unit="bytes an event",
            at_most=35,
        ),
        Figure(
            what="Parquet (zstd), all tables",
            value=sum(parquet.values()) / events,
            unit="bytes an event",
            at_most=12,
        ),
        Figure(
            what="least of PyTorch's snapshot pickles / DuckDB",
            value=PICKLE_BYTES / (used / events),
            note="89 to 164",
        ),
    ]
    for name in SHOWN:
        figures.append(Figure(what=f"DuckDB, {name}", value=blocks[name] / events, unit="bytes an event"))
        figures.append(Figure(what=f"Parquet, {name}", value=parquet[name] / events, unit="bytes an event"))
    return figures


def record(options: Options, database: Path) -> None:
    """Records the training the way a user would."""
    spools = tempfile.mkdtemp(dir=options.memory_folder)
    run = ["-m", "rankmem_cli", "run", "--db", str(database), "--", sys.executable]
    env = environment({"RANKMEM_SPOOL_DIR": spools})
    train([*run, *torchrun(2)], _training(options), options.folder, env)


def _record_served(options: Options, database: Path) -> None:
    spools = Path(tempfile.mkdtemp(dir=options.memory_folder))
    with aggregator(database) as server:
        env = recording_environment(server.address, spools)
        train([*torchrun(2), "-m", "rankmem_agent"], _training(options), options.folder, env)
        wait_until_quiet(spools)


def _training(options: Options) -> list[str]:
    return [*MODEL, "--steps", str(QUICK_STEPS if options.quick else STEPS)]


def _weigh(database: Path) -> float:
    """Bytes an event, of a database that nobody holds."""
    with duckdb.connect(str(database)) as connection:
        connection.execute("CHECKPOINT")
        events = int(connection.sql("SELECT count(*) FROM memory_event").fetchall()[0][0])
        return _used_bytes(connection) / events


def _used_bytes(connection: duckdb.DuckDBPyConnection) -> int:
    """Blocks in use: the file without what a checkpoint has freed in it."""
    row = connection.sql("SELECT used_blocks * block_size FROM pragma_database_size()").fetchall()[0]
    return int(row[0])


def _block_bytes(connection: duckdb.DuckDBPyConnection, table: Table) -> int:
    """Bytes of a table's blocks; one that is shared with another table counts for both."""
    row = connection.execute(
        "SELECT count(DISTINCT block_id) FROM pragma_storage_info($table) WHERE block_id >= 0",
        {"table": schema.stored_name(table).replace('"', "")},
    ).fetchall()[0]
    return int(row[0]) * schema.BLOCK_BYTES


def _parquet_bytes(connection: duckdb.DuckDBPyConnection, folder: Path) -> dict[str, int]:
    """Size of every table as one Parquet file: with delta encodings (version 2), the large ones by rank."""
    sizes: dict[str, int] = {}
    for name in schema.ALL_TABLES:
        path = folder / f"{name}.parquet"
        connection.execute(_EXPORT_BY_RANK if name in SHOWN else _EXPORT, {"table": name, "path": str(path)})
        sizes[name] = path.stat().st_size
    return sizes


if __name__ == "__main__":
    main("disk_bytes", "bytes an event takes on disk", measure)
