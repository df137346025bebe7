"""The command line is a promise: its help is held against a golden file."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from typer.testing import CliRunner

from rankmem_cli.main import VERBS, app

GOLDEN = Path(__file__).with_name("golden") / "cli_help.txt"
UPDATE = "RANKMEM_UPDATE_GOLDEN"


@cache
def all_help() -> str:
    """The help of the application and of every verb, at 80 columns."""
    verbs = ["run", *(verb.__name__.rstrip("_").replace("_", "-") for verb in VERBS)]
    of_lake = ("import", "check", "compact", "prune", "vacuum")
    calls = [[], *([verb] for verb in verbs), ["lake"], *(["lake", verb] for verb in of_lake)]
    runner = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80", "TERM": "dumb"})
    texts = []
    for call in calls:
        done = runner.invoke(app, [*call, "--help"], prog_name="rankmem")
        assert done.exit_code == 0, done.output
        texts.append(f"$ rankmem {' '.join([*call, '--help'])}\n{done.output}")
    return "\n".join(texts)


def test_the_help_of_every_verb_is_as_in_the_golden_file() -> None:
    text = all_help()
    if os.environ.get(UPDATE):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), (
        f"if the change is wanted: {UPDATE}=1 pytest {Path(__file__).name}"
    )


def test_no_line_of_help_is_cut() -> None:
    assert "..." not in all_help().replace("{COMMAND}...", "").replace("[ARGS]...", "").replace(
        "{PATH}...", ""
    )


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert CliRunner().invoke(app, ["--version"]).output == f"rankmem {version('rankmem')}\n"
