"""The rows of ``lake_progress`` as values, and back: checked, as a lake may come from a stranger.

Stage: between files and questions. Pure values; nothing here opens a file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import fields
from typing import Final

import pyarrow as pa

from rankmem_aggregator.lake.files import GIVE_A_LAKE, LakeFiles
from rankmem_aggregator.lake.layout import (
    ALL_SESSIONS,
    LAKE_PROGRESS,
    LAYOUT_OLDEST,
    LAYOUT_VERSION,
    DataFile,
    file_schema,
    is_data_path,
)
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import SCHEMA_VERSION

_COLUMNS: Final = tuple(field.name for field in fields(DataFile))
_NULLABLE: Final = {column.name for column in LAKE_PROGRESS.columns if column.nullable}


def progress_rows(new: Iterable[DataFile]) -> pa.Table:
    """The rows of files."""
    rows = [{name: getattr(file, name) for name in _COLUMNS} for file in new]
    return pa.Table.from_pylist(rows, schema=file_schema(LAKE_PROGRESS))


def checked_files(files: LakeFiles, rows: pa.Table) -> tuple[DataFile, ...]:
    """The files of rows, by table, session, segment, hosts, writer and sequence.

    Raises:
        RankmemError: INVALID for rows that are none of rankmem's, or name a file outside of the lake,
            UNSUPPORTED for those of a newer rankmem.
    """
    if lacking := [name for name in _COLUMNS if name not in rows.column_names and name not in _NULLABLE]:
        raise RankmemError(
            Code.INVALID,
            f"{files.place(LAKE_PROGRESS.name)} has no column {lacking[0]}",
            GIVE_A_LAKE,
        )
    nothing = [None] * rows.num_rows
    columns = {name: rows[name].to_pylist() if name in rows.column_names else nothing for name in _COLUMNS}
    columns["layout_version"] = [version or 1 for version in columns["layout_version"]]
    for what, known in (("schema", SCHEMA_VERSION), ("layout", LAYOUT_VERSION)):
        version = max(columns[f"{what}_version"], default=0)
        if version > known:
            raise RankmemError(
                Code.UNSUPPORTED,
                f"the lake {files.root} has {what} version {version}, this rankmem knows up to {known}",
                "upgrade rankmem: pip install --upgrade rankmem",
            )
    found = list(itertools.starmap(DataFile, zip(*columns.values(), strict=True)))
    for file in found:
        if not is_data_path(file.path, file.table_name):
            raise RankmemError(
                Code.INVALID,
                f"the lake {files.root} names a file outside of it: {file.path}",
                "rankmem lake import makes a new one",
            )
    found.sort(key=lambda f: (f.table_name, f.session_id, f.segment, f.hosts, f.writer, f.sequence, f.path))
    return tuple(found)


def is_too_old(file: DataFile) -> bool:
    """Whether answers from a file could be wrong."""
    return file.layout_version < LAYOUT_OLDEST


def check_age(files: LakeFiles, found: Iterable[DataFile]) -> None:
    """Raises UNSUPPORTED where one of the files is too old for answers, and names its session."""
    old = {file.session_id: file.layout_version for file in found if is_too_old(file)}
    if old:
        session_id = min(old, key=lambda session_id: (session_id == ALL_SESSIONS, session_id))
        raise RankmemError(
            Code.UNSUPPORTED,
            f"the lake {files.root} has session {session_id} in layout {old[session_id]}, of an older "
            "rankmem: answers could be wrong",
            "rankmem lake import FILE --lake URI writes a database's sessions again; rankmem lake check "
            "lists what is left",
        )
