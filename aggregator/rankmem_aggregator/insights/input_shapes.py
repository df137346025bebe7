"""What batch or length the recorded inputs have, by the shapes that the model was given.

Stage: insights. In: for each recorded size the argument and shape of each tensor of a call of the model, as
``step_input`` has them. Out: the number of each size, None where shapes do not say it. Pure functions.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from rankmem_aggregator.insights.reading import CannotTell

Inputs = Sequence[Sequence[str]]
"""Argument and shape of each tensor of a call, such as ``[("input_ids", "[8, 1024]")]``."""
BATCH_FIRST: Final = frozenset(
    {
        "attention_mask",
        "decoder_input_ids",
        "input_features",
        "input_ids",
        "input_values",
        "inputs_embeds",
        "labels",
        "pixel_values",
        "position_ids",
        "token_type_ids",
    }
)
"""Names of arguments that have the batch first in all of Hugging Face's models (transformers 4)."""
WORD_BYTES: Final = 8
"""Of the number of a word, which picture and table do not have."""
NAMED_MAX: Final = 4
"""Tensors of a call in a sentence: a list of pictures has as many as the batch."""
COLOURS_MAX: Final = 4
"""Of a picture."""
_PICTURE_DIMENSIONS: Final = 3
_LOOKED_UP: Final = "aten::embedding"
COUNTED: Final = "aten::arange"
"""Makes the numbers of places."""
_TRIANGLES: Final = frozenset({"aten::tril", "aten::triu"})
_ELEMENT_BYTES: Final = (1, 2, 4, 8)
_NUMBER = re.compile(r"\d+", re.ASCII)
_ANOTHER = "; where that is meant, say the sizes with --recorded"


def numbers_of(sizes: Sequence[Inputs | None], what: str, input_bytes: int | None = None) -> list[int] | None:
    """The batch or length of each size; None where the shapes are not known, or do not say it.

    Of several lengths, as of a text and of its translation, nobody can see which one is meant; nor where one
    tensor has more in its first dimension and another in a later one, as nodes and edges of graphs do.
    Of several first dimensions the batch is the smallest: targets have batch times length.

    Args:
        sizes: of each size, in order.
        what: batch, which is the first dimension, or length, another one.
        input_bytes: of the first size; None: not known.

    Raises:
        CannotTell: the sizes differ in the other of the two, or in both.
    """
    known = [each for each in sizes if each]
    if not known or len(known) < len(sizes):
        return None
    if len(known) == 1:
        return _leading(known[0], input_bytes) if what == "batch" else None
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
    if by_length and by_batch and not _are_flattened(known[0], varying):
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
    lengths = {course for (_, dimension), course in varying.items() if dimension}
    if what == "length":
        return list(lengths.pop()) if len(lengths) == 1 else None
    return list(courses[0])


def shape_of(text: str) -> tuple[int, ...]:
    """The dimensions that a recorded shape says."""
    return tuple(map(int, _NUMBER.findall(text)))


def first_dimensions(inputs: Inputs) -> tuple[int, ...]:
    """Of each tensor that has one."""
    return tuple(shape[0] for _, text in inputs if (shape := shape_of(text)))


def _leading(inputs: Inputs, input_bytes: int | None) -> list[int] | None:
    """The first dimension, where all tensors have the same and the second one cannot be the batch."""
    found = {shape[0] for _, text in inputs if (shape := shape_of(text))}
    if len(found) != 1 or min(found) < 1 or may_be_second(inputs, input_bytes) or _are_pictures(inputs):
        return None
    return sorted(found)


def _are_pictures(inputs: Inputs) -> bool:
    """Whether pictures may be given one by one, the first dimension of which is that of their colours."""
    colours = [shape[0] for _, text in inputs if len(shape := shape_of(text)) == _PICTURE_DIMENSIONS]
    return 0 < max(colours, default=0) <= COLOURS_MAX


def may_be_second(inputs: Inputs, input_bytes: int | None) -> bool:
    """Whether the batch may be the second dimension, as it is of recurrent layers by default.

    So with numbers of words, and with vectors for each of them, unless a name or a tensor of one dimension
    says that it is the first. A square table beside others may be a mask of one length.
    """
    shapes = [shape for _, text in inputs if (shape := shape_of(text))]
    if any(name.rpartition(".")[2] in BATCH_FIRST for name, _ in inputs) or any(len(s) == 1 for s in shapes):
        return False
    tables = [shape for shape in shapes if len(shape) == 2 and shape[0] == shape[1]]
    rest = [shape for shape in shapes if shape not in tables]
    if tables and rest:
        return True
    dimensions = {len(shape) for shape in shapes}
    seconds = {shape[1] for shape in shapes}
    if tables or len(seconds) > 1:
        return False
    num_elements = sum(math.prod(shape) for shape in shapes)
    are_words = dimensions == {2} and input_bytes == WORD_BYTES * num_elements
    are_vectors = dimensions == {3} and all(shape[1] != shape[2] for shape in shapes)
    return are_words or are_vectors


def batch_by_places(inputs: Inputs, made: Iterable[tuple[str | None, str | None, int]]) -> int | None:
    """The first dimension, where what is made for each place of a text shows that the second is the length.

    So vectors of places beside those of words, of which they are one part in batch, and a triangle of places
    by places. Those of the first dimension would be there if that were the length. Vectors of places are of
    another module than those of words, and no more often looked up: a decoder that looks up one word of each
    text after the other makes blocks as large, where the batch is the second dimension. They are looked up by
    numbers counted up before: a row for each text, as of its author, is looked up by what is in the input.
    Numbers of places in the first dimension, as for a mask, and those made afterwards say nothing.

    Args:
        inputs: of words, of a call; the batch may be the first or the second dimension.
        made: operator, module and bytes of each block that forward made, and of numbers counted up before.
    """
    shapes = {shape_of(text) for _, text in inputs if shape_of(text)}
    if len(shapes) != 1 or len(shape := min(shapes)) != 2 or shape[0] == shape[1]:
        return None
    found = list(made)
    vectors = [(size, module) for operator, module, size in found if operator == _LOOKED_UP]
    triangles = {size for operator, _, size in found if operator in _TRIANGLES}
    words = max((size for size, _ in vectors), default=0)
    of_words = [module for size, module in vectors if size == words]

    def of_places(one: int, other: int) -> list[str | None]:
        is_whole = other > 1 and words % (one * other) == 0
        return [module for size, module in vectors if is_whole and size * other == words]

    def has_triangle(one: int) -> bool:
        return any(size * one**2 in triangles for size in _ELEMENT_BYTES)

    def is_counted() -> bool:
        before = itertools.takewhile(lambda each: (each[0], each[2] * first) != (_LOOKED_UP, words), found)
        numbers = [size / WORD_BYTES for operator, _, size in before if operator == COUNTED]
        return any(number == second or number > max(shape) for number in numbers)

    first, second = shape
    if of_places(first, second) or has_triangle(first):
        return None
    places = of_places(second, first)
    is_looked_up = 0 < len(places) <= len(of_words) and set(places).isdisjoint(of_words)
    return first if (is_looked_up and is_counted()) or has_triangle(second) else None


def largest_text(inputs: Inputs) -> str:
    """Argument and shape of the tensor with most elements."""
    name, shape = max(inputs, key=lambda each: math.prod(shape_of(each[1])))
    return f"{name} {shape}"


def _varying(sizes: Sequence[Inputs]) -> dict[tuple[int, int], tuple[int, ...]]:
    """By place of the tensor and of the dimension: its lengths in each size, where these are not the same."""
    first = sizes[0]
    shapes = [[shape_of(text) for _, text in inputs] for inputs in sizes]
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


def _are_flattened(inputs: Inputs, varying: Collection[tuple[int, int]]) -> bool:
    """Whether what varies in its first dimension alone has there another tensor's length, or batch by length.

    So do numbers of places, and targets. A mask of length by length varies in both.
    """
    shapes = [shape_of(text) for _, text in inputs]
    by_length = {place for place in varying if place[1]}
    lengths = {shapes[tensor][dimension] for tensor, dimension in by_length}
    whole = {shapes[tensor][0] * shapes[tensor][dimension] for tensor, dimension in by_length}
    alone = {tensor for tensor, _ in varying} - {tensor for tensor, _ in by_length}
    return {shapes[tensor][0] for tensor in alone} <= lengths | whole


def _is_in_proportion(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether one is the other times a number: targets of batch times length, beside a batch."""
    return all(a * other[0] == b * one[0] for a, b in zip(one, other, strict=True))


def inputs_text(inputs: Inputs) -> str:
    """Arguments and shapes, of many the first ones."""
    named = [f"{name} {shape}" for name, shape in inputs[:NAMED_MAX]]
    more = len(inputs) - len(named)
    return ", ".join([*named, f"{more} more"] if more else named)


def _text(sizes: Sequence[Inputs]) -> str:
    return " and ".join(map(inputs_text, sizes[:2]))
