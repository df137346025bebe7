"""Which modules of a side are those of the other under another name, or elsewhere in the module tree.

Stage: query; pure functions. In: :class:`Tree` of each side, whose classes have the names of head. Out:
:class:`Moved`. A module that one side alone has is another one of the other side, in the same module, if
their classes are the same, or the classes of what they hold where they are only lists; if their own
parameters have the same shapes; if functions and operators of what made blocks in them are the same, or more
on one side, or half of all at least; and if no other module could be it. So is a module in the same place of
two known classes that differ. What lies elsewhere in the tree is the same if all of this is, down to the last
module. Of several that could be each other none is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

Code = frozenset[tuple[str, str]]
"""Function and operator of what made blocks."""


SEQUENTIAL: Final = "Sequential"
"""A class that is a list of modules, and runs them."""


SHARED_LEAST: Final = 0.5
"""Of all code of two modules that have the same class, place and parameters: both have at least this."""


class Unclear(NamedTuple):
    """Modules that could be each other."""

    base: tuple[str, ...]
    head: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Modules of base that head has elsewhere."""

    paths: Mapping[str, str] = field(default_factory=dict)
    """By the path in base that in head; for what is in it, too, unless it is named itself."""
    unclear: Sequence[Unclear] = ()
    gone: Sequence[str] = ()
    """Modules of base that are none of head, the outermost."""
    new: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The modules of a side; the root, which has no path, and lists that do not run have no class."""

    classes: Mapping[str, str]
    """By path; "" is a class that the other side does not have."""
    shapes: Mapping[str, str]
    """By a parameter's name."""
    code: Mapping[str, Code]
    """By path what made blocks in just this module."""

    @cached_property
    def children(self) -> Mapping[str, list[str]]:
        """By path the modules directly within, in order."""
        found: dict[str, dict[str, None]] = {}
        for path in self.classes:
            each = path
            # A path without a name in it is in no tree. What is around a known module is known as well.
            while each and all(path.split(".")):
                around = each.rpartition(".")[0]
                members = found.setdefault(around, {})
                if each in members:
                    break
                members[each] = None
                each = around
        return {path: list(members) for path, members in found.items()}

    @cached_property
    def own_shapes(self) -> Mapping[str, list[tuple[str, str]]]:
        """By path the names and shapes of its own parameters."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name, shape in sorted(self.shapes.items()):
            path, _, own = name.rpartition(".")
            found.setdefault(path, []).append((own, shape))
        return found

    def within(self, path: str) -> Iterator[str]:
        """A module and all in it, each before what it holds."""
        left = [path]
        while left:
            each = left.pop()
            yield each
            left += reversed(self.children.get(each, ()))

    def code_within(self, path: str) -> Code:
        """What made blocks in a module or in what it holds."""
        return frozenset().union(*(self.code.get(each, frozenset()) for each in self.within(path)))

    def is_list(self, path: str) -> bool:
        """Whether a module is but a list of others."""
        return self.classes.get(path, SEQUENTIAL) == SEQUENTIAL

    def kinds(self, path: str) -> set[str]:
        """The class of a module; of a list those of its members."""
        members = self.children.get(path, ()) if self.is_list(path) else [path]
        return {self.classes.get(each, SEQUENTIAL) for each in members}

    def whole(self, known: dict[Hashable, int]) -> dict[str, int]:
        """By path a number for all that is known of a module but its name and code: the same for the same.

        Args:
            known: the numbers so far, of this tree and others.
        """
        found: dict[str, int] = {}
        for path in reversed(list(self.within(""))):
            members = tuple(
                (each.rpartition(".")[2], found[each]) for each in self.children.get(path, ())
            )
            key = (self.classes.get(path), tuple(self.own_shapes.get(path, ())), members)
            found[path] = known.setdefault(key, len(known))
        return found


def moved(base: Tree, head: Tree, names: Mapping[str, str]) -> Moved:
    """The modules of base that head has elsewhere.

    Args:
        names: by a path of base that in head, where only classes have other names.
    """
    finder = _Finder(base, head, names)
    finder.match()
    finder.match_elsewhere()
    sides = ((finder.gone, finder.paths.keys()), (finder.new, finder.paths.values()))
    gone, new = (tuple(each for each in alone if each not in known) for alone, known in sides)
    return Moved(paths=finder.paths, unclear=tuple(finder.unclear), gone=gone, new=new)


class _Finder:
    """Goes down both trees."""

    def __init__(self, base: Tree, head: Tree, names: Mapping[str, str]) -> None:
        self.base, self.head, self.names = base, head, names
        self.paths: dict[str, str] = {}
        self.unclear: list[Unclear] = []
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
        possible = {child: [each for each in here if self._may_be(child, each)] for child in gone}
        claimed = {each: [child for child in gone if each in possible[child]] for each in here}
        for child in gone:
            if len(possible[child]) == 1 and len(claimed[possible[child][0]]) == 1:
                self.paths[child] = possible[child][0]
                self._left.append((child, possible[child][0]))
            elif not possible[child]:
                self.gone.append(child)
        self.new += [each for each in here if not claimed[each]]
        groups = {
            Unclear(tuple(claimed[possible[child][0]]), tuple(possible[child]))
            for child in gone
            if len(possible[child]) > 1 or (possible[child] and len(claimed[possible[child][0]]) > 1)
        }
        self.unclear += sorted(groups)

    def match_elsewhere(self) -> None:
        """Finds what was put into another module, or taken out of one, and is otherwise the same."""
        sides = []
        known: dict[Hashable, int] = {}
        for tree, tops in ((self.base, self.gone), (self.head, self.new)):
            found: dict[tuple[int, Code], list[str]] = {}
            whole = tree.whole(known) if tops else {}
            for path in (each for top in tops for each in tree.within(top)):
                found.setdefault((whole[path], tree.code_within(path)), []).append(path)
            sides.append(found)
        own, other = sides
        alike = [(own[key], other[key], key[1]) for key in own if key in other]
        pairs = [(one[0], now[0]) for one, now, code in alike if len(one) == len(now) == 1 and code]
        for one, now in sorted(pairs):
            around = [each for each, _ in pairs if one.startswith(f"{each}.")]
            if not around:
                self.paths[one] = now

    def _are_others(self, one: str, other: str) -> bool:
        """Whether modules of one name are of classes that both sides have, and other ones."""
        kinds = self.base.kinds(one), self.head.kinds(other)
        return all(kinds[0] | kinds[1]) and not kinds[0] & kinds[1]

    def _may_be(self, one: str, other: str) -> bool:
        kinds = self.base.kinds(one), self.head.kinds(other)
        if self.base.is_list(one) != self.head.is_list(other) or not holds(*kinds):
            return False
        if self.base.own_shapes.get(one, []) != self.head.own_shapes.get(other, []):
            return False
        code = self.base.code_within(one), self.head.code_within(other)
        shared, all_code = code[0] & code[1], code[0] | code[1]
        return not all_code or holds(*code) or len(shared) >= SHARED_LEAST * len(all_code)


def without_numbers(path: str) -> str:
    """A module's path, for all siblings that differ in a number."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def holds(one: Collection[Any], other: Collection[Any]) -> bool:
    """Whether both have something, and one of them all that the other has."""
    own, others = set(one), set(other)
    return bool(own & others) and (own <= others or others <= own)
