"""A lake in a folder that is read as one in an object store, which fails when it is told to; and a session of
which the events are more than one row group."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.store import schema
from rankmem_protos.tables import MEMORY_EVENT
from two_sessions import OLD, two_sessions

EVENTS: Final = 400_006
_MORE: Final = f"""
SELECT e.* REPLACE (99 + i AS seq, (hash(i) % 1000000007)::BIGINT AS requested_bytes)
FROM (FROM memory_event WHERE session_id = '{OLD}' LIMIT 1) AS e, range({EVENTS - 6}) AS t(i)
"""


def many_events(path: Path) -> Path:
    """The database of two sessions, the older with many events: :data:`EVENTS` in all."""
    with duckdb.connect(two_sessions(path)) as connection:
        connection.register(schema.INCOMING, connection.sql(_MORE).to_arrow_table())
        connection.execute(schema.append_statement(MEMORY_EVENT))
    return path


class FailingLake(LakeFiles):
    """A folder as an object store; while it fails, it gives the beginnings of files, and what follows the
    data, or nothing."""

    fails = False
    gives = 0.7

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.is_local = False

    def filesystem(self) -> Any:
        return _Store(self)


class _Store:
    def __init__(self, lake: FailingLake) -> None:
        self._lake, self._folder = lake, SubTreeFileSystem(lake.root, LocalFileSystem())

    def open_input_file(self, name: str) -> Any:
        return _Opened(self._lake, pa.OSFile(self._lake.place(name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)


class _Opened:
    def __init__(self, lake: FailingLake, opened: pa.OSFile) -> None:
        self._lake, self._opened = lake, opened

    def read(self, size: int) -> bytes:
        if self._lake.fails and self._lake.gives <= self._opened.tell() / self._opened.size() < 0.95:
            raise OSError("Generic S3 error\n  no route\n  to it")
        return bytes(self._opened.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)
