"""Which classes of modules of a side are those of the other under another name.

Stage: query; pure functions but for :func:`classes_of`. In: of each side the modules with their classes, and
which code made blocks. Out: :class:`Renamed`, which gives the names of one side as the other has them.

A class is taken for another one if neither is on both sides, or if both stand in each other's places with the
same parameters; if the modules of one are those of the other wherever both sides have a module, the names of
what is in them and the operators of their code are the same, or more on one side; and if no other class could
be it. What only stands in the same place (another norm, another attention) has other operators, and stays
what it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rankmem_aggregator.insights import renamed_modules as modules
from rankmem_aggregator.insights.answer import Ask
from rankmem_aggregator.insights.module_tree import SEQUENTIAL, Tree
from rankmem_aggregator.insights.renamed_modules import Moved, holds


class Made(NamedTuple):
    """What made a block: the function of the project, the operator, the module's path."""

    function: str | None
    operator: str | None
    module: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What names the code of a side."""

    classes: Mapping[str, str] = field(default_factory=dict)
    """By a module's path its class."""
    made: Collection[Made] = ()
    """What made the blocks that are compared, and those of a step."""
    shapes: Mapping[str, str] = field(default_factory=dict)
    """By a parameter's name its shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """Names of base as head has them."""

    classes: Mapping[str, str] = field(default_factory=dict)
    """By the name of a class in base its name in head."""
    of_base: Mapping[str, str] = field(default_factory=dict)
    """By a module's path in base its class."""
    moved: Moved = field(default_factory=Moved)
    """Modules that head has under other paths."""

    def function(self, name: str | None) -> str | None:
        """A function's qualified name: of a method with its class's name in head."""
        if name is None or not any(each in name for each in self.classes):
            return name
        *around, own = name.split(".")
        return ".".join([*(self.classes.get(part, part) for part in around), own])

    def module(self, path: str | None) -> str | None:
        """A module's path: a root, and what is made within a forward, is called by its class."""
        place = self.moved_place(path)
        if place is None or path is None:
            return self._by_class(path)
        return ".".join([self.moved.paths[place], *self.rest(path, place)])

    def rest(self, path: str, place: str) -> list[str]:
        """The names of a module within another one of base, as head has them."""
        return (self._by_class(path) or "").split(".")[place.count(".") + 1 :]

    def moved_place(self, path: str | None) -> str | None:
        """The module that head has elsewhere and that this one is, or is in; the innermost."""
        return modules.place_in(path, self.moved.paths)

    def _by_class(self, path: str | None) -> str | None:
        if path is None or not any(name in path for name in self.classes):
            return path
        parts = path.split(".")
        found = []
        for place, part in enumerate(parts):
            name, mark, number = part.partition("#")
            is_class = self.of_base.get(".".join(parts[: place + 1])) == name
            found.append(f"{self.classes.get(name, name)}{mark}{number}" if is_class else part)
        return ".".join(found)

    def used_by(self, made: Made) -> list[str]:
        """The classes, as base calls them, whose names are other ones in what names a block."""
        own = Made(self.function(made.function), made.operator, self.module(made.module))
        parts = [*(made.function or "").split("."), *(made.module or "").replace("#", ".").split(".")]
        return [each for each in dict.fromkeys(parts) if each in self.classes] if own != made else []


def classes_of(ask: Ask, session_id: str, *, attempt: int, rank: int) -> dict[str, str]:
    """By path the classes of a rank's modules, as far as they ran.

    Args:
        ask: asks a named query.
        session_id: full id.
        attempt, rank: whose.
    """
    rows = ask("module_classes", session=session_id, attempt=attempt, rank=rank).to_pylist()
    return {row["module"]: row["class"] for row in rows}


def shapes_of(ask: Ask, session_id: str, *, attempt: int, rank: int) -> dict[str, str]:
    """By name the shapes of a rank's parameters, as far as they were recorded in this attempt.

    Args:
        ask: asks a named query.
        session_id: full id.
        attempt, rank: whose.
    """
    # Answered of the last attempt that reported any, which may be another one.
    rows = ask("weights", session=session_id, rank=rank).to_pylist()
    return {row["name"]: row["shape"] for row in rows if row["shape"] and row["attempt"] == attempt}


def renamed(base: Code, head: Code) -> Renamed:
    """The classes and modules of base that head has under other names."""
    gone = _alone(base, head)
    new = _alone(head, base)
    found = _exchanged(base, head)
    without_class: frozenset[str] = frozenset()
    while True:
        # What one class is called tells where the modules of others are: until nothing more is found.
        moved = _moved(base, head, found, gone, new)
        # A class that was known by where its modules are is no reason for that.
        without_class |= moved.without_class
        found = replace(found, moved=replace(moved, without_class=without_class & moved.paths.keys()))
        known = set(found.classes.values())
        possible = [
            (one, other)
            for one, other in _in_one_place(base, head, found)
            if one in gone - found.classes.keys() and other in new - known
            if _is_same(base, head, found, {one: other})
        ]
        sure = {
            one: other
            for one, other in possible
            if sum(one == each for each, _ in possible) == 1 == sum(other == each for _, each in possible)
        }
        if not sure:
            return found
        found = replace(found, classes={**found.classes, **sure})


def _exchanged(base: Code, head: Code) -> Renamed:
    """Classes of both sides that have each other's names: each stands where others stood, with their code
    and their parameters.
    """
    nothing = Renamed(of_base=base.classes)
    places: dict[str, set[str]] = {}
    for path, name in base.classes.items():
        if path in head.classes:
            places.setdefault(name, set()).add(head.classes[path])
    of_head = set(head.classes.values())
    names = {
        one: next(iter(others))
        for one, others in places.items()
        if len(others) == 1 and one not in others and one in of_head
    }
    while names and set(names) != set(names.values()):
        names = {one: other for one, other in names.items() if other in names and one in names.values()}
    # Where shapes differ or are unknown, modules may have changed places and no class its name.
    is_same = names and _have_shapes(base, head, names) and _is_same(base, head, nothing, names)
    return Renamed(classes=names, of_base=base.classes) if is_same else nothing


def _have_shapes(base: Code, head: Code, names: Collection[str]) -> bool:
    """Whether modules of each of these classes have parameters, and in each place those of the other side."""
    own, other = (Tree(classes=side.classes, shapes=side.shapes, code={}) for side in (base, head))
    known = set()
    for path, name in base.classes.items():
        if name in names:
            shapes = own.shapes_within(path)
            if shapes != other.shapes_within(path):
                return False
            if shapes:
                known.add(name)
    return known == set(names)


def _moved(base: Code, head: Code, known: Renamed, gone: Collection[str], new: Collection[str]) -> Moved:
    """The modules of base that head has under other paths, by what is known of classes."""
    plain = Renamed(classes=known.classes, of_base=base.classes)
    still_gone = set(gone) - known.classes.keys()
    still_new = set(new) - set(known.classes.values())
    trees: list[Tree] = []
    for side, names, alone in ((base, plain, still_gone), (head, Renamed(), still_new)):
        code: dict[str, set[tuple[str, str]]] = {}
        for made in side.made:
            if made.module is not None:
                function = names.function(made.function) or ""
                # A class that the other side lacks has another name there.
                around = ["" if part in alone else part for part in function.split(".")]
                code.setdefault(made.module, set()).add((".".join(around), made.operator or ""))
        classes = {
            path: "" if name in alone and name != SEQUENTIAL else names.classes.get(name, name)
            for path, name in side.classes.items()
        }
        frozen = {path: frozenset(own) for path, own in code.items()}
        trees.append(Tree(classes=classes, shapes=side.shapes, code=frozen))
    own, other = trees
    return modules.moved(own, other, {path: plain.module(path) or "" for path in base.classes})


class Replaced(NamedTuple):
    """A class of base, and the one of head that is in its places and does other things."""

    base: str
    head: str
    modules: frozenset[str]
    """The paths in head that are both's."""

    def holds(self, module: str | None) -> bool:
        """Whether a module of head is one of these, or within one."""
        parts = [] if module is None else module.split(".")
        return any(".".join(parts[: count + 1]) in self.modules for count in range(len(parts)))


def replaced(base: Code, head: Code, known: Renamed) -> list[Replaced]:
    """The classes that one side alone has, in the same places, and that are not the same.

    Args:
        known: the classes that are.
    """
    gone = _alone(base, head) - known.classes.keys()
    new = _alone(head, base) - set(known.classes.values())
    places: dict[tuple[str, str], set[str]] = {}
    for path, name in base.classes.items():
        own = known.module(path) or ""
        other = head.classes.get(own)
        if name in gone and other in new:
            places.setdefault((name, other), set()).add(own)
    return [Replaced(*names, frozenset(modules)) for names, modules in places.items()]


def _alone(side: Code, other: Code) -> set[str]:
    """The classes of a side's modules that the other has neither among its modules nor in its functions."""
    known = set(other.classes.values())
    known.update(part for made in other.made for part in (made.function or "").split(".")[:-1])
    return set(side.classes.values()) - known


def _in_one_place(base: Code, head: Code, known: Renamed) -> set[tuple[str, str]]:
    """Classes of base and head that are in the same place, or both in one that is called by its class."""
    found = {
        (name, head.classes[path])
        for path, name in ((known.module(each) or "", name) for each, name in base.classes.items())
        if path in head.classes
    }
    return found | set(itertools.product(_naming(base), _naming(head)))


def _naming(side: Code) -> set[str]:
    """The classes by which modules are called: of roots, and of what is made within a forward."""
    return {name for path, name in side.classes.items() if path.rpartition(".")[2].partition("#")[0] == name}


def _is_same(base: Code, head: Code, known: Renamed, more: Mapping[str, str]) -> bool:
    """Whether classes of base are in the same places as those of head, and have the same code."""
    names = replace(known, classes={**known.classes, **more})
    before = {names.module(path) or "": names.classes.get(name, name) for path, name in base.classes.items()}
    after = head.classes
    for other in more.values():
        own = {path for path, name in before.items() if name == other}
        now = {path for path, name in after.items() if name == other}
        both = own & now
        if not both or (own & after.keys()) != both or (now & before.keys()) != both:
            return False
        parts = _parts(before, both), _parts(after, both)
        code = _code(base, names, before, other), _code(head, Renamed(), after, other)
        if not ((parts == (set(), set()) or holds(*parts)) and holds(*code)):
            return False
    return True


def _parts(classes: Mapping[str, str], of: Collection[str]) -> set[tuple[str, str]]:
    """Names of what lies directly within some modules, with the module that it is in."""
    split = (path.rpartition(".") for path in classes)
    return {(around, own) for around, dot, own in split if dot and around in of}


def _code(side: Code, names: Renamed, classes: Mapping[str, str], name: str) -> set[tuple[str, str]]:
    """Function and operator of what made blocks in a class's modules or methods, by names of head."""
    found = set()
    for made in side.made:
        function, module = names.function(made.function) or "", names.module(made.module) or ""
        if classes.get(module) == name or name in function.split(".")[:-1]:
            found.add((function, made.operator or ""))
    return found
