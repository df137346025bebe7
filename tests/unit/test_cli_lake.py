"""``--lake`` of the verbs that answer, and ``rankmem lake``."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankmem_aggregator.lake.catalog import read_catalog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_cli.args import options
from rankmem_cli.main import app
from rankmem_protos.errors import Code, RankmemError
from two_sessions import NEW, OLD, two_sessions

runner = CliRunner()
READING = ("sessions", "peak", "job-peak", "steps", "status")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A database, and the lake that it was imported into."""
    folder = tmp_path_factory.mktemp("cli")
    database, lake = two_sessions(folder / "two.duckdb"), folder / "lake"
    done = runner.invoke(app, ["lake", "import", str(database), "--lake", str(lake)], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [f"{OLD} written", f"{NEW} written"]
    return str(database), str(lake)


@pytest.mark.parametrize("verb", READING)
def test_a_verb_shows_the_same_of_a_lake(places: tuple[str, str], verb: str) -> None:
    database, lake = places
    shown = [
        runner.invoke(app, [verb, *where, "--format", "json"], catch_exceptions=False).stdout
        for where in (("--db", database), ("--lake", lake))
    ]
    assert shown[0] == shown[1]


def test_status_of_a_lake_does_not_say_that_nothing_is_added_to_it(places: tuple[str, str]) -> None:
    """Any number of aggregators may write it."""
    database, lake = places
    of_file, of_lake = (
        runner.invoke(app, ["status", *where], catch_exceptions=False).output
        for where in (("--db", database), ("--lake", lake))
    )
    assert "no aggregator holds this file" in of_file
    assert "no aggregator" not in of_lake
    assert "what one has received and not yet written is not in it" in of_lake


def test_an_engine_and_the_lake_s_variable_give_the_same_answers(places: tuple[str, str]) -> None:
    database, lake = places
    for arguments, of_lake, variables in (
        (["job-peak"], ["--lake", lake, "--engine", "processes:2"], {}),
        (["sql", "SELECT * FROM peak_by_rank ORDER BY ALL"], [], {"RANKMEM_LAKE": lake}),
    ):
        shown = [
            runner.invoke(
                app, [*arguments, *where, "--format", "json"], env=given, catch_exceptions=False
            ).stdout
            for where, given in ((["--db", database], {}), (of_lake, variables))
        ]
        assert shown[0] == shown[1] != ""


def test_sql_export_and_timeline_take_a_lake(places: tuple[str, str], tmp_path: Path) -> None:
    _, lake = places
    for arguments in (
        ["sql", "SELECT count(*) AS n FROM session", "--format", "json"],
        ["timeline", "--out", str(tmp_path / "curve.csv")],
        ["export", "duckdb", str(tmp_path / "back.duckdb")],
        ["export", "html", str(tmp_path / "page.html")],
        ["export", "parquet", str(tmp_path / "parquet")],
    ):
        done = runner.invoke(app, [*arguments, "--lake", lake], catch_exceptions=False)
        assert done.exit_code == 0, arguments
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "back.duckdb",
        "curve.csv",
        "page.html",
        "parquet",
    ]


def test_a_flag_beats_the_variables_and_the_database_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANKMEM_DB", "RANKMEM_LAKE", "RANKMEM_AGGREGATOR"):
        monkeypatch.delenv(name, raising=False)
    assert options.source(lake="s3://bucket/lake").address() == "s3://bucket/lake"
    monkeypatch.setenv("RANKMEM_AGGREGATOR", "host:1")
    monkeypatch.setenv("RANKMEM_LAKE", "folder")
    assert options.source().address() == "lake:folder"
    assert options.source(db=Path("a.duckdb")).address() == "a.duckdb"
    assert options.source(aggregator="host:2").address() == "host:2"
    assert options.target().address() == "host:1"  # of a verb that writes
    monkeypatch.setenv("RANKMEM_DB", "b.duckdb")
    assert options.source().address() == "b.duckdb"
    assert options.source(lake="lake:other").address() == "lake:other"


@pytest.mark.parametrize("other", [{"db": Path("a.duckdb")}, {"aggregator": "host:1"}])
def test_a_lake_and_something_else_are_refused(other: dict[str, object]) -> None:
    with pytest.raises(RankmemError, match="give one of them") as refused:
        options.source(lake="folder", **other)  # type: ignore[arg-type]
    assert refused.value.code is Code.INVALID


def test_a_check_lists_faulty_files_and_fails(places: tuple[str, str]) -> None:
    _, lake = places
    assert runner.invoke(app, ["lake", "check", "--lake", lake], catch_exceptions=False).stdout == ""
    (file, *_) = read_catalog(LakeFiles(lake)).of_table("step_bucket") or read_catalog(LakeFiles(lake)).files
    place = Path(lake) / file.path
    content = place.read_bytes()
    place.write_bytes(content[:-4])
    try:
        done = runner.invoke(app, ["lake", "check", "--lake", lake])
    finally:
        place.write_bytes(content)
    assert isinstance(done.exception, RankmemError)
    assert done.stdout.startswith(f"{file.path}: {len(content) - 4} bytes, not {len(content)}")


def test_an_unsafe_statement_on_a_lake_is_refused(places: tuple[str, str]) -> None:
    done = runner.invoke(app, ["sql", "SELECT 1", "--lake", places[1], "--unsafe"])
    assert isinstance(done.exception, RankmemError)
    assert done.exception.code is Code.INVALID
