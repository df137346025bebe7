"""The tree of a flame graph: bytes are never lost, however it is cut, merged or turned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_aggregator.page.flame_tree import Nodes, Step, bounded, merged, tree_of

_step = st.builds(Step, st.just("frame"), st.sampled_from("abcd"))
_paths = st.lists(
    st.tuples(st.lists(_step, max_size=5), st.integers(0, 1000), st.integers(1, 3)), max_size=25
)


def _path(text: str) -> list[Step]:
    return [Step("frame", name) for name in text]


def _names(path: list[Step]) -> str:
    return "".join(step.name for step in path)


def _below(nodes: Nodes, place: int) -> int:
    return sum(size for size, parent in zip(nodes.bytes, nodes.parent, strict=True) if parent == place)


@given(_paths, st.sampled_from((0.0, 0.01, 0.2, 1.0)), st.sampled_from((8, 30, 1000)))
def test_a_node_has_the_bytes_of_all_paths_through_it(
    paths: list[tuple[list[Step], int, int]], min_share: float, most: int
) -> None:
    nodes = bounded(tree_of(paths), min_share, most)
    assert len(nodes.parent) <= most
    assert nodes.bytes[0] == sum(size for _, size, _ in paths)
    assert nodes.blocks[0] == sum(blocks for _, _, blocks in paths)
    for place, (parent, kind) in enumerate(zip(nodes.parent, nodes.kind, strict=True)):
        assert parent < place
        prefix: list[Step] = []
        above = place
        while above > 0:
            prefix.insert(0, Step(nodes.kind[above], nodes.name[above]))
            above = nodes.parent[above]
        if kind == "frame":
            through = sum(size for path, size, _ in paths if path[: len(prefix)] == prefix)
            assert nodes.bytes[place] == through
        own = sum(size for path, size, _ in paths if path == prefix)
        if kind != "others" and _below(nodes, place):
            assert nodes.bytes[place] == _below(nodes, place) + own


def test_children_come_the_largest_first_and_depth_first() -> None:
    nodes = bounded(tree_of([(_path("ab"), 1, 1), (_path("ac"), 5, 1), (_path("d"), 3, 1)]), 0)
    assert nodes.name == ["all", "a", "c", "b", "d"]
    assert nodes.parent == [-1, 0, 1, 1, 0]


def test_what_is_small_is_pooled_in_its_place() -> None:
    nodes = bounded(tree_of([(_path("a"), 97, 1), (_path("b"), 2, 1), (_path("c"), 1, 4)]), 0.03)
    assert list(zip(nodes.name, nodes.kind, nodes.bytes, nodes.blocks, strict=True))[1:] == [
        ("a", "frame", 97, 1),
        ("2 smaller", "others", 3, 5),
    ]


@pytest.mark.parametrize(
    ("recursion", "path", "drawn"),
    [
        ("keep", "aabcb", "aabcb"),
        ("direct", "aabccb", "abcb"),
        ("all", "aabcbd", "abd"),
        ("all", "abcabd", "abd"),
    ],
)
def test_recursion_is_merged(recursion: str, path: str, drawn: str) -> None:
    assert _names(list(merged(_path(path), recursion))) == drawn


def test_a_stack_may_be_deeper_than_pythons_own() -> None:
    path = [Step("frame", str(i)) for i in range(5000)]
    assert len(bounded(tree_of([(path, 1, 1)]), 0).parent) == 5001
