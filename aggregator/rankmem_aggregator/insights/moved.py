"""Which code of a side is which of the other, where files or functions were renamed.

Stage: query; pure functions. In: on each side the names of what holds bytes. Out: :class:`Pair`, in each the
names that are one thing; every name is in one pair. Names that are on both sides are the same. Of the others
those are paired that differ in the file alone, first where the files' own names agree, then those that differ
in the function alone. Several that could be each other are in one pair: their sum is right whichever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple


class Part(NamedTuple):
    """What blocks share that one piece of code made."""

    category: str | None
    file: str | None
    function: str | None
    operator: str | None
    module: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Names of one thing on both sides; none on a side that has no such thing."""

    base: tuple[Part, ...] = ()
    head: tuple[Part, ...] = ()

    @property
    def is_moved(self) -> bool:
        """Whether it is on both sides under other names."""
        return bool(self.base and self.head) and self.base != self.head

    @property
    def is_ambiguous(self) -> bool:
        """Whether it is several things, of which nobody knows which is which."""
        return self.is_moved and len(self.base) + len(self.head) > 2

    def name(self) -> Part:
        """What they share, with the places of head, or of base where head has none."""
        own = self.head or self.base
        return own[0]._replace(file=_listed(part.file for part in own))

    def moved_from(self) -> str | None:
        """The places in base where they are others: files, and functions where these differ."""
        if not self.is_moved:
            return None
        files = {part.file for part in self.base} != {part.file for part in self.head}
        functions = {part.function for part in self.base} != {part.function for part in self.head}
        places = (
            _listed(part.file for part in self.base) if files else None,
            _listed(part.function for part in self.base) if functions else None,
        )
        return " ".join(filter(None, places)) or None


def paired(base: Iterable[Part], head: Iterable[Part]) -> list[Pair]:
    """The names of both sides, in pairs."""
    of_head = dict.fromkeys(head)
    gone = [part for part in base if part not in of_head]
    same = [part for part in base if part in of_head]
    known = set(same)
    new = [part for part in of_head if part not in known]
    pairs = [Pair(base=(part,), head=(part,)) for part in same]
    for alike, at_most in _WAYS:
        found = _alike(gone, new, alike, at_most)
        pairs += found
        gone = [part for part in gone if not any(part in pair.base for pair in found)]
        new = [part for part in new if not any(part in pair.head for pair in found)]
    return pairs + [Pair(base=(part,)) for part in gone] + [Pair(head=(part,)) for part in new]


def _alike(
    gone: list[Part], new: list[Part], alike: Callable[[Part], Hashable], at_most: int | None
) -> list[Pair]:
    groups: dict[Hashable, tuple[list[Part], list[Part]]] = {}
    for place, parts in enumerate((gone, new)):
        for part in parts:
            groups.setdefault(alike(part), ([], []))[place].append(part)
    return [
        Pair(base=tuple(own), head=tuple(other))
        for own, other in groups.values()
        if own and other and (at_most is None or max(len(own), len(other)) <= at_most)
    ]


def _file_name(file: str | None) -> str | None:
    return None if file is None else PurePosixPath(file).name


_WAYS: tuple[tuple[Callable[[Part], Hashable], int | None], ...] = (
    (lambda part: part._replace(file=_file_name(part.file)), 1),
    (lambda part: part._replace(file=None), None),
    (lambda part: part._replace(function=None), 1),
)
"""What names must have in common, and how many of a side at most; the surest first."""


def _listed(names: Iterable[str | None]) -> str | None:
    return ", ".join(dict.fromkeys(filter(None, names))) or None
