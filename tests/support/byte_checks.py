"""Checks that every answer about a session agrees with its account.

Stage: tests. In: the queries of a database and its :class:`~byte_account.Account`; each check raises
AssertionError with what differs. What a recording lacks (a rank's samples, a step) is in no sum.
"""

from __future__ import annotations

import gzip
import json
import pickle
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.feather as feather

from byte_account import NONE, Account, Track, Whose, highest
from kept_answers import answers_of, job_of
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.page.reading import facts_of
from rankmem_aggregator.query.queries import Queries

EVERY_POINT: Final = 10**7
BESIDE: Final = ("app", "pinned_host")
"""Told beside the groups of a device, in no sum; unless its own blocks are of that component."""
TABLE_ROWS: Final = 200
Groups = dict[str, int]


def check_peaks(queries: Queries, account: Account) -> None:
    """``peak``: each rank's own."""
    told = {
        Whose(row["attempt"], row["rank"], row["device"]): row["peak_requested_bytes"]
        for row in queries.peak(account.session_id).to_pylist()
    }
    assert told == {whose: track.peak_bytes() for whose, track in account.tracks.items()}


def check_ops(queries: Queries, account: Account, by: str) -> None:
    """``ops``: the groups of a type of device add up to its ranks' peaks, and each is the account's."""
    told: dict[str, Groups] = defaultdict(dict)
    for row in queries.ops(account.session_id, by=by).to_pylist():  # type: ignore[arg-type]
        told[row["device_type"]][_name(row[by])] = row["live_bytes_at_peak"]
    peaks: Groups = defaultdict(int)
    for whose, track in account.highest().items():
        peaks[whose.device_type] += track.peak_bytes()
    assert {kind: sum(groups.values()) for kind, groups in told.items()} == _present(peaks, told)
    expected: dict[str, Groups] = defaultdict(lambda: defaultdict(int))
    for whose, seq in _peak_seqs(queries, account).items():
        for group, held in account.tracks[whose].groups_after(seq, by).items():
            expected[whose.device_type][group] += held
    assert {kind: _told(groups) for kind, groups in told.items()} == _present(expected, told)


def check_peak_by(queries: Queries, account: Account, by: str) -> None:
    """``peak --by``: what each group held at the rank's peak adds up to it; its own peak is the account's."""
    at_peak: dict[Whose, Groups] = defaultdict(dict)
    own: dict[Whose, Groups] = defaultdict(dict)
    beside = {whose: _beside(track) for whose, track in account.tracks.items()}
    for row in queries.peak_by(account.session_id, by=by).to_pylist():  # type: ignore[arg-type]
        whose, group = Whose(row["attempt"], row["rank"], row["device"]), _name(row["group_name"])
        if whose not in beside or group in beside[whose] or row.get("is_sampled"):
            continue
        at_peak[whose][group], own[whose][group] = row["bytes_at_rank_peak"], row["peak_bytes"]
    for whose, track in account.highest().items():
        assert sum(at_peak[whose].values()) == track.peak_bytes(), whose
        assert _told(own[whose]) == _told(track.group_peaks(by)), whose


def check_timeline(queries: Queries, account: Account, whose: Whose, by: str) -> None:
    """``timeline --by``: at every instant the curves of the groups add up to what the device held."""
    track = account.tracks[whose]
    beside = _beside(track)
    rows = queries.timeline(
        account.session_id,
        by=by,  # type: ignore[arg-type]
        rank=whose.rank,
        attempt=whose.attempt,
        device=whose.device,
        points=EVERY_POINT,
    )
    for time_ns, groups in _instants(rows):
        held = sum(held for group, held in groups.items() if group not in beside)
        assert held == track.held_at(time_ns), (whose, by, time_ns, groups)


def check_job_timeline(queries: Queries, account: Account, by: str) -> None:
    """``timeline --all-ranks --by``: the highest sum of the groups is the job's peak."""
    for device_type, peak in account.job_peaks().items():
        rows = queries.timeline(
            account.session_id,
            by=by,
            rank="all",
            device=device_type,
            points=EVERY_POINT,  # type: ignore[arg-type]
        )
        sums = [sum(groups.values()) for _, groups in _instants(rows)]
        assert max(sums) <= peak, (by, device_type)
        if _has_one_track(account, device_type):
            held = {time_ns: sum(groups.values()) for time_ns, groups in _instants(rows)}
            [track] = [track for whose, track in account.tracks.items() if whose.device_type == device_type]
            assert all(track.held_at(at) == bytes_ for at, bytes_ in list(held.items())[:-1]), (
                by,
                device_type,
            )


def check_job_peak(queries: Queries, account: Account, groupings: Iterable[str]) -> None:
    """``job-peak``: the shares, and what held them by each grouping, add up to the job's peak."""
    peaks = account.job_peaks()
    shares = queries.job_peak(account.session_id)
    told: Groups = defaultdict(int)
    for row in shares.to_pylist():
        told[row["device_type"]] += row["requested_bytes"]
        assert row["job_peak_bytes"] == peaks[row["device_type"]]
    assert _told(told) == _told(peaks)
    for by in groupings:
        held: Groups = defaultdict(int)
        for row in queries.job_peak_held(account.session_id, by=by, shares=shares).to_pylist():  # type: ignore[arg-type]
            held[row["device_type"]] += row["live_bytes"]
        assert _told(held) == _told(peaks), by


def check_live(queries: Queries, account: Account) -> None:
    """``live`` and ``modules``: the blocks alive at each peak add up to it, and so does the tree."""
    peaks: Groups = defaultdict(int)
    for whose, track in account.highest().items():
        rows = queries.live(whose.rank, account.session_id, attempt=whose.attempt, device=whose.device)
        assert sum(row["size_bytes"] for row in rows.to_pylist()) == track.peak_bytes(), whose
        peaks[whose.device_type] += track.peak_bytes()
    tree: Groups = defaultdict(int)
    for row in queries.modules(account.session_id).to_pylist():
        tree[row["device_type"]] += row["own_bytes"]
    assert _told(tree) == _told(peaks)


def check_page(queries: Queries, account: Account, folder: Path) -> None:
    """``export html``: the devices' peaks are those of the account, and the kept curve reaches its own."""
    export(queries, "html", folder / "page.html", session=account.session_id)
    peaks = [track.peak_bytes() for track in account.highest().values()]
    rows = [row for row in job_of(folder / "page.html") if row["is_rank_peak"]]
    assert sorted(row["peak_bytes"] for row in rows) == sorted(peaks)
    (curve,) = answers_of(folder / "page.html", "curve")
    facts = facts_of(curve)
    (own,) = (row for row in rows if (row["rank"], row["device"]) == (facts["rank"], facts["device"]))
    assert own["peak_bytes"] in {value for row in curve.to_pylist() for value in row.values()}


def check_exports(queries: Queries, account: Account, folder: Path) -> None:
    """Every export that has curves or blocks reaches the same bytes."""
    _check_snapshot(queries, account, folder / "snapshots")
    _check_memory_timeline(queries, account, folder / "timelines")
    _check_trace(queries, account, folder / "trace.json.gz")
    _check_tables(queries, account, folder / "tables")


def _check_snapshot(queries: Queries, account: Account, out: Path) -> None:
    out.mkdir()
    out.rmdir()
    remarks = " ".join(export(queries, "torch-snapshot", out, session=account.session_id).remarks)
    left_out = {
        (int(rank), device): int(size)
        for device, rank, size in re.findall(
            r"blocks of (\S+) of rank (\d+) \((\d+) bytes\) lie within", remarks
        )
    }
    found: dict[Whose, int] = {}
    for path in out.glob("*.pickle"):
        snapshot: dict[str, Any] = pickle.loads(path.read_bytes())  # written just now
        said = snapshot["rankmem"]
        for number, device in (pair.split("=") for pair in said["devices"].split(",")):
            whose = Whose(said["attempt"], said["rank"], device)
            beyond = left_out.get((whose.rank, whose.device), 0)
            found[whose] = _peak_of_snapshot(snapshot, int(number), beyond)
    assert found == {whose: track.peak_bytes() for whose, track in account.tracks.items()}


def _peak_of_snapshot(snapshot: dict[str, Any], number: int, beyond: int) -> int:
    """Backwards from what the segments hold at the end, as viewers do; with what they left out, as said."""
    held = beyond + sum(
        block["requested_size"]
        for segment in snapshot["segments"]
        if segment["device"] == number
        for block in segment["blocks"]
        if block["state"] != "inactive"
    )
    peak = held
    for event in reversed(snapshot["device_traces"][number]):
        held += {"alloc": -event["size"], "free_completed": event["size"]}.get(event["action"], 0)
        peak = max(peak, held)
    return peak


def _check_memory_timeline(queries: Queries, account: Account, out: Path) -> None:
    export(queries, "memory-timeline", out, session=account.session_id)
    files = {path.name.removesuffix(".raw.json.gz"): path for path in out.glob("*.raw.json.gz")}
    for whose, track in account.tracks.items():
        label = f"rank-{whose.rank}" + (f"-attempt-{whose.attempt}" if whose.attempt else "")
        path = files.get(f"{label}-{whose.device.replace(':', '-')}") or files[label]
        entries = json.loads(gzip.decompress(path.read_bytes()))
        assert highest(change for _, _, change, _ in entries) == track.peak_until_requested(), whose


def _check_trace(queries: Queries, account: Account, out: Path) -> None:
    export(queries, "chrome-trace", out, session=account.session_id)
    rows = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    ranks = sorted({(whose.rank, whose.attempt) for whose in account.tracks})
    counters: dict[tuple[int, str], int] = defaultdict(int)
    lives: dict[tuple[int, str], Groups] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        if row["ph"] == "C":
            key = row["pid"], row["name"]
            counters[key] = max(counters[key], row["args"]["bytes"])
        elif row["ph"] == "b" and row["cat"] == "block":
            device = row["id"].split(".", 1)[1].rpartition(".")[0]
            lives[row["pid"], device][row["name"]] += row["args"].get("bytes", 0)
    for whose, track in account.tracks.items():
        pid = ranks.index((whose.rank, whose.attempt)) + 1
        told = track.peak_bytes()
        assert counters[pid, f"{whose.device} requested"] == told, whose
        blocks: Groups = defaultdict(int)
        for block in track.blocks:
            name = block.groups["operator"]
            blocks["no operator" if name == NONE else name] += block.size_bytes
        assert _told(lives[pid, whose.device]) == _told(blocks), whose


def _check_tables(queries: Queries, account: Account, out: Path) -> None:
    export(queries, "arrow", out, session=account.session_id)
    events, blocks = (
        feather.read_table(out / f"{name}.arrow") for name in ("memory_event", "allocation_record")
    )
    sums: dict[Whose, int] = defaultdict(int)
    for row in blocks.select(["attempt", "rank", "device", "size_bytes"]).to_pylist():
        sums[Whose(row["attempt"], row["rank"], row["device"])] += row["size_bytes"]
    for whose, track in account.tracks.items():
        assert sums[whose] == sum(block.size_bytes for block in track.blocks), whose
    assert events.num_rows >= sum(len(track.events) for track in account.tracks.values())


def mindstudio_peak(queries: Queries, account: Account, out: Path) -> int:
    """The highest total in the MindStudio folders of a session of one device."""
    export(queries, "mindstudio", out, session=account.session_id)
    best = 0
    for path in out.glob("*/ASCEND_PROFILER_OUTPUT/*.db"):
        with sqlite3.connect(path) as database:
            [(most,)] = database.execute("SELECT max(totalAllocated) FROM MEMORY_RECORD").fetchall()
        database.close()
        best = max(best, most or 0)
    return best


def _beside(track: Track) -> set[str]:
    return set(BESIDE) - {block.groups["component"] for block in track.blocks}


def _peak_seqs(queries: Queries, account: Account) -> dict[Whose, int]:
    """The position at which each rank's device stood highest first; before its first event if it did then."""
    found = {}
    for whose, track in account.highest().items():
        peak = track.peak_bytes()
        first = next((seq for seq, _, held in track.events if held == peak), -1)
        found[whose] = -1 if track.older_bytes() == peak else first
    return found


def _instants(rows: pa.Table) -> list[tuple[int, Groups]]:
    """What each curve says at each instant, which holds until the next."""
    points: dict[int, Groups] = defaultdict(dict)
    for row in rows.to_pylist():
        points[row["time_ns"]][row["group"]] = row["bytes"]
    held: Groups = {}
    found = []
    for time_ns in sorted(points):
        held = held | points[time_ns]
        found.append((time_ns, held))
    return found


def _has_one_track(account: Account, device_type: str) -> bool:
    return sum(whose.device_type == device_type for whose in account.tracks) == 1


def _told(groups: Groups) -> Groups:
    """Without those that hold nothing: an answer may leave them out or not."""
    return {group: held for group, held in groups.items() if held}


def _present(expected: Any, told: Any) -> Any:
    """The expectation for the types of device that are told; a type that holds nothing may be left out."""
    kinds = set(told) | {
        kind
        for kind, held in expected.items()
        if held and (held if isinstance(held, int) else sum(held.values()))
    }
    return {
        kind: (_told(expected[kind]) if isinstance(expected[kind], dict) else expected[kind])
        for kind in kinds
    }


def _name(group: object) -> str:
    return NONE if group is None else str(group)
