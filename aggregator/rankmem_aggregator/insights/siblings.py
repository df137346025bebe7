"""Paths of modules that differ in numbers alone, in few words: ``layers.*.gate``, ``layers.6 to layers.11``.

Stage: query; pure functions. In: rows of paths of one or both sides, and what is within each module of these.
Out: a text for each path of each row. ``*`` stands for all numbers that are there: a part of them is a range.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Final, NamedTuple

Children = Mapping[str, Sequence[str]]
"""By path the modules directly within."""

RANGE_LEAST: Final = 3
"""Numbers in a row that are told by the first and the last."""
DIGITS_MAX: Final = 19
"""Of a number: Python refuses thousands."""
_ALL: Final = "*"


class Place(NamedTuple):
    """A path, and the modules of its side."""

    path: str
    children: Children


class _Run(NamedTuple):
    """Numbers in a row."""

    first: str
    last: str


_Number = str | _Run
"""One number, all that are there, or some in a row."""


class _Form(NamedTuple):
    """What rows have in common that differ in numbers alone, and their numbers."""

    paths: tuple[tuple[str | None, ...], ...]
    """Names, None for a number."""
    numbers: tuple[_Number, ...]


def together(rows: Sequence[Sequence[Place]]) -> list[tuple[str, ...]]:
    """By row its paths, for all rows that are told together the same texts."""
    forms = [_form([place.path for place in row]) for row in rows]
    for at in range(max((len(form.numbers) for form in forms), default=0)):
        forms = _joined(rows, forms, at)
    return [tuple(_text(names, form.numbers) for names in form.paths) for form in forms]


def _form(paths: Sequence[str]) -> _Form:
    parts = [path.split(".") for path in paths]
    numbers = {tuple(part for part in own if _is_number(part)) for own in parts}
    if len(numbers) > 1:  # the numbers of one are not those of another: each row stands for itself
        return _Form(tuple(map(tuple, parts)), ())
    (own_numbers,) = numbers
    names = tuple(tuple(None if _is_number(part) else part for part in own) for own in parts)
    return _Form(names, own_numbers)


def _joined(rows: Sequence[Sequence[Place]], forms: Sequence[_Form], from_last: int) -> list[_Form]:
    """Rows that differ in one number alone, the last but so many, have one form."""
    groups: dict[Hashable, dict[str, list[int]]] = {}
    for row, form in enumerate(forms):
        at = len(form.numbers) - 1 - from_last
        if at >= 0:
            key = form.paths, form.numbers[:at], form.numbers[at + 1 :]
            groups.setdefault(key, {}).setdefault(str(form.numbers[at]), []).append(row)
    found = list(forms)
    for members in groups.values():
        first = next(iter(members.values()))[0]
        at = len(forms[first].numbers) - 1 - from_last
        for number, told in _told(members, rows[first], forms[first], at).items():
            for row in members[number]:
                numbers = forms[row].numbers
                found[row] = forms[row]._replace(numbers=(*numbers[:at], told, *numbers[at + 1 :]))
    return found


def _told(numbers: Collection[str], row: Sequence[Place], form: _Form, at: int) -> Mapping[str, _Number]:
    """By number how it is told: with all that there are, with those in a row, or alone."""
    if len(numbers) > 1 and all(_siblings(place, at) == set(numbers) for place in row):
        return dict.fromkeys(numbers, _ALL)
    if any(isinstance(each, _Run) for each in form.numbers):
        return {}  # a second one would leave open which numbers go together
    found: dict[str, _Number] = {}
    ordered = sorted(numbers, key=int)
    for _, own in itertools.groupby(enumerate(ordered), key=lambda each: int(each[1]) - each[0]):
        run = [number for _, number in own]
        if len(run) >= RANGE_LEAST:
            found |= dict.fromkeys(run, _Run(run[0], run[-1]))
    return found


def _siblings(place: Place, at: int) -> set[str]:
    """The numbers that are there where the path has one."""
    parts = place.path.split(".")
    places = [where for where, part in enumerate(parts) if _is_number(part)]
    around = ".".join(parts[: places[at]])
    members = (each.rpartition(".")[2] for each in place.children.get(around, ()))
    return {each for each in members if _is_number(each)}


def _text(names: Sequence[str | None], numbers: Sequence[_Number]) -> str:
    ends = [[each[end] if isinstance(each, _Run) else each for each in numbers] for end in (0, -1)]
    texts = []
    for own in ends:
        left = iter(own)
        texts.append(".".join(next(left) if name is None else name for name in names))
    return " to ".join(dict.fromkeys(texts))


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < DIGITS_MAX and str(int(part)) == part
