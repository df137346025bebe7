"""``rankmem lake check``: reads every file of a lake that counts.

Stage: maintenance, in the process of the command line. In: a lake's address; out: the files that are missing,
torn, or not what ``lake_progress`` says. Pages carry checksums, so a changed byte shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from rankmem_aggregator.lake.catalog import read_catalog
from rankmem_aggregator.lake.files import LakeFiles, said_by_store
from rankmem_aggregator.lake.layout import TABLES, DataFile, file_schema
from rankmem_aggregator.lake.progress_rows import is_too_old


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A file that cannot be used."""

    path: str
    """Below the lake."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found."""

    num_files: int
    num_rows: int
    """As ``lake_progress`` says."""
    faults: tuple[Fault, ...]


def check_lake(address: str) -> Checked:
    """Reads all files that count.

    Args:
        address: see :class:`LakeFiles`.

    Raises:
        RankmemError: as :func:`read_catalog`.
    """
    files = LakeFiles(address)
    catalog = read_catalog(files, is_answered=False)
    faults = [Fault(path=file.path, what=what) for file in catalog.files if (what := fault_of(files, file))]
    return Checked(
        num_files=len(catalog.files),
        num_rows=sum(file.num_rows for file in catalog.files),
        faults=tuple(faults),
    )


def fault_of(files: LakeFiles, file: DataFile) -> str:
    """What is wrong with a file, which is read whole; empty: nothing."""
    if is_too_old(file):
        return f"layout {file.layout_version}, of an older rankmem: import its session again"
    try:
        size = files.size_of(file.path)
        if size is None:
            return "missing"
        if size != file.size_bytes:
            return f"{size} bytes, not {file.size_bytes}: torn, or another file"
        with files.open_input(file.path) as opened:
            found = pq.ParquetFile(opened, page_checksum_verification=True)
            for group in range(found.num_row_groups):
                found.read_row_group(group)
            return _difference(file, found)
    except (OSError, pa.ArrowException) as exc:
        return f"cannot be read: {said_by_store(exc)}"


def _difference(file: DataFile, found: pq.ParquetFile) -> str:
    if found.metadata.num_rows != file.num_rows:
        return f"{found.metadata.num_rows} rows, not {file.num_rows}"
    for field in file_schema(TABLES[file.table_name]) if file.table_name in TABLES else ():
        place = found.schema_arrow.get_field_index(field.name)
        if place >= 0 and found.schema_arrow.field(place).type != field.type:
            return f"column {field.name} is {found.schema_arrow.field(place).type}, not {field.type}"
    return ""
