"""Tensors that the training script tags: ``rankmem_agent.tag``, as TAG records.

Stage: trainer, the user's threads. Comes in: tensors, in whatever containers the script keeps them. Goes out:
a TAG record for each with the address and size of its elements. It keeps no
tensor, asks none for its content, and raises nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rankmem_agent.hooks.guard import unseen_by_modes
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.hooks.tags import place_of
from rankmem_agent.signals import raise_of_handler
from rankmem_agent.spool.layout import BY_USER, Category, Kind

NESTING_MAX: Final = 6
"""Containers around a tensor: a cache holds layers, these lists of pairs."""
TENSORS_MAX: Final = 100_000
"""Tagged in one call; the training waits for it (about 1 us each)."""


def tag_tensors(recorder: Recorder, value: object, category: str, name: str) -> None:
    """Tags the tensors in a value with the user's category."""
    try:
        with unseen_by_modes():
            _tag(recorder, value, Category[category.upper()], recorder.intern(name) if name else 0)
    except Exception as error:  # noqa: BLE001  the trainer's guard: what cannot be read is not tagged
        raise_of_handler(error)


def _tag(recorder: Recorder, value: object, category: Category, name: int) -> None:
    for _, tensor in zip(range(TENSORS_MAX), tensors_of(value, set()), strict=False):
        place = place_of(tensor)
        if place is not None:
            recorder.record(
                Kind.TAG, category=category, since_allocation=1, qualifier=BY_USER, name=name, **place
            )


def tensors_of(value: Any, seen: set[int], depth: int = 0) -> Iterator[Any]:
    """The tensors in a value: in lists, tuples, sets, mappings and attributes; each object once."""
    if hasattr(value, "data_ptr"):
        yield value
        return
    if depth >= NESTING_MAX or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        inside: Any = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = value
    else:
        inside = getattr(value, "__dict__", {}).values()
    for each in list(inside):
        yield from tensors_of(each, seen, depth + 1)
