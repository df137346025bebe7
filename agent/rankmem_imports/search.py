"""The recordings in files, folders and patterns.

Stage: readers; the process of ``rankmem import``. In: paths as a user gives them. Out: recordings, each
with its format and its files; and the files of no format.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankmem_imports.formats import FORMATS, Format, format_of
from rankmem_imports.probing import SQLITE, Probe, probe
from rankmem_protos.errors import Code, RankmemError

FILES_MAX: Final = 100_000
"""Files looked at in one import: a profile of 10,000 ranks has some files each. More is the wrong folder."""

_NUMBER: Final = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A recording."""

    format: Format
    files: tuple[Path, ...]
    """All of its files, the one that was recognised first."""
    was_named: bool = True
    """By the user, instead of found in a folder or by a pattern."""

    @property
    def path(self) -> Path:
        """The file that it is named after."""
        return self.files[0]


@dataclass(slots=True, kw_only=True)
class Search:
    """The result of a search."""

    found: list[Found] = field(default_factory=list)
    """In the order of the paths; within a folder by name, with numbers by value."""
    unrecognised: list[Path] = field(default_factory=list)
    """Files in folders that are of no format."""
    failed: list[tuple[Path, RankmemError]] = field(default_factory=list)
    """Paths that do not exist, cannot be read, or were named and are of no format."""


def search(paths: Sequence[str]) -> Search:
    """The recordings that the paths hold: files, folders with all that is in them, or patterns (``*``)."""
    result = Search()
    probes: dict[Path, tuple[Probe, bool]] = {}
    for text in paths:
        for path, was_named in _files_of(text, result):
            if path in probes:
                continue
            if len(probes) >= FILES_MAX:
                raise RankmemError(
                    Code.EXHAUSTED, f"more than {FILES_MAX} files in {text}", "name a folder further down"
                )
            try:
                probes[path] = (probe(path), was_named)
            except RankmemError as exc:
                result.failed.append((path, exc))
    _recognise(probes, result)
    return result


def natural_key(path: Path) -> list[tuple[int, str]]:
    """Sorts names by their texts and numbers: rank2 before rank10."""
    parts = _NUMBER.split(str(path))
    return [(int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts)]


def _recognise(probes: dict[Path, tuple[Probe, bool]], result: Search) -> None:
    formats: dict[Path, Format] = {}
    for path, (probed, was_named) in probes.items():
        found = format_of(probed)
        if found is not None:
            formats[path] = found
        elif was_named:
            result.failed.append((path, _unrecognised(path, probed.head)))
        else:
            result.unrecognised.append(path)
    taken: set[Path] = set()
    by_path: dict[Path, Found] = {}
    for each in FORMATS.values():  # one after the other: the first may take files of another's
        for path in [path for path, found in formats.items() if found is each]:
            if path in taken:
                continue
            files = tuple(dict.fromkeys((path, *each.files(path))))
            taken.update(files)
            was_named = any(probes[file][1] for file in files if file in probes)
            by_path[path] = Found(format=each, files=files, was_named=was_named)
    result.found = [by_path[path] for path in formats if path in by_path]
    result.unrecognised = [path for path in result.unrecognised if path not in taken]


def _unrecognised(path: Path, head: bytes) -> RankmemError:
    """The error for a file that was named and is of no format."""
    if not head:
        what = "is empty, or a gzip file that cannot be read"
    elif head.startswith(SQLITE):
        what = "is an SQLite database that has none of the tables of a recording, or is broken"
    else:
        what = f"is of an unrecognised format (it begins with {head[:16]!r})"
    return RankmemError(Code.UNSUPPORTED, f"{path} {what}", f"formats that are read: {', '.join(FORMATS)}")


def _files_of(text: str, result: Search) -> Iterator[tuple[Path, bool]]:
    """The files of one path, and whether each was named itself."""
    path = Path(text)
    if path.is_dir():
        yield from ((file, False) for file in _walk(path))
    elif path.exists():
        yield path.absolute(), True
    elif glob.has_magic(text):
        matches = sorted((Path(match) for match in glob.glob(text, recursive=True)), key=natural_key)
        if not matches:
            result.failed.append((path, RankmemError(Code.NOT_FOUND, f"no file matches {text}")))
        for match in matches:
            if match.is_dir():
                yield from ((file, False) for file in _walk(match))
            else:
                yield match.absolute(), False
    else:
        result.failed.append((path, RankmemError(Code.NOT_FOUND, f"{text} does not exist")))


def _walk(folder: Path) -> Iterator[Path]:
    """The files below a folder, in natural order; hidden ones and links to folders are left out."""
    for where, folders, names in os.walk(folder.absolute()):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=_natural_name)
        for name in sorted((name for name in names if not name.startswith(".")), key=_natural_name):
            path = Path(where, name)
            if path.is_file():  # no pipe, no device
                yield path


def _natural_name(name: str) -> list[tuple[int, str]]:
    return natural_key(Path(name))
