"""The files of a session that is written whole: by an import, or cut again once it is over.

Stage: write. In: parts and their rows; out: files that are there, and do not count yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from rankmem_aggregator.lake.cutting import Part
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.layout import DataFile, path_of
from rankmem_aggregator.lake.parquet import write_rows
from rankmem_protos.tables import SCHEMA_VERSION, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorship:
    """Who writes files, in which of its commits, and a mark of what it had read."""

    writer: str
    sequence: int
    state: str


def write_part(
    files: LakeFiles, table: Table, part: Part, rows: Iterator[pa.RecordBatch], by: Authorship
) -> DataFile | None:
    """Writes the rows of a part; None where there are none."""
    place = table.name, part.session_id, part.segment, part.hosts
    path = path_of(*place, sequence=by.sequence, writer=by.writer, state=by.state)
    num_rows, size_bytes = write_rows(files, path, table, rows)
    return part_file(table.name, part, path, size_bytes, num_rows, by) if num_rows else None


def part_file(
    table_name: str, part: Part, path: str, size_bytes: int, num_rows: int, by: Authorship
) -> DataFile:
    """The row of ``lake_progress`` for a file of a part."""
    return DataFile(
        table_name=table_name,
        session_id=part.session_id,
        segment=part.segment,
        hosts=part.hosts,
        path=path,
        size_bytes=size_bytes,
        num_rows=num_rows,
        from_ns=part.from_ns,
        until_ns=part.until_ns,
        host_uids=part.host_uids,
        writer=by.writer,
        sequence=by.sequence,
        state=by.state,
        schema_version=SCHEMA_VERSION,
    )
