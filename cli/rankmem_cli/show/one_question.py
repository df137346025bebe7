"""A reading verb from its options to its table: open, find the session, ask, limit, show.

Stage: between arguments and render, for the verbs that ask one question and show one table. A verb
provides its question and its columns. Runs in the command line's process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rankmem_cli.args.options import Target
from rankmem_cli.show.render import Format

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.query.queries import Queries
    from rankmem_cli.show.session import SessionFacts
    from rankmem_cli.show.table import Column

Ask = Callable[["Queries", "SessionFacts"], "pa.Table"]


def answer(
    target: Target,
    session: str | None,
    ask: Ask,
    shown: Callable[[SessionFacts], Sequence[Column]],
    *,
    output: Format,
    limit: int | None = None,
    table_rows: int = 0,
    notes: Callable[[pa.Table], Sequence[str]] = lambda rows: (),
    needs: Sequence[str] = (),
    without_rows: str = "",
) -> None:
    """Asks one question of a session and shows its answer.

    Args:
        target: where to ask; session, output and limit are the shared options.
        ask: the question.
        shown: the columns of a table.
        table_rows: the default limit of a table; 0 for all.
        notes: lines above a table, given the rows that are shown.
        needs: what the answer needs: operators, stacks, modules; noted if it was not recorded.
        without_rows: the note for an answer without rows.
    """
    from rankmem_cli.show import not_recorded
    from rankmem_cli.show.completeness import show_answer
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import head, note
    from rankmem_cli.show.session import open_session

    with open_session(target, session) as (queries, facts):
        with show_progress("querying"):
            rows = ask(queries, facts)
        if limit is not None or table_rows:
            rows = head(rows, limit, output=output, table_rows=table_rows)
        lines = [*notes(rows), *not_recorded.bracket_notes(rows), *not_recorded.notes(facts, needs)]
        show_answer(
            queries,
            facts,
            rows,
            not_recorded.with_placeholders(shown(facts), facts),
            output=output,
            notes=lines,
        )
        if without_rows and rows.num_rows == 0:
            note(without_rows)
