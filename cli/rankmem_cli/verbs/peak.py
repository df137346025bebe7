"""``rankmem peak``: which rank, host, device, stream, category … peaked, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from rankmem_cli.args.groupings import by_option
from rankmem_cli.args.options import Aggregator, Limit, Output, Rank, ReadDb, Session
from rankmem_cli.show.render import Format
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.groupings import GROUPINGS, words_of

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.query.queries import Queries
    from rankmem_aggregator.query.types import PeakBy
    from rankmem_cli.show.session import SessionFacts
    from rankmem_cli.show.table import Column

TABLE_ROWS: Final = 100
"""Rows of a table unless --limit says more: groups of every rank are many; JSON and CSV carry all."""


Grouping = Annotated[
    str,
    by_option(
        "peak",
        f"A row for each {words_of('peak', of='ranks')} (parallel coordinates); or for each rank's blocks by "
        f"{words_of('peak')}.",
    ),
]
AtLeast = Annotated[
    str | None,
    typer.Option(
        "--at-least",
        metavar="SIZE",
        help="Only what reached so much at its own peak: 100MiB, 1.5GiB, or bytes.",
    ),
]
BLOCKS_NOTES: Final = (
    "at rank's peak: alive when its rank stood highest; a rank's groups add up to it",
    "own peak: the most the group held at any instant of its own",
)
ALLOCATOR_NOTES: Final = (
    *BLOCKS_NOTES,
    "reserved: the most its segments held; of host memory its own peak",
)
APP_NOTE: Final = "app: what the process holds beyond the allocators, by samples; in no sum"
UNKNOWN_APP_NOTE: Final = "app is - where no sample says what the process holds, or what its allocators hold"
SAMPLED_NOTE: Final = "{}: what they reserved, by samples of the recording; in no sum"
PINNED_NOTE: Final = "pinned_host: of the host; by samples where its blocks are not recorded, then in no sum"
RANKS_NOTES: Final = (
    "each at its own: its ranks' peaks added up; they happen at different instants",
    "own peak: the most its ranks held together at one instant",
)


def peak(
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    by: Grouping = "rank",
    rank: Rank = None,
    at_least: AtLeast = None,
    limit: Limit = None,
    output: Output = Format.TABLE,
) -> None:
    """Each rank's peak and its exact instant; or of groups.

    The high-water mark of requested bytes, the highest first. For groups both figures are given: what the
    group held at the rank's own peak, and the group's own peak.
    """
    from rankmem_cli.args.sizes import parse_size
    from rankmem_cli.show.completeness import bound_lines
    from rankmem_cli.show.one_question import answer

    at_least_bytes = 0 if at_least is None else parse_size(at_least)
    if rank is not None and by != "rank" and GROUPINGS[by].of == "ranks":
        raise RankmemError(
            Code.INVALID,
            f"--rank {rank} does not go with --by {by}, which is of ranks together",
            f"leave out --rank, or ask by blocks of the rank: rankmem peak --by category --rank {rank}",
        )
    bounds: list[str] = []

    def ask(queries: Queries, facts: SessionFacts) -> pa.Table:
        rows = queries.peak_by(
            facts.session_id, by=cast("PeakBy", by), rank=rank, at_least_bytes=at_least_bytes
        )
        if by == "rank":
            bounds.extend(bound_lines(queries, facts, rows))
        return rows

    answer(
        db,
        aggregator,
        session,
        ask,
        lambda facts: _columns(by, facts.started_ns),
        output=output,
        limit=limit,
        table_rows=TABLE_ROWS,
        notes=lambda rows: (*_notes(by, rows), *bounds),
    )


def _notes(by: str, rows: pa.Table) -> tuple[str, ...]:
    if by == "rank":
        return ()
    if GROUPINGS[by].of_allocator:
        return (*ALLOCATOR_NOTES, *_component_notes(rows)) if by == "component" else ALLOCATOR_NOTES
    if GROUPINGS[by].of == "blocks":
        return BLOCKS_NOTES
    unknown = rows.num_rows and rows["group_name"].null_count == rows.num_rows
    return (*RANKS_NOTES, f"no rank of this session reported its {by}") if unknown else RANKS_NOTES


def _component_notes(rows: pa.Table) -> list[str]:
    """What the rows of components mean that are no allocator's."""
    found = rows.select(["group_name", "is_sampled", "peak_bytes"]).to_pylist()
    notes = [APP_NOTE]
    if any(row["group_name"] == "app" and row["peak_bytes"] is None for row in found):
        notes.append(UNKNOWN_APP_NOTE)
    sampled = sorted({row["group_name"] for row in found if row["is_sampled"]} - {"app", "pinned_host"})
    if sampled:
        notes.append(SAMPLED_NOTE.format(", ".join(sampled)))
    if any(row["group_name"] == "pinned_host" for row in found):
        notes.append(PINNED_NOTE)
    return notes


def _columns(by: str, started_ns: int | None) -> list[Column]:
    from rankmem_cli.show import columns

    if by == "rank":
        return columns.peak(started_ns)
    if GROUPINGS[by].of_allocator:
        return columns.peak_of_allocator(by, started_ns)
    of = columns.peak_of_blocks if GROUPINGS[by].of == "blocks" else columns.peak_of_ranks
    return of(by, started_ns)
