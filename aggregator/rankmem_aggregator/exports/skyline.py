"""``rankmem export skyline``: weights and activations of a training step, as in Skyline's memory report.

Stage: export. In: the selection; out: for each rank an SQLite file with Skyline's six tables (version 1 of
its format): the parameters with their gradients' sizes, the activations of one step, each with its stack
inside the project's root, and the step's peak. Skyline reports GPU memory alone; for a job on CPU this is the
CPU's. The step is the one with the highest peak, or the whole selected range where no step is known.

Source: the schema in Skyline's documentation of its memory report.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.file_peaks import FilePeak, check_file_peaks
from rankmem_aggregator.exports.log import Frame, Log, Stacks, Track, highest, rows_of, tracks
from rankmem_aggregator.exports.output_files import output_files
from rankmem_aggregator.sql import export_text

WEIGHT: Final = 1
ACTIVATION: Final = 2
"""Of entry_types."""


def write_skyline(selection: Selection, out: Path) -> ExportResult:
    """Writes one report, or a folder with one for each rank."""
    result = ExportResult()
    ranks = {label: [highest(of_rank)] for label, of_rank in groupby(tracks(selection), key=Track.label)}
    holds = "a report holds one rank"
    for (track,), path in output_files(selection, out, ranks, ".sqlite", holds, result):
        _write_report(selection, track, path, result)
    return result


def _write_report(selection: Selection, track: Track, path: Path, result: ExportResult) -> None:
    step, peak_bytes = _step_of(selection, track, result)
    check_file_peaks("skyline", [FilePeak(track, peak_bytes)], result, "a report holds one step")
    with closing(sqlite3.connect(path)) as report:
        report.executescript(export_text("skyline_tables"))
        weights = selection.rows("weights", **track.whose())
        activations = list(_activations(selection, track, step))
        stacks = Stacks(selection)
        stacks.load(row["stack_id"] for row in (*weights, *activations))
        entries = _Entries(report, stacks)
        for weight in weights:
            entries.weight(weight)
        for activation in activations:
            entries.activation(activation)
        report.execute(
            "INSERT INTO misc_sizes (key, size_bytes) VALUES ('peak_usage_bytes', ?)", [peak_bytes]
        )
        report.commit()
    for what, count in entries.counts.items():
        result.add(what, count)
        if not count:
            result.remarks.append(f"no {what} of rank {track.rank} were recorded")


def _step_of(selection: Selection, track: Track, result: ExportResult) -> tuple[int | None, int]:
    """The step with the highest peak, and that peak; None and the track's peak where no step ended there."""
    steps = selection.rows("step_peaks", **track.values())
    if not steps:
        result.remarks.append(f"rank {track.rank} has no training step in the range: all of it counts as one")
        return None, track.peak_bytes or 0
    best = max(steps, key=lambda row: (row["peak_bytes"], -row["step"]))
    result.remarks.append(f"rank {track.rank}: step {best['step']}, the highest of {len(steps)}")
    return best["step"], best["peak_bytes"]


def _activations(selection: Selection, track: Track, step: int | None) -> Iterator[dict[str, Any]]:
    for block in rows_of(Log(selection, track).blocks()):
        if block["category"] == "activation" and (step is None or block["step"] == step):
            yield block


class _Entries:
    """Writes the rows of a report."""

    def __init__(self, report: sqlite3.Connection, stacks: Stacks) -> None:
        self._report = report
        self._stacks = stacks
        self.counts = {"weights": 0, "activations": 0}

    def weight(self, row: dict[str, Any]) -> None:
        """Writes a parameter, a row of ``weights.sql``."""
        values = (row["name"], row["size_bytes"], row["grad_size_bytes"])
        cursor = self._report.execute(
            "INSERT INTO weight_entries (name, size_bytes, grad_size_bytes) VALUES (?, ?, ?)", values
        )
        self._stack(WEIGHT, cursor.lastrowid, row["stack_id"])
        self.counts["weights"] += 1

    def activation(self, row: dict[str, Any]) -> None:
        """Writes a block, a row of ``blocks.sql``."""
        values = (row["operator"] or "unknown", row["size_bytes"])
        cursor = self._report.execute(
            "INSERT INTO activation_entries (operation_name, size_bytes) VALUES (?, ?)", values
        )
        self._stack(ACTIVATION, cursor.lastrowid, row["stack_id"])
        self.counts["activations"] += 1

    def _stack(self, entry_type: int, entry_id: int | None, stack_id: int | None) -> None:
        cursor = self._report.execute(
            "INSERT INTO stack_correlation (entry_id, entry_type) VALUES (?, ?)", (entry_id, entry_type)
        )
        frames = [frame for frame in self._stacks.of(stack_id) if _is_within_root(frame)]
        rows = [
            (cursor.lastrowid, ordering, frame.file_path, max(frame.line_number, 1))
            for ordering, frame in enumerate(frames)
        ]
        self._report.executemany(
            "INSERT INTO stack_frames (correlation_id, ordering, file_path, line_number) VALUES (?, ?, ?, ?)",
            rows,
        )


def _is_within_root(frame: Frame) -> bool:
    """Whether it is the project's and its path is relative to the root, as the format requires."""
    path = frame.file_path
    return frame.in_project and not path.startswith(("/", "<")) and path[1:2] != ":"
