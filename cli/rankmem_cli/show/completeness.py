"""Reports with every answer what it lacks; all answers pass through here.

Stage: render. In: an answer and its session's ``incompleteness``. Out: lines on stderr after the data and,
for programs, an additional column. Neither appears if nothing is known to be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rankmem_aggregator.quantity_text import counted
from rankmem_cli.show.render import Format, note, show
from rankmem_cli.show.units import bytes_text, safe_text

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.query.queries import Queries
    from rankmem_cli.show.session import SessionFacts
    from rankmem_cli.show.table import Column

COLUMN: Final = "incomplete"
"""The column in JSON and CSV that says in words what a row lacks; NULL for nothing."""
BOUNDS_SHOWN: Final = 8
"""Ranks with an inexact peak that are listed, highest first; the view peak_bound has all."""
SESSIONS_SHOWN: Final = 5
"""Incomplete sessions named after an answer that may concern any session, newest first."""


def show_answer(
    queries: Queries,
    facts: SessionFacts,
    rows: pa.Table,
    columns: Sequence[Column],
    *,
    output: Format,
    notes: Sequence[str] = (),
) -> None:
    """Writes an answer about a session and what it lacks. Args as :func:`rankmem_cli.show.render.show`."""
    from rankmem_aggregator.query.missing import missing_of

    lacks = missing_of(rows) if output is Format.TABLE else None
    if lacks is not None:  # the answer carries it; programs get it row by row
        show(rows, columns, output=output, title=facts.title(), notes=notes)
        _print(lacks)
    else:
        missing = queries.incompleteness(facts.session_id).to_pylist()
        show(with_incomplete(rows, missing, output), columns, output=output, title=facts.title(), notes=notes)
        note_missing(missing)
        note_stale(queries)
    if not rows.num_rows:
        note_kernels(facts)


def note_kernels(facts: SessionFacts) -> None:
    """Notes how to query the kernels, if the session contains nothing else."""
    from rankmem_cli.show.not_recorded import kernel_hints

    for line in kernel_hints(facts):
        note(line)


def note_incompleteness(queries: Queries, facts: SessionFacts) -> None:
    """Writes only the lines, after an answer in several parts."""
    note_missing(queries.incompleteness(facts.session_id).to_pylist())
    note_stale(queries)


def note_stale(queries: Queries) -> None:
    """Writes to stderr what the last answer may lack since a store is away."""
    if queries.stale:
        note(safe_text(queries.stale))


def note_missing(missing: Sequence[dict[str, Any]]) -> None:
    """Writes the lines to stderr."""
    from rankmem_aggregator.query.missing import lines

    _print(lines(missing))


def bound_lines(queries: Queries, facts: SessionFacts, peaks: pa.Table) -> list[str]:
    """Lower bounds of the peaks that are not exact; none if the answer is exact."""
    from rankmem_aggregator.query.missing import COMPLETE_KEY

    if (peaks.schema.metadata or {}).get(COMPLETE_KEY) != b"False":
        return []
    ranks = set(peaks["rank"].to_pylist())
    bounds = _unless_older(lambda: queries.peak_bound(facts.session_id))
    found = [row for row in bounds if row["rank"] in ranks and row["is_exact"] is False]
    bounds_text = [
        f"rank {row['rank']}, {safe_text(row['device'])}: not exact; {at_least_text(row['at_least_bytes'])}"
        for row in sorted(found, key=lambda row: -(row["at_least_bytes"] or 0))[:BOUNDS_SHOWN]
    ]
    more = len(found) - BOUNDS_SHOWN
    again = facts.given.complete('rankmem sql "FROM peak_bound"')
    return bounds_text if more <= 0 else [*bounds_text, f"… and {more} more: {again}"]


def at_least_text(at_least_bytes: int | None) -> str:
    """The lower bound of a peak whose events are incomplete, as a phrase."""
    if not at_least_bytes:
        return "the true peak is unknown"
    return f"the true peak was at least {bytes_text(at_least_bytes)}; how much higher is unknown"


def note_incomplete_sessions(queries: Queries) -> None:
    """Notes which sessions lack events, after an answer that may concern any; a failure is only noted."""
    from rankmem_protos.errors import RankmemError

    try:
        sessions = _unless_older(queries.incomplete_sessions)
    except RankmemError as exc:
        note(f"could not check whether any session lacks events: {exc.message}")
        return
    for row in sessions[:SESSIONS_SHOWN]:
        ranks = counted(row["num_ranks"], "rank")
        note(f"session {safe_text(row['session_id'])} lacks events of {ranks}: its figures may be wrong")
    if sessions:
        more = len(sessions) - SESSIONS_SHOWN
        others = f"… and {more} more: " if more > 0 else "details: "
        again = queries.given_options.complete('rankmem sql "FROM incompleteness"')
        note(f"{others}{again}")


def _unless_older(ask: Callable[[], pa.Table]) -> list[dict[str, Any]]:
    """The rows; none if the version of the database or aggregator lacks the view."""
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
    """The answer with the column ``incomplete``; unchanged for a table or if nothing is missing.

    For a rank's row the column says what that rank lacks, for any other row what the session lacks.
    """
    import pyarrow as pa

    from rankmem_aggregator.query.missing import lines

    if not missing or output is Format.TABLE:
        return rows
    names = rows.column_names
    every = "; ".join(lines(missing))
    if "rank" not in names:
        lacks: list[str | None] = [every] * rows.num_rows
    else:
        keys = [name for name in ("attempt", "rank") if name in names]
        whose = zip(*(rows[name].to_pylist() for name in keys), strict=True)
        lacks = [_of(dict(zip(keys, key, strict=True)), missing) for key in whose]
    return rows.append_column(COLUMN, pa.array(lacks, pa.string()))


def _of(row: dict[str, Any], missing: Sequence[dict[str, Any]]) -> str | None:
    sentences = [each["sentence"] for each in missing if all(each[name] == row[name] for name in row)]
    return "; ".join(dict.fromkeys(sentences)) or None
