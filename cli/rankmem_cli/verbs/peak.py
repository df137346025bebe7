"""``rankmem peak``: which rank, host, device, stream, category … peaked, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from rankmem_cli.args import options
from rankmem_cli.args.groupings import by_option
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
"""Default limit of a table: the groups of all ranks are many. JSON and CSV contain all rows."""


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
        help="Only rows whose own peak reached this size: 100MiB, 1.5GiB or a number of bytes.",
    ),
]
BLOCKS_NOTES: Final = (
    "at rank's peak: alive when the rank was at its peak; a rank's groups add up to that peak",
    "own peak: the most the group held at any one instant",
)
ALLOCATOR_NOTES: Final = (
    *BLOCKS_NOTES,
    "reserved: the most its segments held; for host memory, its own peak",
)
APP_NOTE: Final = "app: sampled memory of the process outside the allocators; not part of any sum"
UNKNOWN_APP_NOTE: Final = "app is - where no sample gives the memory of the process or of its allocators"
SAMPLED_NOTE: Final = "{}: reserved bytes, sampled by the recording; not part of any sum"
PINNED_NOTE: Final = (
    "pinned_host: host memory; sampled where its blocks are not recorded, and then not part of any sum"
)
RANKS_NOTES: Final = (
    "sum of peaks: its ranks' peaks added up; they occur at different instants",
    "own peak: the most its ranks held together at one instant",
)


@options.reads
def peak(
    source: options.Target,
    session: options.Session = None,
    by: Grouping = "rank",
    rank: options.Rank = None,
    at_least: AtLeast = None,
    limit: options.Limit = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show the peak of each rank or group, and exactly when.

    A peak is the high-water mark of requested bytes; the highest comes first. A group has two figures: what
    it held at the rank's own peak, and the group's own peak.
    """
    from rankmem_cli.args.sizes import parse_size
    from rankmem_cli.show.completeness import bound_lines
    from rankmem_cli.show.one_question import answer

    at_least_bytes = 0 if at_least is None else parse_size(at_least)
    if rank is not None and by != "rank" and GROUPINGS[by].of == "ranks":
        raise RankmemError(
            Code.INVALID,
            f"--rank {rank} cannot be combined with --by {by}, which groups ranks",
            f"leave out --rank, or group the rank's blocks: rankmem peak --by category --rank {rank}",
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
        source,
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
    return (*RANKS_NOTES, f"no rank of this session reported a {by} coordinate") if unknown else RANKS_NOTES


def _component_notes(rows: pa.Table) -> list[str]:
    """Explanations of the components that are not allocators."""
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
