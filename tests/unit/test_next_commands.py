"""Commands in texts get the options with which the reader asked, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import typer

from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.query.next_commands import COMMAND, OPTIONS, STORES, GivenOptions
from rankmem_cli.main import app
from rankmem_protos.errors import Code, RankmemError

ID = "1vg3zw6abcde"
DB = GivenOptions(source=(("--db", "runs/a b.duckdb"),), session=ID)
IN_ODD_FOLDER = GivenOptions(source=(("--db", "a, rankmem run 3/--session/x.duckdb"),), session=ID)
LAKE = GivenOptions(source=(("--lake", "s3://b/p"), ("--engine", "processes:4")))
REMOTE = GivenOptions(source=(("--aggregator", "h:7077"), ("--token-file", "t")), session=ID)
TREE: Any = typer.main.get_command(app)


@pytest.mark.parametrize(
    ("given", "text", "complete"),
    [
        (DB, "rankmem live --rank 3", f"rankmem live --db 'runs/a b.duckdb' --session {ID} --rank 3"),
        (DB, "rankmem sessions", "rankmem sessions --db 'runs/a b.duckdb'"),
        (DB, 'x: rankmem sql "FROM a"', "x: rankmem sql --db 'runs/a b.duckdb' \"FROM a\""),
        (DB, "X=y:1 rankmem run -- COMMAND", "X=y:1 rankmem run --db 'runs/a b.duckdb' -- COMMAND"),
        (DB, "rankmem run --db FILE -- COMMAND", "rankmem run --db FILE -- COMMAND"),
        (DB, "rankmem prune, rankmem peaks", "rankmem prune, rankmem peaks"),
        (LAKE, "rankmem lake check lists them", "rankmem lake check --lake s3://b/p lists them"),
        (LAKE, "rankmem top; rankmem run", "rankmem top --lake s3://b/p --engine processes:4; rankmem run"),
        (REMOTE, "(rankmem leaks)", f"(rankmem leaks --aggregator h:7077 --token-file t --session {ID})"),
        (
            REMOTE,
            "rankmem fetch X --ranks 3 --aggregator h:7077 brings them",
            "rankmem fetch --token-file t X --ranks 3 --aggregator h:7077 brings them",
        ),
        (
            GivenOptions(source=(("--token-file", "t"),)),  # and RANKMEM_AGGREGATOR
            "rankmem fetch X --ranks 3 --aggregator h:7077 brings them",
            "rankmem fetch --token-file t X --ranks 3 --aggregator h:7077 brings them",
        ),
        (
            IN_ODD_FOLDER,
            "rankmem ranks; rankmem live --rank 3",
            "rankmem ranks --db 'a, rankmem run 3/--session/x.duckdb' --session 1vg3zw6abcde; "
            "rankmem live --db 'a, rankmem run 3/--session/x.duckdb' --session 1vg3zw6abcde --rank 3",
        ),
        (DB, "rankmem run/train.py:47 grows", "rankmem run/train.py:47 grows"),
        (GivenOptions(), "rankmem peak", "rankmem peak"),
        (GivenOptions(session=ID), "rankmem ranks lists them", f"rankmem ranks --session {ID} lists them"),
    ],
)  # fmt: skip
def test_a_command_in_a_text_asks_what_the_reader_asked(
    given: GivenOptions, text: str, complete: str
) -> None:
    assert given.complete(text) == complete
    assert given.complete(complete) == complete, "a text may pass by twice"


def test_each_verb_that_answers_gets_the_options_that_it_has() -> None:
    own = {
        name: {option for each in command.params for option in each.opts}
        for name, command in [*TREE.commands.items(), ("lake check", TREE.commands["lake"].commands["check"])]
    }
    assert all(set(options) <= own[verb] for verb, options in OPTIONS.items())
    reading = {verb for verb, options in own.items() if set(STORES) <= options} - {"diff"}
    assert reading <= set(OPTIONS), "a verb that reads a store, which its commands have to name"
    named = {name for options in OPTIONS.values() for name in options}
    assert {verb: own[verb] & named for verb in reading} == {verb: set(OPTIONS[verb]) for verb in reading}


def test_a_hint_gets_them_and_stays_the_same_error() -> None:
    error = RankmemError(Code.NOT_FOUND, "no rank 7", "rankmem ranks")
    with pytest.raises(RankmemError) as raised, DB.in_hints():
        raise error
    assert raised.value is error
    assert error.hint == f"rankmem ranks --db 'runs/a b.duckdb' --session {ID}"


def test_an_option_is_not_sought_in_what_the_reader_named() -> None:
    given = GivenOptions(source=(("--db", "a --session b, rankmem run 3"),), session=ID)
    once = GivenOptions(source=given.source).complete("rankmem peak")
    assert given.complete(once) == f"rankmem peak --session {ID} --db 'a --session b, rankmem run 3'"


def test_what_was_recorded_is_not_a_command() -> None:
    """Names of files and modules in an answer's figures stay as they are; what they are said in is text."""
    rows = pa.table({"line": ["rankmem run 3/train.py:47"], "remedy": ["rankmem peak"]})
    figures = {"line": "rankmem peak", "cannot_tell": {"leaks": "see rankmem steps"}}
    answer = Answer(
        question="oom", session_id=ID, verdict="fine", sentence="", rows=rows, figures=figures
    ).asked_with(GivenOptions(source=(("--db", "x"),)))
    assert answer.figures == {"line": "rankmem peak", "cannot_tell": {"leaks": "see rankmem steps --db x"}}
    assert answer.rows.to_pylist() == [
        {"line": "rankmem run 3/train.py:47", "remedy": "rankmem peak --db x"},
    ]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("x: rankmem oom --db 'a b' --by line --failure 2", "rankmem oom --db 'a b' --by line --failure 2"),
        ("rankmem oom --db x --why --failure 2 has", "rankmem oom --db x --why --failure 2"),
        ('rankmem sql --db x "FROM a, b": y', 'rankmem sql --db x "FROM a, b"'),
        ("(rankmem peak)", "rankmem peak"),
    ],
)
def test_a_command_is_found_whole(text: str, command: str) -> None:
    found = COMMAND.search(text)
    assert found is not None
    assert found[0] == command
