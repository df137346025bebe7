"""Names made to act on a terminal, a page or a file system: every verb shows them, none lets them act."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from constructed import RankLog, empty_database, store_logs, store_rows
from rankmem_cli.main import app
from repetitions import long_but, some_of

EVIL = "a\x1b[2J\x1b]0;owned\x07\u202egnp.\u2066\u0000\r\nb</script><script>alert(1)</script>../../x"
LONG = EVIL + "y" * 60_000
SCRIPT = "<script>alert(1)"
OUTPUT_CHARS_MAX = 2_000_000
SHOWN = (
    ("sessions",),
    ("hosts",),
    ("ranks",),
    ("status",),
    ("top", "--once"),
    ("peak",),
    *(("peak", "--by", by) for by in ("host", "device", "component", "category", "phase", "operator")),
    ("peak", "--by", "module"),
    *(("ops", "--by", by) for by in ("operator", "module", "line", "annotation", "rank")),
    ("job-peak",),
    ("live", "--rank", "0"),
    ("modules",),
    ("weights",),
    ("steps",),
    ("oom",),
    ("timeline", "--by", "operator"),
    ("sql", "FROM operator_call"),
)  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "mem.duckdb"
    log = RankLog(rank=0, host_uid=EVIL, ended=90)
    log.alloc("block", 100, at=10, module=EVIL, step=0, device="cpu", operator=LONG, phase="forward")
    log.alloc("other", 60, at=20, module=f"{EVIL}.x", step=0, device="cpu", operator=EVIL, annotation=EVIL)
    log.oom(500, at=46, device="cpu", operator=EVIL, device_free_bytes=30)
    log.step_ends(0, at=50)
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
        weight = {"session_id": log.session_id, "attempt": 0, "rank": 0, "name": EVIL, "dtype": EVIL}
        store_rows(connection, "weight", [weight | {"size_bytes": 1, "shape": EVIL}])
        connection.execute("UPDATE session SET name = $1, command = $1", [EVIL])
        connection.execute("UPDATE host_info SET host_name = $1, address = $1, os = $1", [EVIL])
    return path


def said(database: Path, *arguments: str) -> str:
    runner = CliRunner(env={"COLUMNS": "120"})
    done = runner.invoke(app, [*arguments, "--db", str(database)], catch_exceptions=False)
    assert done.exit_code == 0, (arguments, done.output[:2000])
    return done.stdout + done.stderr


def acting(text: str) -> set[str]:
    """The characters in it that a terminal would obey."""
    return {c for c in set(text) - {"\n"} if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")}


@pytest.mark.parametrize("output", long_but(["table", "json"], "table"))
def test_no_verb_lets_a_name_act_on_the_terminal(database: Path, output: str) -> None:
    for arguments in some_of(SHOWN, 2, " ".join):
        if arguments[0] == "top" and output == "json":
            continue
        text = (
            said(database, *arguments, "--format", output)
            if arguments[0] != "top"
            else said(database, *arguments)
        )
        assert not acting(text), (arguments, acting(text))
        assert len(text) < OUTPUT_CHARS_MAX, arguments


def test_a_name_is_there_to_be_read(database: Path) -> None:
    assert "\\x1b[2J" in said(database, "peak", "--by", "module")
    rows = json.loads(said(database, "weights", "--format", "json"))
    assert rows[0]["name"] == EVIL


@pytest.mark.parametrize("end", [".html", ".csv", ".png"])
def test_a_curves_file_is_the_one_that_was_asked_for_and_runs_nothing(
    database: Path, tmp_path: Path, end: str
) -> None:
    out = tmp_path / f"curve{end}"
    said(database, "timeline", "--by", "operator", "--out", str(out))
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    if end == ".html":
        page = out.read_text("utf-8")
        assert SCRIPT not in page
        assert "alert(1)" in page, "the name is in it"
