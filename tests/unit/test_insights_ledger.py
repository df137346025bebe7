"""The ledger of a device: its parts add up to what is used, and what is unknown is never 0."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from ascend_files import MB, Story, a_story, store_parts, write_database
from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, empty_database, store_logs, store_rows
from json_schema import faults
from ledger_job import FOREIGN, GIB, GPU, MIB, RUNTIME, shared_device, whose
from rankmem_aggregator import connect
from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.insights.json_schemas import schema_of
from rankmem_aggregator.insights.ledger import PARTS, SCHEMA, by_instant
from rankmem_cli.main import app
from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Identity
from rankmem_protos.errors import RankmemError
from repetitions import long_but

pytestmark = pytest.mark.slow

Fill = Callable[[duckdb.DuckDBPyConnection], None]


def answered(folder: Path, fill: Fill, **asked: Any) -> Answer:
    path = folder / "job.duckdb"
    with empty_database(str(path)) as connection:
        fill(connection)
    with connect(path) as queries:
        return queries.ledger(**asked)


def parts(answer: Answer) -> list[tuple[Any, ...]]:
    names = ("rank", "part", "name", "bytes", "source")
    return [tuple(row[name] for name in names) for row in answer.rows.to_pylist()]


def add_up(answer: Answer) -> bool:
    return sum(row["bytes"] or 0 for row in answer.rows.to_pylist()) == answer.figures["used_bytes"]


def test_the_processes_of_a_device_and_the_others_add_up_to_what_is_used(tmp_path: Path) -> None:
    answer = answered(tmp_path, shared_device)
    assert parts(answer) == [
        (0, "pytorch", None, 20 * GIB, "measured"),
        (0, "communicators", "NCCL", 300 * MIB, "measured"),
        (0, "runtime", None, RUNTIME, "derived"),
        (0, "unexplained", None, 500 * MIB, "derived"),
        (1, "pytorch", None, 21 * GIB, "measured"),
        (1, "communicators", "NCCL", 300 * MIB, "measured"),
        (1, "runtime", None, RUNTIME, "derived"),
        (1, "unexplained", None, 500 * MIB, "derived"),
        (None, "other_processes", None, FOREIGN, "derived"),
    ]
    assert add_up(answer)
    assert (answer.verdict, answer.certainty) == ("finding", "exact")
    assert (answer.figures["num_ranks"], answer.figures["unknown_parts"]) == (2, [])
    assert answer.sentence.startswith("cuda:0 of 2 ranks: of 50.50 GiB used PyTorch 41.00 GiB, ")
    assert "other processes and the driver 7.00 GiB (13.9%)" in answer.sentence


def test_each_communicator_is_a_row_and_the_sentence_has_their_sum(tmp_path: Path) -> None:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        shared_device(connection, component="NCCL default_pg")
        connection.execute(
            "INSERT INTO component_sample BY NAME SELECT * REPLACE ('NCCL mesh_tp' AS component, "
            "reserved_bytes / 10 AS reserved_bytes) FROM component_sample"
        )

    answer = answered(tmp_path, fill)
    rows = [row for row in answer.rows.to_pylist() if row["part"] == "communicators"]
    assert [(row["rank"], row["name"], row["bytes"], row["source"]) for row in rows] == [
        (0, "NCCL default_pg", 300 * MIB, "measured"),
        (0, "NCCL mesh_tp", 30 * MIB, "measured"),
        (1, "NCCL default_pg", 300 * MIB, "measured"),
        (1, "NCCL mesh_tp", 30 * MIB, "measured"),
    ]
    assert "reported by the library" in rows[0]["basis"]
    assert answer.figures["communicators_bytes"] == 660 * MIB
    assert "NCCL 660.00 MiB" in answer.sentence
    assert add_up(answer)


def test_over_time_each_instant_adds_up_and_the_fullest_is_the_one_of_the_sentence(tmp_path: Path) -> None:
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        shared_device(connection)
    with connect(path) as queries:
        fullest, course = queries.ledger(), queries.ledger(num_instants=50)
    assert course.sentence == fullest.sentence
    assert course.figures == fullest.figures
    rows = course.rows.to_pylist()
    at = fullest.figures["at_ns"]
    assert [row for row in rows if row["at_ns"] == at] == fullest.rows.to_pylist()
    first, *_, last = by_instant(course.rows).to_pylist()
    assert (first["at_ns"], last["at_ns"]) == (BASE_NS + SECOND_NS, at)
    assert (first["used_bytes"], first["pytorch_bytes"]) == (2 * RUNTIME + FOREIGN, 0)
    assert (first["communicators_bytes"], first["unknown"]) == (None, ["communicators"])
    assert (last["used_bytes"], last["runtime_bytes"]) == (fullest.figures["used_bytes"], 2 * RUNTIME)
    for row in (first, last):
        assert sum(row[f"{part}_bytes"] or 0 for part in PARTS) == row["used_bytes"]
    assert course.notes[-1].startswith("measured: PyTorch, communicators; derived: runtime, unexplained, ")


def test_over_time_a_process_counts_from_its_first_sample_to_its_end(tmp_path: Path) -> None:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        logs = [RankLog(rank=0, ended=9 * SECOND_NS), RankLog(rank=1, ended=5 * SECOND_NS + 1)]
        for log, seconds in zip(logs, (range(1, 9), range(3, 6)), strict=True):
            for second in seconds:
                on_device = {"device_used_bytes": 3 * GIB, "device_total_bytes": 4 * GIB}
                log.sample((1 + log.rank) * GIB, at=second * SECOND_NS + log.rank, device=GPU, **on_device)
        store_logs(connection, logs)
        store_rows(
            connection, "device_info", [whose(log) | {"uuid": "GPU-1", "source": "tap"} for log in logs]
        )

    answer = answered(tmp_path, fill, num_instants=100)
    ranks: dict[int, set[int]] = {}
    for row in answer.rows.to_pylist():
        if row["rank"] is not None:
            ranks.setdefault((row["at_ns"] - BASE_NS) // SECOND_NS, set()).add(row["rank"])
    assert ranks == {1: {0}, 2: {0}, 3: {0, 1}, 4: {0, 1}, 5: {0, 1}, 6: {0}, 7: {0}, 8: {0}}
    others = {
        (row["at_ns"] - BASE_NS) // SECOND_NS: row["bytes"]
        for row in answer.rows.to_pylist()
        if row["part"] == "other_processes"
    }
    assert others == {**dict.fromkeys((1, 2, 6, 7, 8), 2 * GIB), **dict.fromkeys((3, 4, 5), 0)}


def test_a_component_that_was_sampled_long_before_leaves_the_answer_suspected(tmp_path: Path) -> None:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        shared_device(connection)
        connection.execute("UPDATE component_sample SET time_ns = time_ns - ?", [3 * SECOND_NS])

    answer = answered(tmp_path, fill)
    assert (answer.verdict, answer.certainty) == ("finding", "suspected")
    assert "the samples are up to 3.0 s apart" in answer.error


@pytest.mark.parametrize(
    ("total_bytes", "others", "verdict"),
    [
        (40 * GIB, GIB, "finding"),
        (60 * GIB, GIB, "fine"),
        (None, GIB, "finding"),
        (None, GIB - 1, "fine"),
    ],
)
def test_what_a_driver_may_hold_for_itself_is_no_finding(
    tmp_path: Path, total_bytes: int | None, others: int, verdict: str
) -> None:
    """1 GiB, a third of what is used: less than 2 % of 60 GiB."""
    fill = one_rank(2 * GIB, 2 * GIB + others, reserved=2 * GIB, total_bytes=total_bytes)
    answer = answered(tmp_path, fill)
    assert (answer.verdict, answer.figures["other_processes_bytes"]) == (verdict, others)


def test_without_samples_of_communicators_they_are_unknown_and_in_what_is_unexplained(
    tmp_path: Path,
) -> None:
    answer = answered(tmp_path, lambda connection: shared_device(connection, component=None))
    found = {row["part"]: row for row in answer.rows.to_pylist() if row["rank"] == 0}
    assert (found["communicators"]["bytes"], found["communicators"]["source"]) == (None, "unknown")
    assert found["unexplained"]["bytes"] == 800 * MIB
    assert found["unexplained"]["basis"].endswith("; communicators, unknown, are in it")
    assert answer.figures["communicators_bytes"] is None
    assert "unknown: communicators" in answer.sentence
    assert answer.certainty == "suspected"
    assert add_up(answer)


def test_ranks_that_name_a_device_alike_may_have_several(tmp_path: Path) -> None:
    answer = answered(tmp_path, lambda connection: shared_device(connection, uuid=None))
    last = answer.rows.to_pylist()[-1]
    assert (last["part"], last["bytes"], last["source"]) == ("other_processes", None, "unknown")
    assert "may be one device or several" in last["basis"]


def one_rank(
    app_bytes: int | None,
    used_bytes: int | None,
    *,
    reserved: int | None = 10,
    total_bytes: int | None = None,
    at: int = SECOND_NS,
) -> Fill:
    """A rank whose allocator holds ten bytes before the only sample, which is ``at``."""

    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        log = RankLog(ended=9 * SECOND_NS)
        log.alloc("block", 8, at=10, device=GPU)
        log.events[-1]["reserved_bytes"] = reserved
        on_device = {"device_used_bytes": used_bytes, "device_total_bytes": total_bytes}
        log.sample(app_bytes, at=at, device=GPU, **on_device)
        store_logs(connection, [log])
        store_rows(connection, "device_info", [whose(log) | {"source": "tap"}])

    return fill


def test_a_sample_soon_after_the_first_event_tells_the_runtime(tmp_path: Path) -> None:
    answer = answered(tmp_path, one_rank(100, 150, at=20_000_010))
    runtime = next(row for row in answer.rows.to_pylist() if row["part"] == "runtime")
    assert (runtime["bytes"], runtime["source"]) == (90, "derived")
    assert runtime["basis"] == "held beyond the allocator at a sample 20 ms after the allocator's first event"
    assert add_up(answer)


def test_the_runtime_leaves_out_segments_that_came_before_and_after_the_sample(tmp_path: Path) -> None:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        log = RankLog(ended=9 * SECOND_NS)
        for number in range(1, 5):  # of one bucket, whose last total is not the sample's
            if number == 3:
                log.sample(1000, at=25, device=GPU, device_used_bytes=2000)
            log.alloc(f"block {number}", 8, at=10 * number, device=GPU)
            log.events[-1]["reserved_bytes"] = 100 * number
        log.sample(1500, at=SECOND_NS, device=GPU, device_used_bytes=2500)
        store_logs(connection, [log])
        store_rows(connection, "device_info", [whose(log) | {"source": "tap"}])

    answer = answered(tmp_path, fill)
    found = {row["part"]: row["bytes"] for row in answer.rows.to_pylist()}
    assert (found["pytorch"], found["runtime"], found["unexplained"]) == (400, 800, 300)


def test_what_is_older_than_the_recording_is_not_taken_for_the_runtime(tmp_path: Path) -> None:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        log = RankLog(ended=9 * SECOND_NS)
        log.preexisting("weights", 60, device=GPU)
        segment = {"seq": 0, "address": 1, "size_bytes": 62, "stream": 0, "pool": ""}
        store_rows(connection, "older_segment", [whose(log) | segment])
        log.sample(100, at=5, device=GPU, device_used_bytes=150)
        log.alloc("block", 8, at=10, device=GPU)
        log.events[-1]["reserved_bytes"] = 70
        log.sample(110, at=SECOND_NS, device=GPU, device_used_bytes=160)
        store_logs(connection, [log])
        store_rows(connection, "device_info", [whose(log) | {"source": "tap"}])

    found = {row["part"]: row["bytes"] for row in answered(tmp_path, fill).rows.to_pylist()}
    assert (found["runtime"], found["unexplained"]) == (None, 40)


def test_without_a_sample_about_the_first_event_the_runtime_is_unknown(tmp_path: Path) -> None:
    answer = answered(tmp_path, one_rank(100, 150))
    assert parts(answer) == [
        (0, "pytorch", None, 10, "measured"),
        (0, "communicators", None, None, "unknown"),
        (0, "runtime", None, None, "unknown"),
        (0, "unexplained", None, 90, "derived"),
        (None, "other_processes", None, 50, "derived"),
    ]
    assert add_up(answer)


def test_a_process_that_the_driver_does_not_list_leaves_its_rest_with_the_others(tmp_path: Path) -> None:
    answer = answered(tmp_path, one_rank(None, 150))
    found = {row["part"]: (row["bytes"], row["source"]) for row in answer.rows.to_pylist()}
    assert found["unexplained"] == (None, "unknown")
    assert found["outside_allocators"] == (140, "derived")
    assert "other_processes" not in found
    assert add_up(answer)


def test_without_the_device_the_others_are_unknown(tmp_path: Path) -> None:
    answer = answered(tmp_path, one_rank(100, None))
    assert parts(answer)[-1] == (None, "other_processes", None, None, "unknown")
    assert answer.figures["used_bytes"] == 100
    assert "of 100 B held by the process PyTorch 10 B" in answer.sentence


def test_samples_that_contradict_each_other_leave_the_rest_unknown(tmp_path: Path) -> None:
    answer = answered(tmp_path, one_rank(7, 5))
    found = {row["part"]: row for row in answer.rows.to_pylist()}
    assert found["unexplained"]["bytes"] is None
    assert found["unexplained"]["basis"].startswith("the parts add up to 3 B more than the process holds")
    assert (found["other_processes"]["bytes"], found["other_processes"]["source"]) == (None, "unknown")


def test_what_the_allocator_held_may_be_unknown(tmp_path: Path) -> None:
    answer = answered(tmp_path, one_rank(100, 150, reserved=None))
    found = {row["part"]: (row["bytes"], row["source"]) for row in answer.rows.to_pylist()}
    assert found["pytorch"] == found["unexplained"] == (None, "unknown")


def test_samples_that_tell_nothing_are_no_ledger(tmp_path: Path) -> None:
    answer = answered(tmp_path, one_rank(None, None))
    assert (answer.verdict, answer.rows.num_rows) == ("cannot tell", 0)
    assert "tell neither what the process holds nor what is used on the device" in answer.sentence


def test_a_session_without_samples_has_no_ledger_and_an_unknown_rank_is_an_error(tmp_path: Path) -> None:
    log = RankLog(ended=90)
    log.alloc("block", 8, at=10, device=GPU)
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
    with connect(path) as queries:
        answer = queries.ledger()
        assert answer.verdict == "cannot tell"
        assert answer.sentence.startswith("no samples of processes were recorded")
        with pytest.raises(RankmemError, match="no rank 7"):
            queries.ledger(rank=7)


def test_a_start_before_does_not_count_with_the_present_one(tmp_path: Path) -> None:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        logs = [RankLog(rank=rank, attempt=attempt, ended=9) for rank, attempt in ((0, 0), (0, 1))]
        for log in logs:
            log.alloc("block", 8, at=1 + log.attempt, device=GPU)
            log.events[-1]["reserved_bytes"] = 10
            log.sample(100 + log.attempt, at=3 + log.attempt, device=GPU, device_used_bytes=150 + log.attempt)
        store_logs(connection, logs)

    answer = answered(tmp_path, fill)
    assert {row["attempt"] for row in answer.rows.to_pylist()} == {1}
    assert (answer.figures["used_bytes"], answer.figures["other_processes_bytes"]) == (151, 50)


def test_over_time_it_is_one_start_of_the_workers_and_says_of_which(tmp_path: Path) -> None:
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        logs = [RankLog(attempt=attempt, ended=9) for attempt in (0, 1)]
        for log in logs:
            log.alloc("block", 8, at=1, device=GPU)
            log.sample(100 - log.attempt, at=3 + log.attempt, device=GPU, device_used_bytes=150 - log.attempt)
        store_logs(connection, logs)
    with connect(path) as queries:
        course, alone = queries.ledger(num_instants=50), queries.ledger()
    assert {row["attempt"] for row in course.rows.to_pylist()} == {0}
    note = "attempt 0 alone, in which it held most; the session has attempts 0, 1"
    assert (note in course.notes, note in alone.notes) == (True, False)


def test_a_process_counts_while_it_is_there_and_a_rank_that_was_not_is_said_to_be_absent(
    tmp_path: Path,
) -> None:
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        logs = [
            RankLog(rank=rank, started=started, ended=ended)
            for rank, started, ended in ((0, 0, 10), (1, 0, 90), (2, 60, 90))
        ]
        for log, at, held, used in zip(logs, (5, 50, 70), (100, 300, 200), (500, 900, 800), strict=True):
            log.alloc("block", held, at=at - 1, device=GPU)
            log.events[-1]["reserved_bytes"] = held
            log.sample(held + 10, at=at, device=GPU, device_used_bytes=used)
        store_logs(connection, logs)
        whose = {"session_id": logs[0].session_id, "attempt": 0, "device": GPU, "uuid": "GPU-1"}
        store_rows(connection, "device_info", [whose | {"rank": log.rank, "source": "tap"} for log in logs])
    with connect(path) as queries:
        answer, *of_ranks = (queries.ledger(rank=rank) for rank in (None, 0, 1, 2))
    assert {row["rank"] for row in answer.rows.to_pylist()} == {1, None}
    assert (answer.figures["pytorch_bytes"], answer.figures["other_processes_bytes"]) == (300, 590)
    absent = "is not in this sum: its process was over by then, or its recording had not begun"
    for rank, of_rank in enumerate(of_ranks):
        assert of_rank.sentence == answer.sentence
        assert (f"rank {rank} {absent}" in of_rank.notes) == (rank != 1)


def test_on_a_host_what_others_hold_is_suspected_since_pages_of_files_count_in_processes_alone(
    tmp_path: Path,
) -> None:
    def fill(connection: duckdb.DuckDBPyConnection, used_bytes: int) -> None:
        log = RankLog(ended=90)
        log.alloc("block", 400, at=10)
        log.sample(1000, at=20, device_used_bytes=used_bytes)
        store_logs(connection, [log])

    answer = answered(tmp_path, lambda connection: fill(connection, 64_000))
    assert answer.certainty == "suspected"
    assert "do not count as used on the host: others may hold more by as much" in answer.error
    (tmp_path / "job.duckdb").unlink()
    answer = answered(tmp_path, lambda connection: fill(connection, 900))
    assert any(
        note.startswith("other processes and the system unknown: the ranks' processes hold more than is used")
        for note in answer.notes
    )


def test_on_a_host_the_rest_of_the_process_is_no_finding(tmp_path: Path) -> None:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        log = RankLog(ended=90)
        log.alloc("block", 400, at=10)
        log.sample(1000, at=20, device_used_bytes=64_000)
        store_logs(connection, [log])

    answer = answered(tmp_path, fill)
    assert [row[1:4:2] for row in parts(answer)] == [
        ("pytorch", 400),
        ("unexplained", 600),
        ("other_processes", 63_000),
    ]
    assert answer.verdict == "fine"
    assert "other processes and the system 61.52 KiB" in answer.sentence, "a host has no driver"
    assert "driver" not in " ".join(row["basis"] for row in answer.rows.to_pylist())


def test_an_ascend_recording_counts_what_two_report_once(tmp_path: Path) -> None:
    """GE is an allocator whose events are recorded, and a module that the driver samples."""

    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        story: Story = a_story()
        path = tmp_path / "ascend_pytorch_profiler_0.db"
        write_database(story, path)
        reader = FORMATS["mindstudio"]
        [recording] = reader.open(reader.files(path))
        store_parts(connection, recording, Identity(SESSION, 0, 0))
        session = {"session_id": SESSION, "source": "imported", "started_at_ns": 0}
        store_rows(connection, "session", [session])
        device = {"session_id": SESSION, "attempt": 0, "rank": 0, "device": "npu:0"}
        samples = {"GE": 200 * MB, "HCCL": 30 * MB, "RUNTIME": 5 * MB, "APP": 64 * MB}
        connection.execute("DELETE FROM component_sample")
        store_rows(
            connection,
            "component_sample",
            [
                device | {"time_ns": story.now, "component": k, "reserved_bytes": v}
                for k, v in samples.items()
            ],
        )
        connection.execute("UPDATE process_sample SET app_reserved_bytes = $1", [10_000 * MB])

    answer = answered(tmp_path, fill)
    found = [row for row in parts(answer) if row[1] == "component"]
    assert found == [
        (0, "component", "GE", 200 * MB, "measured"),
        (0, "component", "workspace", 6 * MB, "measured"),
    ]
    assert {row[2] for row in parts(answer)} == {None, "GE", "HCCL", "RUNTIME", "workspace"}
    assert sum(row[3] or 0 for row in parts(answer) if row[0] == 0) == 10_000 * MB


@pytest.mark.parametrize(("fail_on", "code"), [(None, 0), ("exact", 1)])
@pytest.mark.parametrize("output", long_but(["table", "json", "csv"], "json"))
def test_the_verb_exits_by_its_verdict(tmp_path: Path, fail_on: str | None, code: int, output: str) -> None:
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        shared_device(connection)
    arguments = ["ledger", "--db", str(path), "--format", output]
    done = CliRunner().invoke(app, arguments + (["--fail-on", fail_on] if fail_on else []))
    assert done.exit_code == code, done.output
    if output == "json":
        document = json.loads(done.stdout)
        assert faults(schema_of("ledger"), document) == []
        assert {tuple(row) for row in document["rows"]} == {tuple(SCHEMA.names)}
    elif output == "csv":
        assert done.stdout.splitlines()[0] == ",".join(SCHEMA.names)
    else:
        assert f"next: rankmem peak --db {path} --by component --rank 0" in done.stdout
