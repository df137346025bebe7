"""Which arguments of the model two sessions have in common, so that what they were given can be compared.

Stage: query; pure functions over names. In: of each side the tensors that its model is given. Out:
:class:`Matched`. An argument that one side alone has (a mask), or that has another type there, changes the
bytes of a batch but not the batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

_INDEX: Final = re.compile(r"\.\d+(?=\.|$)")
"""Of an item of a list or tuple, as in ``images.3``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A tensor that the model is given."""

    dtypes: frozenset[str]
    num_dimensions: int | None
    """None where they are not always the same, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The arguments of both sides."""

    base: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    """Those that count, in pairs as far as both sides have them."""
    left_out: tuple[str, ...] = ()
    """Those of one side alone, with the side."""
    left_out_sides: frozenset[str] = frozenset()
    retyped: tuple[str, ...] = ()
    """Those that have other types in head."""
    renamed: tuple[str, ...] = ()
    """Those taken for the same under another name."""
    other_lists: tuple[str, ...] = ()
    """Items of lists or tuples that have more of them on one side, which may be a longer list or a new
    argument."""
    is_known: bool = False
    """Whether arguments are recorded on both sides."""

    @property
    def is_whole(self) -> bool:
        """Whether the bytes of a call mean the same on both sides."""
        return not (self.left_out or self.retyped)

    @property
    def is_sure(self) -> bool:
        """Whether what both sides have is known to be what there is to compare."""
        return not self.other_lists and len(self.left_out_sides) < 2


def arguments_of(rows: pa.Table, attempt: int) -> dict[str, Argument]:
    """The arguments by name, of the rows of ``input_arguments``."""
    dtypes: dict[str, set[str]] = {}
    dimensions: dict[str, set[int | None]] = {}
    for row in rows.to_pylist():
        if row["attempt"] == attempt:
            dtypes.setdefault(row["argument"], set()).add(row["dtype"] or "unknown")
            dimensions.setdefault(row["argument"], set()).add(row["num_dimensions"])
    return {
        name: Argument(
            dtypes=frozenset(own),
            num_dimensions=next(iter(dimensions[name])) if len(dimensions[name]) == 1 else None,
        )
        for name, own in dtypes.items()
    }


def matched(base: Mapping[str, Argument], head: Mapping[str, Argument]) -> Matched:
    """The arguments that count: those of one name, and those that are alike where only the names differ."""
    common = sorted(base.keys() & head.keys())
    renamed = _renamed(*({name: side[name] for name in side if name not in common} for side in (base, head)))
    one, other = [*common, *(own for own, _ in renamed)], [*common, *(own for _, own in renamed)]
    pairs = list(zip(one, other, strict=True))
    lists, left_out = [], []
    for which, side, counted, opposite in (("base", base, one, head), ("head", head, other, base)):
        series = {_INDEX.sub(".*", name) for name in opposite}
        for name in sorted(side.keys() - set(counted)):
            if _INDEX.search(name) and _INDEX.sub(".*", name) in series:
                lists.append(f"{name} of {which}")
                counted.append(name)
            else:
                left_out.append((name, which))
    return Matched(
        base=tuple(one),
        head=tuple(other),
        left_out=tuple(f"{name} of {which}" for name, which in left_out),
        left_out_sides=frozenset(which for _, which in left_out),
        retyped=tuple(_types(own, other, base, head) for own, other in pairs
                      if base[own].dtypes != head[other].dtypes),
        renamed=tuple(f"{own} -> {other}" for own, other in renamed),
        other_lists=tuple(lists),
        is_known=bool(base) and bool(head),
    )  # fmt: skip


def _renamed(base: dict[str, Argument], head: dict[str, Argument]) -> list[tuple[str, str]]:
    """Pairs of the arguments of a type and number of dimensions, of which both sides have as many.

    Which of several is which does not matter: they are added up.
    """
    found = []
    for kind in dict.fromkeys(each for each in base.values() if each.num_dimensions is not None):
        own, other = ([name for name, each in side.items() if each == kind] for side in (base, head))
        if len(own) == len(other):
            found += list(zip(sorted(own), sorted(other), strict=True))
    return found


def _types(own: str, other: str, base: Mapping[str, Argument], head: Mapping[str, Argument]) -> str:
    before, now = (", ".join(sorted(each)) for each in (base[own].dtypes, head[other].dtypes))
    return f"{other} ({before} in base, {now} in head)"
