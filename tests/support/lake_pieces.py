"""A lake as a writing aggregator leaves it: many small files, rows with a key replaced by later ones.

Stage: tests. In: a lake that was imported; out: another one with the same rows. Each file is cut in pieces at
random, and the pieces of one number are one commit, as every 15 s. Rows of tables with a key are also in
earlier pieces, there with other values.
"""

from __future__ import annotations

import dataclasses
import random
import time
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from rankmem_aggregator.lake.catalog import Catalog, add_progress, read_catalog
from rankmem_aggregator.lake.delta import DeltaLog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.layout import TABLES, DataFile, digest, file_schema, path_of
from rankmem_aggregator.lake.parquet import write_rows
from rankmem_aggregator.retention.limits import NS_PER_DAY
from rankmem_protos.tables import Table

WRITER: Final = "serve:0"
LANES: Final = "lanes/0"


def catalog_of(lake: Path | str) -> Catalog:
    return read_catalog(LakeFiles(str(lake)))


def store_end(database: Path, session: str, days: float) -> None:
    """Makes a session one that an aggregator has recorded, and that ended so many days ago."""
    with duckdb.connect(database) as connection:
        connection.execute("DELETE FROM ingest_progress WHERE session_id = ?", [session])
        connection.execute(
            "INSERT INTO ingest_progress "
            "(spool_id, session_id, attempt, rank, last_sequence, final, updated_ns, secret_hash) "
            "VALUES (?, ?, 0, 0, 7, true, ?, 'abc')",
            [f"spool-{session}", session, time.time_ns() - int(days * NS_PER_DAY)],
        )


def in_pieces(whole: Path, lake: str, chance: random.Random, pieces: int) -> None:
    """Writes the rows of a lake into another.

    Args:
        whole: what was imported.
        lake: the address of the new one.
        chance: where files are cut.
        pieces: at most so many of each file.
    """
    cut = [(file, _pieces(whole, file, chance, pieces)) for file in catalog_of(whole).files]
    for number in range(pieces):
        new = [(file, rows[number]) for file, rows in cut if rows[number]]
        write_piece(lake, new, sequence=number + 1)


def write_piece(
    lake: str, new: list[tuple[DataFile, list[dict[str, Any]]]], sequence: int, app: str = LANES
) -> list[DataFile]:
    """Commits rows as an aggregator does; the files of which they are say where they belong."""
    files = LakeFiles(lake)
    state = digest([app, sequence])
    written = [_written(files, file, rows, sequence, state) for file, rows in new]
    for name in {file.table_name for file in written}:
        of_table = [file for file in written if file.table_name == name]
        DeltaLog(files, TABLES[name]).commit(of_table, [], app=app, sequence=sequence)
    add_progress(files, written, app=app, sequence=sequence)
    return written


def _pieces(whole: Path, file: DataFile, chance: random.Random, pieces: int) -> list[list[dict[str, Any]]]:
    table = TABLES[file.table_name]
    found: list[list[dict[str, Any]]] = [[] for _ in range(pieces)]
    rows = pq.read_table(whole / file.path, partitioning=None).to_pylist()
    if table.key:  # constructed rows may have the same
        rows = list({tuple(row[name] for name in table.key): row for row in rows}.values())
    for row in rows:
        number = chance.randrange(pieces)
        found[number].append(row)
        if table.key and number:
            found[chance.randrange(number)].append(_earlier(table, row))
    return found


def _earlier(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    """A row that another one with its key replaces."""
    others = [c for c in table.columns if c.name not in table.key]
    changed = {c.name: _other(row[c.name], nullable=c.nullable) for c in others}
    return row | changed


def _other(value: Any, *, nullable: bool) -> Any:
    if nullable:
        return None
    return value + 1 if type(value) is int else value


def _written(
    files: LakeFiles, like: DataFile, rows: list[dict[str, Any]], sequence: int, state: str
) -> DataFile:
    table = TABLES[like.table_name]
    part = like.table_name, like.session_id, like.segment, like.hosts
    path = path_of(*part, sequence=sequence, writer=WRITER, state=state)
    batch = pa.Table.from_pylist(rows, schema=file_schema(table)).to_batches()
    num_rows, size = write_rows(files, path, table, iter(batch))
    return dataclasses.replace(
        like, path=path, num_rows=num_rows, size_bytes=size, writer=WRITER, sequence=sequence, state=state
    )
