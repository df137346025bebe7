"""What an aggregator serves, whatever is behind it: a database file (``store``) or a lake (``lake.served``).

Stage: the seam between the gRPC services and storage. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import duckdb

from rankmem_aggregator.query.types import Value
from rankmem_aggregator.store.recovery import Readers
from rankmem_aggregator.store.schema import DatabaseFacts


class ServedDisk(Protocol):
    """Where the bytes go."""

    def free_bytes(self) -> int:
        """Free there, for this user."""

    def file_bytes(self) -> int:
        """What is stored."""

    def log_bytes(self) -> int:
        """What is not packed yet."""

    def check_room(self, size_bytes: int = 0) -> None:
        """Raises DiskLowError where so many bytes of rows could not be stored now."""


class ServedInstance(Protocol):
    """DuckDB's instance, as statements and their limits see it."""

    is_invalidated: bool
    readers: Readers | None

    def is_over_memory_limit(self) -> bool:
        """Whether statements hold more than their share."""


class ServedStore(Protocol):
    """What answers queries."""

    @property
    def path(self) -> Path:
        """Beside it files may be made for a while."""

    @property
    def place(self) -> str:
        """What is written, for people: a file's path, or a lake."""

    @property
    def facts(self) -> DatabaseFacts:
        """Which database it is."""

    @property
    def disk(self) -> ServedDisk:
        """See there."""

    @property
    def instance(self) -> ServedInstance:
        """See there."""

    @property
    def stale(self) -> str:
        """What answers may lack while a store is away, in a sentence; empty: nothing."""

    def freshen(self) -> None:
        """Before a cursor: has what it sees be up to date, as far as that takes some seconds at most."""

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection for reading; the caller closes it.

        Raises:
            RankmemError: UNAVAILABLE while there is none.
        """

    def prepare(self, cursor: duckdb.DuckDBPyConnection, text: str, parameters: Mapping[str, Value]) -> None:
        """Has a cursor show what a question needs, where not all rows of its session are here.

        Raises:
            RankmemError: what it reads is not what was stored.
        """

    def close(self) -> None:
        """Ends it. Idempotent."""
