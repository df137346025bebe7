"""Exports appear whole or not at all, replace only what an export made, and take what they can leave out."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from constructed import RankLog, empty_database, store_logs
from rankmem_aggregator import connect
from rankmem_aggregator.exports import exporting, kinds
from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.exporting import MANIFEST, export
from rankmem_aggregator.exports.kinds import KINDS, ExportKind
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.sql import export_text, head_of
from rankmem_protos.errors import Code, RankmemError

pytestmark = pytest.mark.slow

EXPORT_STATEMENTS = sorted(
    file.name.removesuffix(".sql")
    for file in (resources.files("rankmem_aggregator.sql") / "exports").iterdir()
)


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    path = tmp_path_factory.mktemp("database") / "r.duckdb"
    log = RankLog()
    log.alloc("block", 100, at=10, operator="aten::mm", address=4096)
    log.events[-1] |= {"address": 4096}
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
    with connect(path) as opened:
        yield opened


def refusal(queries: Queries, kind: str, out: Path, **asked: object) -> RankmemError:
    with pytest.raises(RankmemError) as caught:
        export(queries, kind, out, **asked)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_kind_has_its_writer_and_a_line_of_help(kind: ExportKind) -> None:
    assert callable(kind.writer())
    assert kind.doc.endswith(".")
    assert bool(kind.ends) != bool(kind.always)


def test_a_folder_says_what_it_holds(queries: Queries, tmp_path: Path) -> None:
    written = export(queries, "arrow", tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["export"] == "arrow"
    assert manifest["counts"] == written.counts
    assert written.counts["memory_event"] == 1


def test_what_is_there_is_replaced_only_by_force(queries: Queries, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(queries, "csv", out)
    (out / "stale.csv").write_text("old")
    assert refusal(queries, "csv", out).code is Code.CONFLICT
    assert (out / "stale.csv").exists()
    export(queries, "csv", out, force=True)
    assert not (out / "stale.csv").exists()
    assert (out / "memory_event.csv").exists()


def test_force_never_replaces_a_folder_that_no_export_made(queries: Queries, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    assert refusal(queries, "csv", tmp_path / "mine", force=True).code is Code.CONFLICT
    assert refusal(queries, "duckdb", tmp_path / "mine", force=True).code is Code.CONFLICT
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_an_empty_folder_is_filled(queries: Queries, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    export(queries, "csv", tmp_path / "empty")
    assert (tmp_path / "empty" / "memory_event.csv").exists()


def test_an_export_that_fails_leaves_nothing_and_keeps_what_was(
    queries: Queries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(queries, "csv", tmp_path / "out")

    def broken(selection: Selection, out: Path) -> ExportResult:
        (out / "half.csv").write_text("a,b\n1")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kinds.ExportKind, "writer", lambda self: broken)
    error = refusal(queries, "csv", tmp_path / "out", force=True)
    assert (error.code, "No space left" in error.message) == (Code.EXHAUSTED, True)
    assert (tmp_path / "out" / "memory_event.csv").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_folder_comes_back_where_the_new_one_cannot_take_its_place(
    queries: Queries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(queries, "csv", tmp_path / "out")
    rename = Path.rename

    def once(self: Path, target: Path) -> Path:
        if Path(target).name == "out" and not self.name.endswith(".old"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", once)
    assert refusal(queries, "csv", tmp_path / "out", force=True).code is Code.EXHAUSTED
    assert (tmp_path / "out" / "memory_event.csv").exists()


def test_what_is_not_there_is_refused_by_name(queries: Queries, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert refusal(queries, "excel", out).code is Code.INVALID
    assert refusal(queries, "csv", out, ranks=[0, 7]).message.startswith("no rank 7 in session")
    assert refusal(queries, "csv", out, session="nobody").code is Code.NOT_FOUND
    assert refusal(queries, "csv", out, from_ns=2, until_ns=1).code is Code.INVALID
    assert refusal(queries, "csv", tmp_path / "no" / "out").code is Code.NOT_FOUND
    assert refusal(queries, "duckdb", out, session="0SESSION0001").code is Code.INVALID
    assert not out.exists()


def test_a_name_of_another_form_of_file_is_no_folder(queries: Queries, tmp_path: Path) -> None:
    for kind, name in (
        ("torch-snapshot", "a.pickle.gz"),
        ("skyline", "a.json"),
        ("memory-timeline", "a.pkl"),
    ):
        error = refusal(queries, kind, tmp_path / name)
        assert error.code is Code.INVALID
        assert error.hint.startswith(f"name it X{KINDS[kind].ends[0]}, ")
    export(queries, "torch-snapshot", tmp_path / "run.7")
    assert (tmp_path / "run.7" / "rank-0.pickle").exists()


@pytest.mark.parametrize("error", [OSError(28, "disk full"), sqlite3.OperationalError("disk full")])
def test_a_full_disk_is_said_whatever_writes_the_file(
    queries: Queries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(selection: Selection, out: Path) -> ExportResult:
        raise error

    monkeypatch.setattr(kinds.ExportKind, "writer", lambda self: full)
    said = refusal(queries, "csv", tmp_path / "out")
    assert (said.code, said.message) == (Code.EXHAUSTED, f"cannot write {tmp_path / 'out'}: disk full")


def test_an_error_names_the_file_that_the_user_named(
    queries: Queries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(selection: Selection, out: Path) -> ExportResult:
        raise RankmemError(Code.EXHAUSTED, f"cannot write {out}: disk full", "make room")

    monkeypatch.setattr(kinds.ExportKind, "writer", lambda self: full)
    said = refusal(queries, "duckdb", tmp_path / "out.duckdb")
    assert (said.message, said.hint) == (f"cannot write {tmp_path / 'out.duckdb'}: disk full", "make room")


@pytest.mark.parametrize("kind", ["html", "perfetto", "torch-snapshot", "memory-timeline"])
def test_a_session_without_memory_events_is_said_to_have_none(tmp_path: Path, kind: str) -> None:
    """Such as nvprof's, which has kernels alone."""
    with empty_database(str(tmp_path / "k.duckdb")) as connection:
        connection.execute(
            "INSERT INTO session BY NAME SELECT '0SESSION0009' AS session_id, 'nvprof' AS source"
        )
    with connect(tmp_path / "k.duckdb") as kernels:
        error = refusal(kernels, kind, tmp_path / "out")
    assert (error.code, error.message) == (Code.NOT_FOUND, "session 0SESSION0009 has no memory events")


def test_a_range_without_an_event_is_none_in_a_report(queries: Queries, tmp_path: Path) -> None:
    far = 2**61
    assert refusal(queries, "html", tmp_path / "r.html", from_ns=far).code is Code.NOT_FOUND


def test_the_copy_of_the_database_is_a_database(queries: Queries, tmp_path: Path) -> None:
    export(queries, "duckdb", tmp_path / "copy.duckdb")
    with connect(tmp_path / "copy.duckdb") as copy:
        assert copy.peak().to_pylist() == queries.peak().to_pylist()
    assert exporting.MANIFEST not in [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("name", EXPORT_STATEMENTS)
def test_a_statement_of_exports_says_its_question_takes_parameters_and_has_an_order(name: str) -> None:
    text = export_text(name)
    head = head_of(text)
    assert "?" in head.question
    named = {
        parameter
        for line in head.parameters
        for parameter in re.findall(r"(\w+)(?: \(|,|:)", line.split(":")[0] + ":")
    }
    body = re.sub(r"^--.*$", "", text, flags=re.MULTILINE)
    assert set(re.findall(r"\$(\w+)", body)) <= named
    if body.lstrip().startswith(("SELECT", "WITH")):
        assert head.columns
        assert re.search(r"\nORDER BY [^()]*;\s*$", body), "always in one order"
    else:
        assert name in ("mindstudio_tables", "skyline_tables", "write_parquet"), "they write elsewhere"


def test_what_a_session_is_called_stays_within_the_folder(tmp_path: Path) -> None:
    """Ids and host names come from outside: a database may say anything."""
    log = RankLog(session_id="../../evil", host_uid="../../../worse")
    log.alloc("block", 100, at=10, address=4096)
    log.events[-1] |= {"address": 4096}
    path = tmp_path / "deep" / "down" / "r.duckdb"
    path.parent.mkdir(parents=True)
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
    with connect(path) as opened:
        for kind in ("parquet", "torch-snapshot", "mindstudio"):  # folders within folders
            export(opened, kind, path.parent / kind, session="../../evil")
    outside = [one for one in tmp_path.rglob("*") if path.parent not in (one, *one.parents)]
    assert [one.name for one in outside] == ["deep"]
