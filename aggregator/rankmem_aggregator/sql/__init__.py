"""The SQL of rankmem: views and macros installed into every database, and the named queries over them.

Stage: query. In: the ``.sql`` files beside this module, one question a file, but for ``questions.sql``, which
has those that only forward. Out: their text, their heads as values (for ``docs/schema.md``), and a database
with the views in it. Runs in the aggregator (at open) and in any process that reads a database. It never puts
a value into SQL: values travel as parameters.
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import combinations
from typing import TYPE_CHECKING, Final, Literal

from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    import duckdb

Scatter = Literal["hosts", "time", "sums", "none"]
SCATTERS: Final[tuple[Scatter, ...]] = ("hosts", "time", "sums", "none")
"""hosts: a session's answer is the union of the answers over parts of its hosts. time: it rests on the
highest sum over ranks, which is the best of those over slices of time. sums: it adds up over ranks what
macros of the first kind answer. none: one process answers it."""
_WORD: Final = re.compile(r"\w+")
_NO_NAMES: Final = re.compile(r"--[^\n]*|'(?:[^']|'')*'")
"""Comments and texts."""
_ONLY_WITH: Final = re.compile(r"^.*-- only with \$(\w+)\n", re.MULTILINE)
"""A condition of a statement of ``page``, on one line."""
_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
"""Begins a statement of ``questions.sql``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head comment of a ``.sql`` file."""

    question: str
    parameters: tuple[str, ...]
    """One line each: ``name (unit): meaning``."""
    columns: tuple[str, ...]
    """One line each, in the order of the result."""
    scatter: str = ""
    """How an engine answers it over a lake, see :data:`SCATTERS`; empty where no engine is asked."""


def install_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Creates or replaces all views and macros in the connection's database.

    The tables of ``rankmem_protos.tables`` must exist. Call inside of a transaction or before the
    database is served: each file is one statement and its comment.
    """
    for statement in view_statements():
        connection.execute(statement)


def view_statements() -> Iterator[str]:
    """The statements that create or replace all views and macros, in order."""
    yield from map(view_text, view_names())
    yield "CREATE SCHEMA IF NOT EXISTS mindstudio"
    yield from map(mindstudio_text, mindstudio_names())


@cache
def view_names() -> tuple[str, ...]:
    """The names of all views and macros, each after those that it reads: an order of installation."""
    return _in_order("views")


@cache
def mindstudio_names() -> tuple[str, ...]:
    """The same for the schema ``mindstudio``."""
    return _in_order("mindstudio")


def view_text(name: str) -> str:
    """The text of ``{name}.sql`` in a folder of ``views``."""
    return _read("views", name)


def mindstudio_text(name: str) -> str:
    """The text of ``mindstudio/{name}.sql``."""
    return _read("mindstudio", name)


def statement_text(folder: Literal["packed", "packing", "summaries", "prune"], name: str) -> str:
    """The text of ``{folder}/{name}.sql``, for those of the aggregator's own use.

    Args:
        folder: ``packed``: the view that reads a table of the schema ``packed``; ``packing``: rows named
            ``incoming`` as they stand in it; ``summaries``: a statement of a pass of the summaries;
            ``prune``: one of the deletion of sessions.
    """
    return _read(folder, name)


def export_text(name: str) -> str:
    """The text of ``exports/{name}.sql``: one statement of ``rankmem export``, with named parameters."""
    return _read("exports", name)


@cache
def page_text(name: str, absent: frozenset[str] = frozenset()) -> str:
    """The text of ``page/{name}.sql``: one question of the web page, with named parameters.

    Args:
        absent: parameters that are NULL. Conditions that end in ``-- only with $name`` of one of them hold
            for every row, and are left out: DuckDB would plan them, and read the columns that they name.
    """

    def kept(line: re.Match[str]) -> str:
        return "" if line.group(1) in absent else line.group(0)

    return _ONLY_WITH.sub(kept, _read("page", name))


@cache
def page_texts() -> frozenset[str]:
    """The texts of all questions of the web page, whichever parameters are absent."""
    found = set[str]()
    for name in page_names():
        optional = optional_of(name)
        for count in range(len(optional) + 1):
            found.update(page_text(name, frozenset(absent)) for absent in combinations(optional, count))
    return frozenset(found)


@cache
def optional_of(name: str) -> frozenset[str]:
    """The parameters of ``page/{name}.sql`` without which it has a shorter text."""
    return frozenset(_ONLY_WITH.findall(_read("page", name)))


def page_names() -> tuple[str, ...]:
    """The names of all questions of the web page, sorted."""
    return tuple(sorted(_files("page")))


def query_text(name: str) -> str:
    """The text of a named query, of ``questions.sql`` or ``queries``: one statement with named parameters.

    Raises:
        RankmemError: NOT_FOUND for an unknown name.
    """
    return _questions().get(name) or _read("queries", name)


def query_names() -> tuple[str, ...]:
    """The names of all named queries, sorted."""
    return tuple(sorted({*_questions(), *_files("queries")}))


def head_of(text: str) -> Head:
    """The head comment of a ``.sql`` file as a value."""
    sections: dict[str, list[str]] = {"Question": [], "Parameters": [], "Columns": [], "Scatter": []}
    section = "Question"
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        label, colon, rest = line[2:].strip().partition(":")
        if line.startswith("-- ") and line[3:4] != " " and colon and label in sections:
            section = label
            sections[section] += [rest.strip()] if rest.strip() else []
        elif line.startswith("--     ") and sections[section]:
            sections[section][-1] += " " + line[2:].strip()  # a line that goes on
        else:
            sections[section].append(line[2:].strip())
    return Head(
        question=" ".join(sections["Question"]),
        parameters=tuple(sections["Parameters"]),
        columns=tuple(sections["Columns"]),
        scatter=" ".join(sections["Scatter"]),
    )


@cache
def named_scatters() -> Mapping[str, tuple[str, Scatter]]:
    """By the text of each named query its name and how an engine answers it."""
    found: dict[str, tuple[str, Scatter]] = {}
    for name in query_names():
        text = query_text(name)
        found[text] = name, scatter_of(text)
    return found


def scatter_of(text: str) -> Scatter:
    """How an engine answers the ``.sql`` file of this text.

    Raises:
        RankmemError: INTERNAL where its head does not say so.
    """
    said = head_of(text).scatter
    for scatter in SCATTERS:
        if said == scatter:
            return scatter
    raise RankmemError(Code.INTERNAL, f"a .sql file says Scatter: {said!r}", f"one of {SCATTERS}")


def without_texts(statement: str) -> str:
    """The statement without its comments and texts: the part that can name tables and views."""
    return _NO_NAMES.sub(" ", statement)


@cache
def _read(folder: str, name: str) -> str:
    if name not in _files(folder):
        raise RankmemError(Code.NOT_FOUND, f"no {name}.sql in {folder}", "see docs/sql.md for the names")
    return _files(folder)[name].read_text(encoding="utf-8")


@cache
def _files(folder: str) -> Mapping[str, Traversable]:
    """The ``.sql`` files of a folder and of the folders in it, by name."""
    found: dict[str, Traversable] = {}
    waiting = [resources.files(__package__) / folder]
    while waiting:
        for entry in waiting.pop().iterdir():
            if entry.is_dir():
                waiting.append(entry)
            elif entry.name.endswith(".sql"):
                found[entry.name.removesuffix(".sql")] = entry
    return found


@cache
def _questions() -> Mapping[str, str]:
    """The statements of ``questions.sql`` by name."""
    text = (resources.files(__package__) / "questions.sql").read_text(encoding="utf-8")
    _, *parts = _NAME.split(text)
    return {name: f"{statement.rstrip()}\n" for name, statement in zip(parts[::2], parts[1::2], strict=True)}


def _in_order(folder: str) -> tuple[str, ...]:
    """The names in a folder, each after those that are words of its text."""
    names = sorted(_files(folder))
    words = {name: set(_WORD.findall(without_texts(_read(folder, name)))) for name in names}
    reads = {name: [other for other in names if other in words[name] - {name}] for name in names}
    return tuple(graphlib.TopologicalSorter(reads).static_order())
