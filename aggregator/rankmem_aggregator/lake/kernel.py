"""What a task of an engine does: rankmem's own SQL over a part of a lake.

Stage: query, in a process of an engine. In: plain values (a lake's address, a version, a part, a statement);
out: Arrow. Nothing here knows which engine asks. A part is some ranks of a session (:class:`HostPart`), or
all ranks in a slice of the common clock (:class:`SlicePart`); the views of ``sql/`` are asked unchanged.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.lake.catalog import Catalog, read_catalog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.instance import LakeInstance
from rankmem_aggregator.lake.layout import ALL_SESSIONS, DataFile
from rankmem_aggregator.lake.parts import HostPart, SlicePart
from rankmem_aggregator.lake.slices import SliceInstance
from rankmem_aggregator.query.local import InstanceQueries
from rankmem_aggregator.query.types import Parameters
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.instance import Settings
from rankmem_protos.errors import RankmemError
from rankmem_protos.tables import Table

UNFILTERED: Final = frozenset({"rank_info", "ingest_progress", "level_progress"})
"""Tables that a part by hosts has whole: a rank's span, and whether one is missing, follows from all of them.
Rows that an answer then has of ranks elsewhere are left out of it."""
RANK_COLUMNS: Final = ("rank", "rankId")

KEPT_INSTANCES: Final = 2
"""Of parts by hosts, some MiB each: connecting and views take over half of the CPU of a small task."""

Part = HostPart | SlicePart


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A statement over a part."""

    address: str
    version: int
    part: Part
    sql: str
    parameters: Parameters
    threads: int = 1
    """Of DuckDB."""
    memory_bytes: int = 0
    """DuckDB's limit; 0: its own default, four fifths of the machine's."""

    def run(self) -> pa.Table:
        """The answer, in this process; see :func:`answer`."""
        return answer(
            self.address, self.version, self.part, self.sql, self.parameters, self.threads, self.memory_bytes
        )


def answer(
    address: str,
    version: int,
    part: Part,
    sql: str,
    parameters: Parameters,
    threads: int = 1,
    memory_bytes: int = 0,
) -> pa.Table:
    """The rows of a statement over a part of a lake.

    Args:
        address: of the lake, see :class:`LakeFiles`.
        version: of ``lake_progress``.
        part: the part; a statement over hosts is about its session.
        sql: one statement.
        parameters: of the statement.
        threads: of DuckDB.
        memory_bytes: DuckDB's limit; 0: its default.

    Raises:
        RankmemError: as :class:`LakeQueries`; CONFLICT for a slice of a log whose times go back.
    """
    settings: Settings = {"threads": threads}
    if memory_bytes:
        settings["memory_limit"] = f"{memory_bytes}B"
    if isinstance(part, HostPart):
        key = address, version, part, threads, memory_bytes
        instance = _KEPT.taken(key)
        if instance is None:
            instance = HostInstance(*_chosen(address, version, part), part, settings)
        rows = _asked(address, instance, sql, parameters)
        _KEPT.keep(key, instance)
        return of_part(rows, part)
    of_slice = SliceInstance(*_chosen(address, version, part), part, settings)
    with contextlib.closing(of_slice):
        rows = _asked(address, of_slice, sql, parameters)
        of_slice.check_order()
    return rows


def keep_instances() -> None:
    """From now on this process keeps the last :data:`KEPT_INSTANCES`; its parent deletes what they leave."""
    _KEPT.limit = KEPT_INSTANCES


def _asked(address: str, instance: LakeInstance, sql: str, parameters: Parameters) -> pa.Table:
    """The rows of a statement; where it fails, the instance is closed."""
    try:
        instance.check_files(sql)
        return InstanceQueries(address, instance).sql(sql, parameters)
    except RankmemError:
        instance.close()
        raise


class _Kept:
    """The instances of the parts that this process was asked about last. Any thread: one uses an instance."""

    limit = 0
    """Of a process that nobody tidies up after: an instance has a folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instances: dict[Any, HostInstance] = {}

    def taken(self, key: Any) -> HostInstance | None:
        """An instance, which is not here until it is given back."""
        with self._lock:
            return self._instances.pop(key, None)

    def keep(self, key: Any, instance: HostInstance) -> None:
        """Gives it back; the oldest goes where there are too many."""
        with self._lock:
            gone = [self._instances.pop(key, None)]
            self._instances[key] = instance
            while len(self._instances) > self.limit:
                gone.append(self._instances.pop(next(iter(self._instances))))
        for old in gone:
            if old is not None:
                old.close()


_KEPT: Final = _Kept()


def _chosen(address: str, version: int, part: Part) -> tuple[LakeFiles, Catalog]:
    """A lake, and its files of a part."""
    files, catalog = _opened(address, version)
    about = catalog.about(part.session_id).files
    return files, Catalog(version, tuple(f for f in about if _is_whole(f) or part.has_file(f)))


@lru_cache(maxsize=2)
def _opened(address: str, version: int) -> tuple[LakeFiles, Catalog]:
    """Read once by a process: every part of a question has the same version."""
    files = LakeFiles(address)
    return files, read_catalog(files, version=version)


def _is_whole(file: DataFile) -> bool:
    """Whether every part reads a file."""
    return file.session_id == ALL_SESSIONS or file.table_name in UNFILTERED


def of_part(rows: pa.Table, part: HostPart) -> pa.Table:
    """Without rows of ranks elsewhere, which come of the tables that are whole."""
    for name in RANK_COLUMNS:
        if name in rows.column_names:
            column = rows[name]
            among = pc.is_in(column, value_set=pa.array(part.ranks, column.type))
            return rows.filter(pc.invert(among) if part.is_rest else among)
    return rows


class HostInstance(LakeInstance):
    """The tables of some ranks.

    Args:
        files: the lake.
        catalog: the files that are read.
        part: the ranks.
        settings: of DuckDB.
    """

    def __init__(self, files: LakeFiles, catalog: Catalog, part: HostPart, settings: Settings) -> None:
        self._part = part
        super().__init__(files, catalog, settings)

    def _table_statements(self, table: Table) -> list[str]:
        if "rank" not in table.column_names() or table.name in UNFILTERED:
            return super()._table_statements(table)
        rows = self.whole_rows(table, self.rows_of(table))
        return [
            f"CREATE VIEW {schema.quoted(table.name)} AS SELECT * FROM ({rows}) "
            f"WHERE session_id = {schema.literal(self._part.session_id)} AND {self._part.condition()}"
        ]
