"""``rankmem peak``: which rank, host, device, stream, category … peaked, and when."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rankmem_cli.options import Aggregator, Limit, Output, Rank, ReadDb, Session
from rankmem_cli.render import Format
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.queries import PeakBy, Queries
    from rankmem_cli.table import Column
    from rankmem_cli.target import SessionFacts

TABLE_ROWS: Final = 100
"""Rows of a table unless --limit says more: groups of every rank are many; JSON and CSV carry all."""


class By(enum.StrEnum):
    """What a row stands for: a rank, a group of ranks, or a group of a rank's blocks."""

    RANK = "rank"
    HOST = "host"
    DEVICE = "device"
    STREAM = "stream"
    COMPONENT = "component"
    CATEGORY = "category"
    PHASE = "phase"
    DP = "dp"
    TP = "tp"
    PP = "pp"
    CP = "cp"
    EP = "ep"

    def of_blocks(self) -> bool:
        """True where a rank's blocks are grouped, false where ranks are."""
        return self in (By.STREAM, By.COMPONENT, By.CATEGORY, By.PHASE)


Grouping = Annotated[
    By,
    typer.Option(
        "--by",
        help="A rank; ranks together by host, device or parallel dimension; or each rank's blocks by stream, "
        "component, category or phase.",
    ),
]
BLOCKS_NOTES: Final = (
    "at rank's peak: alive when its rank stood highest; a rank's groups add up to it",
    "own peak: the most the group held at any instant of its own",
)
RANKS_NOTES: Final = (
    "each at its own: its ranks' peaks added up; they happen at different instants",
    "own peak: the most its ranks held together at one instant",
)


def peak(
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    by: Grouping = By.RANK,
    rank: Rank = None,
    limit: Limit = None,
    output: Output = Format.TABLE,
) -> None:
    """Each rank's peak and its exact instant; or of groups.

    The high-water mark of requested bytes, the highest first. For groups both figures are given: what the
    group held at the rank's own peak, and the group's own peak.
    """
    from rankmem_cli.patience import patience
    from rankmem_cli.render import head, show
    from rankmem_cli.target import open_queries, session_facts

    if rank is not None and by is not By.RANK and not by.of_blocks():
        raise RankmemError(
            Code.INVALID,
            f"--rank {rank} does not go with --by {by}, which is of ranks together",
            "leave one out",
        )
    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with patience("asking"):
            rows = _ask(queries, facts, by, rank)
        rows = head(rows, limit, output=output, table_rows=TABLE_ROWS)
        show(rows, _columns(by, facts.started_ns), output=output, title=facts.title(), notes=_notes(by, rows))


def _ask(queries: Queries, facts: SessionFacts, by: By, rank: int | None) -> pa.Table:
    if by is By.RANK:
        return queries.peak(facts.session_id, rank=rank)
    return queries.peak_by(facts.session_id, by=_group(by), rank=rank)


def _group(by: By) -> PeakBy:
    return by.value


def _notes(by: By, rows: pa.Table) -> tuple[str, ...]:
    if by is By.RANK:
        return ()
    if rows.num_rows and not by.of_blocks() and rows["group_name"].null_count == rows.num_rows:
        return (*RANKS_NOTES, f"no rank of this session has told its {by}")
    return BLOCKS_NOTES if by.of_blocks() else RANKS_NOTES


def _columns(by: By, started_ns: int | None) -> list[Column]:
    from rankmem_cli import columns

    if by is By.RANK:
        return columns.peak(started_ns)
    of = columns.peak_of_blocks if by.of_blocks() else columns.peak_of_ranks
    return of(by.value, started_ns)
