"""Facts about the user's objects, for as long as they live, without asking the objects.

Stage: trainer; used by the hooks. A ``WeakKeyDictionary`` asks its keys for hash and equality, torch's
``WeakIdKeyDictionary`` for attributes: a class of the user's may refuse each of them. Here no method of an
object is called. Each operation is a single one of a dict's, so threads may share it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class ByIdentity(Generic[V]):
    """A mapping from objects to values that keeps no object alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], V]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, thing: Any) -> bool:
        return id(thing) in self._known

    def __setitem__(self, thing: Any, value: V) -> None:
        key, known = id(thing), self._known

        def gone(reference: weakref.ref[Any]) -> None:
            if key in known and known[key][0] is reference:
                del known[key]

        known[key] = (weakref.ref(thing, gone), value)

    def __iter__(self) -> Iterator[Any]:
        return (thing for thing, _ in self.items())

    def get(self, thing: Any, default: V) -> V:
        """The value for an object."""
        known = self._known.get(id(thing))
        return default if known is None else known[1]

    def items(self) -> list[tuple[Any, V]]:
        """The objects that are alive, and their values."""
        found = [(reference(), value) for reference, value in list(self._known.values())]
        return [(thing, value) for thing, value in found if thing is not None]
