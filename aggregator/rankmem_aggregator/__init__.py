"""The aggregator: ingest, store, SQL; and the client for what is stored.

``connect`` is the one import a user needs::

    from rankmem_aggregator import connect

    with connect("rankmem.duckdb") as queries:  # or "host:port" of a running aggregator
        table = queries.sql("SELECT * FROM peak_by_rank")

Importing this package loads neither DuckDB nor gRPC nor Arrow: ``connect`` does, when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankmem_aggregator.queries import Queries

__all__ = ["connect"]


def connect(target: str | Path) -> Queries:
    """Opens a database file, or reaches a running aggregator; the caller closes it.

    Args:
        target: path of a database file, or ``host:port`` of an aggregator. A file that an aggregator
            holds is answered by that aggregator.

    Raises:
        RankmemError: NOT_FOUND where there is no such file, CONFLICT where another program holds it,
            UNAVAILABLE where no aggregator answers.
    """
    from rankmem_aggregator.queries import open_queries

    return open_queries(target)
