"""What an answer lacks, said with every answer: the one place that all of them pass.

Stage: render. In comes an answer and the query ``incompleteness`` of its session; out go lines on stderr
after the data, and, for programs, one more column. Nothing where nothing is missing that anybody knows of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rankmem_cli.render import Format, note, show
from rankmem_cli.units import safe_text

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.queries import Queries
    from rankmem_cli.table import Column
    from rankmem_cli.target import SessionFacts

COLUMN: Final = "incomplete"
"""Of a row in JSON and CSV: what it lacks, in words; NULL where that is nothing."""
SESSIONS_SHOWN: Final = 5
"""Named after an answer that may be of any of them, the newest."""


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
    from rankmem_aggregator.missing import missing_of

    lacks = missing_of(rows) if output is Format.TABLE else None
    if lacks is not None:  # the answer carries it; programs want it row by row
        show(rows, columns, output=output, title=facts.title(), notes=notes)
        _print(lacks)
        return
    missing = queries.incompleteness(facts.session_id).to_pylist()
    show(marked(rows, missing, output), columns, output=output, title=facts.title(), notes=notes)
    print_lines(missing)


def say(queries: Queries, facts: SessionFacts) -> None:
    """The lines alone, after an answer of several parts."""
    print_lines(queries.incompleteness(facts.session_id).to_pylist())


def print_lines(missing: Sequence[dict[str, Any]]) -> None:
    """Writes the lines to stderr."""
    from rankmem_aggregator.missing import lines

    _print(lines(missing))


def say_of_all(queries: Queries) -> None:
    """After an answer that may be of any session: which of them lack events."""
    from rankmem_protos.errors import Code, RankmemError

    try:
        sessions = queries.incomplete_sessions().to_pylist()
    except RankmemError as exc:
        # An older version has no such view; a file of somebody else's views may have none of ours.
        if exc.code is not Code.INVALID:
            raise
        return
    for row in sessions[:SESSIONS_SHOWN]:
        ranks = "1 rank" if row["num_ranks"] == 1 else f"{row['num_ranks']} ranks"
        note(f"session {safe_text(row['session_id'])} lacks events of {ranks}: its figures may be wrong")
    if sessions:
        more = len(sessions) - SESSIONS_SHOWN
        others = f"… and {more} more: " if more > 0 else "what is missing: "
        note(f'{others}rankmem sql "FROM incompleteness"')


def _print(lines: Sequence[str]) -> None:
    for line in lines:
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
