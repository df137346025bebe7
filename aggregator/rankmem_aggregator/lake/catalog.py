"""Which files of a lake count: the rows of ``lake_progress``, at one version.

Stage: between files and questions. In: a lake's place; out: its :class:`DataFile` rows, checked: a lake may
come from a stranger, so no row may name a file outside of it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.lake.delta import commit_once, made_elsewhere
from rankmem_aggregator.lake.files import LakeFiles, deltalake
from rankmem_aggregator.lake.layout import (
    ALL_SESSIONS,
    LAKE_PROGRESS,
    DataFile,
    file_schema,
    is_data_path,
)
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import SCHEMA_VERSION

PROGRESS_FILES_MAX: Final = 64
"""Files of lake_progress after an import; more are joined to one, which every question reads."""
_COLUMNS: Final = tuple(field.name for field in fields(DataFile))
_NULLABLE: Final = {column.name for column in LAKE_PROGRESS.columns if column.nullable}


@dataclass(frozen=True)
class Catalog:
    """The files that count at one version of a lake."""

    version: int
    """Of ``lake_progress``; -1: there is none yet."""
    files: tuple[DataFile, ...]
    """By table, session, segment, hosts, writer and sequence."""

    @cached_property
    def _by_table(self) -> dict[str, list[DataFile]]:
        found: dict[str, list[DataFile]] = {}
        for file in self.files:
            found.setdefault(file.table_name, []).append(file)
        return found

    def of_table(self, name: str) -> Sequence[DataFile]:
        """The files of a table."""
        return self._by_table.get(name, ())

    def of_session(self, session_id: str) -> list[DataFile]:
        """The files of a session, of all tables."""
        return [file for file in self.files if file.session_id == session_id]

    def about(self, session_id: str) -> Catalog:
        """What a question about a session needs: its files, and those that belong to no session."""
        return Catalog(
            self.version, tuple(f for f in self.files if f.session_id in (session_id, ALL_SESSIONS))
        )

    def session_ids(self) -> list[str]:
        """The sessions, ordered by id."""
        return sorted({file.session_id for file in self.of_table("session")})


def read_catalog(files: LakeFiles, *, version: int | None = None) -> Catalog:
    """What counts at a version of ``lake_progress``; None: the newest.

    Raises:
        RankmemError: NOT_FOUND where there is nothing, INVALID where there is no lake, UNSUPPORTED for a lake
            that a newer rankmem wrote, or where deltalake is not installed.
    """
    opened = open_progress(files, version=version)
    from deltalake.exceptions import DeltaError

    if opened is None:
        if not files.is_there():
            raise RankmemError(
                Code.NOT_FOUND, f"no lake {files.root}", "rankmem lake import FILE --lake URI makes one"
            )
        raise RankmemError(
            Code.INVALID,
            f"{files.root} is no lake of rankmem: it has no table lake_progress",
            "give the place that rankmem lake import wrote to",
        )
    try:
        rows = pa.table(opened.to_pyarrow_table())
    except (DeltaError, OSError, pa.ArrowException) as exc:
        raise RankmemError(
            Code.INVALID, f"cannot read {files.place(LAKE_PROGRESS.name)}: {exc}", "rankmem lake check"
        ) from exc
    return Catalog(opened.version(), _checked(files, rows))


def newest_version(files: LakeFiles) -> int:
    """The newest version of ``lake_progress``; -1: there is none."""
    opened = open_progress(files)
    return -1 if opened is None else int(opened.version())


def open_progress(files: LakeFiles, *, version: int | None = None) -> Any:
    """The Delta table lake_progress; None where there is none.

    Raises:
        RankmemError: INVALID for one that cannot be read.
    """
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return deltalake().DeltaTable(files.place(LAKE_PROGRESS.name), version=version)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as exc:
        raise RankmemError(
            Code.INVALID, f"cannot read {files.place(LAKE_PROGRESS.name)}: {exc}", "rankmem lake check"
        ) from exc


def replace_progress(
    files: LakeFiles, session_id: str, writer: str, new: Iterable[DataFile], *, app: str, sequence: int
) -> None:
    """Makes these the files of a session (or of :data:`ALL_SESSIONS`) from this writer, and no others.

    Raises:
        RankmemError: CONFLICT where this or a later sequence of ``app`` was committed.
    """
    condition = f"session_id = '{session_id}' AND writer = '{writer}'"
    _commit(files, new, app, sequence, mode="overwrite", predicate=condition)


def add_progress(files: LakeFiles, new: Iterable[DataFile], *, app: str, sequence: int) -> None:
    """Makes these files count besides those that do. Raises as :func:`replace_progress`."""
    _commit(files, new, app, sequence, mode="append")


def _commit(files: LakeFiles, new: Iterable[DataFile], app: str, sequence: int, **mode: str) -> None:
    delta = deltalake()
    from deltalake.transaction import CommitProperties, Transaction

    place = files.place(LAKE_PROGRESS.name)
    rows = [{name: getattr(file, name) for name in _COLUMNS} for file in new]
    table = pa.Table.from_pylist(rows, schema=file_schema(LAKE_PROGRESS))

    def attempt() -> None:
        opened = open_progress(files)
        if opened is None:
            opened = delta.DeltaTable.create(
                place, file_schema(LAKE_PROGRESS), mode="ignore", name="lake_progress"
            )
        if int(opened.transaction_version(app) or 0) >= sequence:
            raise made_elsewhere(place)
        properties = CommitProperties(app_transactions=[Transaction(app, sequence)])
        delta.write_deltalake(opened, table, commit_properties=properties, **mode)

    commit_once(place, attempt)


def join_progress(files: LakeFiles) -> None:
    """Joins the files of lake_progress once they are many."""
    from deltalake.exceptions import CommitFailedError

    opened = open_progress(files)
    if opened is not None and len(opened.file_uris()) > PROGRESS_FILES_MAX:
        with contextlib.suppress(CommitFailedError):  # the next import does it
            opened.optimize.compact()


def _checked(files: LakeFiles, rows: pa.Table) -> tuple[DataFile, ...]:
    if lacking := [name for name in _COLUMNS if name not in rows.column_names and name not in _NULLABLE]:
        raise RankmemError(
            Code.INVALID,
            f"{files.place(LAKE_PROGRESS.name)} has no column {lacking[0]}",
            "give the place that rankmem lake import wrote to",
        )
    version = max(rows["schema_version"].to_pylist(), default=0)
    if version > SCHEMA_VERSION:
        raise RankmemError(
            Code.UNSUPPORTED,
            f"the lake {files.root} has schema version {version}, this rankmem knows up to {SCHEMA_VERSION}",
            "upgrade rankmem: pip install --upgrade rankmem",
        )
    nothing = [None] * rows.num_rows
    columns = [rows[name].to_pylist() if name in rows.column_names else nothing for name in _COLUMNS]
    found = list(itertools.starmap(DataFile, zip(*columns, strict=True)))
    for file in found:
        if not is_data_path(file.path, file.table_name):
            raise RankmemError(
                Code.INVALID,
                f"the lake {files.root} names a file outside of it: {file.path}",
                "rankmem lake import makes a new one",
            )
    found.sort(key=lambda f: (f.table_name, f.session_id, f.segment, f.hosts, f.writer, f.sequence, f.path))
    return tuple(found)
