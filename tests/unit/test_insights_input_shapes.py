"""Which batch or length recorded inputs have, by their shapes."""

from __future__ import annotations

import pytest

from rankmem_aggregator.insights.input_shapes import Inputs, batch_by_places, inputs_text, numbers_of
from rankmem_aggregator.insights.reading import CannotTell

BATCHES = [
    [("0", "[4, 3, 32, 32]"), ("mask", "[]"), ("table", "[7, 7]")],
    [("0", "[6, 3, 32, 32]"), ("mask", "[]"), ("table", "[7, 7]")],
]
LENGTHS = [[("0", "[4, 16]"), ("mask", "[16, 16]")], [("0", "[4, 24]"), ("mask", "[24, 24]")]]
TRANSLATIONS = [
    [("input_ids", "[4, 16]"), ("labels", "[4, 8]")],
    [("input_ids", "[4, 32]"), ("labels", "[4, 16]")],
]
GRAPHS = [[("0", "[200, 64]"), ("1", "[2, 800]")], [("0", "[400, 64]"), ("1", "[2, 1600]")]]
BOTH = [[("0", "[4, 16]")], [("0", "[6, 32]")]]


@pytest.mark.parametrize(
    ("sizes", "what", "numbers"),
    [
        (BATCHES, "batch", [4, 6]),
        (LENGTHS, "length", [16, 24]),
        (TRANSLATIONS, "length", None),
        ([[("x", "[2, 8]"), ("y", "[16]")], [("x", "[2, 16]"), ("y", "[32]")]], "length", [8, 16]),
        ([[("x", "[2, 8]"), ("y", "[16]")], [("x", "[4, 8]"), ("y", "[32]")]], "batch", [2, 4]),
        ([[("x", "[2, 8]"), ("y", "[8]")], [("x", "[2, 16]"), ("y", "[16]")]], "length", [8, 16]),
        (GRAPHS, "batch", None),
        (GRAPHS, "length", None),
        ([[("x", "[20, 8]"), ("y", "[40]")], [("x", "[20, 16]"), ("y", "[80]")]], "batch", None),
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
    ("inputs", "input_bytes", "numbers"),
    [
        ([("0", "[35, 20]")], 5600, None),
        ([("0", "[35, 20]")], 2800, [35]),
        ([("0", "[35, 20]"), ("1", "[35, 20]")], 11200, None),
        ([("0", "[35, 20]"), ("1", "[35]")], 5880, [35]),
        ([("0", "[35, 20]"), ("mask", "[35, 35]")], 10500, None),
        ([("input_ids", "[35, 20]")], 5600, [35]),
        ([("0", "[20, 20]")], 3200, [20]),
        ([("0", "[35, 20, 64]")], 179200, None),
        ([("0", "[35, 20, 64]"), ("1", "[35, 7, 64]")], 241920, [35]),
        ([("0", "[8, 28, 28]")], 25088, [8]),
        ([("0", "[8, 3, 28, 28]")], 75264, [8]),
        ([("0", "[3, 28, 28]")], 9408, None),
        ([("0.0", "[3, 28, 28]"), ("0.1", "[3, 28, 28]")], 18816, None),
        ([("0.0", "[3, 28, 28]"), ("0.1", "[3, 30, 28]"), ("1.0.boxes", "[3, 4]")], 19536, None),
        ([("0.0", "[8, 3, 28, 28]"), ("0.1", "[8, 3, 28, 28]")], 150528, [8]),
    ],
)
def test_where_the_second_dimension_may_be_the_batch_the_shapes_do_not_say_it(
    inputs: Inputs, input_bytes: int, numbers: list[int] | None
) -> None:
    assert numbers_of([inputs], "batch", input_bytes) == numbers


WORDS = ("aten::embedding", "Net.words", 35 * 20 * 256)
PLACES = ("aten::embedding", "Net.places", 20 * 256)
COUNTED = ("aten::arange", "Net", 8 * 20)


@pytest.mark.parametrize(
    ("shape", "made", "batch"),
    [
        ("[35, 20]", [WORDS, COUNTED, PLACES], 35),
        ("[35, 20]", [("aten::arange", None, 8 * 512), WORDS, WORDS, PLACES, PLACES], 35),
        # A row for each of 20 texts, which have 35 words: of the table of their authors.
        ("[35, 20]", [WORDS, PLACES], None),
        ("[35, 20]", [WORDS, ("aten::arange", None, 8), PLACES], None),
        # So beside a mask of 35 places, and where the last word of each text is taken.
        ("[35, 20]", [("aten::arange", "Net", 8 * 35), WORDS, PLACES], None),
        ("[35, 20]", [WORDS, PLACES, COUNTED], None),
        # A decoder that takes one word of each of 20 texts after the other.
        ("[35, 20]", [WORDS, COUNTED, *[PLACES] * 35], None),
        ("[35, 20]", [WORDS, COUNTED, ("aten::embedding", "Net.words", 20 * 256)], None),
        ("[35, 20]", [("aten::triu", "Net", 4 * 20 * 20)], 35),
        ("[35, 20]", [WORDS, ("aten::embedding", "Net.places", 35 * 256)], None),
        ("[35, 20]", [("aten::tril", "Net", 35 * 35)], None),
        ("[35, 20]", [WORDS, PLACES, ("aten::triu", "Net", 4 * 35 * 35)], None),
        ("[35, 20]", [WORDS, ("aten::add", "Net", 20 * 256), (None, None, 20 * 256)], None),
        ("[1, 20]", [COUNTED, PLACES], None),
        ("[1, 20]", [("aten::triu", "Net", 4 * 20 * 20)], 1),
        ("[20, 20]", [("aten::triu", "Net", 4 * 20 * 20)], None),
        ("[35, 20]", [], None),
    ],
)
def test_vectors_of_places_and_triangles_say_which_dimension_is_the_length(
    shape: str, made: list[tuple[str | None, str | None, int]], batch: int | None
) -> None:
    assert batch_by_places([("0", shape), ("1", shape)], made) == batch


def test_of_a_long_list_a_sentence_names_the_first_tensors() -> None:
    pictures = [(f"0.{number}", "[3, 8, 8]") for number in range(64)]
    assert inputs_text(pictures) == "0.0 [3, 8, 8], 0.1 [3, 8, 8], 0.2 [3, 8, 8], 0.3 [3, 8, 8], 60 more"
    assert inputs_text(pictures[:1]) == "0.0 [3, 8, 8]"


def test_words_of_several_shapes_say_nothing_of_places() -> None:
    made = [("aten::triu", "Net", 4 * 20 * 20)]
    assert batch_by_places([("0", "[35, 20]"), ("1", "[35, 7]")], made) is None


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
