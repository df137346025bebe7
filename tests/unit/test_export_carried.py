"""What an export cannot carry it says, or it is refused: no file is lower than the answers in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from constructed import BASE_NS, RankLog
from export_logs import MIB, CudaLog, database
from export_peaks import KINDS, Peaks
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_cli.main import app
from rankmem_protos.errors import RankmemError
from repetitions import long_but

pytestmark = pytest.mark.slow

OF_BLOCKS = ("torch-snapshot", "memory-timeline", "memory-timeline .json")


def sums_alone() -> CudaLog:
    """As a trace of 2021 once stood: events without address and block, and sums."""
    job = CudaLog()
    job.log.alloc("a", 700, at=1_000, device="cuda:0")
    job.log.alloc("b", 300, at=2_000, device="cuda:0")
    job.log.free("a", at=3_000)
    job.log.allocations.clear()
    return job


def with_a_rest() -> CudaLog:
    """Its totals count 5,000 bytes that lie in no block."""
    job = CudaLog()
    job.alloc("a", 700, 4096)
    job.alloc("b", 300, 8192)
    for event in job.log.events:
        event["requested_bytes"] += 5_000
    return job


def freed_first() -> CudaLog:
    """Highest before its first event, a free."""
    job = CudaLog()
    job.older("a", 700, 4096)
    job.log.free("a", at=job.later())
    job.log.events[-1] |= {"address": 4096, "allocation_id": -1, "stream": 0}
    job.alloc("b", 300, 4096)
    return job


def exported(folder: Path, kind: str, job: CudaLog) -> tuple[Peaks, list[str]]:
    """What the file reaches, and the remarks."""
    name, read = KINDS[kind]
    with connect(database(folder / "r.duckdb", [job])) as queries:
        remarks = export(queries, kind.split()[0], folder / name).remarks
    return read(folder / name), remarks


@pytest.mark.parametrize("kind", OF_BLOCKS)
def test_a_log_of_sums_alone_is_refused_by_a_kind_that_is_made_of_blocks(kind: str, tmp_path: Path) -> None:
    path = database(tmp_path / "r.duckdb", [sums_alone()])
    out = tmp_path / KINDS[kind][0]
    done = CliRunner().invoke(app, ["export", kind.split()[0], str(out), "--db", str(path)])
    assert done.exit_code == 1
    assert not out.exists()
    assert isinstance(done.exception, RankmemError)
    assert (
        f"a {kind.split()[0]} of rank 0, cuda:0 would hold none of its 1,000 bytes" in done.exception.message
    )
    assert done.exception.hint == "the exports chrome-trace, html, parquet, arrow and csv have the totals"


@pytest.mark.parametrize(
    "kind",
    long_but(
        ["chrome-trace", "html", "parquet", "arrow", "csv", "duckdb"],
        "chrome-trace",
        "parquet",
        "csv",
        "duckdb",
    ),
)
def test_a_log_of_sums_alone_is_carried_by_a_kind_that_holds_totals(kind: str, tmp_path: Path) -> None:
    assert exported(tmp_path, kind, sums_alone())[0] == {(0, "cuda:0"): 1_000}


@pytest.mark.parametrize("kind", OF_BLOCKS)
def test_a_total_beyond_the_blocks_is_said_with_both_figures(kind: str, tmp_path: Path) -> None:
    found, remarks = exported(tmp_path, kind, with_a_rest())
    assert list(found.values()) == [1_000]
    said = "rank 0, cuda:0: the file reaches 1,000 bytes, the recording 6,000 bytes"
    assert [said in remark for remark in remarks].count(True) == 1


@pytest.mark.parametrize("kind", [*OF_BLOCKS, "chrome-trace", "skyline"])
def test_what_was_held_before_a_first_free_is_carried(kind: str, tmp_path: Path) -> None:
    found, remarks = exported(tmp_path, kind, freed_first())
    assert list(found.values()) == [700]
    assert not any("the file reaches" in remark for remark in remarks)


def test_mindstudio_says_what_was_held_before_its_first_record(tmp_path: Path) -> None:
    found, remarks = exported(tmp_path, "mindstudio", freed_first())
    assert found == {(0, "NPU:0"): 300}
    said = "rank 0, cuda:0: the file reaches 300 bytes, the recording 700 bytes"
    assert any(remark.startswith(said) for remark in remarks)


def test_a_total_within_a_microsecond_that_a_timeline_of_totals_lacks_is_said(tmp_path: Path) -> None:
    log = RankLog()
    log.alloc("a", 700, at=1_100)
    log.free("a", at=1_200)
    log.alloc("b", 300, at=1_300)
    job = CudaLog(device="cpu")
    job.log = log
    found, remarks = exported(tmp_path, "memory-timeline .json", job)
    assert found == {(-1, ""): 300}
    assert any("the file reaches 300 bytes, the recording 700 bytes" in remark for remark in remarks)


def test_a_step_that_is_lower_than_the_rank_is_said_in_a_skyline_report(tmp_path: Path) -> None:
    job = CudaLog()
    job.alloc("a", 700, 4096)
    job.log.step_ends(0, at=job.later())
    job.alloc("b", 300, 8192)
    found, remarks = exported(tmp_path, "skyline", job)
    assert found == {(0, ""): 700}
    assert any("the file reaches 700 bytes, the recording 1,000 bytes" in remark for remark in remarks)


def test_pinned_memory_is_left_out_of_mindstudio_aloud_and_alone_refused(tmp_path: Path) -> None:
    pinned = CudaLog(device="pinned")
    pinned.alloc("batch", MIB, 4096)
    path = database(tmp_path / "r.duckdb", [pinned])
    done = CliRunner().invoke(app, ["export", "mindstudio", str(tmp_path / "out"), "--db", str(path)])
    assert done.exit_code == 1
    assert not (tmp_path / "out").exists()
    assert "pinned host memory alone" in str(done.exception)
    both = CudaLog(1)
    both.alloc("a", 700, 4096)
    both.device = "pinned"
    both.alloc("batch", MIB, 4096)
    (tmp_path / "both").mkdir()
    found, remarks = exported(tmp_path / "both", "mindstudio", both)
    assert found == {(1, "NPU:0"): 700}
    assert "rank 1, pinned: its 1,048,576 bytes are left out: MindStudio shows devices" in remarks


def test_a_device_without_an_event_in_the_range_has_no_peak_to_miss(tmp_path: Path) -> None:
    job = CudaLog()
    job.alloc("weight", 700, 4096)
    job.device = "cuda:1"
    job.alloc("a", 300, 8192)
    with connect(database(tmp_path / "r.duckdb", [job])) as queries:
        remarks = export(queries, "torch-snapshot", tmp_path / "out", from_ns=BASE_NS + 1_500).remarks
    assert not any("the file reaches" in remark for remark in remarks)


def test_an_older_block_is_told_as_older_whatever_its_id(tmp_path: Path) -> None:
    """MindStudio's import gives the rest of the first total to a block with the id of its first record."""
    job = CudaLog()
    job.alloc("a", 700, 4096)
    job.alloc("rest", 300, 8192)
    job.log.allocations["rest"] |= {"preexisting": True, "allocated_ns": None}
    job.alloc("b", 10, 12288)
    for kind in OF_BLOCKS[1:]:
        (tmp_path / kind).mkdir()
        found, remarks = exported(tmp_path / kind, kind, job)
        assert list(found.values()) == [1_010]
        assert not any("the file reaches" in remark for remark in remarks)
