"""The files of an export: one for each rank in a folder, or the highest rank's alone; as text, plain or gzip.

Stage: export. In: the name that the user gave, under which nothing is whole yet; out: paths and open files.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.log import Track, highest


def output_files(
    selection: Selection,
    out: Path,
    tracks: Mapping[str, list[Track]],
    suffix: str,
    holds: str,
    result: ExportResult,
) -> Iterator[tuple[list[Track], Path]]:
    """The tracks of each file, with its path.

    Args:
        selection: takes the progress.
        out: a file or a folder.
        tracks: those of a file, by its name without suffix.
        suffix: of the files in a folder.
        holds: ``a pickle holds one rank``, for the remark where others are left out.
        result: takes the remark.
    """
    if out.is_dir():
        for label, of_file in tracks.items():
            selection.progress(f"writing {label}")
            yield of_file, out / f"{label}{suffix}"
        return
    track = highest(track for of_file in tracks.values() for track in of_file)
    of_file = next(of_file for of_file in tracks.values() if track in of_file)
    if len(tracks) > 1:
        devices = ", ".join(each.device for each in of_file)
        result.remarks.append(f"{holds}: {devices} of rank {track.rank}, the highest; a folder takes all")
    selection.progress(f"writing {track.label()}")
    yield of_file, out


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """A new text file, gzip where its name ends in ``.gz``.

    Level 3 takes a third of level 9's time; the file is a tenth larger. Without name and time: the same bytes
    twice.
    """
    if not path.name.lower().endswith(".gz"):
        with path.open("w", encoding="utf-8") as plain:
            yield plain
        return
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", 3, file, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as text,
    ):
        yield text
