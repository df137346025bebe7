"""Why an allocation failed: what a replay says, what needs none, and what cannot be told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from allocated_logs import DEVICE, AllocatorLog
from allocator_oracle import MIB, Oracle
from constructed import SECOND_NS, RankLog, empty_database, store_logs
from json_schema import faults
from oom_cases import failures, runs, runs_by_oracle
from oom_job import CAPACITY, OTHERS, failing, store, too_small
from rankmem_aggregator import connect
from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.insights.fragmentation import TRIED
from rankmem_aggregator.insights.json_schemas import schema_of
from rankmem_aggregator.insights.lives import Op
from rankmem_aggregator.insights.oom import SCHEMA
from rankmem_aggregator.insights.oom_replay import capacity_of, is_reproduced, needed, tried, until
from rankmem_aggregator.insights.packing import intervals, live_peak_bytes
from rankmem_cli.main import app
from rankmem_protos.errors import Code, RankmemError
from repetitions import long_but

pytestmark = pytest.mark.slow

Fill = Callable[[duckdb.DuckDBPyConnection], None]
GIB = 1 << 30


def answered(folder: Path, fill: Fill, **asked: Any) -> Answer:
    path = folder / "job.duckdb"
    with empty_database(str(path)) as connection:
        fill(connection)
    with connect(path) as queries:
        return queries.why_oom(**asked)


def test_a_setting_under_which_the_same_requests_find_room_makes_it_fragmented(tmp_path: Path) -> None:
    answer = answered(tmp_path, too_small)
    figures = answer.figures
    assert (answer.verdict, answer.certainty, figures["kind"]) == ("finding", "predicted", "fragmented")
    assert figures["is_reproduced"]
    assert figures["capacity_bytes"] == figures["capacity_low_bytes"] == CAPACITY
    rows = {row["settings"]: row for row in answer.rows.to_pylist()}
    assert rows["expandable_segments:True"]["runs"]
    assert (rows[""]["is_current"], rows[""]["runs"]) == (True, False)
    assert rows[""]["lacks_bytes"] == figures["lacks_bytes"] > 0
    assert "rank 0, cuda:0: 29.00 MiB at train.py:47 (aten::mm) failed with " in answer.sentence
    assert "Fragmentation: with " in answer.sentence
    assert answer.next_commands[0].startswith("PYTORCH_CUDA_ALLOC_CONF=")
    assert any(note.startswith("held by line: ") for note in answer.notes)


def test_expandable_segments_without_effect_are_said_to_have_none(tmp_path: Path) -> None:
    plain = answered(tmp_path, too_small)
    (tmp_path / "job.duckdb").unlink()
    answer = answered(
        tmp_path, lambda connection: store(connection, failing()[0], settings="expandable_segments:True")
    )
    assert answer.notes[0].startswith("expandable_segments:True was set, but segments were taken whole")
    assert answer.notes[1:] == plain.notes
    tried = [row["settings"] for row in answer.rows.to_pylist()]
    assert tried == [row["settings"] for row in plain.rows.to_pylist() if "expandable" not in row["settings"]]


def test_what_finds_room_under_the_recordings_own_settings_is_not_blamed_on_them(tmp_path: Path) -> None:
    log = AllocatorLog(Oracle(capacity=100 * MIB))
    log.start()
    first, _ = log.alloc(40 * MIB), log.alloc(30 * MIB)
    assert first is not None
    log.free(first)
    reserved = log.oracle.reserved
    log.log.oom(24 * MIB, at=log.now + 1000, device=DEVICE, device_free_bytes=0, reserved_bytes=reserved)
    log.log.ended = log.now + 2000
    answer = answered(tmp_path, lambda connection: store(connection, log, others=0))
    assert (answer.verdict, answer.figures["remedy"]) == ("cannot tell", None)
    assert answer.sentence.endswith(
        "in the replay under the recording's own settings it finds room: the device gave less than it "
        "seemed to, or events are missing"
    )


def test_more_alive_than_the_device_gives_is_exact_and_no_setting_is_named(tmp_path: Path) -> None:
    log, _ = failing([20, 20, 20, 20], capacity=100 * MIB, last=24)
    answer = answered(tmp_path, lambda connection: store(connection, log, others=0))
    assert (answer.verdict, answer.certainty) == ("finding", "exact")
    assert answer.figures["kind"] == "exhausted"
    assert not any(row["runs"] for row in answer.rows.to_pylist())
    assert (
        "no setting can help: blocks alive and the request are 104.00 MiB, of 100.00 MiB" in answer.sentence
    )


def test_a_request_of_more_than_half_is_single_and_others_that_hold_what_lacks_are_foreign(
    tmp_path: Path,
) -> None:
    log, _ = failing([20, 20], capacity=100 * MIB, last=64)
    answer = answered(tmp_path, lambda connection: store(connection, log))
    assert answer.figures["kinds"] == ["foreign", "single"]
    assert answer.figures["others_bytes"] == OTHERS
    assert "Other processes hold 120.00 MiB of the device: 4.00 MiB short" in answer.sentence
    assert "this request alone is more than half of what the device gives, 100.00 MiB" in answer.notes
    assert answer.next_commands == ("rankmem ledger --rank 0",)
    (tmp_path / "job.duckdb").unlink()
    log, _ = failing([20, 20], capacity=100 * MIB, last=64)
    assert answered(tmp_path, lambda c: store(c, log, others=None)).figures["kinds"] == ["single"]


def test_a_request_larger_than_the_device_is_answered(tmp_path: Path) -> None:
    log, _ = failing([10], capacity=100 * MIB, last=1024)
    answer = answered(tmp_path, lambda connection: store(connection, log, others=0))
    assert (answer.certainty, answer.figures["kinds"]) == ("exact", ["single"])
    assert answer.figures["lacks_bytes"] >= (1024 + 10 - 100) * MIB
    rows = {row["settings"]: row["needed_bytes"] for row in answer.rows.to_pylist()}
    assert (1024 + 10) * MIB <= rows["expandable_segments:True"] <= (1024 + 10 + 20 + 16) * MIB
    with connect(tmp_path / "job.duckdb") as queries:
        assert queries.diagnose().rows["kind"].to_pylist()[0] == "oom"


def test_a_step_that_needs_more_than_any_before_is_a_spike(tmp_path: Path) -> None:
    log, _ = failing([20, -1, 20, -2, 20, 20, 20], capacity=100 * MIB, last=44)
    log.log.steps = []
    ends = [event for event in log.log.events if event["action"] == "free_completed"]
    for step, event in enumerate(ends):
        log.log.steps.append(
            {name: event[name] for name in ("session_id", "attempt", "rank")}
            | {"step": step, "ended_ns": event["time_ns"], "seq": event["seq"] + 1, "optimizer": "SGD"}
        )
    log.log.events = [
        event | {"seq": 2 * event["seq"]} for event in log.log.events
    ]  # room for the steps' ends
    answer = answered(tmp_path, lambda connection: _doubled(connection, log))
    assert answer.figures["highest_step_before_bytes"] == 20 * MIB
    assert answer.figures["kinds"] == ["spike"]
    assert (
        "This step needs more than any before it, which needed at most 20.00 MiB: 4.00 MiB short"
        in answer.sentence
    )


def _doubled(connection: duckdb.DuckDBPyConnection, log: AllocatorLog) -> None:
    """The log with every position twice as far."""
    own = log.log
    for step in own.steps:
        step["seq"] = 2 * step["seq"] - 1
    for row in own.allocations.values():
        row["allocation_id"] *= 2
        if row.get("freed_seq") is not None:
            row["freed_seq"] *= 2
    for event in own.events:
        if event.get("allocation_id") is not None:
            event["allocation_id"] *= 2
    own.ooms[0]["seq"] *= 2
    store(connection, log, others=0)


def test_what_the_device_would_have_given_may_be_known_within_bounds_alone(tmp_path: Path) -> None:
    log, _ = failing()
    log.log.ooms[0]["device_free_bytes"] = None
    answer = answered(tmp_path, lambda connection: store(connection, log))
    low, high = (answer.figures[name] for name in ("capacity_low_bytes", "capacity_bytes"))
    assert low <= CAPACITY <= high
    assert high - low == 30 * MIB - 1, "a segment for the request lacks"


def test_without_segments_only_a_proof_counts(tmp_path: Path) -> None:
    log, _ = failing()
    log.log.events = [event for event in log.log.events if not event["action"].startswith("segment")]
    answer = answered(tmp_path, lambda connection: store(connection, log))
    assert (answer.verdict, answer.certainty) == ("cannot tell", None)
    assert (
        "why cannot be told without a replay: no segments of rank 0, cuda:0 were recorded" in answer.sentence
    )
    assert any(note.startswith("held by category: ") for note in answer.notes)
    (tmp_path / "job.duckdb").unlink()
    log, _ = failing([20, 20, 20, 20], capacity=100 * MIB, last=24)
    log.log.events = [event for event in log.log.events if not event["action"].startswith("segment")]
    answer = answered(tmp_path, lambda connection: store(connection, log, others=0))
    assert (answer.verdict, answer.certainty) == ("finding", "predicted")


@pytest.mark.parametrize(
    ("free", "verdict", "words"),
    [
        (GIB, "finding", "This request alone is more than half of what the host has; more was asked for"),
        (100 * GIB, "cannot tell", "that was enough, so a limit on the process stopped it"),
        (None, "cannot tell", "what was free on the host then is not known"),
    ],
)
def test_on_the_host_what_was_free_decides(
    free: int | None, verdict: str, words: str, tmp_path: Path
) -> None:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        log = RankLog(ended=SECOND_NS)
        log.alloc("block", GIB, at=10)
        log.oom(50 * GIB, at=20, device="cpu", device_free_bytes=free, operator="aten::empty")
        store_logs(connection, [log])

    answer = answered(tmp_path, fill)
    assert answer.verdict == verdict
    assert words in answer.sentence
    assert answer.next_commands == ("rankmem oom --by line --rank 0",)


def test_where_nothing_of_an_allocator_was_recorded_nobody_knows_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "kernels.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [RankLog(ended=SECOND_NS)])
    with connect(path) as queries:
        answer = queries.why_oom()
        assert (answer.verdict, answer.exit_code()) == ("cannot tell", 2)
        assert answer.sentence.startswith("nothing of an allocator was recorded")
        assert queries.diagnose().figures["cannot_tell"]["oom"] == answer.sentence


def test_without_failures_all_is_fine_and_a_number_too_high_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        log = RankLog(ended=SECOND_NS)
        log.alloc("block", GIB, at=10)
        store_logs(connection, [log])
    with connect(path) as queries:
        answer = queries.why_oom()
        assert (answer.verdict, answer.sentence) == ("fine", "no failed allocation was recorded")
        with pytest.raises(RankmemError, match="no failure 2") as caught:
            queries.why_oom(failure=2)
    assert caught.value.code is Code.NOT_FOUND
    assert "0 allocations failed (try: rankmem peak " in str(caught.value)


def test_what_to_run_next_is_about_the_same_failure(tmp_path: Path) -> None:
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        logs = [RankLog(rank=rank, ended=SECOND_NS) for rank in (0, 1)]
        for log in logs:
            log.alloc("block", 10 * MIB, at=10, operator="aten::empty")
        for rank, at, size in ((1, 20, GIB), (0, 30, 2 * GIB), (1, 40, 3 * GIB)):
            logs[rank].oom(size, at=at, device="cpu", device_free_bytes=MIB)
            logs[rank].alloc(f"after {at}", at * MIB, at=at + 1, operator="aten::mm")
        store_logs(connection, logs)
    with connect(path) as queries:
        commands = [queries.why_oom(failure=number).next_commands for number in (1, 2, 3)]
        of_rank = queries.why_oom(rank=1, failure=2)
    shown = "rankmem oom --by line --rank"
    assert commands == [(f"{shown} 1",), (f"{shown} 0",), (f"{shown} 1 --failure 2",)]
    assert of_rank.next_commands == commands[2]
    assert of_rank.figures["request_bytes"] == 3 * GIB
    assert faults(schema_of("oom"), json.loads(json.dumps(of_rank.as_dict()))) == []
    done = CliRunner().invoke(app, ["oom", "--db", str(path), "--rank", "1"], catch_exceptions=False)
    again = f"rankmem oom --db {path}"
    assert f"{again} --why --rank 1 --failure 1 has the settings that were tried" in done.stderr
    assert f"1 more failure: {again} --rank 1 --failure 2 analyses the next" in done.stderr


@pytest.mark.parametrize("seed", range(4))
def test_the_verdict_is_what_replays_of_their_own_do(seed: int, tmp_path: Path) -> None:
    log = AllocatorLog()
    log.start()
    log.at_random(seed, 250, size_max=400 * MIB)
    path = tmp_path / "random.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [log.log])
    with connect(path) as queries:
        trace = queries.allocator_trace(0)
    peak = live_peak_bytes(intervals(trace, trace.settings))
    cases = list(failures(trace, [peak * share // 100 for share in (50, 75, 90, 98)]))
    assert len(cases) == 4
    for failed in cases:
        asked = until(failed.trace, failed.trace.failures[0])
        capacity = capacity_of(failed.trace, failed.trace.failures[0], failed.device_free)
        assert capacity.is_known
        assert is_reproduced(asked, capacity)
        found = {
            each.settings: each
            for each in tried(asked, capacity, [asked.settings.changed(text) for text in TRIED])
        }
        for settings, each in found.items():
            assert each.runs == runs(failed, settings)
            assert (needed(asked, each, capacity) <= failed.capacity) == each.runs
        assert found[trace.settings].runs == runs_by_oracle(failed) is False
        split = trace.settings.changed("max_split_size_mb:128")
        assert found[split].runs == runs_by_oracle(failed, max_split=128 * MIB)


def test_a_flush_before_a_failure_was_a_retry(tmp_path: Path) -> None:
    log, _ = failing([30, -1, 20, 60], capacity=100 * MIB, last=41)
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        store(connection, log)
    with connect(path) as queries:
        trace = queries.allocator_trace(0)
    assert [op for op in trace.ops if op not in (Op.ALLOC, Op.FREE)] == [Op.RETRY] * trace.ops.count(Op.RETRY)
    assert [each.block_bytes for each in trace.failures] == [41 * MIB]


@pytest.mark.parametrize(("fail_on", "code"), [(None, 0), ("predicted", 1), ("exact", 0)])
@pytest.mark.parametrize("output", long_but(["table", "json", "csv"], "json"))
def test_the_verb_exits_by_its_verdict(tmp_path: Path, fail_on: str | None, code: int, output: str) -> None:
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        too_small(connection)
    arguments = ["oom", "--why", "--db", str(path), "--format", output]
    done = CliRunner().invoke(app, arguments + (["--fail-on", fail_on] if fail_on else []))
    assert done.exit_code == code, done.output
    if output == "json":
        document = json.loads(done.stdout)
        assert faults(schema_of("oom"), document) == []
        assert {tuple(row) for row in document["rows"]} == {tuple(SCHEMA.names)}
    elif output == "csv":
        assert done.stdout.splitlines()[0] == ",".join(SCHEMA.names)
    else:
        assert done.stdout.splitlines()[-1].startswith("next: PYTORCH_CUDA_ALLOC_CONF=")


def test_the_report_on_failures_says_why(tmp_path: Path) -> None:
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        too_small(connection)
    done = CliRunner().invoke(app, ["oom", "--db", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "  why: rank 0, cuda:0: 29.00 MiB at train.py:47 (aten::mm) failed with " in done.stderr
    assert f"    rankmem oom --db {path} --why --failure 1 has the settings that were tried" in done.stderr
