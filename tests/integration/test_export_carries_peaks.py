"""Every export of every recording is read back: it has the peaks of the answers, or has said which not.

The recordings lie outside of the project, at ../shared/recordings; without them these tests are skipped.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from export_peaks import KINDS, Peaks
from import_read import imported
from kept_answers import job_of
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import RankmemError
from repetitions import some_of

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "recordings"
QUICK = (
    "ascend/db",
    "ascend/memscope/memscope_dump_20250428113810.csv",
    "ascend/memscope/memscope_dump_20260527062213.db",
    "kineto/h100_bert_small.json.gz",
    "kineto/v100_resnet50_old_format.json.gz",
    "nsys/mmagic.sqlite",
    "torch_snapshot/complete_small.pickle",
    "torch_snapshot/torch20_no_history.pickle",
)
"""One of each form."""
LARGE = (
    "ascend/text",
    "kineto/h100_vit.json.gz",
    "kineto/mi300_bert_small.json.gz",
    "kineto/mi300_qwen.json.gz",
    "kineto/mi300_sglang_rank0.json.gz",
    "nvprof/lstm_pyprof.sql",
    "torch_snapshot/forward_fp32.pickle",
    "torch_snapshot/forward_large.pickle",
    "torch_snapshot/npu_empty_cache.pkl",
    "torch_snapshot/npu_expandable.pkl",
    "torch_snapshot/torch20_oom.pickle",
)
"""The others."""
REFUSED = ("kineto/no_rank.json.gz", "kineto/two_ranks_no_memory", "nvprof/lstm_pyprof.dict", "README.md")
"""What no import takes: traces without a memory event, and what stands beside the recordings."""
OF_TABLES = ("parquet", "arrow", "csv", "duckdb")
WHOLE = (*OF_TABLES, "html", "chrome-trace")
"""Kinds that hold the recording's totals: they carry every peak."""
OF_ROUNDED_BLOCKS = "mindstudio"
"""It holds the allocator's own totals, which count whole blocks."""

pytestmark = [
    pytest.mark.recordings,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/recordings"),
]


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Queries]]:
    """Each recording, imported when it is first asked for and open until the file's last test."""
    folder = tmp_path_factory.mktemp("databases")
    with contextlib.ExitStack() as stack:

        @functools.cache
        def opened(recording: str) -> Queries:
            path = folder / f"{recording.replace('/', '_')}.duckdb"
            imported(path, FOLDER / recording)
            return stack.enter_context(connect(path))

        yield opened


def told_by(queries: Queries, session: str | None = None) -> tuple[Peaks, Peaks]:
    """The peaks as ``rankmem peak`` answers them: requested, and the allocator's where it tells them."""
    rows = queries.peak(session).to_pylist()
    requested = {(row["rank"], row["device"]): row["peak_requested_bytes"] for row in rows}
    allocated = {(row["rank"], row["device"]): row["peak_allocated_bytes"] for row in rows}
    return requested, {key: told or requested[key] for key, told in allocated.items()}


def placed(found: Peaks, told: Peaks) -> dict[tuple[int, str], tuple[int, str]]:
    """By device of the recording where the file has it: it may not say the rank, or the device."""
    places = {}
    for rank, device in told:
        same_rank = [key for key in told if key[0] == rank]
        if (rank, device) in found:
            places[rank, device] = (rank, device)
        elif device == max(same_rank, key=lambda key: told[key])[1] and (rank, "") in found:
            places[rank, device] = (rank, "")
        elif (rank, device) == max(told, key=lambda key: told[key]) and (-1, "") in found:
            places[rank, device] = (-1, "")
        elif (number := f"NPU:{device.partition(':')[2]}") and (rank, number) in found:
            places[rank, device] = (rank, number)
    # Host memory beside an accelerator has a number of its own.
    for rank, device in told:
        free = [key for key in found if key[0] == rank and key not in places.values()]
        if device == "cpu" and (rank, device) not in places and len(free) == 1:
            places[rank, device] = free[0]
    return places


def is_said(remarks: list[str], rank: int, device: str, reached: int, peak: int) -> bool:
    """Whether a remark says whose peak is not reached, and both figures."""
    figures = f"reaches {reached:,} bytes, the recording {peak:,} bytes"
    return any(remark.startswith(f"rank {rank}, {device}:") and figures in remark for remark in remarks)


def is_left_out(kind: str, remarks: list[str], rank: int, device: str) -> bool:
    """Whether it is said that the file holds other devices."""
    said = any("takes all" in remark or remark.startswith(f"rank {rank}, {device}:") for remark in remarks)
    return said or kind == "skyline"


def check(queries: Queries, kind: str, out: Path) -> None:
    """The one pair."""
    requested, allocated = told_by(queries)
    try:
        remarks = export(queries, kind.split()[0], out).remarks
    except RankmemError as error:
        assert not out.exists()
        check_refusal(kind, requested, error)
        return
    found = KINDS[kind][1](out)
    places = placed(found, requested)
    for (rank, device), peak in requested.items():
        where = places.get((rank, device))
        if where is None:
            assert kind not in WHOLE
            assert is_left_out(kind, remarks, rank, device)
            continue
        expected = max(allocated[rank, device], peak) if kind == OF_ROUNDED_BLOCKS else peak
        if found[where] != expected:
            assert kind not in WHOLE
            assert is_said(remarks, rank, device, found[where], peak), remarks
    assert set(places.values()) == set(found)


def check_refusal(kind: str, requested: Peaks, error: RankmemError) -> None:
    """Nothing could be written: it is said of whom, and what holds it."""
    if not requested:
        assert kind not in OF_TABLES
        assert "has no memory events" in error.message
        return
    assert kind not in WHOLE
    (rank, device), peak = max(requested.items(), key=lambda item: item[1])
    what = f"a {kind.split()[0]} of rank {rank}, {device} would hold none of its {peak:,} bytes"
    assert what in error.message or "pinned host memory alone" in error.message
    assert error.hint.startswith("the exports ")


Opened = Callable[[str], Queries]


@pytest.mark.parametrize(
    ("recording", "kind"),
    [
        pytest.param(recording, kind, marks=pytest.mark.long if kind == "html" and each % 4 else [])
        for each, recording in enumerate(some_of(QUICK, 4))
        for kind in KINDS
    ],
)
def test_an_export_has_the_peaks_or_has_said_what_it_lacks(
    recording: str, kind: str, databases: Opened, tmp_path: Path
) -> None:
    check(databases(recording), kind, tmp_path / KINDS[kind][0])


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recording", LARGE)
def test_an_export_of_another_recording_has_them_too(
    recording: str, kind: str, databases: Opened, tmp_path: Path
) -> None:
    check(databases(recording), kind, tmp_path / KINDS[kind][0])


@pytest.mark.parametrize("kind", ["torch-snapshot", "memory-timeline", "memory-timeline .json", "mindstudio"])
@pytest.mark.parametrize(
    "recording", ["kineto/h100_bert_small.json.gz", "torch_snapshot/complete_small.pickle"]
)
def test_what_is_imported_again_has_the_peaks_that_the_file_has(
    recording: str, kind: str, databases: Opened, tmp_path: Path
) -> None:
    name, read = KINDS[kind]
    export(databases(recording), kind.split()[0], tmp_path / name)
    imported(tmp_path / "again.duckdb", tmp_path / name)
    again: list[int] = []  # a file of each device is a session of its own
    with connect(tmp_path / "again.duckdb") as queries:
        for row in queries.sessions().to_pylist():
            _, told = told_by(queries, row["session_id"])
            again += told.values()
    assert sorted(again) == sorted(read(tmp_path / name).values())


def test_the_page_of_a_recording_has_its_devices_peaks(databases: Opened, tmp_path: Path) -> None:
    export(databases("kineto/h100_bert_small.json.gz"), "html", tmp_path / "page.html")
    peaks = {row["device_type"]: row["peak_bytes"] for row in job_of(tmp_path / "page.html")}
    assert peaks == {"cuda": 101_305_344, "cpu": 16}


def test_every_recording_has_its_pairs() -> None:
    known = (*QUICK, *LARGE, *REFUSED)
    files = [path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()]
    assert [name for name in files if not name.startswith(known)] == []
    assert [name for name in known if not (FOLDER / name).exists()] == []


@pytest.mark.parametrize("recording", REFUSED[:2])
def test_a_recording_without_memory_is_refused_before_any_export(recording: str, tmp_path: Path) -> None:
    try:
        report = imported(tmp_path / "none.duckdb", FOLDER / recording)
    except RankmemError as error:  # of a folder nothing was found
        assert "no recording in" in error.message  # noqa: PT017
        return
    assert report.failed
    assert all("none of memory" in error.message for _, error in report.failed)
