"""``rankmem lake vacuum``: deletes files of a lake that nobody needs any more.

Stage: maintenance, in the process of the command line. In: what is there and what counts; out: files deleted
that are older than a day, that no version of ``lake_progress`` of the last day names, and that no table's log
has. So a reader keeps the version it opened for a day, and a writer has a day from a file to its commit.

What compact and prune exchanged in ``lake_progress``, and a kill kept from the tables' own logs, comes first.
Nothing is deleted that has not a name which rankmem gives.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from rankmem_aggregator.lake.catalog import Catalog, open_progress, read_catalog
from rankmem_aggregator.lake.delta import LOG_SETTINGS, DeltaLog
from rankmem_aggregator.lake.files import LakeFiles, Listed, said_by_store
from rankmem_aggregator.lake.layout import IMPORT_PREFIX, LAKE_PROGRESS, TABLES, is_data_path
from rankmem_aggregator.lake.moves import STORE_CHECK
from rankmem_protos.errors import Code, RankmemError

KEPT_HOURS: Final = 24
"""A reader is done with its version by then, and a writer has committed its files."""
_UNFINISHED: Final = re.compile(r"(.*/)\.([^/]+\.parquet)\.\d+\.tmp")
"""What a writer leaves in a folder that is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """What was deleted, or would be."""

    files: tuple[Listed, ...]
    """Ordered by path."""

    @property
    def size_bytes(self) -> int:
        """Their bytes."""
        return sum(file.size_bytes for file in self.files)


def vacuum_lake(address: str, *, dry_run: bool = False, kept_hours: int = KEPT_HOURS) -> Vacuumed:
    """Deletes files that nobody needs.

    Args:
        address: of the lake, see :class:`LakeFiles`.
        dry_run: deletes nothing.
        kept_hours: see :data:`KEPT_HOURS`.

    Raises:
        RankmemError: as :func:`read_catalog`; EXHAUSTED where files cannot be listed or deleted.
    """
    files = LakeFiles(address)
    read_catalog(files, is_answered=False)  # it is a lake
    from deltalake.exceptions import DeltaError

    try:
        # Listed first: what is committed after this is older in no case.
        before_s = time.time() - kept_hours * 3600
        old = [found for found in _listing(files) if found.modified_s < before_s]
        old_progress = set(_vacuum_progress(files, kept_hours, dry_run=True))
        versions = _progress_files(files)
        ever = _named(files, versions)
        needed = _named(files, [path for path in versions if path not in old_progress])
        catalog = read_catalog(files, is_answered=False)
        for table in TABLES.values():
            needed |= _follow(DeltaLog(files, table), catalog, table.name, ever, dry_run=dry_run)
        needed |= {file.path for file in catalog.files}
        due = [found for found in old if found.path not in needed]
        if not dry_run:
            for found in due:
                files.delete(found.path)
            _vacuum_progress(files, kept_hours, dry_run=False)
            for name in (LAKE_PROGRESS.name, *TABLES):
                _set_up(files, name)
    except (DeltaError, OSError, pa.ArrowException) as exc:
        raise RankmemError(
            Code.EXHAUSTED, f"cannot delete files of {files.root}: {said_by_store(exc)}", "give access"
        ) from exc
    return Vacuumed(files=tuple(sorted(due, key=lambda found: found.path)))


def _listing(files: LakeFiles) -> Iterator[Listed]:
    """The files that a rankmem has written, or begun to: of the tables, and of its checks of the store."""
    for name in TABLES:
        for found in files.listing(name):
            if is_data_path(_UNFINISHED.sub(r"\1\2", found.path), name):
                yield found
    yield from (found for found in files.listing(STORE_CHECK) if "/_delta_log/" in found.path)


def _progress_files(files: LakeFiles) -> list[str]:
    folder = LAKE_PROGRESS.name
    paths = (found.path for found in files.listing(folder))
    return [p for p in paths if p.endswith(".parquet") and not p.startswith(f"{folder}/_delta_log/")]


def _named(files: LakeFiles, versions: list[str]) -> set[str]:
    """The paths that files of ``lake_progress`` name."""
    if not versions:
        return set()
    if files.is_local:
        found = ds.dataset([files.place(path) for path in versions], format="parquet")
    else:
        found = ds.dataset(versions, format="parquet", filesystem=files.filesystem())
    return set(found.to_table(columns=["path"])["path"].to_pylist())


def _follow(log: DeltaLog, catalog: Catalog, name: str, ever: set[str], *, dry_run: bool) -> set[str]:
    """Makes a table's log name what counts; returns the files that it names then.

    Files that never counted stay in it: an import or an aggregator may be about to make them count. So do
    those that an import has not yet replaced in ``lake_progress`` stay out of it.
    """
    active = log.active()
    paths = {file.path for file in active}
    named = {file.path: file for file in catalog.of_table(name)}
    lacking = [f for f in named.values() if f.path not in paths and not f.writer.startswith(IMPORT_PREFIX)]
    stale = [file for file in active if file.path not in named and file.path in ever]
    if (lacking or stale) and not dry_run:
        log.commit(lacking, stale)
    return paths - {file.path for file in stale}


def _vacuum_progress(files: LakeFiles, kept_hours: int, *, dry_run: bool) -> list[str]:
    """The files of ``lake_progress`` that no version of the last day has; they are deleted."""
    opened: Any = open_progress(files)
    found = opened.vacuum(
        retention_hours=kept_hours, dry_run=dry_run, enforce_retention_duration=False, full=True
    )
    return [f"{LAKE_PROGRESS.name}/{path}" for path in found]


def _set_up(files: LakeFiles, name: str) -> None:
    """Gives a log of an older rankmem the settings of this one, which keep it short."""
    log = DeltaLog(files, TABLES.get(name, LAKE_PROGRESS))
    log.set_up(LOG_SETTINGS)
