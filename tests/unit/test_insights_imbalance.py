"""Why ranks differ, over databases made by hand: parts that add up, levels, and what cannot be told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from constructed import RankLog, clear, empty_database, store_logs
from json_schema import faults
from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.insights.imbalance import SCHEMA
from rankmem_aggregator.insights.json_schemas import schema_of
from rankmem_aggregator.query import open as opening
from rankmem_cli.main import app
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import RankmemError
from repetitions import long_but

pytestmark = pytest.mark.slow

MIB = 1 << 20
Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imbalance") / "job.duckdb"
    empty_database(str(path)).close()
    return path


@pytest.fixture
def ask(database: Path) -> Ask:
    def asked(logs: list[RankLog], **options: Any) -> Answer:
        with duckdb.connect(str(database)) as connection:
            clear(connection)
            store_logs(connection, logs)
        with opening.open_queries(database, Credentials()) as queries:
            answer = queries.imbalance(**options)
            rows = queries.peak().to_pylist()
        peaks = {row["rank"]: row["peak_requested_bytes"] for row in rows if row["device"] == "cuda:0"}
        for row in answer.rows.to_pylist():  # to the byte, whatever else a test looks at
            assert sum(part["bytes"] for part in row["parts"]) == row["difference_bytes"]
            assert row["difference_bytes"] == peaks[row["rank"]] - peaks[row["peer_rank"]]
            assert row["bytes"] == peaks[row["rank"]]
        return answer

    return asked


def job(
    ranks: int = 32, *, more: dict[int, int] | None = None, stages: int = 2, known: bool = True
) -> list[RankLog]:
    """Ranks of a pipeline on hosts of four; the first stage holds twice the activations of the second."""
    logs = []
    for rank in range(ranks):
        stage = rank * stages // ranks
        log = RankLog(rank=rank, host_uid=f"host-{rank // 4}", ended=90)
        if known:
            log.coordinates = {"pp": stage, "dp": rank % (ranks // stages)}
        log.alloc("w", 512 * MIB, at=1, device="cuda:0", category="parameter", operator="aten::empty")
        size = (stages - stage) * 1024 * MIB + rank * 7 % 5 * MIB
        log.alloc("a", size, at=2, device="cuda:0", category="activation", operator="aten::mm")
        if more and rank in more:
            log.alloc("x", more[rank], at=3, device="cuda:0", category="gradient", operator="aten::add")
        log.alloc("u", 3 * MIB, at=4, device="cpu", category="input", operator="aten::randn")
        log.free("a", at=50)
        logs.append(log)
    return logs


def test_a_rank_stands_out_with_what_it_holds_more(ask: Ask) -> None:
    answer = ask(job(more={21: 300 * MIB}))
    (row,) = answer.rows.to_pylist()
    assert answer.rows.schema.equals(SCHEMA)
    assert (answer.verdict, answer.certainty) == ("finding", "suspected")
    assert (row["what"], row["host_name"]) == ("rank 21", "name-of-host-5")
    assert row["peer_rank"] >= 16
    assert row["parts"][0] == {"group_name": "gradient", "bytes": 300 * MIB}
    assert answer.sentence.startswith("1 of 32 ranks stands out from its peers, rank 21 with +30")
    assert answer.figures["shares"]["pp"] > 0.9
    assert any(note.startswith("of the variance pp explains 9") for note in answer.notes)


def test_stages_differ_by_design_and_nothing_stands_out(ask: Ask) -> None:
    answer = ask(job())
    assert (answer.verdict, answer.rows.num_rows) == ("fine", 0)
    assert answer.sentence == "no rank of 32 ranks stands out from its peers"
    highest, lowest = answer.figures["highest_rank"], answer.figures["lowest_rank"]
    assert highest < 16 <= lowest
    assert sum(answer.figures["parts"].values()) == answer.figures["difference_bytes"]


def test_a_rank_that_differs_by_less_than_counts_is_no_finding_but_is_named(ask: Ask) -> None:
    answer = ask(job(more={21: 48 * MIB, 5: 40 * MIB}))
    assert (answer.verdict, answer.rows.num_rows) == ("fine", 0)
    assert answer.sentence.startswith(
        "no rank of 32 ranks stands out from its peers by 64.00 MiB or more; rank 21 "
    )
    assert answer.sentence.endswith("MiB, 1 other by less")
    assert (answer.figures["num_small"], answer.figures["small_rank"]) == (2, 21)
    assert abs(answer.figures["small_bytes"] - 48 * MIB) <= 5 * MIB


def test_a_host_stands_out_as_one_line(ask: Ask) -> None:
    answer = ask(job(more=dict.fromkeys(range(4, 8), 400 * MIB)))
    (row,) = answer.rows.to_pylist()
    assert (row["what"], row["num_ranks"]) == ("host name-of-host-1", 4)
    assert row["peer_rank"] not in range(4, 8)
    assert answer.sentence.startswith("4 of 32 ranks stand out from their peers, host name-of-host-1 with +")


def test_without_coordinates_the_layout_is_inferred_and_said_to_be(ask: Ask) -> None:
    answer = ask(job(more={21: 300 * MIB}, known=False))
    assert answer.rows["what"].to_pylist() == ["rank 21"]
    assert list(answer.figures["shares"]) == ["rank // 16 % 2"]
    assert any("a layout was looked for in the bytes" in note for note in answer.notes)


def test_missing_ranks_are_said_and_the_others_compared(ask: Ask) -> None:
    logs = [log for log in job(more={21: 300 * MIB}) if log.rank not in (3, 30)]
    for log in logs:
        log.coordinates |= {"world_size": 32}
    answer = ask(logs)
    assert answer.rows["what"].to_pylist() == ["rank 21"]
    assert answer.complete is False
    assert any("never reported" in line for line in answer.missing)


def test_parts_may_be_operators(ask: Ask) -> None:
    answer = ask(job(more={21: 300 * MIB}), by="operator")
    assert answer.rows.to_pylist()[0]["parts"][0] == {"group_name": "aten::add", "bytes": 300 * MIB}
    with pytest.raises(RankmemError):
        ask(job(), by="host")


@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        (job(1, stages=1), "1 rank recorded, at least 8"),
        (job(7, stages=1), "7 ranks recorded, at least 8"),
        (job(8, stages=8), "a stage of the pipeline (pp) has 1 rank"),
        ([RankLog(rank=rank, ended=5) for rank in range(9)], "no rank has recorded blocks"),
    ],
    ids=["one", "seven", "one a stage", "no events"],
)
def test_what_cannot_be_told_has_its_reason(ask: Ask, logs: list[RankLog], reason: str) -> None:
    answer = ask(logs)
    assert (answer.verdict, answer.exit_code()) == ("cannot tell", 2)
    assert answer.sentence.startswith(reason)
    if "ranks" in reason or "stage" in reason:
        assert answer.notes[0].startswith("the peak of rank ")


def test_ranks_on_other_devices_are_left_out_and_not_said_to_be_unrecorded(ask: Ask) -> None:
    logs = job(8, stages=1)
    logs[2] = RankLog(rank=2, host_uid="host-0", ended=90)
    logs[2].alloc("b", 3 * MIB, at=1, device="cpu", category="input")
    answer = ask(logs)
    assert answer.sentence.startswith(
        "7 ranks recorded blocks on devices of type cuda, at least 8 are needed"
    )
    assert "1 rank left out: no blocks on devices of type cuda" in answer.notes
    assert faults(schema_of("imbalance"), json.loads(json.dumps(answer.as_dict()))) == []


def test_a_coordinate_that_some_ranks_did_not_report_is_said_to_be_left_out(ask: Ask) -> None:
    logs = job(16)
    del logs[3].coordinates["pp"]
    answer = ask(logs)
    assert "pp left out: only 15 of 16 ranks reported it" in answer.notes
    assert answer.figures["partly_known"] == {"pp": 15}


def test_ranks_that_reported_different_coordinates_are_not_said_to_have_reported_the_same(ask: Ask) -> None:
    logs = job(16, stages=1)
    for log in logs:
        log.coordinates = {"dp" if log.rank % 2 else "tp": log.rank}
    notes = ask(logs).notes
    told = "no parallel coordinate that all ranks reported differs between them: a layout was looked for"
    assert any(note.startswith(told) for note in notes)
    assert "dp left out: only 8 of 16 ranks reported it" in notes


def test_the_peak_without_what_stands_out_counts_levels_and_ranks_within_them(ask: Ask) -> None:
    more = dict.fromkeys(range(4, 8), 400 * MIB) | {5: 900 * MIB}
    figures = ask(job(more=more, stages=1)).figures
    assert figures["peak_bytes"] == (512 + 1024 + 0 + 900) * MIB
    assert (512 + 1024) * MIB <= figures["peak_without_bytes"] <= (512 + 1024 + 4) * MIB


def test_what_no_block_accounts_for_is_a_part_of_its_own(ask: Ask) -> None:
    logs = job(more={21: 300 * MIB})
    del logs[21].allocations["x"]
    (row,) = ask(logs).rows.to_pylist()
    assert row["parts"][0] == {"group_name": "not in blocks", "bytes": 300 * MIB}


def test_a_running_job_is_compared_with_its_peaks_so_far(ask: Ask) -> None:
    logs = job()
    logs[2].ended = None
    assert "1 rank still running: peaks so far" in ask(logs).notes


@pytest.mark.parametrize(("more", "fail_on", "code"), [({21: 300 * MIB}, "suspected", 1), ({}, "exact", 0)])
@pytest.mark.parametrize("output", long_but(["table", "json", "csv"], "json"))
def test_the_verb_exits_by_its_verdict(
    ask: Ask, database: Path, more: dict[int, int], fail_on: str, code: int, output: str
) -> None:
    ask(job(more=more))
    arguments = ["imbalance", "--db", str(database), "--format", output, "--fail-on", fail_on]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    if output == "json":
        document = json.loads(done.stdout)
        assert faults(schema_of("imbalance"), document) == []
        assert {tuple(row) for row in document["rows"]} <= {tuple(SCHEMA.names)}
    elif output == "table" and more:
        assert "gradient +300.00 MiB" in done.stdout
