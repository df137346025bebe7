"""Every answer and every export tells the same bytes as ``peak``, for recordings of every kind.

The groups, the curves, the job's peak, the page and the exports of a session are held against sums of our own
over its tables (``byte_account``). What is older than a recording, or of no group, is a group of its own, so
that they always add up. The recordings lie outside of the project, at ../shared/recordings; small files that
are made here stand in for them where they are absent.

CI reads recordings of every format, asks each of them for every third grouping, in turn, so that each
grouping is asked of several formats, and makes a page of one of each kind. ``make test-long`` does all with
all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import byte_checks
from byte_account import GROUPINGS, OLDER, Account
from import_read import imported
from made_profiles import export as nsight_export
from made_profiles import memory, op, saved, step, written
from made_snapshots import dump, random_snapshot
from rankmem_aggregator import connect
from rankmem_aggregator.query.queries import Queries
from repetitions import PROFILE

RECORDINGS = Path(__file__).resolve().parents[2].parent / "shared" / "recordings"
NAMES = (
    "kineto/h100_bert_small.json.gz",
    "torch_snapshot/complete_small.pickle",
    "torch_snapshot/npu_expandable.pkl",
    "torch_snapshot/torch20_no_history.pickle",
    "ascend/db",
    "ascend/text",
    "ascend/memscope/memscope_dump_20260527062213.db",
)
LONG = (
    "kineto/mi300_sglang_rank0.json.gz",
    "torch_snapshot/forward_fp32.pickle",
    "ascend/memscope/memscope_dump_20250428113810.csv",
    "kineto/v100_resnet50_old_format.json.gz",
    "kineto/h100_vit.json.gz",
    "kineto/mi300_bert_small.json.gz",
    "kineto/mi300_qwen.json.gz",
    "torch_snapshot/forward_large.pickle",
    "torch_snapshot/npu_empty_cache.pkl",
    "torch_snapshot/torch20_oom.pickle",
)


def trace_with_older_blocks(folder: Path) -> Path:
    """Two devices; of what is older one block is given back within the window, the rest is not."""
    events = [
        op("aten::mm", 0, 4),
        memory(1, 512, 10_512, 7),
        memory(2, -4096, 6416, 8),
        memory(3, 1024, 7440, 9),
        memory(5, 16, 300, 7, device=0),
        memory(6, -512, 6928, 7),
    ]
    return written(folder, events)


def trace_that_begins_with_frees(folder: Path) -> Path:
    """It stood highest before its first event."""
    events = [memory(1, -4096, 5000, 8), memory(2, -1000, 4000, 9), memory(3, 512, 4512, 7)]
    return written(folder, events)


def trace_that_contradicts_itself(folder: Path) -> Path:
    """A total that jumps, and a free of more than was there."""
    events = [
        memory(n, change, total, n << 20)
        for n, (change, total) in enumerate(((512, 512), (512, 9000), (-8192, 0), (64, 64)), start=1)
    ]
    return written(folder, events)


def trace_of_the_older_form(folder: Path) -> Path:
    """No addresses and no totals; blocks of one size, and older ones."""
    changes = (100, 100, -100, -400, 100, 50, -100, -100, -20, 500)
    events = [op("aten::mm", 0, 3), *(memory(n, change, 0, 0) for n, change in enumerate(changes))]
    for event in events[1:]:
        event["args"] = {name: event["args"][name] for name in ("Bytes", "Device Type", "Device Id")}
    return written(folder, events)


def snapshot(folder: Path, *, late: int) -> Path:
    return dump(folder / "snapshot.pickle", random_snapshot(7, late=late))


MADE: dict[str, Callable[[Path], Path]] = {
    "trace with older blocks": trace_with_older_blocks,
    "trace that begins with frees": trace_that_begins_with_frees,
    "trace that contradicts itself": trace_that_contradicts_itself,
    "trace of the older form": trace_of_the_older_form,
    "snapshot from the start": partial(snapshot, late=0),
    "snapshot switched on late": partial(snapshot, late=20),
    "step of TensorFlow": lambda folder: saved(folder, step(3), "pb"),
    "export of Nsight Systems": nsight_export,
}


PAGES = (
    "kineto/h100_bert_small.json.gz",
    "torch_snapshot/npu_expandable.pkl",
    "ascend/db",
    "trace that contradicts itself",
    "snapshot switched on late",
    "export of Nsight Systems",
)
"""Of these CI makes a page, for some 5 s of CPU time each."""


class Stored(NamedTuple):
    """A session that was imported once.

    Attributes:
        groupings: by which it is asked.
    """

    queries: Queries
    account: Account
    groupings: Sequence[str]


def _sources(of_ci: Collection[str]) -> list[Any]:
    """Every recording and made file, of which CI takes these."""
    absent = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs ../shared/recordings")
    marks = {
        name: [] if name in MADE else [pytest.mark.recordings, absent] for name in (*NAMES, *LONG, *MADE)
    }
    return [
        pytest.param(name, id=name, marks=own if name in of_ci else [*own, pytest.mark.long])
        for name, own in marks.items()
    ]


@pytest.fixture(scope="module", params=_sources((*NAMES, *MADE)))
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """Each file, imported once for all tests of it."""
    folder = tmp_path_factory.mktemp("same-bytes")
    source = MADE[request.param](folder) if request.param in MADE else RECORDINGS / request.param
    imported(folder / "db.duckdb", source)
    account = Account(folder / "db.duckdb")
    turn = (*NAMES, *MADE, *LONG).index(request.param) % 3
    with connect(folder / "db.duckdb") as queries:
        yield Stored(queries, account, GROUPINGS if PROFILE == "long" else GROUPINGS[turn::3])


def test_peaks_are_those_of_the_account(stored: Stored) -> None:
    assert stored.account.tracks
    byte_checks.check_peaks(stored.queries, stored.account)


def test_groups_at_the_peak_add_up_to_it(stored: Stored) -> None:
    for by in stored.groupings:
        byte_checks.check_ops(stored.queries, stored.account, by)
        byte_checks.check_peak_by(stored.queries, stored.account, by)
    byte_checks.check_live(stored.queries, stored.account)


def test_curves_of_groups_add_up_at_every_instant(stored: Stored) -> None:
    for whose in stored.account.tracks:
        for by in stored.groupings:
            byte_checks.check_timeline(stored.queries, stored.account, whose, by)
    for by in ("category", "operator"):
        byte_checks.check_job_timeline(stored.queries, stored.account, by)


def test_what_held_the_jobs_peak_adds_up_to_it(stored: Stored) -> None:
    byte_checks.check_job_peak(stored.queries, stored.account, stored.groupings)


@pytest.mark.parametrize("stored", _sources(PAGES), indirect=True)
def test_the_page_tells_the_same_bytes(stored: Stored, tmp_path: Path) -> None:
    byte_checks.check_page(stored.queries, stored.account, tmp_path)


def test_exports_tell_the_same_bytes(stored: Stored, tmp_path: Path) -> None:
    byte_checks.check_exports(stored.queries, stored.account, tmp_path)


def test_what_is_older_than_a_recording_is_a_group_of_its_own(stored: Stored) -> None:
    for whose, track in stored.account.tracks.items():
        unknown = sum(b.size_bytes for b in track.blocks if b.is_older and b.groups["operator"] == OLDER)
        if not unknown:
            continue
        rows = stored.queries.timeline(
            stored.account.session_id, by="operator", rank=whose.rank, device=whose.device, points=10**7
        ).to_pylist()
        first = next(row["bytes"] for row in rows if row["group"] == OLDER)
        assert 0 < first <= unknown
