"""A store whose statements fail on request, and a group of rows for it.

Stage: tests. In: which statement fails, before or after it is done, and how; out: the same store.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa

from rankmem_aggregator.ingest.batch import Spool
from rankmem_aggregator.ingest.sequence import Progress
from rankmem_aggregator.ingest.stored_state import progress_rows
from rankmem_aggregator.store.schema import INGEST_PROGRESS
from rankmem_aggregator.store.store import Store
from sample_batches import RankSource


class Flaky:
    """A connection whose statements fail on request: before they are executed, or after."""

    def __init__(self, real: duckdb.DuckDBPyConnection) -> None:
        self.real = real
        self.fail: list[tuple[str, str, Exception]] = []

    def execute(self, sql: str, *more: object) -> object:
        for planned in list(self.fail):
            word, when, error = planned
            if sql.startswith(word):
                self.fail.remove(planned)
                if when == "after":
                    self.real.execute(sql, *more)
                raise error
        return self.real.execute(sql, *more)

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


def flaky_connection(store: Store) -> Flaky:
    """The store's write connection from now on."""
    flaky = Flaky(store.instance.connection)
    store.instance.connection = flaky  # type: ignore[assignment]
    return flaky


def written(store: Store) -> tuple[int, int]:
    """Events and spools stored."""
    row = store.read(
        "SELECT (SELECT count(*) FROM memory_event) AS e, (SELECT count(*) FROM ingest_progress) AS p"
    ).to_pylist()[0]
    return row["e"], row["p"]


def a_group() -> dict[str, pa.Table]:
    """A hundred rows of a rank, and how far its spool is with them."""
    source = RankSource(rank=0)
    rows = source.rows(100)
    spool = Spool(spool_id=source.spool_id, session_id=source.session_id, attempt=0, rank=0)
    progress = Progress(spool=spool, last_sequence=source.next_sequence - 1, final=False)
    return {"memory_event": rows["memory_event"], INGEST_PROGRESS.name: progress_rows([progress])}
