"""What batch or length the recorded inputs have, by the shapes that the model was given.

Stage: insights. In: for each recorded size the argument and shape of each tensor of a call of the model, as
``step_input`` has them. Out: the number of each size, None where shapes do not say it. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankmem_aggregator.insights.reading import CannotTell

Inputs = Sequence[Sequence[str]]
"""Argument and shape of each tensor of a call, such as ``[("input_ids", "[8, 1024]")]``."""
_NUMBER = re.compile(r"\d+", re.ASCII)
_ANOTHER = "; where that is meant, say the sizes with --recorded"


def numbers_of(sizes: Sequence[Inputs | None], what: str) -> list[int] | None:
    """The batch or length of each size; None where the shapes are not known, or do not say it.

    Args:
        sizes: of each size, in order.
        what: batch, which is the first dimension, or length, another one.

    Raises:
        CannotTell: the sizes differ in the other of the two, or in both.
    """
    known = [each for each in sizes if each]
    if not known or len(known) < len(sizes):
        return None
    if len(known) == 1:
        return _leading(known[0]) if what == "batch" else None
    varying = _varying(known)
    if not varying:
        return None
    by_length = any(dimension for _, dimension in varying)
    by_batch = any(not dimension for _, dimension in varying)
    courses = sorted(set(varying.values()))
    if any(not _is_in_proportion(courses[0], course) for course in courses[1:]):
        if by_length and by_batch:
            raise CannotTell(f"the recorded sizes differ in batch and in length: {_text(known)}{_ANOTHER}")
        return None
    if what == "batch" and by_length:
        raise CannotTell(
            f"the recorded sizes differ in another dimension than the first, as lengths do: {_text(known)}. "
            f"Ask for --length{_ANOTHER}"
        )
    if what == "length" and not by_length:
        raise CannotTell(
            f"the recorded sizes differ in the first dimension alone, as batches do: {_text(known)}. "
            f"Ask for --batch{_ANOTHER}"
        )
    return list(courses[0])


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(text)))


def _leading(inputs: Inputs) -> list[int] | None:
    """The first dimension, where all tensors have the same."""
    found = {shape[0] for _, text in inputs if (shape := _shape(text))}
    return sorted(found) if len(found) == 1 and min(found) > 0 else None


def _varying(sizes: Sequence[Inputs]) -> dict[tuple[int, int], tuple[int, ...]]:
    """By place of the tensor and of the dimension: its lengths in each size, where these are not the same."""
    first = sizes[0]
    shapes = [[_shape(text) for _, text in inputs] for inputs in sizes]
    alike = all(
        [name for name, _ in inputs] == [name for name, _ in first]
        and [len(shape) for shape in of_size] == [len(shape) for shape in shapes[0]]
        for inputs, of_size in zip(sizes, shapes, strict=True)
    )
    if not alike:
        return {}
    return {
        (tensor, dimension): course
        for tensor, shape in enumerate(shapes[0])
        for dimension in range(len(shape))
        if len(set(course := tuple(of_size[tensor][dimension] for of_size in shapes))) > 1
    }


def _is_in_proportion(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether one is the other times a number: targets of batch times length, beside a batch."""
    return all(a * other[0] == b * one[0] for a, b in zip(one, other, strict=True))


def _text(sizes: Sequence[Inputs]) -> str:
    return " and ".join(", ".join(f"{name} {shape}" for name, shape in inputs) for inputs in sizes[:2])
