"""Snapshots of other people's jobs, imported: equal to what a walk over their trace finds, event by event.

The recordings lie outside of the project, at ../shared/recordings; without them these tests are skipped.
"""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from import_read import asked, imported
from snapshot_oracle import DeviceTruth, truth_of

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "recordings" / "torch_snapshot"
pytestmark = [
    pytest.mark.recordings,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/recordings/torch_snapshot"),
]
NAMES = sorted(path.name for path in FOLDER.glob("*")) if FOLDER.is_dir() else []


class NothingNamed(pickle.Unpickler):
    """The standard library's reader, for the oracle alone; it finds no class."""

    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError(f"{module}.{name} in a recording")


def raw_of(name: str) -> dict[str, Any]:
    with (FOLDER / name).open("rb") as file:
        raw = NothingNamed(file).load()
    assert isinstance(raw, dict)
    return raw


@pytest.mark.parametrize("name", NAMES)
def test_totals_after_every_event_and_the_blocks_at_the_end_are_the_traces_and_the_segments(
    name: str, tmp_path: Path
) -> None:
    database = tmp_path / "snapshot.duckdb"
    report = imported(database, FOLDER / name)
    assert report.failed == []
    raw = raw_of(name)
    [(number, truth)] = truth_of(raw).items()
    trace = raw["device_traces"][number]
    events = asked(
        database,
        "SELECT action, address, requested_bytes, reserved_bytes, component, stream, allocation_id "
        "FROM memory_event ORDER BY seq",
    )
    assert [event[0] for event in events] == [entry["action"] for entry in trace]
    assert [event[1] for event in events] == [entry["addr"] for entry in trace]
    assert [event[2] for event in events] == truth.totals
    assert [event[5] for event in events] == [entry["stream"] for entry in trace]
    assert truth.live == truth.listed, "the recording itself is consistent"
    if events:
        assert events[-1][3] == truth.reserved
    assert live_at_the_end(database) == truth.listed
    assert older(database) == truth.older
    peak = asked(database, "SELECT peak_requested_bytes FROM peak_by_rank")
    assert peak == [(max([*truth.totals, sum(truth.older.values())]),)]
    check_rank(database, truth)


def live_at_the_end(database: Path) -> dict[int, int]:
    rows = asked(database, "SELECT address, size_bytes FROM allocation WHERE freed_ns IS NULL")
    assert len(rows) == len({address for address, _ in rows})
    return dict(rows)


def older(database: Path) -> dict[int, int]:
    return dict(asked(database, "SELECT address, size_bytes FROM allocation WHERE preexisting"))


def check_rank(database: Path, truth: DeviceTruth) -> None:
    [(complete, unexplained, lost)] = asked(
        database, "SELECT complete, unexplained_bytes, events_lost FROM rank_info"
    )
    assert (unexplained, lost) == (0, 0)
    assert complete is (not truth.older)


@pytest.mark.parametrize("name", ["complete_small.pickle", "forward_large.pickle", "torch20_oom.pickle"])
def test_every_block_has_the_frames_of_its_alloc(name: str, tmp_path: Path) -> None:
    database = tmp_path / "snapshot.duckdb"
    imported(database, FOLDER / name)
    raw = raw_of(name)
    expected: Counter[tuple[int, tuple[tuple[str, int, str], ...]]] = Counter()
    for entry in raw["device_traces"][0]:
        if entry["action"] == "alloc":
            expected[entry["addr"], frames_of(entry["frames"])] += 1
    made = {address for address, _ in expected}
    for segment in raw["segments"]:
        where = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive" and where not in made:
                history = block.get("history") or [{}]
                expected[where, frames_of(block.get("frames") or history[0].get("frames") or [])] += 1
            where += block["size"]
    freed_within = {entry["addr"] for entry in raw["device_traces"][0] if entry["action"] == "free_completed"}
    rows = asked(
        database,
        "SELECT address, preexisting AND freed_ns IS NOT NULL, stack FROM allocation "
        "LEFT JOIN (SELECT stack_id, list({file: file_path, line: line_number, name: function} "
        "ORDER BY ordering) AS stack FROM stack_frame GROUP BY stack_id) USING (stack_id)",
    )
    found: Counter[tuple[int, tuple[tuple[str, int, str], ...]]] = Counter()
    for address, older_and_freed, stack in rows:
        frames = tuple((f["file"], f["line"], f["name"]) for f in stack or ())
        if older_and_freed:
            assert address in freed_within
            assert frames == (), "where it was made is not known"
        else:
            found[address, frames] += 1
    assert found == expected


@pytest.mark.parametrize("name", ["complete_small.pickle", "npu_empty_cache.pkl"])
def test_every_other_event_has_frames_of_its_own(name: str, tmp_path: Path) -> None:
    database = tmp_path / "snapshot.duckdb"
    imported(database, FOLDER / name)
    rows = asked(
        database,
        "SELECT action, stack FROM memory_event "
        "LEFT JOIN (SELECT stack_id, list({file: file_path, line: line_number, name: function} "
        "ORDER BY ordering) AS stack FROM stack_frame GROUP BY stack_id) USING (stack_id) ORDER BY seq",
    )
    for entry, (action, stack) in zip(raw_of(name)["device_traces"][0], rows, strict=True):
        found = tuple((f["file"], f["line"], f["name"]) for f in stack or ())
        assert found == (() if action == "alloc" else frames_of(entry["frames"]))


def frames_of(frames: list[dict[str, Any]]) -> tuple[tuple[str, int, str], ...]:
    return tuple((frame["filename"], max(frame["line"], 0), frame["name"]) for frame in frames)


def test_importing_again_stores_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "twice.duckdb"
    first = imported(database, FOLDER)
    counted = asked(database, "SELECT count(*) FROM memory_event")
    capsys.readouterr()
    second = imported(database, FOLDER)
    assert second.session_ids == first.session_ids
    assert capsys.readouterr().err.count("already imported") == len(NAMES)
    assert asked(database, "SELECT count(*) FROM memory_event") == counted
    # Recordings that began hours apart are sessions of their own.
    assert asked(database, "SELECT count(*), min(source) FROM session") == [
        (len(first.session_ids), "torch-snapshot")
    ]
    assert asked(database, "SELECT count(*) FROM rank_info") == [(len(NAMES),)]
    assert {unknown for (unknown,) in asked(database, "SELECT DISTINCT category FROM allocation")} == {
        "unknown"
    }
