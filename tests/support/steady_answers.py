"""Asks two recordings of one program the same questions, and says in which columns the answers differ.

Stage: tests. In: two databases of one session id, of runs that made the same events in the same order. Out:
for each question what differs. Positions in the log are compared as places among the rank's events, since a
log that has operator calls has other positions; times and what a host decides are not compared.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from typer.testing import CliRunner

from lake_checks import calls, statements_about, with_hashes
from page_questions import questions
from page_server import PageClient, served_page
from rankmem_aggregator import connect
from rankmem_aggregator.page.reading import facts_of
from rankmem_aggregator.query.queries import Queries
from rankmem_cli.main import app
from rankmem_protos.errors import RankmemError
from repetitions import some_of

OF_A_RUN: Final = frozenset(
    [
        "address",
        "addr",
        "time",
        "started",
        "ended",
        "watermark",
        "sql",
        "spool_id",
        "start",
        "launch",
        "secret_hash",
        "last_sequence",
        "sent_bytes",
        "device_used_bytes",
        "device_free_bytes",
        "app_reserved_bytes",
        "headroom_bytes",
        "headroom_share",
        "process",
        "process_low",
        "pid",
        "num_estimates",
    ]
)
"""Columns in which two runs of one program differ: clocks, addresses, ids, what the host had free."""
_TIMES: Final = ("_ns", "_utc", "Ns", "Time", "timestamp", "uration", "(ms)", "age", "_s")
MISSING: Final = frozenset({"call_id", "forward_call_id"})
"""Columns that steady steps lack, by docs/steady.md."""
KNOWN_BY: Final = frozenset(
    [
        "attribution",
        "like_id",
        "template_blocks",
        "prefix_blocks",
        "evidence_blocks",
        "audit_differences",
        "steady_misses",
        "steady_steps",
        "num_steps",
        "incomplete",
        "missing",
    ]
)
"""Columns that say how blocks are known, and so differ as they should."""
LEFT_OUT: Final = OF_A_RUN | MISSING | KNOWN_BY
_POSITIONS: Final = frozenset({"seq", "allocation_id", "block", "around"})
AROUND: Final = 30
"""Events on each side of the peak where a question is about a part of the log."""


@dataclass(slots=True)
class Side:
    """One of the recordings."""

    path: Path
    """A copy with hashes for stacks."""
    queries: Queries
    events: list[int]
    """Positions of the rank's events."""

    def plain(self, name: str, value: Any) -> Any:
        """What a value of this column is, apart from what differs between two runs."""
        if isinstance(value, Mapping):
            return {key: self.plain(key, each) for key, each in value.items() if key not in LEFT_OUT}
        if isinstance(value, list | tuple):
            return [self.plain(name, each) for each in value]
        if value is not None and name.endswith(_TIMES):
            return "a time"
        is_position = name in _POSITIONS or name.endswith("_seq") or name.startswith("seq_")
        if is_position and isinstance(value, int) and value >= 0:
            return self.place(value)
        return value

    def place(self, seq: int) -> tuple[str, int]:
        """At which event a position is, or before which."""
        place = bisect.bisect_left(self.events, seq)
        return "at" if self.events[place : place + 1] == [seq] else "before", place

    def rows(self, answer: pa.Table) -> list[dict[str, Any]]:
        """The rows of an answer; of a block known by evidence without what may be missing of it."""
        found = []
        for row in answer.to_pylist():
            plain = self.plain("", row)
            if row.get("attribution") == "evidence":
                plain |= {name: "unknown" for name in ("category", "first_category", "phase") if name in row}
            found.append(plain)
        return found


def open_side(database: Path, session: str) -> Side:
    """A recording of one rank."""
    path = with_hashes(database, database.with_suffix(".hashed"))
    queries = connect(path)
    events = queries.sql("SELECT seq FROM memory_event WHERE session_id = $s ORDER BY seq", {"s": session})[
        "seq"
    ].to_pylist()
    return Side(path, queries, events)


def differing(first: Any, second: Any, *, in_order: bool = True) -> set[str]:
    """The columns in which rows of two answers differ; ``rows`` where there are others."""
    if not (isinstance(first, list) and isinstance(second, list)):
        return set() if first == second else {"answer"}
    if len(first) != len(second):
        return {"rows"}
    found = set()
    if not in_order:
        first, second = (sorted(rows, key=_text) for rows in (first, second))
    for row, other in zip(first, second, strict=True):
        if isinstance(row, dict) and isinstance(other, dict):
            found |= {name for name in {**row, **other} if _of(row, other, name) != _of(other, row, name)}
        elif row != other:
            found.add("answer")
    return found


def _of(row: Mapping[str, Any], other: Mapping[str, Any], name: str) -> Any:
    return (
        "unknown"
        if name in ("category", "first_category", "phase") and _lost(row, other, name)
        else (row.get(name))
    )


def _lost(row: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
    return "unknown" in (row.get(name), other.get(name)) and "allocation_id" in row


def _text(row: Any) -> str:
    return json.dumps(row, sort_keys=True, default=str)


def views_differing(first: Side, second: Side, session: str, one_in: int) -> Iterator[tuple[str, set[str]]]:
    """The tables, views and macros that differ."""
    both = [
        {name: (text, given) for name, text, given in statements_about(side.queries, session)}
        for side in (first, second)
    ]
    for name in some_of(both[0], one_in):
        answers = []
        for side, asked in zip((first, second), both, strict=True):
            text, given = asked[name]
            used = {key: value for key, value in given.items() if f"${key}" in text}
            answers.append(_rows(side, lambda: side.queries.sql(text, used)))  # noqa: B023  called at once
        if found := differing(*answers, in_order=False):
            yield name, found


def calls_differing(first: Side, second: Side, session: str, one_in: int) -> Iterator[tuple[str, set[str]]]:
    """The questions of the Python client that differ."""
    both = [list(calls(side.queries, session)) for side in (first, second)]
    pairs = zip(*both, strict=True)
    for own, other in some_of(pairs, one_in, lambda pair: f"{pair[0][0]} {pair[0][2].get('by')}"):
        answers = []
        for side, (name, arguments, options) in ((first, own), (second, other)):
            whole = {"points": 1_000_000} if name == "timeline" else {}
            answers.append(
                _rows(side, lambda: getattr(side.queries, name)(*arguments, **options, **whole))  # noqa: B023
            )
        if found := differing(*answers):
            yield " ".join(filter(None, (own[0], own[2].get("by")))), found


def page_differing(first: Side, second: Side, session: str, one_in: int) -> Iterator[tuple[str, set[str]]]:
    """The routes of the page that differ, in rows or in facts."""
    with served_page(first.path) as own, served_page(second.path) as other:
        pairs = zip(questions(own, session), questions(other, session), strict=True)
        for pair in some_of(pairs, one_in, lambda pair: pair[0].route.path):
            answers = []
            for side, client, question in ((first, own, pair[0]), (second, other, pair[1])):
                given = {("from_" if name == "from" else name): v for name, v in question.parameters.items()}
                answers.append(_page_answer(side, client, question.path, given))
            found = differing(answers[0][0], answers[1][0]) | differing([answers[0][1]], [answers[1][1]])
            if found:
                yield pair[0].route.path, found


def _page_answer(side: Side, client: PageClient, path: str, given: dict[str, Any]) -> tuple[Any, Any]:
    if "from_seq" in given:
        middle = side.place((given["from_seq"] + given["to_seq"]) // 2)[1]
        given |= {"from_seq": side.events[middle - AROUND], "to_seq": side.events[middle + AROUND]}
    if "stack_id" in given:
        given["stack_id"] = side.queries.sql("SELECT min(stack_id) AS n FROM stack_frame")["n"][0].as_py()
    try:
        answer = client.ask(path, **given)
    except RankmemError as exc:
        return exc.code, {}
    return side.rows(answer), side.plain("", facts_of(answer))


def verbs_differing(first: Side, second: Side, verbs: Iterable[str]) -> Iterator[tuple[str, set[str]]]:
    """The verbs of the command line that differ, in JSON."""
    for verb in verbs:
        answers = []
        for side in (first, second):
            arguments = verb.replace("BASE", str(first.path)).replace("HEAD", str(side.path)).split()
            of_file = [] if verb.startswith("diff") else ["--db", str(side.path)]
            done = CliRunner().invoke(app, [*arguments, "--format", "json", *of_file])
            assert done.stdout, (verb, done.output)
            found = json.loads(done.stdout)
            answers.append([side.plain("", row) for row in (found if isinstance(found, list) else [found])])
        if different := differing(*answers):
            yield verb, different


def _rows(side: Side, ask: Any) -> Any:
    try:
        answer = ask()
    except RankmemError as exc:
        return exc.code
    if isinstance(answer, pa.Table):
        return side.rows(answer)
    return [side.plain("", answer)] if isinstance(answer, Mapping) else answer
