"""``rankmem modules``: the model's module tree with the bytes that each module held."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rankmem_cli.args import options
from rankmem_cli.show.render import Format

TABLE_ROWS: Final = 60
"""Default limit of a table: the largest modules. JSON and CSV contain all."""
NOTES: Final = (
    "with submodules: blocks alive at the peak that the module or one inside it allocated",
    "own: those of them whose innermost module it is",
)

Depth = Annotated[
    int | None,
    typer.Option(
        "--depth", metavar="N", min=0, help="Levels of the tree to show below its roots.  [default: all]"
    ),
]


@options.reads
def modules(
    source: options.Target,
    session: options.Session = None,
    rank: options.Rank = None,
    depth: Depth = None,
    limit: options.Limit = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show the module tree with what each module held at the peak.

    Ranks are added up, each at its own peak. Shows the largest modules, in tree order.
    """
    from rankmem_cli.show import columns, not_recorded
    from rankmem_cli.show.completeness import show_answer
    from rankmem_cli.show.module_tree import as_tree, largest, no_deeper
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.session import open_session

    with open_session(source, session) as (queries, facts):
        with show_progress("querying"):
            rows = queries.modules(facts.session_id, rank=rank)
        rows = largest(no_deeper(rows, depth), limit, output=output, table_rows=TABLE_ROWS)
        if output is Format.TABLE:
            rows = as_tree(rows, not_recorded.placeholder(facts, "modules"))
        notes = [*NOTES, *not_recorded.notes(facts, ("modules",))]
        show_answer(queries, facts, rows, columns.modules(), output=output, notes=notes)
