"""Compares what a database file and a lake answer: every table, view, macro, named query and page route.

Stage: tests. In: a database file and a lake that was imported from it; out: the names of answers that differ.
A lake has content hashes for stacks, so the file to compare with is a copy in which plain SQL has put them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import duckdb
import pyarrow as pa

from lake_sessions import rows_of, view_questions
from page_questions import questions
from page_server import PageClient, served_page
from rankmem_aggregator.ingest.stack_ids import STACK_COLUMNS
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.layout import LEFT_OUT
from rankmem_aggregator.lake.scattered import ScatteredQueries
from rankmem_aggregator.page.reading import facts_of
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import BlockBy, By, CurveBy, PeakBy
from rankmem_aggregator.sql import mindstudio_names, view_names, view_text
from rankmem_aggregator.store import schema
from rankmem_protos.errors import RankmemError
from rankmem_protos.groupings import GROUPINGS
from rankmem_protos.tables import TABLES
from repetitions import some_of

_MACRO: Final = re.compile(r"CREATE OR REPLACE MACRO (\w+)\(([^)]*)\) AS TABLE")
_NOT_FOR_ALL: Final = {"block_of_device"}
"""Takes a clock offset, which the views that call it know."""


def with_hashes(database: Path, copy: Path) -> Path:
    """A copy of a file with the hash of each stack in place of its number."""
    shutil.copy(database, copy)
    with duckdb.connect(copy) as connection:
        for table, columns in STACK_COLUMNS.items():
            name = schema.stored_name(TABLES[table])
            for column in columns:
                connection.execute(
                    f"UPDATE {name} SET {column} = h.stack_hash FROM stack_hash AS h "
                    f"WHERE {name}.{column} = h.stack_id"
                )
    return copy


class Pair(NamedTuple):
    """A database, with hashes for stacks, and the lake that the original was imported into."""

    file: Path
    lake: str


def lake_pair(database: Path, part_rows: int) -> Pair:
    """A database imported into a lake of parts of so many events."""
    lake = database.with_suffix(".lake")
    import_database(database, str(lake), part_rows=part_rows)
    return Pair(with_hashes(database, database.with_suffix(".hashed")), f"lake:{lake}")


def differences(
    file: Queries,
    lake: Queries,
    sessions: Sequence[str],
    groupings: Sequence[str] = tuple(GROUPINGS),
    *,
    one_in: int = 1,
) -> list[str]:
    """The statements and calls to which the two give different answers.

    Also an answer that one gives and the other refuses. Views and macros, which have no order, are compared
    sorted; answers to calls as they are, with their metadata.

    Args:
        sessions: that macros and calls are about.
        groupings: that macros are asked with.
        one_in: how much is asked but in the profile ``long``.
    """
    statements = [*_tables_and_views()]
    for session in sessions:
        given = {"s": session, **_facts(file, session)}
        statements += [(f"{text} {session}", text, given) for text in _macros(groupings)]
    asked = some_of(statements, one_in, lambda statement: statement[0])
    found = [name for name, text, given in asked if not _same_rows(file, lake, text, given)]
    for session in sessions:
        for name, arguments, options in some_of(calls(file, session), one_in):
            if _outcome(file, name, arguments, options) != _outcome(lake, name, arguments, options):
                found.append(f"{name} {arguments} {options}")
    return found


def quick_differences(file: Queries, lake: Queries, session: str) -> list[str]:
    """The tables, some views and the main calls to which the two give different answers."""
    tables = set(_table_names())
    asked = [one for one in _tables_and_views() if one[0] in tables]
    asked += some_of((one for one in _tables_and_views() if one[0] not in tables), 3, lambda one: one[0])
    found = [name for name, text, given in asked if not _same_rows(file, lake, text, given)]
    main = ("sessions", "ranks", "peak", "job_peak", "steps", "status", "top", "incompleteness")
    for name, arguments, options in calls(file, session):
        is_main = name in main or options.get("by") == "category"
        if is_main and _outcome(file, name, arguments, options) != _outcome(lake, name, arguments, options):
            found.append(f"{name} {arguments} {options}")
    return found


def engine_differences(file: Queries, lake: ScatteredQueries, session: str) -> list[str]:
    """The statements and calls to which a lake asked through an engine gives another answer than the file.

    Views and macros are asked as their heads say they can be cut; what cannot be cut is not asked again.
    """
    at_ns = _facts(file, session)["at_ns"]
    found = []
    for name, scatter, text, given in view_questions(file, session, at_ns):
        if scatter == "hosts":
            answer = lake.by_hosts(text, given, session)
        elif scatter == "time":
            by = name.partition(" ")[2] if name.startswith(("group_peak", "peak_by_ranks")) else "job"
            answer = lake.by_time(text, given, session, by)
        else:
            answer = None
        if answer is not None and rows_of(answer) != rows_of(file.sql(text, given)):
            found.append(name)
    for name, arguments, options in calls(file, session):
        if _outcome(file, name, arguments, options) != _outcome(lake, name, arguments, options):
            found.append(f"{name} {arguments} {options}")
    return found


def table_differences(file: Queries, lake: Queries) -> list[str]:
    """The tables of which the two have different rows."""
    return [name for name in _table_names() if not _same_rows(file, lake, f"SELECT * FROM {name}", {})]


def num_rows(queries: Queries) -> int:
    """The rows of all tables that a lake has."""
    counts = [f"SELECT count(*) AS n FROM {schema.quoted(name)}" for name in _table_names()]
    return int(queries.sql(f"SELECT sum(n) AS n FROM ({' UNION ALL '.join(counts)})")["n"][0].as_py())


def calls(queries: Queries, session: str) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Calls that ask every named query about a session."""
    facts = _facts(queries, session)
    rank, at = facts["rank"], facts["at_ns"]
    now = at + 1_000_000
    yield "sessions", (), {}
    yield "incomplete_sessions", (), {}
    for name in (
        "session_id",
        "session_row",
        "session_facts",
        "ranks",
        "hosts",
        "incompleteness",
        "peak",
        "peak_by_host",
    ):
        yield name, (session,), {}
    for name in ("peak_bound", "job_peak", "job_peak_bound", "steps", "modules", "weights", "oom"):
        yield name, (session,), {}
    for name in ("status", "top"):
        yield name, (session,), {"now_ns": now}
    for by in get_args(PeakBy):
        yield "peak_by", (session,), {"by": by}
    for by in get_args(BlockBy):
        yield "job_peak_held", (session,), {"by": by}
        yield "ops", (session,), {"by": by, "at": at, "rank": rank}
        yield (
            "oom_held",
            (session,),
            {"by": by, "attempt": 0, "rank": rank, "device": facts["device"], "seq": facts["seq"]},
        )
    for by in get_args(By):
        yield "ops", (session,), {"by": by}
    for by in get_args(CurveBy):
        yield "timeline", (session,), {"by": by}
    yield "timeline", (session,), {"by": "category", "rank": "all"}
    yield "held_at", (at, session), {}
    yield "curve", (rank, session), {}
    yield "live", (rank, session), {}
    yield "live", (rank, session), {"at": at}
    for stack in queries.sql("SELECT DISTINCT stack_id FROM stack_frame ORDER BY 1 LIMIT 2")[
        "stack_id"
    ].to_pylist():
        yield "stack", (stack,), {}


def statements_about(
    queries: Queries, session: str, groupings: Sequence[str] = tuple(GROUPINGS)
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """All tables, views and macros: a name, a statement, its parameters and more."""
    yield from _tables_and_views()
    given = {"s": session, **_facts(queries, session)}
    yield from ((text, text, given) for text in _macros(groupings))


def _facts(queries: Queries, session: str) -> dict[str, Any]:
    """Something of a session to ask about: its highest rank's peak, halfway."""
    rows = queries.sql(
        "SELECT attempt, rank, device, peak_seq AS seq, peak_time_ns AS at_ns FROM peak_by_rank "
        "WHERE session_id = $s ORDER BY peak_requested_bytes DESC, attempt, rank, device LIMIT 1",
        {"s": session},
    ).to_pylist()
    return rows[0] if rows else {"attempt": 0, "rank": 0, "device": "cpu", "seq": 0, "at_ns": 0}


def _table_names() -> list[str]:
    return [name for name in schema.ALL_TABLES if name not in LEFT_OUT]


def _tables_and_views() -> Iterator[tuple[str, str, dict[str, Any]]]:
    views = [name for name in view_names() if f"CREATE OR REPLACE VIEW {name} " in view_text(name)]
    for name in (*_table_names(), *views):
        yield name, f"SELECT * FROM {schema.quoted(name)}", {}
    for name in mindstudio_names():
        if name.isupper():
            yield name, f"SELECT * FROM mindstudio.{schema.quoted(name)}", {}


def _macros(groupings: Sequence[str]) -> Iterator[str]:
    """A call of every table macro, with the groupings where it takes one."""
    values = {
        "of_session": "$s", "of_attempt": "$attempt", "of_rank": "$rank", "of_device": "$device",
        "at_ns": "$at_ns", "at_seq": "$seq", "of_width_s": "4",
        "of_device_type": "split_part($device, ':', 1)",
        "of_points": "[{attempt: $attempt, rank: $rank, device: $device, seq: $seq}]",
    }  # fmt: skip
    for name in view_names():
        macro = _MACRO.search(view_text(name))
        if macro is None or name in _NOT_FOR_ALL:
            continue
        needed = [p.strip() for p in macro[2].split(",") if ":=" not in p]
        assert set(needed) <= {*values, "of_group"}, (name, needed)
        for by in groupings if "of_group" in needed else ("",):
            given = ", ".join(f"'{by}'" if p == "of_group" else values[p] for p in needed)
            yield f"SELECT * FROM {name}({given})"


def _same_rows(file: Queries, lake: Queries, text: str, given: dict[str, Any]) -> bool:
    used = {name: value for name, value in given.items() if f"${name}" in text}
    return _rows(file, text, used) == _rows(lake, text, used)


def _rows(queries: Queries, text: str, given: dict[str, Any]) -> Any:
    try:
        answer = queries.sql(f"SELECT * FROM ({text}) ORDER BY ALL", given)
    except RankmemError as exc:
        return exc.code
    return answer.schema, answer.to_pylist()


def _outcome(queries: Queries, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    try:
        answer = getattr(queries, name)(*arguments, **options)
    except RankmemError as exc:
        return exc.code
    return (
        (answer.schema, answer.schema.metadata, answer.to_pylist())
        if isinstance(answer, pa.Table)
        else answer
    )


def page_differences(file: str | Path, lake: str, session: str, *, one_in: int = 1) -> list[str]:
    """The routes of the page that answer differently, or fail on one side."""
    with served_page(file) as first, served_page(lake) as second:
        found = []
        for question in some_of(questions(first, session), one_in, lambda question: question.path):
            given = {("from_" if name == "from" else name): v for name, v in question.parameters.items()}
            answers = [_page_answer(client, question.path, given) for client in (first, second)]
            if answers[0] != answers[1]:
                found.append(f"{question.path} {given}")
        return found


def _page_answer(client: PageClient, path: str, given: dict[str, Any]) -> Any:
    try:
        answer = client.ask(path, **given)
    except RankmemError as exc:
        return exc.code
    return answer.schema, answer.to_pylist(), facts_of(answer)
