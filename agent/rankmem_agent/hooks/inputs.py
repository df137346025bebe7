"""What a call of the model is given: shape, dtype and bytes of each tensor, bounded.

Stage: trainer, the thread that calls the model. Comes in: the arguments of the call. Goes out: plain names
and numbers, and their text for an INPUT record. No tensor is kept, copied or read, and nothing of the user's
runs: of containers and tensors only the methods of Python's and torch's own classes are called. The caller
has asked whether tensors can be read (``hooks.tracing``), hides us from modes, and is guarded.
"""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rankmem_agent.signals import raise_of_handler

TENSORS_MAX: Final = 16
"""Tensors of a call that are described; a batch has two to six."""
LOOKED_AT_MAX: Final = 256
"""Arguments and items of containers that are looked at: a batch's images, not all of a data set's."""
DEPTH_MAX: Final = 3
NAME_CHARS_MAX: Final = 40
DIMENSIONS_MAX: Final = 8
"""With these the text of a record stays below 2 KiB."""
CONTAINERS: Final[tuple[type, ...]] = (UserDict, dict, tuple, list)
"""Whose items are looked at, those of subclasses too."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tensors of a call."""

    tensors: tuple[tuple[str, str, tuple[int, ...], int], ...]
    """Name of the argument (``0``, ``input_ids``, ``batch.mask``), dtype, shape, bytes."""
    size_bytes: int
    """Of all of them, those beyond TENSORS_MAX included."""
    num_left_out: int
    """Not described: beyond a bound, or without a shape that can be read. Their bytes may be missing."""

    def text(self) -> str:
        """The JSON of an INPUT record."""
        return json.dumps({"tensors": self.tensors}, separators=(",", ":"))


def inputs_of(tensor_type: type[Any], args: Any, kwargs: Any) -> Inputs:
    """The tensors among the arguments of a call.

    Args:
        tensor_type: ``torch.Tensor``.
        args: its positional arguments, a tuple.
        kwargs: its others, a dictionary, or None where they are not known.
    """
    found: list[tuple[str, str, tuple[int, ...], int]] = []
    size_bytes = left_out = 0
    budget = [LOOKED_AT_MAX]
    for name, value in _tensors(tensor_type, args, kwargs, budget):
        try:
            shape = tuple(int(each) for each in tensor_type.shape.__get__(value))
            own_bytes = int(tensor_type.numel(value)) * int(tensor_type.element_size(value))
            dtype = str(tensor_type.dtype.__get__(value)).removeprefix("torch.")
        except Exception as error:  # noqa: BLE001  one without a shape: it is counted
            raise_of_handler(error)
            left_out += 1
            continue
        size_bytes += own_bytes
        if len(found) == TENSORS_MAX or len(shape) > DIMENSIONS_MAX:
            left_out += 1
        else:
            found.append((name, dtype, shape, own_bytes))
    return Inputs(tuple(found), size_bytes, left_out + (budget[0] < 0))


def _tensors(tensor_type: type[Any], args: Any, kwargs: Any, budget: list[int]) -> Iterator[tuple[str, Any]]:
    for place, value in enumerate(args):
        yield from _within(tensor_type, str(place), value, DEPTH_MAX, budget)
    for name, value in (kwargs or {}).items():
        yield from _within(tensor_type, str(name)[:NAME_CHARS_MAX], value, DEPTH_MAX, budget)


def _within(
    tensor_type: type[Any], name: str, value: Any, depth: int, budget: list[int]
) -> Iterator[tuple[str, Any]]:
    budget[0] -= 1
    if budget[0] < 0 or depth == 0:
        return
    kind = type(value)
    if issubclass(kind, tensor_type):
        yield name, value
        return
    for part, item in _items(kind, value):
        if budget[0] < 0:
            return
        yield from _within(tensor_type, f"{name}.{part}"[:NAME_CHARS_MAX], item, depth - 1, budget)


def _items(kind: type[Any], value: Any) -> Iterator[tuple[Any, Any]]:
    """The items of a container, as Python's own type has them."""
    if issubclass(kind, UserDict):  # transformers' BatchEncoding
        value = object.__getattribute__(value, "__dict__").get("data")
        kind = type(value)
    if issubclass(kind, dict):
        names = [(key if type(key) is str else place) for place, key in enumerate(dict.keys(value))]
        return zip(names, list(dict.values(value)), strict=True)
    if issubclass(kind, tuple):
        return enumerate(tuple.__iter__(value))
    return enumerate(list.__iter__(value)) if issubclass(kind, list) else iter(())
