"""Which modules of a side are those of the other under another name, or elsewhere in the module tree.

Stage: query; pure functions. In: :class:`Tree` of each side, whose classes have the names of head. Out:
:class:`Moved`. A module that one side alone has is another one of the other side, in the same module, if
their classes are the same, or the classes of what they hold where they are only lists; if their own
parameters have the same shapes; if functions and operators of what made blocks in them are the same, or more
on one side, or half of all at least; and if no other module could be it. So is a module in the same place of
two known classes that differ. Where a class is on one side only, all parameters have to agree, and half of
the code is too little. What lies elsewhere in the tree is the same if all of this is, down to the last
module, and both sides have all classes. Of several that could be each other none is taken; without shapes
nothing is.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from rankmem_aggregator.insights.module_tree import SEQUENTIAL, Code, Tree
from rankmem_aggregator.insights.siblings import Children, Place, together

SHARED_LEAST: Final = 0.5
"""Of all code of two modules that have the same class, place and parameters: both have at least this."""
WITHOUT_CLASS: Final = "(told without a class)"
"""Of a module whose class is on one side only."""
NAMES_MAX: Final = 6
"""Of modules that could be each other, on a side, in a text."""
CODE_LEAST: Final = 2
"""Functions and operators shared by modules whose classes one side lacks: one operator is no proof."""


class Unclear(NamedTuple):
    """Modules that could be each other."""

    base: tuple[str, ...]
    head: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Modules of base that head has elsewhere."""

    paths: Mapping[str, str] = field(default_factory=dict)
    """By the path in base that in head; for what is in it, too, unless it is named itself."""
    unclear: Sequence[Unclear] = ()
    gone: Sequence[str] = ()
    """Modules of base that are none of head, the outermost."""
    new: Sequence[str] = ()
    without_class: frozenset[str] = frozenset()
    """Of :attr:`paths` those that were told without a class that both sides have."""
    children: tuple[Children, Children] = field(default=({}, {}), compare=False, repr=False)
    """Of base and head."""

    @cached_property
    def told(self) -> Mapping[str, tuple[str, str]]:
        """Of :attr:`paths` by that in base the texts of both: of siblings one."""
        found: dict[str, tuple[str, str]] = {}
        for is_without in (False, True):
            own = [path for path in self.paths if (path in self.without_class) == is_without]
            rows = [self._row([path], [self.paths[path]]) for path in own]
            found |= {path: (now[0], now[1]) for path, now in zip(own, together(rows), strict=True)}
        return found

    @cached_property
    def unclear_told(self) -> Sequence[tuple[str, str]]:
        """The texts of each of :attr:`unclear`."""
        rows = [self._row(each.base[:NAMES_MAX], each.head[:NAMES_MAX]) for each in self.unclear]
        found = []
        for each, texts in zip(self.unclear, together(rows), strict=True):
            middle = min(len(each.base), NAMES_MAX)
            own, other = texts[:middle], texts[middle:]
            found.append((_some(own, len(each.base)), _some(other, len(each.head))))
        return found

    def alone_told(self) -> tuple[list[str], list[str]]:
        """The texts of :attr:`gone` and of :attr:`new`."""
        gone = together([self._row([path], []) for path in self.gone])
        new = together([self._row([], [path]) for path in self.new])
        return list(dict.fromkeys(text for (text,) in gone)), list(dict.fromkeys(text for (text,) in new))

    def _row(self, base: Iterable[str], head: Iterable[str]) -> list[Place]:
        own, other = self.children
        return [*(Place(path, own) for path in base), *(Place(path, other) for path in head)]

    @cached_property
    def unclear_of_base(self) -> Mapping[str, int]:
        """By a path of base the place in :attr:`unclear` of its group."""
        return {path: place for place, each in enumerate(self.unclear) for path in each.base}

    @cached_property
    def unclear_of_head(self) -> Mapping[str, int]:
        """By a path of head the place in :attr:`unclear` of its group."""
        return {path: place for place, each in enumerate(self.unclear) for path in each.head}


def moved(base: Tree, head: Tree, names: Mapping[str, str]) -> Moved:
    """The modules of base that head has elsewhere.

    Args:
        names: by a path of base that in head, where only classes have other names.
    """
    finder = _Finder(base, head, names)
    finder.match()
    finder.match_elsewhere()
    sides = ((finder.gone, finder.paths.keys()), (finder.new, set(finder.paths.values())))
    gone, new = (tuple(each for each in alone if each not in known) for alone, known in sides)
    return Moved(
        paths=finder.paths,
        unclear=tuple(finder.unclear),
        gone=gone,
        new=new,
        without_class=frozenset(finder.without_class),
        children=(base.children, head.children),
    )


class _Finder:
    """Goes down both trees."""

    def __init__(self, base: Tree, head: Tree, names: Mapping[str, str]) -> None:
        self.base, self.head, self.names = base, head, names
        self.paths: dict[str, str] = {}
        self.unclear: list[Unclear] = []
        self.without_class: set[str] = set()
        self.gone: list[str] = []
        self.new: list[str] = []
        self._left: deque[tuple[str, str]] = deque()

    def match(self) -> None:
        """Finds what is in each module of base in that of head, from the roots down."""
        self._left.append(("", ""))
        while self._left:
            self._match_in(*self._left.popleft())

    def _match_in(self, one: str, other: str) -> None:
        here = dict.fromkeys(self.head.children.get(other, ()))
        gone = []
        for child in self.base.children.get(one, ()):
            name = self.names.get(child, child).rpartition(".")[2]
            same = f"{other}.{name}" if other else name
            if same in here and not self._are_others(child, same):
                del here[same]
                self._left.append((child, same))
            else:
                gone.append(child)
        sides = _alike(self.base, gone), _alike(self.head, here)
        places = [{each: place for place, each in enumerate(side)} for side in (gone, here)]
        taken: set[str] = set()
        # Without any shapes a Linear may be any other.
        if not (self.base.shapes and self.head.shapes):
            sides = {}, {}
        for own, now in _that_may_be_each_other(*sides):
            taken.update(own, now)
            if len(own) == len(now) == 1:
                self.paths[own[0]] = now[0]
                if not _have_classes(self.base.kinds(own[0]), self.head.kinds(now[0])):
                    self.without_class.add(own[0])
                self._left.append((own[0], now[0]))
            else:
                inorder = zip((own, now), places, strict=True)
                self.unclear.append(
                    Unclear(*(tuple(sorted(side, key=at.__getitem__)) for side, at in inorder))
                )
        self.gone += [child for child in gone if child not in taken]
        self.new += [each for each in here if each not in taken]

    def match_elsewhere(self) -> None:
        """Finds what was put into another module, or taken out of one, and is otherwise the same."""
        sides = []
        known: dict[Hashable, int] = {}
        for tree, tops in ((self.base, self.gone), (self.head, self.new)):
            found: dict[tuple[int, Code], list[str]] = {}
            whole = tree.whole(known) if tops else {}
            for path in (each for top in tops for each in tree.within(top)):
                if path in tree.distinct:
                    found.setdefault((whole[path], tree.code_within[path]), []).append(path)
            sides.append(found)
        own, other = sides
        alike = [(own[key], other[key]) for key in own if key in other]
        pairs = [(one[0], now[0]) for one, now in alike if len(one) == len(now) == 1]
        elsewhere = dict(pairs)
        for one, now in sorted(pairs):
            if not any(around in elsewhere for around in _around(one)):
                self.paths[one] = now

    def _are_others(self, one: str, other: str) -> bool:
        """Whether modules of one name are of classes that both sides have, and other ones."""
        kinds = self.base.kinds(one), self.head.kinds(other)
        return all(kinds[0] | kinds[1]) and not kinds[0] & kinds[1]


class _Look(NamedTuple):
    """What modules that are alike have in common."""

    is_list: bool
    own_shapes: tuple[tuple[str, str], ...]
    kinds: frozenset[str]
    code: Code
    shapes: frozenset[tuple[str, str]]
    """Of all parameters in it, where its own class may not tell what it is."""

    @classmethod
    def of(cls, tree: Tree, path: str) -> _Look:
        """What one module has."""
        is_list, kinds = tree.is_list(path), frozenset(tree.kinds(path))
        return cls(
            is_list=is_list,
            own_shapes=tuple(tree.own_shapes.get(path, ())),
            kinds=kinds,
            code=tree.code_within[path],
            shapes=tree.shapes_within(path) if is_list or "" in kinds else frozenset(),
        )

    def may_be(self, other: _Look) -> bool:
        """Whether modules that look like this may be those of the other side; of the same shapes."""
        if not holds(self.kinds, other.kinds):
            return False
        shared, all_code = self.code & other.code, self.code | other.code
        if not _have_classes(self.kinds, other.kinds):
            alike = holds(self.shapes, other.shapes) if self.is_list else self.shapes == other.shapes
            return bool(self.shapes) and alike and holds(self.code, other.code) and len(shared) >= CODE_LEAST
        return not all_code or holds(self.code, other.code) or len(shared) >= SHARED_LEAST * len(all_code)


def _have_classes(one: Collection[str], other: Collection[str]) -> bool:
    """Whether classes tell what modules are: both sides have all of them, and some are more than lists."""
    own, others = set(one), set(other)
    return "" not in own | others and bool((own & others) - {SEQUENTIAL})


def _alike(tree: Tree, paths: Iterable[str]) -> dict[_Look, list[str]]:
    found: dict[_Look, list[str]] = {}
    for path in paths:
        found.setdefault(_Look.of(tree, path), []).append(path)
    return found


def _that_may_be_each_other(
    base: Mapping[_Look, list[str]], head: Mapping[_Look, list[str]]
) -> Iterator[tuple[list[str], list[str]]]:
    """Modules of both sides, of which each may be one of the others and none may be one of another group."""
    # Modules that share no code are others, if they have any.
    sharing: dict[Hashable, dict[_Look, None]] = {}
    for look in head:
        for made in look.code or [None]:
            sharing.setdefault((*look[:2], made), {})[look] = None
    linked: dict[tuple[int, _Look], list[tuple[int, _Look]]] = {}
    for one in base:
        alike = [sharing.get((*one[:2], made), {}) for made in one.code or [None]]
        for other in dict.fromkeys(itertools.chain.from_iterable(alike)):
            if one.may_be(other):
                linked.setdefault((0, one), []).append((1, other))
                linked.setdefault((1, other), []).append((0, one))
    done: set[tuple[int, _Look]] = set()
    for start in linked:
        group: tuple[list[str], list[str]] = [], []
        left = [start]
        while left:
            each = left.pop()
            if each not in done:
                done.add(each)
                group[each[0]].extend((base, head)[each[0]][each[1]])
                left += linked[each]
        if group[0]:
            yield group


def _around(path: str) -> Iterator[str]:
    """The paths of the modules that one is in, the innermost first."""
    while path := path.rpartition(".")[0]:
        yield path


def place_in(module: str | None, places: Collection[str]) -> str | None:
    """Which of some modules this one is, or is in; the innermost."""
    if not module or not places:
        return None
    return next((each for each in (module, *_around(module)) if each in places), None)


def _some(texts: Sequence[str], count: int) -> str:
    more = count - len(texts)
    return ", ".join(texts) + (f" and {more:,} more" if more > 0 else "")


def holds(one: Collection[Any], other: Collection[Any]) -> bool:
    """Whether both have something, and one of them all that the other has."""
    own, others = set(one), set(other)
    return bool(own & others) and (own <= others or others <= own)
