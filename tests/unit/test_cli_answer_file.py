"""``rankmem sql --out``: what COPY … TO was used for, and what it destroyed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

from constructed import RankLog, empty_database, store_logs
from rankmem_cli.main import app

pytestmark = pytest.mark.slow

ANSWER = "SELECT rank, device, [1, 2] AS list FROM peak_by_rank"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "mem.duckdb"
    logs = [RankLog(session_id="0SESS", rank=rank, ended=9) for rank in (0, 1)]
    for log in logs:
        log.alloc("block", 5, at=1)
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
    return path


def ask(database: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["sql", "--db", str(database), *arguments], standalone_mode=True)


@pytest.mark.parametrize("end", ["csv", "json", "parquet", "CSV"])
def test_an_answer_is_written_in_the_form_that_its_name_says(database: Path, end: str) -> None:
    out = database.with_name(f"answer.{end}")
    done = ask(database, "--out", str(out), f"{ANSWER} ORDER BY rank")
    assert done.exit_code == 0, done.output
    assert "2 rows" in done.stderr
    assert done.stdout == ""
    rows = {
        "csv": lambda: list(csv.DictReader(out.read_text().splitlines())),
        "json": lambda: json.loads(out.read_text()),
        "parquet": lambda: pyarrow.parquet.read_table(out).to_pylist(),
    }[end.lower()]()
    assert [int(row["rank"]) for row in rows] == [0, 1]
    assert [row["device"] for row in rows] == ["cpu", "cpu"]


def test_all_rows_are_written_unless_a_limit_is_given(database: Path) -> None:
    out = database.with_name("many.json")
    assert ask(database, "--out", str(out), "FROM range(5000)").exit_code == 0
    assert len(json.loads(out.read_text())) == 5000
    assert ask(database, "--out", str(out), "--force", "--limit", "3", "FROM range(5000)").exit_code == 0
    assert len(json.loads(out.read_text())) == 3


@pytest.mark.parametrize(
    ("name", "extra", "why"),
    [
        ("there.csv", [], "already exists"),
        ("there.txt", [], "has no known extension"),
        ("no/such.csv", [], "no folder"),
        ("a.csv", ["--format", "json"], "contradict each other"),
        ("a.parquet", ["--format", "csv"], "contradict each other"),
        ("link.csv", ["--force"], "is a database"),
        ("mem.duckdb", ["--force"], "has no known extension"),
    ],
)
def test_a_name_that_cannot_be_written_is_refused_before_anything_is_asked(
    database: Path, name: str, extra: list[str], why: str
) -> None:
    database.with_name("there.csv").write_text("mine")
    database.with_name("link.csv").hardlink_to(database)
    before = database.read_bytes()
    done = ask(database, "--out", str(database.parent / name), *extra, "NO SQL AT ALL")
    assert done.exit_code == 1
    assert why in str(done.exception)
    assert database.read_bytes() == before
    assert database.with_name("there.csv").read_text() == "mine"


def test_wrong_sql_leaves_the_file_that_was_there(database: Path) -> None:
    out = database.with_name("there.csv")
    out.write_text("mine")
    assert ask(database, "--out", str(out), "--force", "FROM nonsense").exit_code == 1
    assert ask(database, "--out", str(out), "--force", "SELECT error('late') FROM range(9)").exit_code == 1
    assert out.read_text() == "mine"
    assert ask(database, "--out", str(out), "--force", "SELECT 1 AS one").exit_code == 0
    assert out.read_text() == "one\n1\n"
    assert sorted(file.name for file in out.parent.iterdir()) == ["mem.duckdb", "there.csv"]


def test_a_type_that_parquet_does_not_have_is_reported(database: Path) -> None:
    done = ask(database, "--out", str(database.with_name("a.parquet")), "SELECT INTERVAL 1 DAY AS day")
    assert done.exit_code == 1
    assert "cannot write" in str(done.exception)
    assert not database.with_name("a.parquet").exists()


def test_copy_over_the_database_is_refused_and_unsafe_lifts_that(database: Path) -> None:
    before = database.read_bytes()
    done = ask(database, f"COPY (SELECT 1) TO '{database}'")
    assert done.exit_code == 1
    assert "COPY is not allowed" in str(done.exception)
    assert database.read_bytes() == before
    out = database.with_name("copied.csv")
    assert ask(database, "--unsafe", f"COPY (SELECT 1 AS one) TO '{out}'").exit_code == 0
    assert out.read_text() == "one\n1\n"
