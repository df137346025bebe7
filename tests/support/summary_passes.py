"""Summaries of a stored log, written in passes that are cut anywhere."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from constructed import SESSION, RankLog
from group_oracle import rows
from rankmem_aggregator.summaries.one_pass import DUE, NOTHING, Pass, Rank


def summarise(
    connection: duckdb.DuckDBPyConnection,
    log: RankLog,
    cuts: list[int],
    *,
    final: bool = False,
    remember: bool = True,
) -> None:
    """Summarises the log up to each cut in a pass of its own; ``remember``: no restart between them."""
    alive: dict[Rank, pa.Table] = {}
    place = {"number": 0, "session_id": log.session_id, "attempt": log.attempt, "rank": log.rank}
    seq_from = NOTHING
    for cut in cuts:
        told = {"seq_from": seq_from, "seq_upto": cut, "final": final and cut == cuts[-1]}
        due = pa.Table.from_pylist([place | told], schema=DUE)
        alive |= Pass(connection=connection, due=due, alive=alive).run()
        seq_from, alive = cut, alive if remember else {}


def of_groups(connection: duckdb.DuckDBPyConnection, by: str) -> dict[Any, Any]:
    answer = rows(connection, "SELECT * FROM peak_by_group($id, $by)", id=SESSION, by=by)
    names = ("bytes_at_rank_peak", "peak_bytes", "peak_seq", "peak_time_ns")
    return {row["group_name"]: tuple(row[name] for name in names) for row in answer if row["peak_bytes"]}
