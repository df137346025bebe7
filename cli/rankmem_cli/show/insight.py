"""Shows an insight: its sentence first, how certain it is, its table, what to run next; or JSON or CSV.

Stage: render, and the steps that the verbs of insights share. In: an ``Answer``. Out: the answer on stdout,
what the recording lacks on stderr, and the exit code. Runs in the command line's process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, cast

import typer

from rankmem_cli.args.options import Target
from rankmem_cli.show.render import Format, begin, note, plain, show_table
from rankmem_cli.show.units import safe_text

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.insights.answer import Answer, Certainty
    from rankmem_aggregator.query.queries import Queries
    from rankmem_cli.show.session import SessionFacts
    from rankmem_cli.show.table import Column

CERTAINTY_WORDS = ("suspected", "predicted", "exact")


def _certainty(word: str) -> str:
    if word not in CERTAINTY_WORDS:
        raise typer.BadParameter(f"{word!r} is none of {', '.join(CERTAINTY_WORDS)}")
    return word


FailOn = Annotated[
    str | None,
    typer.Option(
        "--fail-on",
        parser=_certainty,
        metavar=f"<{'|'.join(CERTAINTY_WORDS)}>",
        help="Exit with 1 for a finding that is at least this certain.  [default: exit with 0]",
    ),
]
"""The option of every insight."""


def tell(
    target: Target,
    session: str | None,
    ask: Callable[[Queries, SessionFacts], Answer],
    columns: Callable[[Answer], Sequence[Column]],
    *,
    output: Format,
    fail_on: str | None,
    table: Callable[[pa.Table], pa.Table] | None = None,
) -> None:
    """Asks for an insight, shows it and exits: 0, 1 for a finding with ``--fail-on``, 2 where it cannot tell.

    Args:
        target: where to ask; session and output are the shared options.
        ask: the question.
        columns: those of its table.
        fail_on: the least certainty of a finding that is a failure; None: none is.
        table: what is made of the answer's rows to show them as a table; None: nothing.
    """
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.session import open_session

    with open_session(target, session) as (queries, facts):
        with show_progress("querying"):
            answer = ask(queries, facts).asked_with(facts.given)
        if output is Format.TABLE:
            note(facts.title())
        if table is not None and output is Format.TABLE:
            answer = replace(
                answer, rows=table(answer.rows).replace_schema_metadata(answer.rows.schema.metadata)
            )
        show_insight(answer, columns(answer), output=output)
    code = answer.exit_code(cast("Certainty | None", fail_on))
    if code:
        raise typer.Exit(code)


def show_insight(answer: Answer, columns: Sequence[Column], *, output: Format) -> None:
    """Writes an answer: JSON as ``insights.answer.JSON_SCHEMA`` has it, CSV its rows, or text."""
    if output is Format.JSON:
        print(json.dumps(plain(answer.as_dict()), allow_nan=False))
        return
    if output is Format.CSV:
        writer = begin(output)
        writer.write(answer.rows)
        writer.end()
        note(answer.sentence)
        return
    cannot = answer.verdict == "cannot tell"
    _line(f"cannot tell: {answer.sentence}" if cannot else answer.sentence)
    for text in filter(None, (_label(answer), answer.gaps_text())):
        _line(f"  {text}")
    if answer.rows.num_rows:
        sys.stdout.flush()
        show_table(answer.rows, columns)
    for text in answer.notes:
        _line(text)
    for command in answer.next_commands:
        _line(f"next: {command}")
    for text in answer.missing:
        note(text)


def _label(answer: Answer) -> str:
    return ": ".join(filter(None, (answer.certainty, answer.error)))


def _line(text: str) -> None:
    print(safe_text(text))
