"""`rankmem run -- torchrun …` on two ranks: the training is left as it is, and every answer is exact."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from main_job import RANKMEM, TORCHRUN, TRAIN, call, rankmem
from main_job import rows as ask

rows = functools.cache(ask)
"""The database does not change once it is recorded, and a verb costs half a second to start."""
COMMAND = (*TORCHRUN, "--nproc-per-node", "2", str(TRAIN))


class Recorded(NamedTuple):
    folder: Path
    without: subprocess.CompletedProcess[str]
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """One session, recorded once for all tests of this module, and the same training without rankmem."""
    folder = tmp_path_factory.mktemp("recorded")
    without = call(COMMAND, folder)
    assert without.returncode == 0, without.stderr  # here, where gloo's own fault makes pytest try again
    done = call((*RANKMEM, "run", "--name", "two ranks", "--", *COMMAND), folder)
    assert done.returncode == 0, done.stderr
    return Recorded(folder, without, done)


def test_the_training_prints_and_returns_what_it_does_without_us(recorded: Recorded) -> None:
    assert recorded.done.returncode == recorded.without.returncode == 0
    assert recorded.done.stdout == recorded.without.stdout
    assert recorded.done.stdout.count("loss") == 6
    assert recorded.done.stderr.startswith(recorded.without.stderr)


def test_the_summary_on_stderr_says_what_matters(recorded: Recorded) -> None:
    said = recorded.done.stderr.removeprefix(recorded.without.stderr)
    assert "two ranks, 2 ranks" in said
    assert " 0 lost, all complete" in said
    assert "spread over 2" in said
    assert "job's peak (cpu" in said
    assert "held at the peak of rank 1: aten::" in said
    assert "rankmem.duckdb" in said


def test_nothing_is_left_in_the_spools(recorded: Recorded) -> None:
    assert list((recorded.folder / "spool").glob("*/*/control")) == []


def test_every_rank_is_complete_and_lost_nothing(recorded: Recorded) -> None:
    ranks = rows(recorded.folder, "ranks")
    assert [row["rank"] for row in ranks] == [0, 1]
    for row in ranks:
        assert row["complete"] is True
        assert row["events_lost"] == 0
        assert row["unexplained_bytes"] == 0
        assert row["end_reason"] == "exit"
        assert row["events"] > 100
    assert rows(recorded.folder, "sql", "FROM gap") == []
    (session,) = rows(recorded.folder, "sessions")
    assert (session["name"], session["state"], session["num_ranks"]) == ("two ranks", "ended", 2)
    (host,) = rows(recorded.folder, "hosts")
    assert host["num_ranks"] == 2


def events(folder: Path) -> list[dict[str, object]]:
    statement = """
        SELECT rank, seq, time_ns, action, size_bytes, requested_bytes, allocation_id
        FROM memory_event_utc ORDER BY rank, seq
    """
    return rows(folder, "sql", statement)


def test_the_peaks_equal_a_replay_of_the_events(recorded: Recorded) -> None:
    peaks = {row["rank"]: row for row in rows(recorded.folder, "peak")}
    for rank in (0, 1):
        held: dict[object, int] = {}
        total = highest = 0
        highest_seq = None
        for event in (event for event in events(recorded.folder) if event["rank"] == rank):
            if event["action"] == "alloc":
                held[event["allocation_id"]] = event["size_bytes"]
                total += event["size_bytes"]
            else:
                assert event["action"] == "free_completed"
                total -= held.pop(event["allocation_id"], event["size_bytes"])
            assert event["requested_bytes"] == total
            if total > highest:
                highest, highest_seq = total, event["seq"]
        assert (peaks[rank]["peak_requested_bytes"], peaks[rank]["peak_seq"]) == (highest, highest_seq)
        assert highest > 1 << 20
    assert peaks[1]["peak_requested_bytes"] > peaks[0]["peak_requested_bytes"]


def test_the_peak_of_the_job_equals_a_merge_of_both_ranks(recorded: Recorded) -> None:
    total = highest = 0
    at: dict[object, int] = {}
    highest_ns = None
    for event in sorted(
        events(recorded.folder), key=lambda event: (event["time_ns"], event["rank"], event["seq"])
    ):
        total += event["requested_bytes"] - at.get(event["rank"], 0)
        at[event["rank"]] = event["requested_bytes"]
        if total > highest:
            highest, highest_ns = total, event["time_ns"]
    shares = rows(recorded.folder, "job-peak")
    assert {row["job_peak_bytes"] for row in shares} == {highest}
    assert {row["job_peak_ns"] for row in shares} == {highest_ns}
    assert sum(row["requested_bytes"] for row in shares) == highest


@pytest.mark.parametrize("rank", [0, 1])
def test_operators_lines_and_blocks_add_up_to_the_peak(recorded: Recorded, rank: int) -> None:
    (peak,) = (row for row in rows(recorded.folder, "peak") if row["rank"] == rank)
    of_rank = ("--rank", str(rank))
    blocks = rows(recorded.folder, "live", *of_rank, "--at", "peak")
    assert sum(row["size_bytes"] for row in blocks) == peak["peak_requested_bytes"]
    for by in ("operator", "line", "rank"):
        grouped = rows(recorded.folder, "ops", *of_rank, "--by", by)
        assert sum(row["live_bytes_at_peak"] for row in grouped) == peak["peak_requested_bytes"]
        assert sum(row["live_allocations_at_peak"] for row in grouped) == len(blocks)


def test_blocks_alive_at_the_instant_of_the_peak_are_those_at_the_peak(recorded: Recorded) -> None:
    peak = rows(recorded.folder, "peak", "--rank", "1")[0]
    at_peak = rows(recorded.folder, "live", "--rank", "1")
    at_instant = rows(recorded.folder, "live", "--rank", "1", "--at", str(peak["peak_time_ns"]))
    assert {row["allocation_id"] for row in at_peak} == {row["allocation_id"] for row in at_instant}


def test_blocks_carry_operator_and_the_stack_of_the_script(recorded: Recorded) -> None:
    largest = rows(recorded.folder, "live", "--rank", "1")[0]
    assert largest["operator"].startswith("aten::")
    assert isinstance(largest["stack"], list)
    assert any(f"{TRAIN.name}:" in frame and frame.endswith(" main") for frame in largest["stack"])
    lines = rows(recorded.folder, "ops", "--by", "line", "--rank", "1")
    assert any(TRAIN.name in (row["line"] or "") for row in lines)


def test_ops_can_be_asked_in_total_and_at_an_offset(recorded: Recorded) -> None:
    total = rows(recorded.folder, "ops", "--at", "total", "--rank", "0")
    assert [row["allocated_bytes"] for row in total] == sorted(
        (r["allocated_bytes"] for r in total), reverse=True
    )
    before = rows(recorded.folder, "ops", "--at", "0.0s")
    assert sum(row["live_bytes_at_time"] for row in before) == 0


def test_sql_reads_its_statement_from_stdin_and_writes_csv(recorded: Recorded) -> None:
    statement = "SELECT count(*) AS n FROM rank_info"
    done = call((*RANKMEM, "sql", "-", "--format", "csv"), recorded.folder, text_in=statement)
    assert done.stdout == "n\n2\n"


def test_wrong_sql_is_one_error_with_a_hint(recorded: Recorded) -> None:
    done = call((*RANKMEM, "sql", "SELECT nothing FROM nowhere"), recorded.folder)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert "\nTry: " in done.stderr
    assert "Traceback" not in done.stderr


def test_sql_of_a_file_cannot_change_it(recorded: Recorded) -> None:
    done = call((*RANKMEM, "sql", "DELETE FROM session"), recorded.folder)
    assert done.returncode == 1
    assert len(ask(recorded.folder, "sessions")) == 1


def test_a_copy_answers_as_the_database_does(recorded: Recorded) -> None:
    rankmem(recorded.folder, "export", "duckdb", "copy.duckdb")
    assert ask(recorded.folder, "peak", "--db", "copy.duckdb") == rows(recorded.folder, "peak")
    done = call((*RANKMEM, "export", "duckdb", "copy.duckdb"), recorded.folder)
    assert done.returncode == 1
    assert "copy.duckdb already exists" in done.stderr


def test_a_table_in_a_pipe_is_plain_text(recorded: Recorded) -> None:
    out = call((*RANKMEM, "peak"), recorded.folder).stdout
    assert "\x1b" not in out
    assert out.splitlines()[0].split()[:4] == ["rank", "attempt", "host", "device"]
    assert json.loads(rankmem(recorded.folder, "peak", "--session", "two ranks", "--format", "json"))
