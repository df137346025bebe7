"""The rank in a recording's path, and groups of paths that differ only in it.

Stage: import, before anything is read to its end; the process of ``rankmem import``. In: paths. Out: the
rank that a path names (``rank3.pickle``, ``worker_2/trace.json``), and groups of paths that differ in it.
Words that name a device (``gpu0.pickle``) count only where several paths differ in that number: alone it
may as well be how many there were. A number without a word is ignored: ``1.pickle`` may be a step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

RANK_WORDS: Final = ("rank", "worker")
DEVICE_WORDS: Final = ("gpu", "npu", "cuda", "device")

_PLACE: Final = "\0"
"""Stands for the rank in a pattern: no path holds it."""
_NUMBER: Final = re.compile(r"\d+")

T = TypeVar("T")


def _pattern(words: Sequence[str]) -> re.Pattern[str]:
    """A word as such or behind another one's end (``local_rank``), and the number behind it."""
    return re.compile(
        rf"(?:(?<![a-z])|(?<=local)|(?<=global))(?:{'|'.join(words)})[-_.= ]?(\d{{1,6}})(?!\d)", re.I
    )


_RANK: Final = _pattern(RANK_WORDS)
_DEVICE: Final = _pattern(DEVICE_WORDS)


def named_rank(path: Path) -> int | None:
    """The rank in a path, after a word for it; the last one, which is nearest to the file."""
    match = _last(_RANK, str(path))
    return None if match is None else int(match[1])


def named_device(path: Path) -> int | None:
    """The number of a device in a path."""
    match = _last(_DEVICE, str(path))
    return None if match is None else int(match[1])


def buckets(items: Sequence[T], path_of: Callable[[T], Path]) -> list[tuple[str, list[T]]]:
    """Items whose paths are the same but for the rank, with the pattern that they share; others are left out.

    Where no rank is there twice, other numbers of the file's name may differ, too: process ids, times. A rank
    may stand in folders as well as in the name (``rank0/rank0.json``): looked at for what is left.
    """
    found: list[tuple[str, list[T]]] = []
    rest = list(items)
    for everywhere in (False, True):
        alone: list[T] = []
        for key, bucket in _by_key(rest, path_of, everywhere=everywhere):
            if len(bucket) > 1:
                found.append((key.replace(_PLACE, "N"), bucket))
            else:
                alone += bucket
        rest = alone
    return found


def _by_key(
    items: Sequence[T], path_of: Callable[[T], Path], *, everywhere: bool
) -> list[tuple[str, list[T]]]:
    loose: dict[str, list[T]] = {}
    for item in items:
        if (key := _key(path_of(item), is_loose=True, everywhere=everywhere)) is not None:
            loose.setdefault(key, []).append(item)
    found: dict[str, list[T]] = {}
    for bucket in loose.values():
        ranks = [_number(path_of(item)) for item in bucket]
        is_once = len(set(ranks)) == len(ranks)
        for item in bucket:
            key = _key(path_of(bucket[0] if is_once else item), is_loose=False, everywhere=everywhere)
            assert key is not None  # its loose form is there
            found.setdefault(key, []).append(item)
    return list(found.items())


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    match = None
    for match in pattern.finditer(text):  # noqa: B007  the last one
        pass
    return match


def _number(path: Path) -> int | None:
    rank = named_rank(path)
    return named_device(path) if rank is None else rank


def _key(path: Path, *, is_loose: bool, everywhere: bool) -> str | None:
    """The path with a mark in the place of its rank, or wherever the same word and number stand; None for a
    path that names no rank. Loose: without the other numbers of the file's name."""
    text = str(path)
    match = _last(_RANK, text) or _last(_DEVICE, text)
    if match is None:
        return None
    if everywhere:
        word = re.escape(match[0][: match.start(1) - match.start()])
        text = re.sub(rf"(?i)({word})0*{int(match[1])}(?!\d)", rf"\1{_PLACE}", text)
    else:
        text = text[: match.start(1)] + _PLACE + text[match.end(1) :]
    if is_loose:
        folder, slash, name = text.rpartition("/")
        text = folder + slash + _NUMBER.sub("#", name)
    return text
