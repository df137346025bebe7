"""Which batch or length recorded inputs have, by their shapes."""

from __future__ import annotations

import pytest

from rankmem_aggregator.insights.input_shapes import Inputs, numbers_of
from rankmem_aggregator.insights.reading import CannotTell

BATCHES = [
    [("0", "[4, 3, 32, 32]"), ("mask", "[]"), ("table", "[7, 7]")],
    [("0", "[6, 3, 32, 32]"), ("mask", "[]"), ("table", "[7, 7]")],
]
LENGTHS = [[("0", "[4, 16]"), ("mask", "[16, 16]")], [("0", "[4, 24]"), ("mask", "[24, 24]")]]
BOTH = [[("0", "[4, 16]")], [("0", "[6, 32]")]]


@pytest.mark.parametrize(
    ("sizes", "what", "numbers"),
    [
        (BATCHES, "batch", [4, 6]),
        (LENGTHS, "length", [16, 24]),
        ([[("x", "[2, 8]"), ("y", "[16]")], [("x", "[4, 8]"), ("y", "[32]")]], "batch", [2, 4]),
        ([[("x", "[2, 8]"), ("y", "[9]")], [("x", "[4, 8]"), ("y", "[11]")]], "batch", None),
        ([[("x", "[2, 8]")], [("y", "[4, 8]")]], "batch", None),
        ([[("x", "[2, 8]")], [("x", "[4, 8, 1]")]], "batch", None),
        ([[("x", "[2, 8]")], None], "batch", None),
        ([[("x", "[2, 8]"), ("y", "[2]"), ("scale", "[]")]], "batch", [2]),
        ([[("x", "[2, 8]"), ("y", "[16]")]], "batch", None),
        ([[("x", "[0, 8]")]], "batch", None),
        ([[("x", "[2, 8]")]], "length", None),
        ([None], "batch", None),
    ],
)
def test_the_number_is_what_varies_or_what_all_share(
    sizes: list[Inputs | None], what: str, numbers: list[int] | None
) -> None:
    assert numbers_of(sizes, what) == numbers


@pytest.mark.parametrize(
    ("sizes", "what", "words"),
    [
        (BATCHES, "length", r"first dimension alone.*0 \[4, 3, 32, 32\].* Ask for --batch"),
        (LENGTHS, "batch", "as lengths do: .* Ask for --length"),
        (BOTH, "batch", r"in batch and in length: 0 \[4, 16\] and 0 \[6, 32\]"),
    ],
)
def test_sizes_that_differ_in_something_else_are_refused(sizes: list[Inputs], what: str, words: str) -> None:
    with pytest.raises(CannotTell, match=words):
        numbers_of(sizes, what)
