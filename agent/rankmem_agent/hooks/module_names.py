"""The path of each module: its name in the module tree that it belongs to.

Stage: trainer; asked by ``hooks.modules`` when a module runs for the first time, and by ``hooks.weights``.
Comes in: modules, and which was put into which (torch's global registration hook, 2.6 to 2.13). Goes out:
paths and classes. It keeps no module alive and touches no tensor; a tree is walked once.

**A path** is the name in ``root.named_modules()``, as ``transformer.h.3.mlp.fc1``: what ``state_dict`` and
every printed model say. The root itself has no name there: its path is its class, ``GPT2LMHeadModel``. The
root is the outermost module that the one called was put into, so that a model whose parts are called one by
one has one tree; else (a deep copy) the outermost one called. What torch wraps around a module (DDP, FSDP,
``torch.compile``, activation checkpointing) is no part of a path.

**Two trees** that would share a path (generator and discriminator both have a ``main.0``) are kept apart:
the one that runs later carries its class in front, ``Discriminator.main.0``, a third one of the same class
``Discriminator#2``. A module made within another's forward is called by that one's path and its own class.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

WRAPPED_NAMES: Final = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_export_root"}
)
"""Parts of a path that stand for a wrapper: torch.compile's, FSDP's, activation checkpointing's, export's."""
WRAPPER_CLASSES: Final = {
    **dict.fromkeys(("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"), "module"),
    "ONNXTracedModule": "inner",  # of torch.jit's tracer, which torch.onnx's exporter uses
}
"""Classes of wrappers, with the name of the part that they wrap."""
SHARDED_CLASS: Final = "FSDPModule"
"""FSDP2 gives a module a class made of this one and the module's own."""
ANCESTORS_MAX: Final = 64
"""Modules above a root that are climbed; a ring of registrations must end."""
TWINS_MAX: Final = 100
"""Living trees of one class with names of their own; the next ones share the last name."""


class Named(NamedTuple):
    """Path and class of a module."""

    reference: weakref.ref[Any]
    path: str
    class_name: str
    """Of the module, or of the one that it wraps."""
    prefix: str
    """Prefix of its children's names: the path, or nothing for a root."""


class Learnt(NamedTuple):
    """Modules that were named together."""

    keys: list[int]
    """Identities of the modules, some of them named anew."""
    root: Any
    """The root of the tree; None for a module made within another's forward."""


class ModuleNames:
    """Names modules; made once, when the agent attaches.

    Args:
        is_compiling: True while Dynamo traces.
        forget: called with the identity of a module that is gone.
    """

    def __init__(self, is_compiling: Callable[[], bool], forget: Callable[[int], object]) -> None:
        self._is_compiling = is_compiling
        self._forget = forget
        self._named: dict[int, Named] = {}
        self._put_into: dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}
        """By a module's identity: the module, and the one it was put into last."""
        self._owners: dict[str, weakref.ref[Any]] = {}
        """By path: the root whose tree has it."""
        self._roots: dict[int, weakref.ref[Any]] = {}

    def registered(self, parent: Any, name: str, child: Any) -> None:
        """``child`` becomes a part of ``parent``: torch's module registration hook."""
        if self._is_compiling() or child is None:
            return
        gone = functools.partial(_pop, self._put_into, id(child))
        self._put_into[id(child)] = (weakref.ref(child, gone), weakref.ref(parent))

    def of(self, module: Any) -> Named | None:
        """Path and class of a module, or None."""
        return self._named.get(id(module))

    def known(self, key: int) -> Named:
        """Path and class of the module with this identity. Raises KeyError if not known."""
        return self._named[key]

    def is_final(self, key: int) -> bool:
        """Whether this module is named as a part of the outermost module that it was put into.

        A copy was put into nothing that is known: it may run before its whole.
        """
        known = self._named.get(key)
        module = known.reference() if known is not None else None
        if module is None or not (key in self._put_into or self._was_seen_built(module)):
            return False
        return id(self._top(module)) in self._named

    def _was_seen_built(self, module: Any) -> bool:
        """Whether a part was seen put into it: then it would be seen, too, put into another."""
        parts = (self._put_into.get(id(child)) for _, child in children(module))
        return any(part is not None and part[1]() is module for part in parts)

    def roots(self) -> list[Any]:
        """The roots that are alive."""
        alive = (reference() for reference in list(self._roots.values()))
        return [root for root in alive if root is not None]

    def learn(self, module: Any, around: int) -> Learnt:
        """Names a module that is not known yet, with the whole tree that it belongs to.

        Args:
            around: identity of the module whose forward it is called in; 0 for none.
        """
        top = self._top(module)
        outer = self._named.get(around)
        if top is module and outer is not None:
            path = _joined(outer.prefix, class_name(module))
            return Learnt(self._name_tree(list(tree(module)), path, path), None)
        learnt = self._name_root(top)
        if id(module) not in self._named:  # a holder that hides its parts from named_children()
            self._name(module, class_name(module), class_name(module), class_name(module))
        return learnt

    def _top(self, module: Any) -> Any:
        """The outermost module that this one is a part of."""
        for _ in range(ANCESTORS_MAX):
            known = self._put_into.get(id(module))
            parent = known[1]() if known is not None else None
            if parent is None or not any(child is module for _, child in children(parent)):
                return module
            module = parent
        return module

    def _name_root(self, top: Any) -> Learnt:
        root = unwrapped(top)
        members = list(tree(root))
        prefix, path = self._free_prefix(root, members)
        wrappers = [each for _, each in tree(top) if each is not root and unwrapped(each) is root]
        keys = self._name_tree(members, prefix, path)
        for key in keys:
            self._owners[self._named[key].path] = self._named[id(root)].reference
            self._roots.pop(key, None)  # a part that ran before its whole was a root until now
        self._roots[id(root)] = weakref.ref(root, functools.partial(_pop, self._roots, id(root)))
        for wrapper in wrappers:
            self._name(wrapper, class_name(wrapper), class_name(wrapper), prefix)
        return Learnt([*keys, *(id(wrapper) for wrapper in wrappers)], root)

    def _free_prefix(self, root: Any, members: list[tuple[str, Any]]) -> tuple[str, str]:
        """The first prefix and root's path under which no name belongs to another tree that is alive."""
        own, inside = class_name(root), {id(module) for _, module in members}
        candidates = [("", own), (own, own), *((f"{own}#{n}",) * 2 for n in range(2, TWINS_MAX + 1))]
        for prefix, path in candidates:
            taken_by = (self._owner(_joined(prefix, name) or path) for name, _ in members)
            if all(owner is None or id(owner) in inside for owner in taken_by):
                return prefix, path
        return candidates[-1]

    def _owner(self, path: str) -> Any:
        reference = self._owners.get(path)
        return reference() if reference is not None else None

    def _name_tree(self, members: list[tuple[str, Any]], prefix: str, root_path: str) -> list[int]:
        """Names a root's members; the last module at a path is what the ones before it there wrap."""
        classes = {name: class_name(module) for name, module in members}
        for name, module in members:
            path = _joined(prefix, name) if name else root_path
            self._name(module, path, classes[name], path if name else prefix)
        return [id(module) for _, module in members]

    def _name(self, module: Any, path: str, its_class: str, prefix: str) -> None:
        key = id(module)
        known = self._named.get(key)
        reference = known.reference if known is not None else weakref.ref(module, self._gone(key))
        self._named[key] = Named(reference, path, its_class, prefix)

    def _gone(self, key: int) -> Callable[[object], None]:
        def gone(_: object) -> None:
            self._named.pop(key, None)
            self._forget(key)

        return gone


def tree(module: Any, name: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """A module and all its parts as (name, module), wrappers' parts of the names left out; each part once."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    yield name, module
    for part, child in children(module):
        yield from tree(child, name if _wraps(module, part) else _joined(name, part), seen)


def children(module: Any) -> list[tuple[str, Any]]:
    """The parts put into a module, by name.

    Read off the instance, as every table here: a class of the user's may have its own ``named_children``,
    ``__getattr__`` or ``__eq__``, and they may raise, hide parts or cost something.
    """
    return _registered(module, "_modules")


def parameters(root: Any) -> Iterator[tuple[str, Any]]:
    """The parameters of a module and all its parts, by name; each once."""
    seen: set[int] = set()
    for path, module in tree(root):
        for key, parameter in own_parameters(module):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield _joined(path, key), parameter


def own_parameters(module: Any) -> list[tuple[str, Any]]:
    """The parameters of a module itself, by name, read off the instance as in :func:`children`."""
    return _registered(module, "_parameters")


def own_parameter(module: Any, key: str) -> Any:
    """The parameter of a module itself that has this name; None for none."""
    return _one_registered(module, "_parameters", key)


def own_buffer(module: Any, key: str) -> Any:
    """The buffer of a module itself that has this name; None for none."""
    return _one_registered(module, "_buffers", key)


def _table(module: Any, name: str) -> Any:
    """A table of torch's in a module's own dictionary; empty where its class hides it.

    In most a dictionary; a ScriptModule has a class of its own, with ``items`` and without ``get``.
    """
    try:
        table = object.__getattribute__(module, "__dict__").get(name)
    except AttributeError:
        return {}
    return table if hasattr(table, "items") else {}


def _registered(module: Any, table: str) -> list[tuple[str, Any]]:
    return [(str(name), each) for name, each in _table(module, table).items() if each is not None]


def _one_registered(module: Any, table: str, key: str) -> Any:
    held = _table(module, table)
    return held.get(key) if type(held) is dict else dict(held.items()).get(key)


def unwrapped(module: Any) -> Any:
    """The user's own model within the wrappers that torch puts around it."""
    while True:
        parts = children(module)
        if len(parts) != 1:
            return module
        name, child = parts[0]
        if not _wraps(module, name):
            return module
        module = child


def class_name(module: Any) -> str:
    """Name of a module's class; of the user's own where FSDP2 made one of it."""
    cls = type(module)
    if any(base.__name__ == SHARDED_CLASS for base in cls.__bases__):
        cls = cls.__bases__[-1]
    return cls.__name__


def _wraps(module: Any, part: str) -> bool:
    return part in WRAPPED_NAMES or WRAPPER_CLASSES.get(type(module).__name__) == part


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _pop(table: dict[int, Any], key: int, _: object) -> None:
    table.pop(key, None)
