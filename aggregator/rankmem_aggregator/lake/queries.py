"""A lake as :class:`Queries`: the same questions, views and SQL as over a database file.

Stage: query, in the reader's process. In: a lake's address; out: Arrow. DuckDB reads the Parquet files here:
nothing runs elsewhere. Each question sees one version of the lake, the newest or at most some seconds older.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

import duckdb

from rankmem_aggregator.lake.catalog import newest_version, read_catalog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.instance import LakeInstance
from rankmem_aggregator.query.local import InstanceQueries
from rankmem_aggregator.query.types import Parameters

FRESH_S: Final = 2.0
"""A version is looked for after this time: it takes some ms, on an object store a request."""


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
        self._open(version)
        super().__init__(address, self._lake)

    @property
    def version(self) -> int:
        """The version of ``lake_progress`` that is read."""
        return self._catalog.version

    def _open(self, version: int | None) -> None:
        self._catalog = read_catalog(self._files, version=version)
        self._session_ids = frozenset(self._catalog.session_ids())
        self._lake = LakeInstance(self._files, self._catalog)
        self._opened_s = time.monotonic()

    def _refresh(self) -> None:
        """Reads a newer version of the lake; an answer that is still being read keeps the older one."""
        if self._pinned or time.monotonic() - self._opened_s < FRESH_S:
            return
        if newest_version(self._files) == self.version:
            self._opened_s = time.monotonic()
            return
        older = self._lake
        self._open(None)
        self._instance = self._lake
        older.close()

    @contextlib.contextmanager
    def _asking(self, text: str, parameters: Parameters | None) -> Iterator[duckdb.DuckDBPyRelation]:
        self._refresh()
        session = (parameters or {}).get("session")
        named = session if isinstance(session, str) and session in self._session_ids else None
        self._lake.check_files(text, named)
        with super()._asking(text, parameters) as relation:
            yield relation
