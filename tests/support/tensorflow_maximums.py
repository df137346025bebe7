"""The highest total of each TensorFlow allocator by timeline.py's rule: what an import must find."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rankmem_imports.tensorflow.lives import Tensor, changes


class Maximum(NamedTuple):
    """timeline.py's AllocationMaximum."""

    timestamp_us: int
    num_bytes: int
    tensors: frozenset[str]


def maximums(tensors: Mapping[str, Tensor]) -> dict[str, Maximum]:
    """Of each allocator the highest total, its first instant and the tensors alive then."""
    found: dict[str, Maximum] = {}
    for allocator, own in _by_allocator(tensors.values()):
        total, alive = 0, set[str]()
        best = Maximum(0, 0, frozenset())
        for time_us, change, tensor in changes(own):
            total += change
            if change < 0:
                alive.discard(tensor.name)
            else:
                alive.add(tensor.name)
            if total > best.num_bytes:
                best = Maximum(time_us, total, frozenset(alive))
        found[allocator] = best
    return found


def _by_allocator(tensors: Iterable[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    groups: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.allocator, []).append(tensor)
    return iter(groups.items())
