"""Which code of a side is which of the other, where files, functions or classes were renamed.

Stage: query; pure functions. In: on each side the names of what holds bytes, and which classes of modules
were renamed (:mod:`renamed_classes`). Out: :class:`Pair`, in each the names that are one thing; every name
is in one pair. Names that are on both sides are the same, those of renamed classes by their names in head.
Of the others those are paired that differ in the file alone, first where the files' own names agree, then
those that differ in the function alone, then methods of one name in one module of which both differ.
Several that could be each other are in one pair: their sum is right whichever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from rankmem_aggregator.insights.renamed_classes import Made, Renamed
from rankmem_aggregator.insights.renamed_modules import WITHOUT_CLASS, Moved, place_in

NOT_RENAMED: Final = Renamed()
_Key = Callable[["Part"], Hashable]


class Part(NamedTuple):
    """What blocks share that one piece of code made."""

    category: str | None
    file: str | None
    function: str | None
    operator: str | None
    module: str | None

    def made(self) -> Made:
        """What made the blocks."""
        return Made(self.function, self.operator, self.module)

    def called(self, renamed: Renamed) -> Part:
        """The names of base as head has them, where classes of modules were renamed."""
        return self._replace(function=renamed.function(self.function), module=renamed.module(self.module))


class Move(NamedTuple):
    """A name in base, and what it is called in head."""

    before: str
    now: str
    is_unclear: bool
    """Several, of which nobody knows which is which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Names of one thing on both sides; none on a side that has no such thing."""

    base: tuple[Part, ...] = ()
    head: tuple[Part, ...] = ()
    renamed: Renamed = NOT_RENAMED

    @property
    def is_moved(self) -> bool:
        """Whether it is on both sides under other names."""
        return bool(self.base and self.head) and self.base != self.head

    @property
    def is_ambiguous(self) -> bool:
        """Whether it is several things, of which nobody knows which is which."""
        return self.is_moved and (len(self.base) + len(self.head) > 2 or bool(self._unclear()))

    def _unclear(self) -> list[int]:
        """The groups of modules that could be each other and that it is in."""
        known = self.renamed.moved.unclear_of_base
        places = dict.fromkeys(place_in(part.module, known) for part in self.base)
        return list(dict.fromkeys(known[each] for each in places if each is not None))

    def name(self) -> Part:
        """What they share, with the places of head, or of base where head has none."""
        own = self.head or self.base
        listed = (_listed(getattr(part, name) for part in own) for name in ("file", "module"))
        return own[0]._replace(**dict(zip(("file", "module"), listed, strict=True)))

    def moved_from(self) -> str | None:
        """The places in base where they are others: files and functions; modules where these are the same."""
        if not self.is_moved:
            return None
        found = [_listed(before) for before, _ in self._differ(self.base, ("file", "function"))]
        found = found or [_listed(before) for before, _ in self._differ(self.base, ("module",))]
        return " ".join(filter(None, found)) or None

    def moves(self) -> list[Move]:
        """Classes and modules that head calls otherwise, the file or function where that is more."""
        if not self.is_moved:
            return []
        classes = [
            Move(f"class {each}", self.renamed.classes[each], is_unclear=False)
            for part in self.base
            for each in self.renamed.used_by(part.made())
        ]
        modules = [
            _of_siblings(each, self.renamed.moved)
            for each in (self.renamed.moved_place(part.module) for part in self.base)
            if each is not None
        ]
        told = [self.renamed.moved.unclear_told[each] for each in self._unclear()]
        groups = [Move(f"module {before}", now, is_unclear=True) for before, now in told]
        is_unclear = len(self.base) + len(self.head) > 2
        places = self._differ([part.called(self.renamed) for part in self.base], ("file", "function"))
        return [
            *dict.fromkeys([*classes, *modules, *groups]),
            *(
                Move(_listed(before) or "unknown", _listed(now) or "unknown", is_unclear=is_unclear)
                for before, now in places
            ),
        ]

    def _differ(self, base: Sequence[Part], names: Sequence[str]) -> list[tuple[list[str], list[str]]]:
        """The names of these kinds that are others in head, before and now."""
        both = [[[getattr(part, name) for part in side] for side in (base, self.head)] for name in names]
        return [(before, now) for before, now in both if set(before) != set(now)]


def paired(base: Iterable[Part], head: Iterable[Part], renamed: Renamed = NOT_RENAMED) -> list[Pair]:
    """The names of both sides, in pairs.

    Args:
        renamed: the classes of modules that head calls otherwise.
    """
    names = dict.fromkeys(head)
    called = {part: part.called(renamed) for part in base}
    gone = [part for part in called if called[part] not in names]
    same = [part for part in called if called[part] in names]
    known = {called[part] for part in same}
    new = [part for part in names if part not in known]
    pairs = [Pair(base=(part,), head=(called[part],), renamed=renamed) for part in same]
    for of_base, of_head, at_most in _ways(called, renamed):
        sides = {part: of_base(part) for part in gone}, {part: of_head(part) for part in new}
        found = _alike(*sides, at_most)
        in_base = {part for own, _ in found for part in own}
        in_head = {part for _, other in found for part in other}
        gone = [part for part in gone if part not in in_base]
        new = [part for part in new if part not in in_head]
        pairs += [Pair(base=own, head=other, renamed=renamed) for own, other in found]
    return pairs + [Pair(base=(part,)) for part in gone] + [Pair(head=(part,)) for part in new]


def _ways(called: Mapping[Part, Part], renamed: Renamed) -> Iterator[tuple[_Key, _Key, int | None]]:
    """What parts of base and head must have in common, and how many of a side at most; the surest first."""
    for alike, at_most in _WAYS:
        yield partial(_of_called, alike, called), alike, at_most
    yield partial(_in_group_of_base, renamed), partial(_in_group_of_head, renamed), None


def _of_called(alike: _Key, called: Mapping[Part, Part], part: Part) -> Hashable:
    return alike(called[part])


def _alike(
    gone: Mapping[Part, Hashable], new: Mapping[Part, Hashable], at_most: int | None
) -> list[tuple[tuple[Part, ...], tuple[Part, ...]]]:
    groups: dict[Hashable, tuple[list[Part], list[Part]]] = {}
    for place, parts in enumerate((gone, new)):
        for part, key in parts.items():
            if key is not None:
                groups.setdefault(key, ([], []))[place].append(part)
    return [
        (tuple(own), tuple(other))
        for own, other in groups.values()
        if own and other and (at_most is None or max(len(own), len(other)) <= at_most)
    ]


def _of_siblings(base: str, moved: Moved) -> Move:
    """Paths of a module on both sides, with those of its siblings."""
    before, now = moved.told[base]
    without = f" {WITHOUT_CLASS}" if base in moved.without_class else ""
    return Move(f"module {before}", f"{now}{without}", is_unclear=False)


def _in_group_of_base(renamed: Renamed, part: Part) -> Hashable:
    """What a part of base shares with those whose modules could be its own; None if there are none."""
    groups = renamed.moved.unclear_of_base
    place = place_in(part.module, groups)
    if place is None or part.module is None:
        return None
    return groups[place], part.called(renamed)._replace(module=".".join(renamed.rest(part.module, place)))


def _in_group_of_head(renamed: Renamed, part: Part) -> Hashable:
    """The same of a part of head."""
    groups = renamed.moved.unclear_of_head
    place = place_in(part.module, groups)
    if place is None or part.module is None:
        return None
    rest = part.module.split(".")[place.count(".") + 1 :]
    return groups[place], part._replace(module=".".join(rest))


def _file_name(file: str | None) -> str | None:
    return None if file is None else PurePosixPath(file).name


def _own_name(part: Part) -> str | None:
    """Of a method its name without that of its class."""
    return None if part.function is None else part.function.rpartition(".")[2]


_WAYS: tuple[tuple[_Key, int | None], ...] = (
    (lambda part: part._replace(file=_file_name(part.file)), 1),
    (lambda part: part._replace(file=None), None),
    (lambda part: part._replace(function=None), 1),
    (lambda part: part._replace(file=None, function=_own_name(part)) if part.module else part, 1),
)
"""What names must have in common, and how many of a side at most; the surest first."""


def _listed(names: Iterable[str | None]) -> str | None:
    return ", ".join(dict.fromkeys(filter(None, names))) or None
