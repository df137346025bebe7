"""What an answer lacks, said with every answer: the one place that all of them pass.

Stage: render. In comes an answer and the query ``incompleteness`` of its session; out go lines on stderr
after the data, and, for programs, one more column. Nothing where nothing is missing that anybody knows of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rankmem_cli.render import Format, note, show

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.queries import Queries
    from rankmem_cli.table import Column
    from rankmem_cli.target import SessionFacts

COLUMN: Final = "incomplete"
"""Of a row in JSON and CSV: what it lacks, in words; NULL where that is nothing."""


def show_answer(
    queries: Queries,
    facts: SessionFacts,
    rows: pa.Table,
    columns: Sequence[Column],
    *,
    output: Format,
    notes: Sequence[str] = (),
) -> None:
    """Writes an answer about a session, and what it lacks. Args as :func:`rankmem_cli.render.show`."""
    missing = queries.incompleteness(facts.session_id).to_pylist()
    show(marked(rows, missing, output), columns, output=output, title=facts.title(), notes=notes)
    print_lines(missing)
    if not rows.num_rows:
        say_kernels(facts)


def say_kernels(facts: SessionFacts) -> None:
    """Where an answer is empty because the session has kernels alone: how to ask for these."""
    from rankmem_cli.recorded import kernels_alone

    for line in kernels_alone(facts):
        note(line)


def say(queries: Queries, facts: SessionFacts) -> None:
    """The lines alone, after an answer of several parts."""
    print_lines(queries.incompleteness(facts.session_id).to_pylist())


def print_lines(missing: Sequence[dict[str, Any]]) -> None:
    """Writes the lines to stderr."""
    from rankmem_aggregator.missing import lines

    for line in lines(missing):
        note(line)


def marked(rows: pa.Table, missing: Sequence[dict[str, Any]], output: Format) -> pa.Table:
    """The answer as it is where it becomes a table or lacks nothing; else with the column ``incomplete``.

    Of a rank's row it says what that rank lacks, of any other row what the session lacks.
    """
    import pyarrow as pa

    from rankmem_aggregator.missing import lines

    if not missing or output is Format.TABLE:
        return rows
    names = rows.column_names
    every = "; ".join(lines(missing))
    if "rank" not in names:
        told: list[str | None] = [every] * rows.num_rows
    else:
        keys = [name for name in ("attempt", "rank") if name in names]
        whose = zip(*(rows[name].to_pylist() for name in keys), strict=True)
        told = [_of(dict(zip(keys, key, strict=True)), missing) for key in whose]
    return rows.append_column(COLUMN, pa.array(told, pa.string()))


def _of(row: dict[str, Any], missing: Sequence[dict[str, Any]]) -> str | None:
    sentences = [each["sentence"] for each in missing if all(each[name] == row[name] for name in row)]
    return "; ".join(dict.fromkeys(sentences)) or None
