"""What an answer lacks, said with every answer: the one place that all of them pass.

Stage: render. In comes an answer and the query ``incompleteness`` of its session; out go lines on stderr
after the data, and, for programs, one more column. Nothing where nothing is missing that anybody knows of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rankmem_cli.show.render import Format, note, show
from rankmem_cli.show.units import bytes_text, safe_text

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.query.queries import Queries
    from rankmem_cli.show.session import SessionFacts
    from rankmem_cli.show.table import Column

COLUMN: Final = "incomplete"
"""Of a row in JSON and CSV: what it lacks, in words; NULL where that is nothing."""
BOUNDS_SHOWN: Final = 8
"""Ranks whose peak is not exact, the highest: the view peak_bound has all."""
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
    """Writes an answer about a session, and what it lacks. Args as :func:`rankmem_cli.show.render.show`."""
    from rankmem_aggregator.query.missing import missing_of

    lacks = missing_of(rows) if output is Format.TABLE else None
    if lacks is not None:  # the answer carries it; programs want it row by row
        show(rows, columns, output=output, title=facts.title(), notes=notes)
        _print(lacks)
    else:
        missing = queries.incompleteness(facts.session_id).to_pylist()
        show(with_incomplete(rows, missing, output), columns, output=output, title=facts.title(), notes=notes)
        note_missing(missing)
    if not rows.num_rows:
        note_kernels(facts)


def note_kernels(facts: SessionFacts) -> None:
    """Where an answer is empty because the session has kernels alone: how to ask for these."""
    from rankmem_cli.show.not_recorded import kernel_hints

    for line in kernel_hints(facts):
        note(line)


def note_incompleteness(queries: Queries, facts: SessionFacts) -> None:
    """The lines alone, after an answer of several parts."""
    note_missing(queries.incompleteness(facts.session_id).to_pylist())


def note_missing(missing: Sequence[dict[str, Any]]) -> None:
    """Writes the lines to stderr."""
    from rankmem_aggregator.query.missing import lines

    _print(lines(missing))


def bound_lines(queries: Queries, facts: SessionFacts, peaks: pa.Table) -> list[str]:
    """How high the peaks that are not exact were at least; none where the answer is exact."""
    from rankmem_aggregator.query.missing import COMPLETE_KEY

    if (peaks.schema.metadata or {}).get(COMPLETE_KEY) != b"False":
        return []
    ranks = set(peaks["rank"].to_pylist())
    bounds = _unless_older(lambda: queries.peak_bound(facts.session_id))
    found = [row for row in bounds if row["rank"] in ranks and row["is_exact"] is False]
    said = [
        f"rank {row['rank']}, {safe_text(row['device'])}: not exact; {at_least_text(row['at_least_bytes'])}"
        for row in sorted(found, key=lambda row: -(row["at_least_bytes"] or 0))[:BOUNDS_SHOWN]
    ]
    more = len(found) - BOUNDS_SHOWN
    return said if more <= 0 else [*said, f'… and {more} more: rankmem sql "FROM peak_bound"']


def at_least_text(at_least_bytes: int | None) -> str:
    """By how much a peak may be off where events are missing, as far as it can be said."""
    if not at_least_bytes:
        return "how high the true peak was cannot be said"
    least = bytes_text(at_least_bytes)
    return f"the true peak was at least {least}, and by how much it was higher cannot be said"


def note_incomplete_sessions(queries: Queries) -> None:
    """After an answer that may be of any session: which of them lack events. Where that fails, it stands."""
    from rankmem_protos.errors import RankmemError

    try:
        sessions = _unless_older(queries.incomplete_sessions)
    except RankmemError as exc:
        note(f"whether any session lacks events could not be asked: {exc.message}")
        return
    for row in sessions[:SESSIONS_SHOWN]:
        ranks = "1 rank" if row["num_ranks"] == 1 else f"{row['num_ranks']} ranks"
        note(f"session {safe_text(row['session_id'])} lacks events of {ranks}: its figures may be wrong")
    if sessions:
        more = len(sessions) - SESSIONS_SHOWN
        others = f"… and {more} more: " if more > 0 else "what is missing: "
        note(f'{others}rankmem sql "FROM incompleteness"')


def _unless_older(ask: Callable[[], pa.Table]) -> list[dict[str, Any]]:
    """The rows; none where the database or its aggregator is of a version that has no such view."""
    from rankmem_protos.errors import Code, RankmemError

    try:
        rows: list[dict[str, Any]] = ask().to_pylist()
    except RankmemError as exc:
        if exc.code is not Code.INVALID:
            raise
        return []
    return rows


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        note(line)


def with_incomplete(rows: pa.Table, missing: Sequence[dict[str, Any]], output: Format) -> pa.Table:
    """The answer as it is where it becomes a table or lacks nothing; else with the column ``incomplete``.

    Of a rank's row it says what that rank lacks, of any other row what the session lacks.
    """
    import pyarrow as pa

    from rankmem_aggregator.query.missing import lines

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
