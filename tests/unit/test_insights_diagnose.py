"""All insights at once: their order, their evidence, what cannot tell, and the last line of a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from constructed import SECOND_NS, RankLog, empty_database, store_logs, store_rows
from insights_page import GPU, in_pieces, leaking, unequal
from json_schema import faults
from ledger_job import FOREIGN, GIB, MIB, shared_device
from oom_job import too_small
from rankmem_aggregator import connect
from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.insights.diagnose import FINDING_SCHEMA, OUT_OF_TIME, SCHEMA, diagnose_of
from rankmem_aggregator.insights.finding import Finding, Found, Question
from rankmem_aggregator.insights.findings import FINDERS
from rankmem_aggregator.insights.json_schemas import schema_of
from rankmem_aggregator.quantity_text import bytes_text
from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_aggregator.query.queries import Queries
from rankmem_cli.main import app
from rankmem_cli.run.first_finding import finding_line
from rankmem_protos.errors import Code, RankmemError
from remedied_steps import given_inputs, remedied_steps
from repetitions import long_but

pytestmark = pytest.mark.slow

GIVEN = GivenOptions(source=(("--db", "x"),))
Fill = Callable[[duckdb.DuckDBPyConnection], None]


def opened(folder: Path, fill: Fill) -> Queries:
    path = folder / "job.duckdb"
    with empty_database(str(path)) as connection:
        fill(connection)
    return connect(path)


def rising(connection: duckdb.DuckDBPyConnection, *, lacks: bool = False) -> None:
    """Loading takes 10 GiB at once, then six steps of 3 GiB."""
    log = RankLog(ended=20 * SECOND_NS)
    log.alloc("loaded", 10 * GIB, at=SECOND_NS, device=GPU, operator="aten::empty")
    log.free("loaded", at=2 * SECOND_NS)
    for step in range(6):
        at = (3 + step) * SECOND_NS
        log.alloc(f"a{step}", 3 * GIB, at=at, device=GPU, operator="aten::mm")
        log.free(f"a{step}", at=at + 1)
        log.step_ends(step, at=at + 2)
    store_logs(connection, [log])
    if lacks:
        hole = {"session_id": log.session_id, "attempt": 0, "rank": 0, "sequence_first": 2, "why": "lost"}
        store_rows(connection, "gap", [hole | {"sequence_last": 2, "records": 1}])


def late(connection: duckdb.DuckDBPyConnection) -> None:
    """Each step keeps a result of the one before until it has its own, for nothing."""
    log = remedied_steps(keeps_result=True)
    store_logs(connection, [log])
    store_rows(connection, "step_input", given_inputs(log))


def loading_ahead(connection: duckdb.DuckDBPyConnection) -> None:
    """Each step loads what the next one reads."""
    log = remedied_steps(late=True)
    store_logs(connection, [log])
    store_rows(connection, "step_input", given_inputs(log))


@pytest.mark.parametrize(
    ("fill", "kinds"),
    [
        (leaking, ["leak"]),
        (unequal, ["imbalance"]),
        (in_pieces, ["fragmentation"]),
        (shared_device, ["other_processes"]),
        (too_small, ["oom", "fragmentation", "unexplained"]),
        (rising, ["early_peak"]),
        (late, ["remedy"]),
    ],
)
def test_each_job_shows_what_it_was_made_with_and_its_evidence(
    fill: Fill, kinds: list[str], tmp_path: Path
) -> None:
    with opened(tmp_path, fill) as queries:
        answer = queries.diagnose()
        rows = answer.rows.to_pylist()
        assert [row["kind"] for row in rows] == kinds
        for row in rows:
            assert queries.sql(row["evidence"]["sql"]).num_rows > 0
    assert answer.verdict == "finding"
    untold = answer.figures["cannot_tell"]
    assert [note for note in answer.notes if note.startswith("cannot tell: ")] == [
        f"cannot tell: {name}: {reason}" for name, reason in untold.items()
    ]
    assert any(note.startswith("the highest peak, ") for note in answer.notes)


def test_what_the_next_step_may_read_is_no_finding(tmp_path: Path) -> None:
    with opened(tmp_path, loading_ahead) as queries:
        assert queries.diagnose().rows.num_rows == 0


def test_what_seems_to_be_left_over_is_suspected(tmp_path: Path) -> None:
    with opened(tmp_path, late) as queries:
        (row,) = queries.diagnose().rows.to_pylist()
    assert (row["bytes"], row["certainty"]) == (14 * MIB, "suspected")
    assert row["sentence"].endswith("at no cost, if the next step does not use them")


def test_a_peak_before_the_steady_steps_is_exact(tmp_path: Path) -> None:
    with opened(tmp_path, rising) as queries:
        (row,) = queries.diagnose().rows.to_pylist()
    assert (row["bytes"], row["peak_after"], row["certainty"]) == (7 * GIB, 3 * GIB, "exact")


def test_what_follows_the_last_step_stays_without_an_early_peak(tmp_path: Path) -> None:
    def fill(connection: duckdb.DuckDBPyConnection, size_bytes: int, after_ns: int) -> None:
        log = RankLog(ended=30 * SECOND_NS)
        log.alloc("loaded", 10 * GIB, at=1, device=GPU)
        log.free("loaded", at=2)
        for step in range(6):
            log.alloc(f"a{step}", 3 * GIB, at=3 + 10 * step, device=GPU)
            log.free(f"a{step}", at=4 + 10 * step)
            log.step_ends(step, at=5 + 10 * step)
        log.alloc("evaluated", size_bytes, at=100 + after_ns, device=GPU)
        log.free("evaluated", at=101 + after_ns)
        store_logs(connection, [log])

    for number, after_ns in enumerate((0, 5 * SECOND_NS)):  # in the same second as loading, and later
        folder = tmp_path / str(number)
        folder.mkdir()
        with opened(folder, lambda connection, at=after_ns: fill(connection, 9 * GIB, at)) as queries:
            (row,) = queries.diagnose().rows.to_pylist()
        assert (row["bytes"], row["peak_after"], row["certainty"]) == (GIB, 9 * GIB, "exact")
        assert row["sentence"].endswith("which need 3.00 GiB; what follows them needs 9.00 GiB")
    with opened(tmp_path, lambda connection: fill(connection, 10 * GIB - 1, SECOND_NS)) as queries:
        assert queries.diagnose().rows.num_rows == 0


def test_a_remedy_for_steps_says_that_the_peak_is_elsewhere(tmp_path: Path) -> None:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        log = remedied_steps(keeps_result=True)
        log.alloc("evaluated", 500 * MIB, at=int(3.5 * SECOND_NS))
        log.free("evaluated", at=int(3.6 * SECOND_NS))
        store_logs(connection, [log])
        store_rows(connection, "step_input", given_inputs(log))

    with opened(tmp_path, fill) as queries:
        (row,) = queries.diagnose().rows.to_pylist()
        highest = max(peak["peak_requested_bytes"] for peak in queries.peak().to_pylist())
    assert highest > 500 * MIB
    assert row["sentence"].endswith(f"; the peak of {bytes_text(highest)} is not in that step")


@pytest.mark.parametrize(
    ("more", "rank", "said"),
    [
        ({}, 4, ""),
        ({21: 700 * MIB}, 21, ""),
        ({9: -900 * MIB}, 4, "; host name-of-host-1 holds most above them, +400.50 MiB"),
    ],
    ids=["a host", "and a rank", "and a rank with less"],
)
def test_a_host_that_stands_out_is_a_finding_as_in_imbalance(
    more: dict[int, int], rank: int, said: str, tmp_path: Path
) -> None:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        logs = [RankLog(rank=number, host_uid=f"host-{number // 4}", ended=90) for number in range(32)]
        for log in logs:
            log.coordinates = {"dp": log.rank}
            size = GIB + log.rank * 7 % 5 * MIB + more.get(log.rank, 400 * MIB * (log.rank // 4 == 1))
            log.alloc("a", size, at=2, device=GPU)
        store_logs(connection, logs)

    with opened(tmp_path, fill) as queries:
        answer, alone = queries.diagnose(), queries.imbalance()
    (row,) = answer.rows.to_pylist()
    assert (row["kind"], row["rank"], row["sentence"]) == ("imbalance", rank, alone.sentence + said)
    assert f"rank {rank}" in row["remedy"]
    assert GIB <= row["peak_after"] <= GIB + 4 * MIB
    assert row["bytes"] + row["peak_after"] == alone.figures["peak_bytes"]


def test_nothing_held_is_no_finding(tmp_path: Path) -> None:
    def empty(connection: duckdb.DuckDBPyConnection) -> None:
        log = RankLog(ended=20 * SECOND_NS)
        for step in range(6):
            log.alloc(f"a{step}", 0, at=(1 + step) * SECOND_NS, device=GPU)
            log.free(f"a{step}", at=(1 + step) * SECOND_NS + 1)
            log.step_ends(step, at=(1 + step) * SECOND_NS + 2)
        store_logs(connection, [log])

    with opened(tmp_path, empty) as queries:
        assert queries.diagnose().rows.num_rows == 0


def test_of_a_recording_that_lacks_events_nothing_is_more_than_suspected(tmp_path: Path) -> None:
    with opened(tmp_path, lambda connection: rising(connection, lacks=True)) as queries:
        answer = queries.diagnose()
    assert answer.certainty == "suspected"
    assert {row["certainty"] for row in answer.rows.to_pylist()} == {"suspected"}


def test_the_peak_without_a_leak_is_computed_step_by_step(tmp_path: Path) -> None:
    """The highest step is the last with 22 GiB: 68 steps had added 12 MiB each before it, less the first."""
    with opened(tmp_path, leaking) as queries:
        answer = queries.diagnose()
        (row,) = answer.rows.to_pylist()
        peaks = queries.steps(rank=0)["peak_bytes"].to_pylist()
    kept = [max(peak - 12 * MIB * max(step - 1, 0), 0) for step, peak in enumerate(peaks)]
    assert row["bytes"] == max(peaks) - row["peak_after"]
    assert row["is_lower_bound"]
    assert any("saves at least 804.00 MiB (then 32.99 GiB to 33.01 GiB: some of " in n for n in answer.notes)
    assert abs(row["peak_after"] - max(kept)) <= 24 * MIB
    # Weights, a step of 22 GiB and the ring of 24 batches; the step's own 12 MiB may be in its peak or not.
    assert row["peak_after_least"] == (8 + 22 + 3) * GIB - 12 * MIB
    assert row["bytes"] < 12 * MIB * 70, "not all that leaks was there at the peak"


def test_the_peak_without_a_leak_is_suspected_where_some_of_it_may_be_none(tmp_path: Path) -> None:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        log = RankLog(ended=80 * SECOND_NS)
        for step in range(70):
            at = (step + 1) * SECOND_NS
            log.alloc(f"a{step}", 4 * MIB, at=at, device=GPU, operator="aten::linear")
            if step >= 50:
                log.alloc(f"b{step}", 4 * MIB, at=at + 1, device=GPU, operator="aten::stack")
            log.step_ends(step, at=at + 5)
        store_logs(connection, [log])

    with opened(tmp_path, fill) as queries:
        assert queries.leaks().certainty == "predicted"
        (row,) = [row for row in queries.diagnose().rows.to_pylist() if row["kind"] == "leak"]
    assert row["certainty"] == "suspected"


def test_what_other_processes_hold_is_what_the_device_would_lose(tmp_path: Path) -> None:
    with opened(tmp_path, shared_device) as queries:
        (row,) = queries.diagnose().rows.to_pylist()
    assert row["bytes"] == FOREIGN
    assert row["certainty"] == "suspected", "a part of it may be the driver's own"


def finding(kind: str, num_bytes: int | None, certainty: str) -> Finding:
    after = None if num_bytes is None else 1
    return Finding(
        kind=kind, rank=0, bytes=num_bytes, peak_after=after, certainty=certainty,  # type: ignore[arg-type]
        evidence="SELECT 1", remedy="", sentence=kind, verb="rankmem peak",
    )  # fmt: skip


def no_answer(name: str, **parameters: Any) -> pa.Table:
    return pa.table({"is_rank_peak": pa.array([], pa.bool_())})


def asked(*found: Found, **options: Any) -> Answer:
    finders = {f"insight {number}": lambda question, each=each: each for number, each in enumerate(found)}
    return diagnose_of(no_answer, "S", finders=finders, **options)


def test_failures_come_first_then_bytes_then_certainty_and_eight_are_shown() -> None:
    few = [finding("a", 5, "suspected"), finding("b", 5, "exact"), finding("oom", None, "suspected")]
    many = [finding(f"z{number}", None, "exact") for number in range(8)]
    answer = asked(Found(findings=(*many, *few)), Found(findings=(finding("c", 6, "suspected"),)))
    kinds = answer.rows["kind"].to_pylist()
    assert kinds == ["oom", "c", "b", "a", "z0", "z1", "z2", "z3"]
    assert answer.figures["num_findings"] == 12
    assert "and 4 more" in answer.notes
    assert answer.certainty == "exact"


def test_what_cannot_tell_is_named_and_if_none_can_the_exit_code_is_2() -> None:
    some = asked(Found(), Found(cannot_tell="no steps"))
    assert (some.verdict, some.exit_code(), some.certainty) == ("fine", 0, "suspected")
    assert (
        some.sentence == "1 of 2 insights found nothing that would lower the peak; the other one cannot tell"
    )
    assert "cannot tell: insight 1: no steps" in some.notes
    none = asked(Found(cannot_tell="no steps"), Found(cannot_tell="no segments"))
    assert (none.verdict, none.exit_code()) == ("cannot tell", 2)
    assert "insight 0: no steps; insight 1: no segments" in none.sentence


def test_that_no_failure_was_recorded_tells_nothing_of_the_peak() -> None:
    finders = {"oom": lambda q: Found(), "leaks": lambda q: Found(cannot_tell="no steps")}
    answer = diagnose_of(no_answer, "S", finders=finders)
    assert (answer.verdict, answer.exit_code()) == ("cannot tell", 2)


def test_an_insight_that_fails_is_named_and_the_connection_is_not_one() -> None:
    def fails(code: Code) -> Callable[[Question], Found]:
        def find(question: Question) -> Found:
            raise RankmemError(code, "it is too large", "ask for less")

        return find

    answer = diagnose_of(no_answer, "S", finders={"large": fails(Code.EXHAUSTED), "fine": lambda q: Found()})
    assert answer.figures["cannot_tell"] == {"large": "it is too large; ask for less"}
    with pytest.raises(RankmemError):
        diagnose_of(no_answer, "S", finders={"gone": fails(Code.UNAVAILABLE)})


def test_without_time_what_is_left_out_is_named() -> None:
    answer = asked(Found(), within_s=0.0)
    assert answer.figures["cannot_tell"] == {"insight 0": OUT_OF_TIME}


@pytest.mark.parametrize(("fail_on", "code"), [(None, 0), ("predicted", 1)])
@pytest.mark.parametrize("output", long_but(["table", "json", "csv"], "json"))
def test_the_verb_exits_by_its_verdict(tmp_path: Path, fail_on: str | None, code: int, output: str) -> None:
    opened(tmp_path, in_pieces).close()
    arguments = ["diagnose", "--db", str(tmp_path / "job.duckdb"), "--format", output]
    done = CliRunner().invoke(app, arguments + (["--fail-on", fail_on] if fail_on else []))
    assert done.exit_code == code, done.output
    if output == "json":
        document = json.loads(done.stdout)
        assert faults(schema_of("diagnose"), document) == []
        for row in document["rows"]:
            assert faults(FINDING_SCHEMA, row) == []
            assert list(row) == SCHEMA.names
    elif output == "csv":
        assert done.stdout.splitlines()[0] == ",".join(SCHEMA.names)
    else:
        assert "1. saves 146.00 MiB" in done.stdout
        next_ = f"next: rankmem fragmentation --db {tmp_path / 'job.duckdb'} --rank 0"
        assert next_ in done.stdout


def test_a_run_ends_with_the_first_finding_in_one_line(tmp_path: Path) -> None:
    with opened(tmp_path, leaking) as queries:
        line = finding_line(queries, queries.session_id(), GIVEN, within_s=600.0)
        assert queries.ranks().num_rows == 1, "later questions are allowed"
    assert line.startswith("finding (predicted): model.py:41 aten::linear leaks by 6.00 MiB a step on rank 0")
    assert line.endswith(": rankmem diagnose --db x")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("within_s", "line", "calls"),
    [
        (0.01, "no finding within 0.01 s", ["interrupt", "allow"]),
        (600.0, "no finding, the insights were not asked to the end (gone)", ["allow"]),
    ],
)
def test_a_run_that_finds_nothing_in_time_says_so_and_does_not_fail(
    within_s: float, line: str, calls: list[str]
) -> None:
    called: list[str] = []
    interrupted = threading.Event()

    def diagnose(session: str, **options: Any) -> Answer:
        if within_s < 1:
            assert interrupted.wait(60)
        raise RankmemError(Code.UNAVAILABLE, "gone", "")

    def interrupt() -> None:
        called.append("interrupt")
        interrupted.set()

    fake = SimpleNamespace(diagnose=diagnose, interrupt=interrupt, allow=lambda: called.append("allow"))
    assert finding_line(fake, "S", GIVEN, within_s=within_s) == f"{line}: rankmem diagnose --db x"  # type: ignore[arg-type]
    assert called == calls


def test_a_fault_of_an_insight_does_not_fail_the_run() -> None:
    def diagnose(session: str, **options: Any) -> Answer:
        raise KeyError("peak")

    fake = SimpleNamespace(diagnose=diagnose, interrupt=lambda: None, allow=lambda: None)
    line = finding_line(fake, "S", GIVEN)  # type: ignore[arg-type]
    assert line.startswith("no finding, the insights were not asked to the end (KeyError: 'peak'): ")


def test_what_costs_something_is_no_finding_but_whatif_has_it(tmp_path: Path) -> None:
    with opened(tmp_path, lambda connection: store_logs(connection, [remedied_steps()])) as queries:
        assert queries.diagnose().rows.num_rows == 0
        assert queries.whatif().verdict == "finding"


def test_every_insight_of_the_registry_is_asked() -> None:
    assert list(FINDERS) == ["oom", "early peak", "leaks", "ledger", "imbalance", "whatif", "fragmentation"]
