"""Which modules are those of another recording under another name, on trees made by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rankmem_aggregator.insights.diff_text import moved as told_of
from rankmem_aggregator.insights.moved import Part, paired
from rankmem_aggregator.insights.renamed_classes import Renamed
from rankmem_aggregator.insights.renamed_modules import Moved, Tree, Unclear, moved

ATTENTION = frozenset({("Attention.forward", "aten::softmax"), ("Attention.forward", "aten::matmul")})
MLP = frozenset({("Mlp.forward", "aten::gelu")})


NOT_MATCHED = Moved(gone=("a",), new=("b",))


def tree(**members: str | Mapping[str, str]) -> Tree:
    """Lists of modules: by name the class of one, or by name the classes of several."""
    classes = {}
    for name, own in members.items():
        named = {name: own} if isinstance(own, str) else {f"{name}.{each}": own[each] for each in own}
        classes.update(named)
    code = {
        path: {"Attention": ATTENTION, "Mlp": MLP}.get(each, frozenset()) for path, each in classes.items()
    }
    return Tree(classes=classes, shapes={}, code=code)


def changed(one: Tree, **columns: Mapping[str, object]) -> Tree:
    named = {name: getattr(one, name) for name in ("classes", "shapes", "code")}
    return Tree(**(named | {name: {**named[name], **own} for name, own in columns.items()}))


@pytest.mark.parametrize(
    ("base", "head", "paths"),
    [
        (tree(blocks={"0": "Mlp"}), tree(layers={"0": "Mlp"}), {"blocks": "layers"}),
        (tree(blocks={"0": "Mlp"}), tree(layers={"0": "Mlp", "1": "Mlp"}), {"blocks": "layers"}),
        (
            tree(blocks={"0": "Mlp"}),
            changed(tree(layers={"0": "Mlp"}), classes={"layers": "Sequential"}),
            {"blocks": "layers"},
        ),
        (tree(a={"0": "Mlp"}, b="Attention"), tree(c={"0": "Mlp"}, d="Attention"), {"a": "c", "b": "d"}),
        # Names that others had before.
        (tree(a="Mlp", b="Attention"), tree(a="Attention", b="Mlp"), {"a": "b", "b": "a"}),
        # Within another module, and out of it.
        (tree(a={"0": "Mlp"}), tree(trunk={"a.0": "Mlp"}), {"a": "trunk.a"}),
        (tree(trunk={"a.0": "Mlp"}), tree(a={"0": "Mlp"}), {"trunk.a": "a"}),
    ],
)  # fmt: skip
def test_a_module_has_another_name_where_no_other_could_be_it(
    base: Tree, head: Tree, paths: dict[str, str]
) -> None:
    assert moved(base, head, {}).paths == paths


def test_of_several_that_could_be_each_other_none_is_taken() -> None:
    found = moved(tree(a="Mlp", b="Mlp"), tree(c="Mlp", d="Mlp"), {})
    assert found == Moved(unclear=(Unclear(("a", "b"), ("c", "d")),))
    found = moved(tree(a="Mlp"), tree(c="Mlp", d="Mlp"), {})
    assert found == Moved(unclear=(Unclear(("a",), ("c", "d")),))


def test_the_shapes_of_parameters_tell_modules_of_one_class_apart() -> None:
    base, head = tree(up="Linear", down="Linear"), tree(first="Linear", second="Linear")
    assert moved(base, head, {}).paths == {}
    base = changed(base, shapes={"up.weight": "[512, 128]", "down.weight": "[128, 512]"})
    head = changed(head, shapes={"first.weight": "[512, 128]", "second.weight": "[128, 512]"})
    assert moved(base, head, {}).paths == {"up": "first", "down": "second"}


def test_another_class_other_parameters_and_other_code_are_another_module() -> None:
    base = tree(a="Mlp")
    assert moved(base, tree(b="Attention"), {}) == NOT_MATCHED
    assert moved(base, changed(tree(b="Mlp"), shapes={"b.weight": "[4]"}), {}) == NOT_MATCHED
    other = changed(tree(b="Mlp"), code={"b": frozenset({("Net.forward", "aten::gelu")})})
    assert moved(base, other, {}) == NOT_MATCHED
    most = changed(
        tree(b="Mlp"), code={"b": frozenset(("Mlp.forward", f"aten::{each}") for each in ("sin", "cos"))}
    )
    assert moved(base, most, {}) == NOT_MATCHED
    more = changed(tree(b="Mlp"), code={"b": MLP | {("Mlp.forward", "aten::sin")}})
    assert moved(base, more, {}).paths == {"a": "b"}


def test_what_is_elsewhere_and_not_all_the_same_is_not_taken() -> None:
    base = tree(blocks={"0": "Mlp"})
    assert moved(base, tree(trunk={"blocks.0": "Mlp", "blocks.1": "Mlp"}), {}).paths == {}
    assert moved(base, tree(trunk={"first.0": "Mlp", "second.0": "Mlp"}), {}).paths == {}


def test_a_class_that_one_side_lacks_stays_in_its_place() -> None:
    """It may have another name there, or be replaced: classes tell that."""
    base = Tree(classes={"norm": ""}, shapes={}, code={})
    assert moved(base, Tree(classes={"norm": "RMSNorm"}, shapes={}, code={}), {}) == Moved()


def test_a_deep_chain_and_modules_without_a_name_are_no_trouble() -> None:
    deep = [".".join("x" * count) for count in range(1, 2000)]
    base = Tree(classes=dict.fromkeys(["a", "", ".b", "c..d", *deep], "Mlp"), shapes={}, code={})
    head = Tree(classes=dict.fromkeys(["a", *(f"y.{each}" for each in deep)], "Mlp"), shapes={}, code={})
    found = moved(base, head, {})
    assert (found.gone, found.new) == (("x",), ("y",))


def test_many_modules_that_could_be_each_other_are_named_in_part_and_compared_by_what_they_share() -> None:
    names = [[f"{name}{number}" for number in range(2000)] for name in ("layer", "block")]
    base, head = (tree(**dict.fromkeys(own, "Mlp")) for own in names)
    found = moved(base, head, {})
    assert found == Moved(unclear=(Unclear(tuple(names[0]), tuple(names[1])),))
    parts = [[Part("activation", "a.py", "f", "aten::mm", path) for path in own] for own in names]
    (pair,) = paired(*parts, Renamed(moved=found))
    (told,) = told_of([pair])
    assert told.startswith("module layer0, layer1, layer2, layer3, layer4, layer5 and 1,994 more -> block0, ")
    assert len(told) < 300


def test_one_group_has_all_that_could_be_each_other_over_others() -> None:
    """b could be x alone, a could be both."""
    some, other = frozenset({("f", "1"), ("f", "2")}), frozenset({("f", "3"), ("f", "4")})
    base = Tree(classes=dict.fromkeys("ab", "Mlp"), shapes={}, code={"a": some | other, "b": some})
    head = Tree(classes=dict.fromkeys("xy", "Mlp"), shapes={}, code={"x": some, "y": other})
    assert moved(base, head, {}).unclear == (Unclear(("a", "b"), ("x", "y")),)
