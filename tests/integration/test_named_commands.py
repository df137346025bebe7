"""Every command that rankmem names runs as it is printed, and answers about the session that was asked.

Two sessions in one database that is not the default one; the asked one is the older, and is named by the
beginning of its id. A verb that is new is walked as soon as the command line has it.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import duckdb
import pytest
import typer
from typer.testing import CliRunner

from compared_jobs import HEAD
from constructed import SECOND_NS, SESSION, RankLog, empty_database, store_logs
from insights_page import JOBS
from rankmem_aggregator.query.next_commands import OPTIONS
from rankmem_cli.main import app
from rankmem_protos.errors import RankmemError
from served import served

NEWEST: Final = "9SESSION9999"
FOLDER: Final = "runs of today"
"""Quoted by a shell."""
CANNOT_TELL: Final = 2
TREE: Final[Any] = typer.main.get_command(app)
ARGUMENTS: Final[dict[str, list[str]]] = {
    "export": ["csv out", "chrome-trace trace.json --rank 77"],
    "fetch": [],
    "fit": ["", "--batch 64,128 --recorded 8,16"],
    "job-peak": ["", "--by operator"],
    "live": ["--rank 0", "--rank 77"],
    "oom": ["", "--why", "--by line", "--failure 99", "--format json"],
    "ops": ["", "--device cuda:7"],
    "page": [],
    "peak": ["", "--by category", "--by tp --rank 0", "--rank 77"],
    "timeline": ["", "--all-ranks --by rank", "--rank 77"],
    "top": ["--once"],
}
"""By verb the arguments with which it is asked; others without any, these also with a rank that is not there.
``fetch`` needs an aggregator, ``page`` runs until it is ended."""
OF_A_RANK: Final = ("modules", "weights", "steps", "leaks", "fragmentation", "ledger", "fit", "whatif")
WALKED: Final = {
    verb: [*ARGUMENTS.get(verb, [""]), *(["--rank 77"] if verb in OF_A_RANK else [])]
    for verb, command in TREE.commands.items()
    if {"--db", "--lake", "--session"} <= {name for each in command.params for name in each.opts}
}
"""All verbs that answer about a session of a store."""


def store_newest(connection: duckdb.DuckDBPyConnection) -> None:
    """A session that started after all others, of one rank that no other session has."""
    times = {"started": 500_000 * SECOND_NS, "ended": 500_009 * SECOND_NS}
    log = RankLog(session_id=NEWEST, rank=4242, host_uid="host-of-newest", **times)
    log.alloc("block", 100, at=500_001 * SECOND_NS)
    store_logs(connection, [log])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of these commands run: a shell's directory."""
    path = tmp_path_factory.mktemp("shell")
    (path / FOLDER).mkdir()
    return path


@pytest.fixture
def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes the database of a job below the directory to which the shell has changed."""
    for name in ("RANKMEM_DB", "RANKMEM_AGGREGATOR", "RANKMEM_LAKE", "RANKMEM_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)

    def make(job: str) -> str:
        path = f"{FOLDER}/{job}.duckdb"
        if not Path(path).exists():
            with empty_database(path) as connection:
                JOBS[job](connection)
                store_newest(connection)
        return path

    return make


@functools.cache  # several tests come to the same question about the same file
def run(*words: str) -> tuple[int, str]:
    """The exit code of a command line and all that it prints, its hint as well."""
    done = CliRunner().invoke(app, words)
    if isinstance(done.exception, RankmemError):
        return 1, f"{done.output}Error: {done.exception.message}\nTry: {done.exception.hint}\n"
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    if "json" in words:
        return done.exit_code, f"{done.stderr}\n{texts_of(json.loads(done.stdout))}"
    return done.exit_code, done.output


def texts_of(value: Any) -> str:
    """All strings in JSON, a line each."""
    if isinstance(value, dict | list):
        return "\n".join(map(texts_of, value.values() if isinstance(value, dict) else value))
    return str(value)


def named_in(text: str) -> list[list[str]]:
    """The commands that a text names, without those that leave a word to the reader, such as FILE."""
    found = []
    for match in re.finditer(r"\brankmem (?:lake )?([a-z][a-z-]*)(?![\w-])", text):
        command = TREE.commands.get(match[1])
        line = text[match.end() :].partition("\n")[0]
        if command is None or match[1] in ("run", "ship", "serve"):
            continue
        words = [match[1], *arguments_of(command, line)]
        if not any(re.fullmatch(r"[A-Z]{2,}[.:\w]*|…", word) for word in words):
            found.append(words)
    return found


def arguments_of(command: click.Command, line: str) -> list[str]:
    """What of the words after a verb belongs to it, as its own options have it."""
    by_name = {name: each for each in command.params for name in each.opts}
    positions = sum(each.param_type_name == "argument" and each.required for each in command.params)
    words: list[str] = []
    tokens = iter(re.findall(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""", line))
    for token in tokens:
        bare = token.rstrip(";:,).")
        if bare.startswith("--"):
            option = by_name.get(bare.partition("=")[0])
            if option is None:
                break
            words.append(bare)
            if "=" not in bare and not getattr(option, "is_flag", False) and bare == token:
                token = next(tokens)
                bare = token.rstrip(";:,).")
                words.append(bare)
        elif positions:
            positions -= 1
            words.append(bare)
        else:
            break
        if bare != token:  # punctuation ends it
            break
    return shlex.split(" ".join(words))


def walk(first: list[str], session: str) -> int:
    """Runs a command, all that it names, all that these name, and so on; returns how many."""
    waiting, seen = [first], {tuple(first)}
    while waiting:
        words = waiting.pop()
        code, text = run(*words)
        if words is not first:
            assert code == 0 or (code == CANNOT_TELL and "cannot tell" in text), (words, text)
            if "--session" in OPTIONS.get(words[0], ()):
                assert session in text, (words, text)
            assert NEWEST not in text or words[0] in ("sessions", "sql"), (words, text)
        for named in named_in(text):
            if named[0] == "page":
                assert {"--db", "--session"} <= set(named)
            elif tuple(named) not in seen:
                seen.add(tuple(named))
                waiting.append(named)
    return len(seen) - 1


@pytest.mark.parametrize("verb", WALKED)
def test_what_a_verb_names_runs_and_is_about_the_same_session(verb: str, made: Callable[[str], str]) -> None:
    path = made("oom")
    for arguments in WALKED[verb]:
        walk([verb, *arguments.split(), "--db", path, "--session", SESSION[:8]], SESSION)


def test_what_an_aggregator_answers_names_the_aggregator(made: Callable[[str], str], tmp_path: Path) -> None:
    path = shutil.copy(made("oom"), tmp_path)
    with served(tmp_path, path) as address:
        for verb in ("diagnose", "oom --by line", "ops --rank 77"):
            walk([*verb.split(), "--aggregator", address, "--session", SESSION[:8]], SESSION)


@pytest.mark.parametrize("words", [["prune", "--session", "zz"], ["sql", ""]])
def test_a_refusal_names_the_database(words: list[str], made: Callable[[str], str]) -> None:
    given = ["--db", made("oom")]
    _, text = run(*words, *given)
    (named,) = named_in(text)
    assert set(given) <= set(named)
    walk([*words, *given], SESSION)


def test_what_another_recording_lacks_names_that_one(made: Callable[[str], str]) -> None:
    other = f"{FOLDER}/empty.duckdb"
    with empty_database(other):
        pass
    _, text = run("fit", "--with", other, "--db", made("fit"))
    assert f"no session in {other}" in text
    assert f"rankmem run --db '{other}' -- COMMAND" in text


@pytest.mark.parametrize("verb", ["prune", "compact"])
def test_a_refusal_names_the_lake(verb: str, made: Callable[[str], str]) -> None:
    given = ["--lake", f"{FOLDER}/a lake"]
    assert run("lake", "import", made("oom"), *given)[0] == 0
    _, text = run("lake", verb, *given, "--session", "zz")
    assert [["sessions", *given]] == named_in(text)
    assert run("sessions", *given)[0] == 0


@pytest.mark.parametrize("job", JOBS)
def test_what_an_insight_names_runs_and_is_about_the_same_session(
    job: str, made: Callable[[str], str]
) -> None:
    path, session = made(job), HEAD if job == "diff" else SESSION
    given = ["--db", path, "--session", session[:12]]
    count = walk(["diff", "main", "pull-request", *given[:2]] if job == "diff" else [job, *given], session)
    assert count or job in ("fragmentation", "oom"), "those name a run under another setting"
    walk(["diagnose", *given, "--format", "json"], session)
