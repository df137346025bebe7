"""The books: what the reference ranks wrote, against what a database holds. It asks nobody but DuckDB.

Every event that a witness saw is there exactly once, or lies in a ``gap`` row; nothing is there that was not
written; where nothing is missing, order, sizes, totals, peaks, blocks and their frees are those of the naive
sum over the reference run.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from faults.reference import BASE, STRIDE, Array, events_of, numbers_of, sizes_of, totals_of

REPORT: Final = os.environ.get("RANKMEM_FAULT_REPORT", "")
RUN_MAX: Final = 20_000
"""Events that a rank writes at once: so many more than its witness saw may be found."""

EVENTS: Final = """
    SELECT seq, action = 'alloc' AS is_alloc, address, size_bytes, requested_bytes, allocation_id, time_ns
    FROM memory_event WHERE attempt = $attempt AND rank = $rank ORDER BY seq
"""
GAPS: Final = """
    SELECT sequence_first, sequence_last, records, why
    FROM gap WHERE attempt = $attempt AND rank = $rank ORDER BY sequence_first
"""
BLOCKS: Final = """
    SELECT allocation_id, size_bytes, freed_seq
    FROM allocation WHERE attempt = $attempt AND rank = $rank ORDER BY allocation_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What one rank process wrote, by its witness."""

    rank: int
    attempt: int
    count: int
    """Events written for sure."""
    end_reasons: tuple[str, ...] = ("exit",)
    """How it may be said to have ended: both ways where it was killed while it wrote its end."""


@dataclass(slots=True, kw_only=True)
class Totals:
    """One line of the table in docs/reliability.md."""

    expected: int = 0
    found: int = 0
    explained: int = 0
    """Missing, and within a gap row that says why."""
    duplicated: int = 0
    reasons: set[str] = field(default_factory=set)

    def __iadd__(self, other: Totals) -> Totals:
        self.expected += other.expected
        self.found += other.found
        self.explained += other.explained
        self.duplicated += other.duplicated
        self.reasons |= other.reasons
        return self


def check(
    database: Path,
    written: list[Written],
    *,
    all_ranks: bool = True,
    fault: str = "",
    recovery_s: float | None = None,
) -> Totals:
    """Compares; the totals over all ranks. Raises AssertionError with the first thing that is wrong.

    Args:
        all_ranks: the database holds no others.
        fault: what was done, for the report; default: the test's name.
        recovery_s: from the end of the ranks to the last acknowledgement, in seconds.
    """
    totals = Totals()
    with duckdb.connect(database, read_only=True) as connection:
        try:
            for rank in written:
                totals += _check_rank(connection, rank)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{_told(connection, database)}") from error
        stored = connection.sql("SELECT attempt, rank FROM rank_info ORDER BY ALL").fetchall()
    assert not all_ranks or stored == sorted((rank.attempt, rank.rank) for rank in written)
    _report(fault or os.environ.get("PYTEST_CURRENT_TEST", "?").rpartition(" (")[0], totals, recovery_s)
    return totals


def _told(connection: duckdb.DuckDBPyConnection, database: Path) -> str:
    """What is stored of each spool, and the end of the aggregator's log: a rare failure tells why at once."""
    spools = connection.sql("FROM ingest_progress").fetchall()
    ranks = connection.sql("SELECT attempt, rank, events, events_lost, complete FROM rank_info").fetchall()
    logs = [log.read_text(encoding="utf-8")[-4000:] for log in database.parent.parent.glob("*.log")]
    return f"spools {spools}\nranks {ranks}\n" + "\n".join(logs)


def _report(fault: str, totals: Totals, recovery_s: float | None) -> None:
    """A line of JSON for the table in docs/reliability.md, where one is wanted."""
    if not REPORT:
        return
    line = {
        "fault": fault,
        "expected": totals.expected,
        "found": totals.found,
        "lost": totals.explained,
        "duplicated": totals.duplicated,
        "recovery_s": recovery_s,
    }
    with Path(REPORT).open("a", encoding="utf-8") as report:
        report.write(json.dumps(line) + "\n")


def _check_rank(connection: duckdb.DuckDBPyConnection, written: Written) -> Totals:
    who = {"attempt": written.attempt, "rank": written.rank}
    where = f"attempt {written.attempt} rank {written.rank}"
    rows = _asked(connection, EVENTS, who)
    gaps = _asked(connection, GAPS, who)
    numbers = events_of(rows["is_alloc"], (rows["address"] - BASE) // STRIDE)
    duplicated = len(numbers) - len(np.unique(numbers))
    assert duplicated == 0, f"{where}: {duplicated} events are there twice"
    assert (np.diff(rows["seq"]) > 0).all(), where
    assert (np.diff(numbers) > 0).all(), f"{where}: events are not in the order in which they were written"
    assert numbers.max(initial=-1) < written.count + RUN_MAX, f"{where}: more than was written"
    explained = _check_missing(where, rows["seq"], numbers, gaps, written.count)
    _check_blocks(connection, who, where, rows, numbers, gaps, written)
    if explained == 0 and not len(gaps["why"]):
        _check_whole(connection, who, where, rows, numbers, written)
    found = int((numbers < written.count).sum())
    assert found + explained == written.count
    (told,) = connection.execute(
        "SELECT events, events_lost, complete FROM rank_info WHERE attempt = $attempt AND rank = $rank", who
    ).fetchall()
    lost = int(gaps["records"].sum())
    assert told == (len(numbers), lost, lost == 0), f"{where}: {told}, gap rows tell of {lost}"
    reasons = set(gaps["why"])
    return Totals(expected=written.count, found=found, explained=explained, reasons=reasons)


def _check_missing(where: str, seq: Array, numbers: Array, gaps: dict[str, Array], count: int) -> int:
    """How many of the first ``count`` events are missing; each hole must lie in gap rows large enough."""
    present = numbers < count
    at = np.concatenate([[-1], numbers[present], [count]])
    upto = np.concatenate([[-1], seq[present], [seq[~present][0] if (~present).any() else 2**62]])
    holes = np.flatnonzero(np.diff(at) > 1)
    missing = 0
    for hole in holes:
        first, last, lacking = upto[hole] + 1, upto[hole + 1] - 1, at[hole + 1] - at[hole] - 1
        covered = np.minimum(gaps["sequence_last"], last) - np.maximum(gaps["sequence_first"], first) + 1
        told = int(covered[covered > 0].sum())
        assert told >= lacking, (
            f"{where}: events {at[hole] + 1} to {at[hole + 1] - 1} are missing, gap rows tell of {told}"
        )
        missing += int(lacking)
    return missing


def _check_whole(
    connection: duckdb.DuckDBPyConnection,
    who: dict[str, int],
    where: str,
    rows: dict[str, Array],
    numbers: Array,
    written: Written,
) -> None:
    """Nothing is missing: totals, peak and the rank's own row are those of the naive sum."""
    count = len(numbers)
    expected = totals_of(count, written.rank)
    assert (rows["requested_bytes"] == expected).all(), f"{where}: totals differ from the naive sum"
    peak = connection.execute(
        "SELECT max(peak_requested_bytes) FROM peak_by_rank WHERE attempt = $attempt AND rank = $rank", who
    ).fetchall()
    naive = int(expected.max()) if count else None  # it may be killed before it wrote anything
    assert peak == [(naive,)], f"{where}: the peak differs from the naive one"
    ((reason,),) = connection.execute(
        "SELECT end_reason FROM rank_info WHERE attempt = $attempt AND rank = $rank", who
    ).fetchall()
    assert reason in written.end_reasons, f"{where}: {reason}"


def _check_blocks(
    connection: duckdb.DuckDBPyConnection,
    who: dict[str, int],
    where: str,
    rows: dict[str, Array],
    numbers: Array,
    gaps: dict[str, Array],
    written: Written,
) -> None:
    """Every alloc that is there is a block of the right size, freed where its free is, if that is there."""
    blocks = _asked(connection, BLOCKS, who)
    is_alloc, block = numbers_of(numbers)
    assert (rows["size_bytes"][is_alloc] == sizes_of(block[is_alloc], written.rank)).all(), where
    of_block = dict(zip(block[is_alloc].tolist(), rows["seq"][is_alloc].tolist(), strict=True))
    freed = dict(zip(block[~is_alloc].tolist(), rows["seq"][~is_alloc].tolist(), strict=True))
    ids = set(of_block.values())
    known = {int(i): s for i, s in zip(blocks["allocation_id"], blocks["freed_seq"].tolist(), strict=True)}
    assert len(known) == len(blocks["allocation_id"]), f"{where}: a block is there twice"
    assert ids <= set(known), f"{where}: an alloc has no block"
    if not len(gaps["why"]):
        assert ids == set(known), f"{where}: a block has no alloc"
        assert {b: known[a] for b, a in of_block.items() if known[a] >= 0} == freed, f"{where}: frees"


def _asked(connection: duckdb.DuckDBPyConnection, query: str, who: dict[str, int]) -> dict[str, Array]:
    table: pa.Table = connection.sql(query, params=who).to_arrow_table()
    found: dict[str, Any] = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_integer(column.type):
            column = column.fill_null(-1)
        found[name] = column.to_numpy(zero_copy_only=False)
    return found
