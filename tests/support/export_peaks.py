"""The highest bytes in each kind of export, read from the file's format alone.

Stage: tests. In: an export's files; out: the highest bytes by rank and device, as a reader of the file
finds them. No code of ours but the pickle's oracle.
"""

from __future__ import annotations

import gzip
import json
import pickle
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import Final

import duckdb

from kept_answers import job_of
from snapshot_oracle import truth_of

Peaks = dict[tuple[int, str], int]
"""Bytes by rank and device."""


def of_snapshots(out: Path) -> Peaks:
    """By replaying the traces over what the segments hold at their end."""
    found: Peaks = {}
    for path in out.glob("*.pickle"):
        with path.open("rb") as file:
            raw = pickle.load(file)
        whose = raw["rankmem"]
        names = dict(one.split("=") for one in whose["devices"].split(",") if one)
        for number, truth in truth_of(raw).items():
            highest = max([sum(truth.older.values()), *truth.totals])
            found[whose["rank"], names[str(number)]] = highest
    return found


def of_timelines(out: Path) -> Peaks:
    """By adding the changes up; a file is named after its rank, and its device where there are several."""
    found: Peaks = {}
    for path in out.glob("*.raw.json.gz"):
        entries = json.loads(gzip.decompress(path.read_bytes()))
        rank, device = _named(path.name.removesuffix(".raw.json.gz"))
        found[rank, device] = max(accumulate((size for _, _, size, _ in entries), initial=0))
    return found


def of_timeline_totals(out: Path) -> Peaks:
    """By adding the categories up at each instant. Such a file says nothing of whose it is."""
    _, sizes = json.loads(out.read_text(encoding="utf-8"))
    return {(-1, ""): max((sum(row) for row in sizes), default=0)}


def of_trace(out: Path) -> Peaks:
    """From the counters' values."""
    whole = json.loads(gzip.decompress(out.read_bytes()))
    ranks = {
        event["pid"]: int(re.match(r"rank (\d+)", event["args"]["name"])[1])  # type: ignore[index]
        for event in whole["traceEvents"]
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    found: Peaks = {}
    for event in whole["traceEvents"]:
        if event["ph"] == "C" and event["name"].endswith(" requested"):
            key = ranks[event["pid"]], event["name"].removesuffix(" requested")
            found[key] = max(found.get(key, 0), *event["args"].values())
    return found


def of_mindstudio(out: Path) -> Peaks:
    """Of the records of all components together, by rank and number of the device."""
    found: Peaks = {}
    for path in out.glob("*_ascend_pt/ASCEND_PROFILER_OUTPUT/*.db"):
        rank = int(re.search(r"_(\d+)\.db$", path.name)[1])  # type: ignore[index]
        with closing(sqlite3.connect(path)) as database:
            rows = database.execute(
                "SELECT s.value, deviceId, max(totalAllocated) FROM MEMORY_RECORD AS m "
                "JOIN STRING_IDS AS s ON s.id = m.component GROUP BY 1, 2"
            ).fetchall()
        for component, device, highest in rows:
            key = rank, f"NPU:{device}"
            if component != "WORKSPACE":
                found[key] = max(found.get(key, 0), highest)
    return found


def of_parquet(out: Path) -> Peaks:
    """From the ranges in the tables."""
    if not (out / "memory_bucket").exists():  # a table without rows has no file
        return {}
    return _of_buckets(f"read_parquet('{out}/memory_bucket/**/*.parquet', hive_partitioning = false)")


def of_arrow(out: Path) -> Peaks:
    """The same."""
    from pyarrow import ipc

    with ipc.open_file(out / "memory_bucket.arrow") as file:
        rows = file.read_all().to_pylist()
    found: Peaks = {}
    for row in rows:
        key = row["rank"], row["device"]
        found[key] = max(found.get(key, 0), row["requested_peak_bytes"])
    return found


def of_csv(out: Path) -> Peaks:
    """The same."""
    return _of_buckets(f"read_csv('{out}/memory_bucket.csv')")


def of_database(out: Path) -> Peaks:
    """From the copy's own view."""
    with duckdb.connect(out, read_only=True) as connection:
        rows = connection.execute("SELECT rank, device, peak_requested_bytes FROM peak_by_rank").fetchall()
    return {(rank, device): highest for rank, device, highest in rows}


def of_page(out: Path) -> Peaks:
    """From the kept answer about the ranks; of a rank that restarted, the highest."""
    found: Peaks = {}
    for row in job_of(out):
        if row["device"] is not None:
            key = row["rank"], row["device"]
            found[key] = max(found.get(key, 0), row["peak_bytes"])
    return found


def of_skyline(out: Path) -> Peaks:
    """Of a report a rank; it names no device."""
    found: Peaks = {}
    for path in out.glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as report:
            ((highest,),) = report.execute(
                "SELECT size_bytes FROM misc_sizes WHERE key = 'peak_usage_bytes'"
            ).fetchall()
        found[_named(path.stem)[0], ""] = highest
    return found


def _of_buckets(source: str) -> Peaks:
    with duckdb.connect() as connection:
        rows = connection.execute(
            f"SELECT rank, device, max(requested_peak_bytes) FROM {source} GROUP BY ALL"
        ).fetchall()
    return {(rank, device): highest for rank, device, highest in rows}


def _named(name: str) -> tuple[int, str]:
    match = re.fullmatch(r"rank-(\d+)(?:-attempt-\d+)?(?:-([a-z]+)(?:-(\d+))?)?", name)
    assert match is not None, name
    return int(match[1]), (match[2] or "") + (f":{match[3]}" if match[3] else "")


KINDS: Final[dict[str, tuple[str, Callable[[Path], Peaks]]]] = {
    "torch-snapshot": ("snapshots", of_snapshots),
    "memory-timeline": ("timelines", of_timelines),
    "memory-timeline .json": ("timeline.json", of_timeline_totals),
    "chrome-trace": ("trace.json.gz", of_trace),
    "mindstudio": ("mindstudio", of_mindstudio),
    "skyline": ("skyline", of_skyline),
    "html": ("page.html", of_page),
    "parquet": ("parquet", of_parquet),
    "arrow": ("arrow", of_arrow),
    "csv": ("csv", of_csv),
    "duckdb": ("copy.duckdb", of_database),
}
"""Each kind of export: what OUT is named, and who reads it."""
