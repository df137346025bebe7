"""Which modules are those of another recording under another name, on trees made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from rankmem_aggregator.insights.diff_text import moved as told_of
from rankmem_aggregator.insights.diff_text import same_text, unmatched
from rankmem_aggregator.insights.module_tree import Tree
from rankmem_aggregator.insights.moved import Part, paired
from rankmem_aggregator.insights.renamed_classes import Code, Made, Renamed, renamed
from rankmem_aggregator.insights.renamed_modules import Moved, Unclear, moved
from rankmem_aggregator.insights.siblings import Place, together

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
    shapes = {f"{path}.weight": "[8]" for path, each in classes.items() if each in ("Attention", "Mlp")}
    return Tree(classes=classes, shapes=shapes, code=code)


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
    root = {"weight": "[1]"}
    some, other = frozenset({("f", "1"), ("f", "2")}), frozenset({("f", "3"), ("f", "4")})
    base = Tree(classes=dict.fromkeys("ab", "Mlp"), shapes=root, code={"a": some | other, "b": some})
    head = Tree(classes=dict.fromkeys("xy", "Mlp"), shapes=root, code={"x": some, "y": other})
    assert moved(base, head, {}).unclear == (Unclear(("a", "b"), ("x", "y")),)


def unknown(path: str, *operators: str, shape: str | None = "[8]", **more: str) -> Tree:
    """A module whose class the other side lacks, and others that both have."""
    code = frozenset((".forward", f"aten::{each}") for each in operators)
    shapes = {f"{path}.weight": shape} if shape else {"other.weight": "[1]"}
    around = {path.rpartition(".")[0]: "Mlp"} if "." in path else {}
    return Tree(classes={**around, path: "", **more}, shapes=shapes, code={path: code})


@pytest.mark.parametrize(
    ("base", "head"),
    [
        # One operator and parameters of one shape, elsewhere or in one module.
        (unknown("enc.norm", "mul", dec="Mlp"), unknown("dec.gate", "mul", enc="Mlp")),
        (unknown("norm", "mul"), unknown("gate", "mul")),
        (unknown("enc.a", "mul", "add", dec="Mlp"), unknown("dec.b", "mul", "add", enc="Mlp")),
        # Half of the code.
        (unknown("attn", "mm", "softmax", "add"), unknown("mixer", "mm", "softmax", "conv1d")),
        # No parameters, or others.
        (unknown("a", "mul", "add", shape=None), unknown("b", "mul", "add", shape=None)),
        (unknown("a", "mul", "add"), unknown("b", "mul", "add", shape="[4]")),
        # A known part of unknown modules.
        (unknown("a", "mul", "add", **{"a.up": "Linear"}), unknown("b", "mul", **{"b.up": "Linear"})),
        # Lists of lists.
        (Tree(classes={"a.0.0": "", "a.0": "Sequential"}, shapes={"a.0.0.w": "[8]"}, code={"a.0.0": MLP}),
         Tree(classes={"b.0.0": "", "b.0": "Sequential"}, shapes={"b.0.0.w": "[8]"}, code={"b.0.0": MLP})),
    ],
)  # fmt: skip
def test_modules_of_classes_that_one_side_lacks_are_not_taken_for_each_other(base: Tree, head: Tree) -> None:
    found = moved(base, head, {})
    assert (found.paths, found.unclear) == ({}, ())
    assert found.gone
    assert found.new


def test_a_parameterless_module_and_one_within_an_unknown_class_are_not_found_elsewhere() -> None:
    gelu = frozenset({("gelu", "aten::gelu")})
    both = {"enc": "Mlp", "dec": "Mlp"}
    base, head = (
        Tree(classes={**both, at: "GELU"}, shapes={"w": "[1]"}, code={at: gelu}) for at in ("enc.a", "dec.b")
    )
    assert moved(base, head, {}).paths == {}
    inner = frozenset({(".forward", "aten::linear")})
    base, head = (
        Tree(
            classes={"enc": "Mlp", "dec": "Mlp", at: "", f"{at}.up": "Linear"},
            shapes={f"{at}.up.weight": "[8, 8]"},
            code={f"{at}.up": inner},
        )
        for at in ("enc.old", "dec.new")
    )
    assert moved(base, head, {}).paths == {}


def test_a_renamed_class_under_another_name_is_known_by_its_parameters_and_all_of_its_code() -> None:
    found = moved(unknown("a", "mul", "add"), unknown("b", "mul", "add", "relu"), {})
    assert (found.paths, found.without_class) == ({"a": "b"}, {"a"})
    base, head = (Code(classes={"Net": "Net", name: of}, shapes={f"{name}.weight": "[8]"},
                       made=[Made(f"{of}.forward", each, name) for each in ("aten::mul", "aten::add")])
                  for name, of in (("a", "Old"), ("b", "New")))  # fmt: skip
    names = renamed(base, head)
    assert names.classes == {"Old": "New"}
    parts = [[Part("activation", "a.py", *made) for made in side.made] for side in (base, head)]
    told = told_of(paired(*parts, names))
    assert told == ["class Old -> New", "module a -> b (told without a class)"]
    assert "modules by their classes" not in same_text(told)
    assert "by the shapes of all their parameters and their code alone" in same_text(told)


def test_without_shapes_no_module_has_another_name() -> None:
    """Two Linear may be of other widths."""
    base, head = (changed(tree(**{name: "Linear"}), code={name: MLP}) for name in "ab")
    assert moved(base, head, {}) == NOT_MATCHED


def test_a_list_and_its_members_under_other_names_at_once_are_one_part_a_layer() -> None:
    def side(outer: str, *inner: str) -> tuple[Code, list[Part]]:
        paths = [f"{outer}.{number}.{name}" for number in range(4) for name in inner]
        made = [Made("Mlp.forward", "aten::linear", path) for path in paths]
        around = {path.rpartition(".")[0]: "Mlp" for path in paths}
        code = Code(
            classes=around | dict.fromkeys(paths, "Linear"),
            shapes={f"{path}.weight": "[8, 8]" for path in paths},
            made=made,
        )
        return code, [Part("activation", "a.py", *each) for each in made]

    (base, before), (head, now) = side("blocks", "fc1", "fc2"), side("layers", "up", "down")
    pairs = paired(before, now, renamed(base, head))
    assert [(len(pair.base), len(pair.head), pair.is_ambiguous) for pair in pairs] == [(2, 2, True)] * 4
    told = told_of(pairs)
    assert told[0] == "module blocks -> layers"
    assert all(each.endswith("(it is not known which is which)") for each in told[1:])
    assert "fc1" in told[1]
    assert told_of(pairs, is_unclear=False) == ["module blocks -> layers"]


def test_a_group_of_base_is_known_by_its_names_in_base_though_head_has_these_too() -> None:
    """The list that is called b in head was a, where c was called b."""
    groups = Moved(paths={"a": "b", "b": "c"}, unclear=(Unclear(("a.x", "a.y"), ("b.u", "b.v")),))
    before = [Part("activation", "a.py", "f", "aten::mm", each) for each in ("a.x", "a.y", "b.u")]
    now = [Part("activation", "a.py", "f", "aten::mm", each) for each in ("b.u", "b.v", "c.u")]
    pairs = paired(before, now, Renamed(moved=groups))
    assert [([part.module for part in pair.base], [part.module for part in pair.head]) for pair in pairs] == [
        (["b.u"], ["c.u"]), (["a.x", "a.y"], ["b.u", "b.v"]),
    ]  # fmt: skip


def layers(name: str, *kinds: str, **members: str) -> Tree:
    """Numbered layers of these classes, and others."""
    return tree(**{name: {str(number): kind for number, kind in enumerate(kinds)}}, **members)


def test_a_star_stands_for_all_siblings_and_a_range_for_some() -> None:
    found = moved(layers("layers", *["Mlp"] * 12), layers("layers", *["Mlp"] * 6, pool="Pool"), {})
    assert unmatched(found) == ["layers.6 to layers.11 of base", "pool of head"]
    found = moved(layers("layers", *["Mlp"] * 3), layers("rows", *["Attention"] * 3), {})
    assert unmatched(found) == ["layers of base", "rows of head"]


def in_layers(name: str, numbers: Iterable[int], *own: str) -> Tree:
    """Layers with modules of these names in some."""
    paths = [f"layers.{number}.{each}" for number in numbers for each in own]
    return Tree(
        classes={**{f"layers.{number}": "Mlp" for number in range(12)}, **dict.fromkeys(paths, name)},
        shapes={f"{path}.weight": "[8]" for path in paths},
        code=dict.fromkeys(paths, MLP),
    )


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        (range(12), ["module layers.*.gate -> layers.*.lock"]),
        ([3], ["module layers.3.gate -> layers.3.lock"]),
        ([3, 4], ["module layers.3.gate -> layers.3.lock", "module layers.4.gate -> layers.4.lock"]),
        ([1, 6, 7, 8, 9], ["module layers.1.gate -> layers.1.lock",
                           "module layers.6.gate to layers.9.gate -> layers.6.lock to layers.9.lock"]),
    ],
)  # fmt: skip
def test_what_is_told_of_siblings_is_told_of_those_that_have_another_name(
    numbers: Iterable[int], told: list[str]
) -> None:
    found = moved(in_layers("Gate", numbers, "gate"), in_layers("Gate", numbers, "lock"), {})
    parts = [
        [Part("activation", "a.py", "f", "mm", f"layers.{number}.{each}") for number in numbers]
        for each in ("gate", "lock")
    ]
    assert told_of(paired(*parts, Renamed(moved=found))) == told


def test_groups_of_siblings_that_could_be_each_other_are_told_together() -> None:
    found = moved(in_layers("Gate", range(12), "a", "b"), in_layers("Gate", range(12), "c", "d"), {})
    assert set(found.unclear_told) == {("layers.*.a, layers.*.b", "layers.*.c, layers.*.d")}
    found = moved(in_layers("Gate", range(6), "a", "b"), in_layers("Gate", range(6), "c", "d"), {})
    assert set(found.unclear_told) == {
        (
            "layers.0.a to layers.5.a, layers.0.b to layers.5.b",
            "layers.0.c to layers.5.c, layers.0.d to layers.5.d",
        )
    }


def test_numbers_within_numbers() -> None:
    children = {"a": ["a.0", "a.1", "a.2", "a.3", "a.x"]}
    children |= {f"a.{n}.h": [f"a.{n}.h.0", f"a.{n}.h.1"] for n in range(4)}

    def told(*paths: str) -> list[str]:
        found = together([[Place(path, children)] for path in paths])
        return list(dict.fromkeys(text for (text,) in found))

    every = [f"a.{n}.h.{m}" for n in range(4) for m in range(2)]
    assert told(*every) == ["a.*.h.*"]
    assert told(*every[:6]) == ["a.0.h.* to a.2.h.*"]
    assert told(*every[:3]) == ["a.0.h.*", "a.1.h.0"]
    assert told("a.x.h", "a.007", "a.²") == ["a.x.h", "a.007", "a.²"]
