"""A database that grows behind a page that is served in this process.

Stage: tests.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from constructed import RankLog, empty_database, store_logs
from rankmem_aggregator.query.local import LocalQueries


class Growing:
    """A database whose rows grow behind the page: statements are answered from the newest of its files."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.texts: list[str] = []
        self.path = folder / "0.duckdb"
        self._newest: LocalQueries | None = None
        self._number = 0
        self._lock = threading.Lock()
        asked = LocalQueries.sql

        def sql(queries: LocalQueries, text: str, parameters: Any = None) -> Any:
            with self._lock:
                self.texts.append(text)
                return asked(self._newest or queries, text, parameters)

        self._patch = lambda: monkeypatch.setattr(LocalQueries, "sql", sql)

    def store(self, log: RankLog) -> None:
        """From now on the session is this."""
        path = self._folder / f"{self._number}.duckdb"
        with empty_database(str(path)) as connection:
            store_logs(connection, [log])
        if self._number == 0:
            self._patch()
        else:
            self._newest = LocalQueries(path)
        self._number += 1
