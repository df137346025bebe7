"""Classes of modules with another name on the other side, and those that only stand in the same place."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rankmem_aggregator.insights.diff_text import moved
from rankmem_aggregator.insights.moved import Part, paired
from rankmem_aggregator.insights.renamed_classes import Code, Made, Renamed, renamed, shapes_of

NET = {
    "Net": "Net",
    "layers.0": "Block",
    "layers.0.up": "Linear",
    "layers.1": "Block",
    "layers.1.up": "Linear",
}
NET_MADE = [
    Made("Net.forward", "aten::mul", "Net"),
    Made("Net.__init__", "aten::empty", None),
    Made("Block.forward", "aten::linear", "layers.0.up"),
    Made("Block.forward", "aten::relu", "layers.0"),
    Made("Block.forward.<locals>.scaled", "aten::mul", "layers.1"),
    Made("main", "aten::randn", None),
]
TWO = {"main.0": "Linear", "Generator": "Generator", "Critic": "Critic", "Critic.main.0": "Linear"}
TWO_MADE = [
    Made("Generator.forward", "aten::tanh", "Generator"),
    Made("Critic.forward", "aten::sigmoid", "Critic"),
    Made("Critic.forward", "aten::linear", "Critic.main.0"),
]


def called(classes: dict[str, str], made: list[Made], names: dict[str, str]) -> Code:
    """The code of a side whose classes have other names."""

    def new(text: str | None, separator: str = ".") -> str | None:
        return None if text is None else separator.join(names.get(each, each) for each in text.split("."))

    return Code(
        classes={new(path) or "": names.get(each, each) for path, each in classes.items()},
        made=[Made(new(each.function), each.operator, new(each.module)) for each in made],
    )


BASE = Code(classes=NET, made=NET_MADE)


@pytest.mark.parametrize(
    ("classes", "made", "names"),
    [
        (NET, NET_MADE, {}),
        (NET, NET_MADE, {"Net": "Model"}),
        (NET, NET_MADE, {"Block": "Layer"}),
        (NET, NET_MADE, {"Net": "Model", "Block": "Layer"}),
        # Of a container nothing is known but where its parameters are made.
        ({"Net": "Net", "up": "Linear"}, [Made("Net.__init__", "aten::empty", None)], {"Net": "Model"}),
        # Which of two trees is which, their code shows.
        (TWO, TWO_MADE, {"Generator": "Maker", "Critic": "Judge"}),
        # A second tree of a class, and a class within a function.
        ({"Net": "Net", "Net#2": "Net", "Net#2.up": "Linear"},
         [Made("main.<locals>.Net.forward", "aten::mul", module) for module in ("Net", "Net#2")],
         {"Net": "Model"}),
        # A method that a class has from one that is called as before.
        ({"Small": "Small"}, [Made("Large.forward", "aten::mul", "Small")], {"Small": "Tiny"}),
    ],
)  # fmt: skip
def test_a_class_of_another_name_is_the_same(
    classes: dict[str, str], made: list[Made], names: dict[str, str]
) -> None:
    head = called(classes, made, names)
    if "Net#2" in classes:
        head = Code(
            classes={path.replace("Net", "Model"): each for path, each in head.classes.items()},
            made=[each._replace(module=(each.module or "").replace("Net", "Model")) for each in head.made],
        )
    found = renamed(Code(classes=classes, made=made), head)
    assert found.classes == names
    assert {
        Made(found.function(each.function), each.operator, found.module(each.module)) for each in made
    } == set(head.made)
    assert renamed(head, Code(classes=classes, made=made)).classes == {new: old for old, new in names.items()}


def without(made: list[Made], *operators: str) -> list[Made]:
    return [each for each in made if each.operator not in operators]


@pytest.mark.parametrize(
    ("classes", "made"),
    [
        # Another class in the same place: what it computes is something else.
        ({**NET, "layers.0": "Other", "layers.1": "Other"},
         [*NET_MADE[:2], Made("Other.forward", "aten::gelu", "layers.0"),
          Made("Other.forward", "aten::linear", "layers.0.up")]),
        # In one of its places alone, or in more than its own.
        ({**NET, "layers.1": "Other"}, [each._replace(function="Other.forward") for each in NET_MADE]),
        ({**NET, "layers.0": "Other", "layers.1": "Other", "layers.0.up": "Other"},
         [each._replace(function="Other.forward") for each in NET_MADE[2:]]),
        # Made of other parts.
        ({"Net": "Net", "layers.0": "Other", "layers.0.gate": "Linear", "layers.1": "Other"},
         [Made("Other.forward", "aten::relu", "layers.0")]),
        # The old name is still that of some code.
        ({**NET, "layers.0": "Other", "layers.1": "Other"},
         [*(each._replace(function="Other.forward") for each in NET_MADE[2:5]),
          Made("Block.reset", "aten::zeros", None)]),
        # Nothing that it made is known.
        ({**NET, "layers.0": "Other", "layers.1": "Other"}, NET_MADE[:2]),
        ({}, NET_MADE),
    ],
)  # fmt: skip
def test_what_only_stands_in_the_same_place_is_another_class(
    classes: dict[str, str], made: list[Made]
) -> None:
    head = Code(classes=classes, made=made)
    assert renamed(BASE, head).classes == {}
    assert renamed(head, BASE).classes == {}


def test_a_class_that_also_does_more_is_the_same_and_one_that_does_something_else_instead_is_not() -> None:
    more = [*NET_MADE, Made("Block.forward", "aten::dropout", "layers.0")]
    names = {"Block": "Layer"}
    assert renamed(BASE, called(NET, more, names)).classes == names
    assert renamed(Code(classes=NET, made=more), called(NET, NET_MADE, names)).classes == names
    assert renamed(BASE, called(NET, without(more, "aten::relu"), names)).classes == {}


def test_two_classes_of_which_nobody_knows_which_is_which_stay_what_they_are() -> None:
    classes = {"First": "First", "Second": "Second"}
    made = [Made(f"{name}.forward", "aten::mul", name) for name in classes]
    base = Code(classes=classes, made=made)
    assert renamed(base, called(classes, made, {"First": "A", "Second": "B"})).classes == {}
    assert renamed(base, called(classes, made, {"First": "A"})).classes == {"First": "A"}


def test_a_parts_own_name_is_no_class() -> None:
    names = Renamed(classes={"Net": "Model"}, of_base={"Net": "Net", "wrapped.Net": "Linear"})
    assert names.module("Net") == "Model"
    assert names.module("wrapped.Net") == "wrapped.Net"
    assert names.function("Net") == "Net"
    assert names.function("Net.forward.<locals>.Net") == "Model.forward.<locals>.Net"
    assert (names.module(None), names.function(None)) == (None, None)


MUL = Part("activation", "net.py", "Net.forward", "aten::mul", "Net")
OUTER = Part("activation", "train.py", "main", "aten::add", "Net")
NAMES = Renamed(classes={"Net": "Model"}, of_base={"Net": "Net"})


@pytest.mark.parametrize(
    ("base", "head", "told"),
    [
        ([MUL], [MUL._replace(function="Model.forward", module="Model")],
         [("Net.forward", ["class Net -> Model"])]),
        # A library's or the program's own code in a root of that class.
        ([OUTER], [OUTER._replace(module="Model")], [("Net", ["class Net -> Model"])]),
        ([MUL], [MUL._replace(file="src/model.py", function="Model.forward", module="Model")],
         [("net.py Net.forward", ["class Net -> Model", "net.py -> src/model.py"])]),
        ([MUL], [MUL._replace(function="Model.run", module="Model")],
         [("Net.forward", ["class Net -> Model", "Model.forward -> Model.run"])]),
        ([MUL], [MUL._replace(function="Model.run", module="Model", operator="aten::add")],
         [(None, []), (None, [])]),
    ],
)  # fmt: skip
def test_parts_of_a_renamed_class_are_one_and_what_was_renamed_is_told_once(
    base: list[Part], head: list[Part], told: list[tuple[str | None, list[str]]]
) -> None:
    found = paired(base, head, NAMES)
    assert [(pair.moved_from(), moved([pair])) for pair in found] == told
    assert moved(found) == [text for _, texts in told for text in texts]


@pytest.mark.parametrize(("attempt", "found"), [(1, {"up.weight": "[4, 4]"}), (0, {})])
def test_shapes_of_another_attempt_are_not_those_of_this_one(attempt: int, found: dict[str, str]) -> None:
    rows = [
        {"attempt": 1, "name": "up.weight", "shape": "[4, 4]"},
        {"attempt": 1, "name": "old.weight", "shape": None},
    ]
    ask = lambda *_, **__: pa.Table.from_pylist(rows)  # noqa: E731
    assert shapes_of(ask, "0", attempt=attempt, rank=0) == found


@pytest.mark.parametrize(
    ("before", "now", "classes"),
    [
        (("[8, 8]", "[512, 512]"), ("[8, 8]", "[512, 512]"), {"Small": "Big", "Big": "Small"}),
        # Modules that have changed places: no class has another name.
        (("[8, 8]", "[512, 512]"), ("[512, 512]", "[8, 8]"), {}),
        ((None, None), (None, None), {}),
        (("[8, 8]", None), ("[8, 8]", None), {}),
    ],
)
def test_classes_have_each_others_names_if_their_places_have_the_same_parameters(
    before: tuple[str | None, str | None], now: tuple[str | None, str | None], classes: dict[str, str]
) -> None:
    base, head = (
        Code(
            classes={"a": first, "b": second},
            made=[Made(f"{each}.forward", "aten::mul", path) for path, each in (("a", first), ("b", second))],
            shapes={f"{path}.weight": shape for path, shape in zip("ab", shapes, strict=True) if shape},
        )
        for first, second, shapes in (("Small", "Big", before), ("Big", "Small", now))
    )
    found = renamed(base, head)
    assert found.classes == classes
    assert found.moved.paths == ({"a": "b", "b": "a"} if before != now else {})
