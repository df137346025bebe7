"""``rankmem modules``: the tree of the model with the bytes that each part held."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rankmem_cli.args.options import Aggregator, Limit, Output, Rank, ReadDb, Session
from rankmem_cli.show.render import Format

TABLE_ROWS: Final = 60
"""Modules of a table unless --limit says more: those with most; JSON and CSV carry all."""
NOTES: Final = (
    "with its parts: alive at the peak and made in the module or in one within it",
    "its own: of those the blocks whose innermost module it is",
)

Depth = Annotated[
    int | None,
    typer.Option("--depth", metavar="N", min=0, help="Levels of the tree below its roots.  [default: all]"),
]


def modules(
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    rank: Rank = None,
    depth: Depth = None,
    limit: Limit = None,
    output: Output = Format.TABLE,
) -> None:
    """The tree of modules with what each held at the peak.

    Each rank at its own peak, added up; those with most, in the order of the tree.
    """
    from rankmem_cli.show import columns, not_recorded
    from rankmem_cli.show.completeness import show_answer
    from rankmem_cli.show.module_tree import as_tree, largest, no_deeper
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.session import open_queries, session_facts

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with show_progress("asking"):
            rows = queries.modules(facts.session_id, rank=rank)
        rows = largest(no_deeper(rows, depth), limit, output=output, table_rows=TABLE_ROWS)
        if output is Format.TABLE:
            rows = as_tree(rows, not_recorded.placeholder(facts, "modules"))
        notes = [*NOTES, *not_recorded.notes(facts, ("modules",))]
        show_answer(queries, facts, rows, columns.modules(), output=output, notes=notes)
