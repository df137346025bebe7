"""A small recording of each format that rankmem imports, made here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ascend_files import a_story, write_csvs, write_database
from made_profiles import export, memory, nvprof_profile, op, saved, step, written
from made_snapshots import dump, random_snapshot
from memscope_files import a_dump, as_csv


def _snapshot(folder: Path) -> Path:
    return dump(folder / "snapshot.pickle", random_snapshot(3, devices=2))


def _timeline(folder: Path) -> Path:
    path = folder / "made.raw.json"
    path.write_text(str([[10**18 + n * 7, 2, n, n % 8] for n in range(300)]))
    return path


def _trace(folder: Path) -> Path:
    events = [
        op("aten::mm", 0, 4),
        memory(1, 512, 10_512, 7),
        memory(2, -4096, 6416, 8),
        memory(3, 1024, 7440, 9),
        memory(5, 16, 300, 7, device=0),
        memory(6, -512, 6928, 7),
    ]
    return written(folder, events)


def _ascend(folder: Path) -> Path:
    for rank in range(2):
        place = folder / f"rank{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        place.mkdir(parents=True)
        story = a_story(rank)
        if rank:
            write_csvs(story, place)
        else:
            write_database(story, place / "ascend_pytorch_profiler_0.db")
    return folder


SMALL: Final[dict[str, Callable[[Path], Path]]] = {
    "torch-snapshot": _snapshot,
    "memory-timeline": _timeline,
    "nvprof": nvprof_profile,
    "nsys": export,
    "kineto": _trace,
    "tensorflow": lambda folder: saved(folder, step(3), "pb"),
    "mindstudio": _ascend,
    "memscope": lambda folder: as_csv(folder / "dump.csv", a_dump(100, "1"), a_dump(200, "0")),
}
"""By the format's name: writes it into an empty folder, returns what ``rankmem import`` is given."""
