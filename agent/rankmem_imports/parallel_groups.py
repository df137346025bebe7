"""A rank's place in the parallel dimensions of its job, from a recording's process groups.

Stage: readers; the process of ``rankmem import``. In: names of groups with the rank's place in each, sizes
of dimensions. Out: coordinates, columns of rank_info. Known is what a group of that name says, and 0 where
the dimension has one place. Of a size alone no coordinate follows: which rank is where is the training's
choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rankmem_agent.config import PARALLEL_DIMENSIONS
from rankmem_imports.rank_numbers import RANK_MAX

_NAMES: Final[Mapping[str, str]] = {
    **{name: name for name in PARALLEL_DIMENSIONS},
    **{f"mesh_{name}": name for name in PARALLEL_DIMENSIONS},  # torch's DeviceMesh
    "exp": "ep",  # mindspeed
    "data_parallel_group": "dp",  # megatron
    "tensor_model_parallel_group": "tp",
    "pipeline_model_parallel_group": "pp",
    "context_parallel_group": "cp",
    "expert_model_parallel_group": "ep",
}
"""Groups by name, in lower case. Groups of several dimensions (dp_cp, mp) say no coordinate of one."""
_SIZES: Final[Mapping[str, str]] = {
    **{name: name for name in PARALLEL_DIMENSIONS},
    "data_parallel_size": "dp",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
}


class ProcessGroup(NamedTuple):
    """A process group that the rank is in."""

    name: str
    place: object
    """The rank's own in it."""


def sizes_of(arguments: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The size of each dimension, from a training's arguments."""
    found: dict[str, int] = {}
    for options in arguments:
        for name, value in options.items():
            dimension = _SIZES.get(name)
            if dimension is not None and _is_place(value) and value > 0:
                found.setdefault(dimension, value)
    return found


def coordinates(groups: Sequence[ProcessGroup], sizes: Mapping[str, int]) -> dict[str, int]:
    """The rank's place in each dimension where it is known and no two groups differ."""
    places: dict[str, set[int]] = {}
    for name, place in groups:
        dimension = _NAMES.get(name.lower())
        if dimension is not None and _is_place(place):
            places.setdefault(dimension, set()).add(place)  # type: ignore[arg-type]
    found = {dimension: 0 for dimension, size in sizes.items() if size == 1}
    found |= {dimension: next(iter(known)) for dimension, known in places.items() if len(known) == 1}
    return found


def _is_place(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= RANK_MAX
