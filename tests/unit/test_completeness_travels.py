"""What a session lacks goes with every answer: of the client, the command line, the page and the exports."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, empty_database, store_logs, store_rows
from kept_answers import answers_of, content_of
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.query.missing import missing_of
from rankmem_aggregator.query.queries import Queries
from rankmem_cli.main import app
from rankmem_protos.errors import Code, RankmemError
from repetitions import long_but_one_in

pytestmark = pytest.mark.slow

WHOLE = "0SESSION0000"
LACKS = "rank 1: 64 records (at most as many events) are missing: its spool was full (RANKMEM_SPOOL_BYTES)"


def logs_of(session_id: str) -> list[RankLog]:
    logs = [RankLog(session_id=session_id, rank=rank, ended=SECOND_NS) for rank in range(2)]
    for log in logs:
        log.alloc("weights", 100, at=10, category="parameter", operator="aten::empty")
        log.alloc("activation", 50, at=20, category="activation", operator="aten::mm")
        log.free("activation", at=30)
        log.step_ends(0, at=40)
        log.skip(60)
        log.alloc("more", 70, at=50)
    logs[1].oom(1 << 20, at=60, device="cpu")
    return logs


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sessions that hold the same; of the newer one rank 1 lost a part."""
    made = tmp_path_factory.mktemp("lost") / "mem.duckdb"
    with empty_database(str(made)) as connection:
        store_logs(connection, [*logs_of(WHOLE), *logs_of(SESSION)])
        connection.execute(
            "UPDATE session SET started_at_ns = started_at_ns - 1 WHERE session_id = ?", [WHOLE]
        )
        place = {"session_id": SESSION, "attempt": 0, "rank": 1, "sequence_first": 4, "sequence_last": 63}
        gap = place | {"records": 64, "why": "spool_full", "noticed_ns": BASE_NS}
        store_rows(connection, "gap", [gap])
    return made


@pytest.fixture
def queries(path: Path) -> Iterator[Queries]:
    with connect(path) as opened:
        yield opened


ASKED: dict[str, dict[str, Any]] = {
    "ranks": {}, "status": {}, "top": {}, "hosts": {}, "peak": {}, "peak_by": {"by": "host"},
    "peak_by_host": {}, "peak_bound": {}, "job_peak": {}, "job_peak_bound": {}, "job_peak_interval": {},
    "job_peak_held": {}, "steps": {}, "modules": {},
    "weights": {}, "oom": {}, "ops": {"by": "category"}, "live": {"rank": 0}, "curve": {"rank": 0},
    "held_at": {"time_ns": BASE_NS + 20}, "timeline": {"by": "job"},
}  # fmt: skip


INSIGHTS = ("fragmentation", "fit", "whatif", "ledger", "leaks", "imbalance", "why_oom", "diagnose")


@pytest.mark.parametrize("name", INSIGHTS)
def test_each_insight_carries_what_is_missing(queries: Queries, name: str) -> None:
    lossy = getattr(queries, name)(session=SESSION)
    whole = getattr(queries, name)(session=WHOLE)
    assert (lossy.missing, lossy.complete) == ([LACKS], False)
    assert (whole.missing, whole.complete) == ([], True)


def test_a_comparison_says_what_is_missing_from_the_newer_and_refuses_to_compare(queries: Queries) -> None:
    for pair in ((WHOLE, SESSION), (SESSION, WHOLE)):
        answer = queries.diff(*pair)
        assert answer.verdict == "cannot tell"
        assert "is incomplete, so its figures may be wrong" in answer.sentence
        assert (answer.missing, answer.complete) == (([LACKS], False) if pair[1] == SESSION else ([], True))


@pytest.mark.parametrize("name", long_but_one_in(ASKED, 2))
def test_each_answer_of_the_client_carries_what_is_missing(queries: Queries, name: str) -> None:
    lossy = getattr(queries, name)(session=SESSION, **ASKED[name])
    whole = getattr(queries, name)(session=WHOLE, **ASKED[name])
    assert (missing_of(lossy), lossy.schema.metadata[b"complete"]) == ([LACKS], b"False")
    assert (missing_of(whole), whole.schema.metadata[b"complete"]) == ([], b"True")


def test_no_answer_of_the_client_about_a_session_was_forgotten() -> None:
    others = {"close", "copy_to", "sql", "stream", "session_id", "sessions", "incompleteness", "stack"}
    others |= {
        "session_row",
        "session_facts",
        "incomplete_sessions",
        "aggregator_state",
        "oom_held",
        "interrupt",
        "allow",
        "with_missing",
        "answer",
        "once",
        "allocator_trace",
        "stale",
        "gathers_stale",
        "recent_missing",
        "given_options",
        "aggregator",
    }
    public = {name for name in dir(Queries) if not name.startswith("_")}
    assert public - others == {*ASKED, *INSIGHTS, "diff"}, (
        "an answer about a session: carry it, and add it here"
    )


def run(path: Path, *arguments: str) -> tuple[str, str]:
    done = CliRunner().invoke(app, [*arguments, "--db", str(path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


VERBS = (
    "ranks", "hosts", "status", "peak --by category", "peak --by host", "job-peak --by line", "ops",
    "ops --by rank", "live --rank 1", "modules", "steps", "oom", "oom --by rank", "timeline --by category",
    "timeline --by job",
)  # fmt: skip


@pytest.mark.parametrize("verb", long_but_one_in(VERBS, 2))
def test_each_verb_prints_it_below_its_answer_and_for_programs_in_its_rows(path: Path, verb: str) -> None:
    out, err = run(path, *verb.split(), "--session", SESSION, "--format", "json")
    assert LACKS in err
    told = {row["incomplete"] for row in json.loads(out) if row.get("rank") != 0}
    assert told
    assert told <= {LACKS, LACKS.removeprefix("rank 1: ")}


@pytest.mark.parametrize("verb", ["ranks", "ops", "weights"])
def test_a_table_has_it_below_and_a_whole_session_nothing(path: Path, verb: str) -> None:
    assert LACKS in run(path, verb, "--session", SESSION)[1]
    assert "missing" not in run(path, verb, "--session", WHOLE)[1]


@pytest.mark.parametrize(("verb", "options"), [("sql", ["SELECT 1"]), ("sessions", [])])
def test_an_answer_of_any_session_names_those_that_lack_events(
    path: Path, verb: str, options: list[str]
) -> None:
    _, err = run(path, verb, *options)
    assert f"session {SESSION} lacks events of 1 rank: its figures may be wrong" in err
    assert WHOLE not in err


def test_an_answer_is_shown_where_what_is_missing_cannot_be_queried(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(queries: Queries) -> None:
        raise RankmemError(Code.EXHAUSTED, "too long")

    monkeypatch.setattr(Queries, "incomplete_sessions", fails)
    out, err = run(path, "sql", "SELECT 41 + 1 AS answer")
    assert "42" in out
    assert "could not check whether any session lacks events: too long" in err


def test_a_job_s_peak_with_losses_is_not_called_certain_nor_its_curve_exact(path: Path) -> None:
    _, err = run(path, "job-peak", "--session", SESSION)
    assert "one clock: the order of all recorded events is certain" in err
    assert (
        "not exact, because events or ranks are missing (see below): the true peak was at least 170 B" in err
    )
    assert "how much higher is unknown" in err
    _, err = run(path, "job-peak", "--session", WHOLE)
    assert "the order of all events is certain" in err
    assert "not exact" not in err
    assert (
        "requested: not exact, for events or ranks are missing"
        in run(path, "timeline", "--session", SESSION)[1]
    )
    assert "requested: exact" in run(path, "timeline", "--session", WHOLE)[1]


def test_the_lower_bound_of_each_peak_is_shown_with_it(path: Path) -> None:
    _, err = run(path, "peak", "--session", SESSION)
    assert "rank 1, cpu: not exact; the true peak was at least 150 B" in err
    assert "rank 0, cpu" not in err
    assert "not exact" not in run(path, "peak", "--session", WHOLE)[1]


def test_a_curve_in_a_file_carries_it(path: Path, tmp_path: Path) -> None:
    asked = ("timeline", "--by", "job", "--session", SESSION)
    for end in ("csv", "html"):
        run(path, *asked, "--out", str(tmp_path / f"x.{end}"))
        assert LACKS in (tmp_path / f"x.{end}").read_text(), end


def test_a_page_in_one_file_carries_it_with_each_answer(queries: Queries, tmp_path: Path) -> None:
    export(queries, "html", tmp_path / "x.html", session=SESSION)
    assert content_of(tmp_path / "x.html")["missing"] == [LACKS]
    for answer in (*answers_of(tmp_path / "x.html", "job"), *answers_of(tmp_path / "x.html", "curve")):
        assert answer.schema.metadata[b"complete"] == b"False"
        assert json.loads(answer.schema.metadata[b"missing"]) == [LACKS]
    export(queries, "html", tmp_path / "y.html", session=WHOLE)
    assert content_of(tmp_path / "y.html")["missing"] == []
    assert {answer.schema.metadata[b"complete"] for answer in answers_of(tmp_path / "y.html", "job")} == {
        b"True"
    }


def test_an_export_carries_it_where_its_form_can(queries: Queries, tmp_path: Path) -> None:
    written = export(queries, "chrome-trace", tmp_path / "t.json.gz", session=SESSION)
    assert LACKS in written.remarks
    with gzip.open(tmp_path / "t.json.gz") as file:
        assert json.load(file)["otherData"]["missing"] == LACKS
    export(queries, "torch-snapshot", tmp_path / "s.pickle", session=SESSION, ranks=[1])
    assert pickle.loads((tmp_path / "s.pickle").read_bytes())["rankmem"]["missing"] == LACKS
    export(queries, "mindstudio", tmp_path / "ms", session=SESSION, ranks=[1])
    (info,) = (tmp_path / "ms").glob("*/profiler_info_1.json")
    assert json.loads(info.read_text())["rankmem_missing"] == [LACKS]
    export(queries, "csv", tmp_path / "csv", session=SESSION)
    assert json.loads((tmp_path / "csv" / "_rankmem_export.json").read_text())["missing"] == [LACKS]
    export(queries, "chrome-trace", tmp_path / "w.json", session=WHOLE)
    assert json.loads((tmp_path / "w.json").read_text())["otherData"]["missing"] == "nothing"
