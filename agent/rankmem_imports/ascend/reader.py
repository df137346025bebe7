"""Profiler folders of Ascend devices: MindStudio's SQLite database and CSV files, a rank a folder.

Stage: readers; the process of ``rankmem import``. In: a database or any of the CSV files; its folder is the
recording: the database where there is one, else the CSV files; static graphs stand in a CSV file alone.
The rank: from RANK_DEVICE_MAP, else the database's name, else profiler_info beside or above.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rankmem_imports.ascend.csv_files import CsvSource, header_of
from rankmem_imports.ascend.database import DbSource, rank_devices
from rankmem_imports.ascend.profiler_info import PATTERN, facts_of
from rankmem_imports.ascend.recognition import NAME, has_our_tables, table_of_header
from rankmem_imports.ascend.recording import AscendRecording
from rankmem_imports.ascend.rows import Source
from rankmem_imports.files.compressed import BROKEN
from rankmem_imports.files.sqlite_recording import SqliteRecording
from rankmem_imports.recording import RankFacts, RankRecording
from rankmem_protos.errors import RankmemError

FOLDERS_KEPT: Final = 8
"""Folders whose files are known: one may hold the databases of a thousand ranks, and each asks."""

_RANK_IN_NAME: Final = re.compile(r"_profiler_(\d{1,9})\.db$")
_SLICE: Final = re.compile(r"_slice_(\d{1,4})(?=[_.])")
_SQLITE: Final = b"SQLite format 3\0"


def files_with(path: Path) -> Sequence[Path]:
    """The database and the CSV files of the folder; of several databases, with a rank each, only this one."""
    kinds = _kinds_in(path.parent, path.parent.stat().st_mtime_ns)
    databases = [file for file, kind in kinds.items() if kind == "db"]
    if path in databases[1:]:
        return (path,)
    beside = [file for file in kinds if file not in databases[1:]]
    return list(dict.fromkeys((path, *beside, *_described(path))))


def open_ranks(files: Sequence[Path]) -> Sequence[RankRecording]:
    """The ranks of a folder; mostly one."""
    kinds = {file: kind for file in files if (kind := _kind_of(file)) is not None}
    databases = [file for file, kind in kinds.items() if kind == "db"]
    tables, remarks = _tables({file: kind for file, kind in kinds.items() if kind != "db"})
    if not databases:
        return [_of_csv(tables, remarks)]
    if tables.keys() - {"static"}:
        remarks.append(f"CSV files beside {databases[0].name} have the same content and were left out")
    return _of_database(databases[0], tables.get("static"), remarks)


def _of_csv(tables: dict[str, list[Path]], remarks: list[str]) -> RankRecording:
    path = next(iter(tables.values()))[0]
    return AscendRecording(CsvSource(tables, facts_of(_described(path))), NAME, tuple(remarks))


def _of_database(path: Path, static: list[Path] | None, remarks: list[str]) -> list[RankRecording]:
    facts = facts_of(_described(path))
    if named := _RANK_IN_NAME.search(path.name):
        facts = replace(facts, rank=int(named[1]))
    sources: list[Source] = [
        DbSource(path, known, device) if static is None else _WithStatic(path, known, device, static)
        for known, device in rank_devices(path, facts)
    ]
    return [AscendRecording(source, NAME, tuple(remarks)) for source in sources]


class _WithStatic(DbSource):
    """A database whose folder has static graphs as CSV."""

    def __init__(self, path: Path, facts: RankFacts, device_id: int | None, static: list[Path]) -> None:
        super().__init__(path, facts, device_id)
        self._csv = CsvSource({"static": static}, facts)
        self._csv.names = self.names

    def static_blocks(self) -> Any:
        return self._csv.static_blocks()


def _tables(kinds: dict[Path, str]) -> tuple[dict[str, list[Path]], list[str]]:
    """The CSV files of each kind; of several those that msprof cut into slices, in order, else the first."""
    tables: dict[str, list[Path]] = {}
    remarks = []
    for file, kind in sorted(kinds.items(), key=lambda item: _slice_of(item[0])):
        of_kind = tables.setdefault(kind, [])
        if not of_kind or (_SLICE.search(of_kind[0].name) and _SLICE.search(file.name)):
            of_kind.append(file)
        else:
            remarks.append(f"{file} was left out: {of_kind[0].name} beside it is the same table")
    return tables, remarks


def _slice_of(file: Path) -> tuple[int, str]:
    found = _SLICE.search(file.name)
    return (int(found[1]) if found else -1, file.name)


@functools.lru_cache(maxsize=FOLDERS_KEPT)
def _kinds_in(folder: Path, changed_ns: int) -> dict[Path, str]:
    """The files of a folder that are ours, as it stood when it was last changed, with their kinds."""
    files = (file for file in sorted(folder.iterdir()) if file.is_file())
    return {file: kind for file in files if (kind := _kind_of(file)) is not None}


def _kind_of(file: Path) -> str | None:
    """db, record, operator, module or static; None for anything else."""
    try:
        with file.open("rb") as stream:
            head = stream.read(len(_SQLITE))
        if head == _SQLITE:
            return "db" if _is_ours(file) else None
        return table_of_header(",".join(header_of(file)))
    except BROKEN:  # a file beside the recording: its faults are reported where it is opened
        return None


def _is_ours(file: Path) -> bool:
    try:
        with SqliteRecording(file) as database:
            return has_our_tables(database.columns.keys())
    except RankmemError:
        return False


def _described(path: Path) -> list[Path]:
    """The files that describe a recording: beside it, then around its folder (ASCEND_PROFILER_OUTPUT)."""
    return [file for folder in path.parents[:2] for file in sorted(folder.glob(PATTERN))]
