"""The modules of one side of a comparison as a tree, with all that tells one from another.

Stage: query; pure functions. In: classes, shapes of parameters and code by a module's path.
Out: :class:`Tree`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

Code = frozenset[tuple[str, str]]
"""Function and operator of what made blocks."""
SEQUENTIAL: Final = "Sequential"
"""A class that is a list of modules, and runs them."""


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

    @cached_property
    def code_within(self) -> Mapping[str, Code]:
        """By path what made blocks in a module or in what it holds."""
        found: dict[str, Code] = {}
        known: dict[Code, Code] = {}
        for path in reversed(list(self.within(""))):
            parts = [self.code.get(path, frozenset()), *(found[each] for each in self.children.get(path, ()))]
            code = frozenset().union(*dict.fromkeys(parts))
            found[path] = known.setdefault(code, code)
        return found

    def is_list(self, path: str) -> bool:
        """Whether a module is but a list of others."""
        return self.classes.get(path, SEQUENTIAL) == SEQUENTIAL

    def kinds(self, path: str) -> set[str]:
        """The class of a module; of a list those of its members."""
        members = self.children.get(path, ()) if self.is_list(path) else [path]
        return {self.classes.get(each, SEQUENTIAL) for each in members}

    def shapes_within(self, path: str) -> frozenset[tuple[str, str]]:
        """Names and shapes of the parameters of a module and all in it; names as they are in the module."""
        start = len(path) + 1 if path else 0
        return frozenset(
            (f"{each}.{own}"[start:], shape)
            for each in self.within(path)
            for own, shape in self.own_shapes.get(each, ())
        )

    @cached_property
    def distinct(self) -> set[str]:
        """Modules that can be known anywhere: with code and parameters, all classes known to both sides."""
        found: set[str] = set()
        with_shapes: set[str] = set()
        unknown: set[str] = set()
        for path in reversed(list(self.within(""))):
            members = self.children.get(path, ())
            if path in self.own_shapes or any(each in with_shapes for each in members):
                with_shapes.add(path)
            if self.classes.get(path) == "" or any(each in unknown for each in members):
                unknown.add(path)
            code = self.code_within[path]
            if path in with_shapes and path not in unknown and code and not any(map(_is_of_unknown, code)):
                found.add(path)
        return found

    def whole(self, known: dict[Hashable, int]) -> dict[str, int]:
        """By path a number for all that is known of a module but its name and code: the same for the same.

        Args:
            known: the numbers so far, of this tree and others.
        """
        found: dict[str, int] = {}
        for path in reversed(list(self.within(""))):
            members = tuple((each.rpartition(".")[2], found[each]) for each in self.children.get(path, ()))
            key = (self.classes.get(path), tuple(self.own_shapes.get(path, ())), members)
            found[path] = known.setdefault(key, len(known))
        return found


def _is_of_unknown(code: tuple[str, str]) -> bool:
    """Whether a function is of a class that the other side does not have."""
    return "" in code[0].split(".")[:-1]
