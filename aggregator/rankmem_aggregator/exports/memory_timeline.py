"""``rankmem export memory-timeline``: bytes by category over time, as ``torch.profiler`` exports them.

Stage: export. In: the selection; out: for one device of a rank ``X.raw.json.gz`` (each change), ``X.json``
or ``X.json.gz`` (totals at each µs), or ``X.html`` (a picture); a folder gets a ``.raw.json.gz`` for each
device. Layouts of ``export_memory_timeline`` in torch 2.13, for a whole recording where the profiler has a
window. Two things differ: a block counts until its free is requested; and a version is incremented where its
category changes, not at every write in place.

Source: torch/profiler/_memory_profiler.py (2.13), MemoryProfileTimeline.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import pyarrow as pa

from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.file_peaks import FilePeak, RunningBytes, check_file_peaks
from rankmem_aggregator.exports.log import Log, Track, tracks
from rankmem_aggregator.exports.output_files import open_text, output_files
from rankmem_protos.categories import TIMELINE_INDEX
from rankmem_protos.errors import Code, RankmemError

PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY = 1, 2, 3, 4
"""torch's ``_ACTION_TO_INDEX``."""
_BLOCKS_ALONE: Final = "such a file consists of blocks, each until its free is requested"
_MICROSECONDS: Final = f"{_BLOCKS_ALONE}, added up at each microsecond"
_ENDS: Final = (".raw.json.gz", "raw.json.gz", ".json.gz", ".json", ".html")


class Change(NamedTuple):
    """One entry of a raw file."""

    time_ns: int
    """Since 1970; -1 for blocks from before the recording."""
    action: int
    bytes: int
    """Signed."""
    category: int
    """Index of the category."""


def write_memory_timeline(selection: Selection, out: Path) -> ExportResult:
    """Writes one file, or a folder with one for each device."""
    result = ExportResult()
    found = tracks(selection, include_idle=True)
    files = output_files(
        selection,
        out,
        {_label(track, found): [track] for track in found},
        ".raw.json.gz",
        "such a file holds one device",
        result,
    )
    file_peaks = [_write(selection, track, path, result) for (track,), path in files]
    is_raw = out.is_dir() or out.name.lower().endswith("raw.json.gz")
    check_file_peaks("memory-timeline", file_peaks, result, _BLOCKS_ALONE if is_raw else _MICROSECONDS)
    return result


def changes(selection: Selection, track: Track) -> Iterator[Change]:
    """The entries in torch's order: preexisting blocks, then by time."""
    log = Log(selection, track)
    for batch in log.timeline_before():
        for size_bytes, category in _columns(batch, "size_bytes", "category"):
            yield Change(-1, PREEXISTING, size_bytes, index_of(category))
    names = ("time_ns", "action", "size_bytes", "category", "category_before")
    time_ns = track.first_ns
    for batch in log.timeline():
        for row_ns, action, size_bytes, category, before in _columns(batch, *names):
            # Older databases have no time for an older block whose component shows up only later.
            time_ns = time_ns if row_ns is None else row_ns
            if action == INCREMENT_VERSION:
                if index_of(before) == index_of(category):
                    continue
                yield Change(time_ns, action, -size_bytes, index_of(before))
            sign = -1 if action == DESTROY else 1
            yield Change(time_ns, action, sign * size_bytes, index_of(category))


def index_of(category: str) -> int:
    """The category's index in torch's files; one that torch lacks (``kv_cache``) is unknown there."""
    return TIMELINE_INDEX.get(category, TIMELINE_INDEX["unknown"])


def coalesced(entries: Iterator[Change]) -> Iterator[tuple[int, list[int]]]:
    """Each µs with its totals, as torch adds them up: a leading 0, then one for each category."""
    time_us: int | None = None
    totals = [0] * (len(TIMELINE_INDEX) + 1)
    for entry in entries:
        # A division of doubles, as in torch: some instants come out 1 µs later than truncated.
        now = -1 if entry.time_ns == -1 else int(entry.time_ns / 1000)
        if time_us is not None and now != time_us:
            yield time_us, totals
        time_us = now
        totals[entry.category + 1] += entry.bytes
    if time_us is not None:
        yield time_us, totals


def _label(track: Track, found: list[Track]) -> str:
    several = len({other.device for other in found if other.label() == track.label()}) > 1
    return track.label() + (f"-{track.device.replace(':', '-')}" if several else "")


def _write(selection: Selection, track: Track, path: Path, result: ExportResult) -> FilePeak:
    name = path.name.lower()
    if not name.endswith(_ENDS):
        raise RankmemError(
            Code.INVALID, f"{path.name} does not name a format", f"use a name that ends in {', '.join(_ENDS)}"
        )
    running = RunningBytes()
    totals = _followed_totals(coalesced(changes(selection, track)), running)
    if name.endswith(".html"):
        from rankmem_aggregator.exports.memory_timeline_picture import page

        path.write_text(page(track, totals, selection.missing), encoding="utf-8")
        result.counts["picture"] = 1
        return FilePeak(track, running.highest)
    with open_text(path) as file:
        if name.endswith("raw.json.gz"):
            count = _write_raw(_followed(changes(selection, track), running), file)
        else:
            count = _write_totals(totals, file, path.parent)
    what = "changes" if name.endswith("raw.json.gz") else "instants"
    result.add(what, count)
    return FilePeak(track, running.highest)


def _followed(entries: Iterator[Change], running: RunningBytes) -> Iterator[Change]:
    for entry in entries:
        running.add(entry.bytes)
        yield entry


def _followed_totals(
    rows: Iterator[tuple[int, list[int]]], running: RunningBytes
) -> Iterator[tuple[int, list[int]]]:
    before = 0
    for time_us, totals in rows:
        running.add(sum(totals) - before)
        before = sum(totals)
        yield time_us, totals


def _write_raw(entries: Iterator[Change], file: IO[str]) -> int:
    count = 0
    for count, entry in enumerate(entries, start=1):
        file.write(("[" if count == 1 else ", ") + json.dumps(entry))
    file.write("]" if count else "[]")
    return count


def _write_totals(rows: Iterator[tuple[int, list[int]]], file: IO[str], folder: Path) -> int:
    """Writes times, then totals: those are held in a temporary file."""
    count, first_us = 0, -1
    waiting = False
    with tempfile.TemporaryFile("w+", dir=folder, encoding="utf-8") as totals:
        file.write("[[")
        for count, (time_us, row) in enumerate(rows, start=1):
            totals.write(("" if count == 1 else ", ") + json.dumps(row))
            if time_us == -1:
                waiting = True  # preexisting blocks count at the first instant, which comes next
                continue
            if waiting:
                file.write(f"{time_us}, ")
                waiting = False
            elif first_us != -1:
                file.write(", ")
            file.write(str(time_us))
            first_us = time_us
        if waiting:
            file.write("-1")
        file.write("], [")
        totals.seek(0)
        shutil.copyfileobj(totals, file)
        file.write("]]")
    return count


def _columns(batch: pa.RecordBatch, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(batch[name].to_pylist() for name in names), strict=True)
