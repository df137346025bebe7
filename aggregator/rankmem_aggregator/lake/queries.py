"""A lake as :class:`Queries`: the same questions, views and SQL as over a database file.

Stage: query, in the reader's process. In: a lake's address; out: Arrow. DuckDB reads the Parquet files here:
nothing runs elsewhere. Each question sees one version of the lake, the newest or at most some seconds older.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import duckdb

from rankmem_aggregator.lake.aspects import needs_aspect, set_aspect
from rankmem_aggregator.lake.catalog import newest_version, read_catalog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.instance import LakeInstance
from rankmem_aggregator.query.local import Asked, InstanceQueries, T
from rankmem_aggregator.query.types import Parameters, Value
from rankmem_aggregator.sql import page_texts, query_names, query_text
from rankmem_aggregator.store import schema
from rankmem_protos.tables import Table

FRESH_S: Final = 2.0
"""A version is looked for after this time: it takes some ms, on an object store a request."""
INSTANCES_MAX: Final = 4
"""Instances of DuckDB with their views, some MiB each: all sessions, and those that were last asked about."""
_OF_SESSION: Final = "--   session (text): session id"
"""In the head of a question about one session."""


class LakeQueries(InstanceQueries):
    """A lake, read in this process.

    Args:
        address: ``lake:DIR``, ``DIR`` or ``s3://BUCKET/PREFIX``.
        version: of ``lake_progress``: this one always; None: the newest.

    Raises:
        RankmemError: NOT_FOUND where there is nothing, INVALID where there is no lake, UNSUPPORTED for one
            that a newer rankmem wrote, or without deltalake.
    """

    def __init__(self, address: str, *, version: int | None = None) -> None:
        self._files = LakeFiles(address)
        self._pinned = version is not None
        self._instances: dict[str | None, LakeInstance] = {}
        self._read(version)
        super().__init__(address, None)

    def copy_to(self, out_path: Path) -> None:
        self._refresh()
        lake = self._instance_of(None)
        lake.check_files(" ".join(schema.ALL_TABLES))
        self._instance = lake
        super().copy_to(out_path)

    @property
    def version(self) -> int:
        """The version of ``lake_progress`` that is read."""
        return self._catalog.version

    def rows_of(self, table: Table) -> str:
        """The statement that reads a table of the lake; also one that is no table of a database."""
        return self._instance_of(None).rows_of(table)

    def close(self) -> None:
        """Closes what is open; may be called twice."""
        while self._instances:
            self._instances.popitem()[1].close()

    def _read(self, version: int | None) -> None:
        self._catalog = read_catalog(self._files, version=version)
        self._session_ids = frozenset(self._catalog.session_ids())
        self._read_s = time.monotonic()

    def _refresh(self) -> None:
        """Reads a newer version of the lake; an answer that is still being read keeps the older one."""
        if self._pinned or time.monotonic() - self._read_s < FRESH_S:
            return
        if newest_version(self._files) == self.version:
            self._read_s = time.monotonic()
            return
        self._read(None)
        self.close()

    def _instance_of(self, session: str | None) -> LakeInstance:
        """An instance over the files of a session, and of those that belong to none; None: over all files."""
        if session not in self._instances:
            if len(self._instances) == INSTANCES_MAX:
                self._instances.pop(next(iter(self._instances))).close()
            catalog = self._catalog if session is None else self._catalog.about(session)
            self._instances[session] = LakeInstance(self._files, catalog)
        return self._instances[session]

    @contextlib.contextmanager
    def _asking(self, ask: Asked[T], text: str, parameters: Parameters | None) -> Iterator[T]:
        self._refresh()
        about = session_asked(text, parameters or {})
        if about not in self._session_ids:
            about = None
        lake = self._instance_of(about)
        lake.check_files(text)
        self._instance = self._lake = lake
        with super()._asking(ask, text, parameters) as answer:
            yield answer

    def _cursor(self, text: str, parameters: Parameters) -> duckdb.DuckDBPyConnection:
        cursor = super()._cursor(text, parameters)
        if needs_aspect(text, parameters) and parameters.get("session") in self._lake.lacking_sessions:
            set_aspect(cursor, text, parameters)
        return cursor


def session_asked(text: str, parameters: Mapping[str, Value]) -> str | None:
    """The session that one of our questions is about, and no other; None: any statement."""
    session = parameters.get("session")
    return session if isinstance(session, str) and text in _of_one_session() else None


@cache
def _of_one_session() -> frozenset[str]:
    """Our own questions about the session of their parameter ``session``: they need no file of another.

    Those of MindStudio's views number what all sessions have.
    """
    texts = [*map(query_text, query_names()), *page_texts()]
    return frozenset(text for text in texts if _OF_SESSION in text and "mindstudio" not in text)
