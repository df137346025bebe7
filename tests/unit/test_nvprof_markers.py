"""PyProf's marker rule on ranges that we make up, and markers that want to be run or to fill the memory."""

from __future__ import annotations

import pytest

from rankmem_imports.kernels.pyprof_markers import (
    LITERAL_CHARS_MAX,
    LITERAL_DEPTH_MAX,
    Explained,
    Placing,
    explain,
    literal,
    pruned,
    sequence_numbers,
    short_name,
)
from rankmem_imports.kernels.rows import TEXT_CHARS_MAX, list_text
from rankmem_imports.kernels.sweep import Launch, Range, enclosing, with_depth

LINEAR = "{'mod': 'torch.nn.functional', 'op': 'linear', 'args': [{'name': '', 'type': 'tensor'}]}"


def kernel(direction: str, *ids: int, operators: tuple[str, ...] = ("op",)) -> Explained:
    return Explained(direction=direction, sequence_ids=ids, operators=operators, operator_modules=("na",))


def test_ranges_are_sorted_by_what_they_say() -> None:
    said = explain(
        [
            "layer:encoder",
            "{'traceMarker': ['train.py:9', '/x/torch/nn/functional.py:1', 'model.py:3']}",
            LINEAR,
            "{'strRepr': 'in_features=3'}",
            "addmm, seq = 12",
            "the user's own",
        ]
    )
    assert said.layers == ("encoder",)
    assert said.call_sites == ("train.py:9", "model.py:3")
    assert (said.operators, said.operator_modules) == (("linear",), ("torch.nn.functional",))
    assert said.representations == ("{'strRepr': 'in_features=3'}",)
    assert (said.sequence_markers, said.sequence_ids) == (("addmm, seq = 12",), (12,))
    assert said.direction == "forward"


@pytest.mark.parametrize(
    ("marker", "direction", "operator"),
    [
        ("MulBackward, seq = 4", "backward", "Mul"),
        ("AddmmBackward0, seq = 4", "backward", "AddmmBackward0"),
        ("native_layer_norm_backward, seq = 4", "backward", "native_layer_norm"),
        ("torch::autograd::CopyBackwards, seq = 4", "forward", "torch::autograd::CopyBackwards"),
        ("mul, seq = 4", "forward", "mul"),
    ],
)
def test_direction_and_operator_come_from_autograds_markers(
    marker: str, direction: str, operator: str
) -> None:
    said = explain([marker])
    assert (said.direction, said.operators) == (direction, (operator,))


def test_the_checkpoints_own_node_is_ignored() -> None:
    assert explain(["CheckpointFunctionBackward, seq = 3", "mul, seq = 4"]).direction == "forward"


def test_nothing_around_a_launch_says_nothing() -> None:
    assert explain([]).direction is None


def test_markers_of_one_number_and_like_names_are_one() -> None:
    markers = ["fused_dropout, seq = 69", "dropout, seq = 69", "add, seq = 69", "dropout, seq = 70"]
    assert pruned(markers) == ("add, seq = 69", "dropout, seq = 69", "dropout, seq = 70")


def test_zero_says_nothing_beside_another_number() -> None:
    assert explain(["sum, seq = 0", "MulBackward, seq = 7"]).sequence_ids == (7,)
    assert explain(["sum, seq = 0"]).sequence_ids == (0,)


def test_newer_markers_have_more_behind_the_number() -> None:
    assert sequence_numbers(["aten::mm, seq = 5, sizes = [[1, 2]]", "x, seq = 6, op_id = 9"]) == (5, 6)


def test_kernels_of_one_operator_and_number_are_counted_on() -> None:
    placing = Placing()
    placed = [placing.place(kernel("forward", 5)) for _ in range(3)]
    assert [p.sub_sequence for p in placed] == [0, 1, 2]
    assert placing.place(kernel("forward", 5, operators=("other",))).sub_sequence == 0


def test_the_first_number_above_the_last_is_a_forward_kernels_own() -> None:
    placing = Placing()
    placing.place(kernel("forward", 5))
    placed = placing.place(kernel("forward", 4, 6))
    assert (placed.sequence_ids, placed.alternative_sequence_ids) == ((6,), (4,))
    placed = placing.place(kernel("backward", 3, 9))
    assert (placed.sequence_ids, placed.alternative_sequence_ids) == ((3,), (9,))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch /tmp/ran')",
        "{'mod': open('/etc/passwd'), 'op': 1, 'args': 0, 'type': 0}",
        "[" * (LITERAL_DEPTH_MAX + 1) + "]" * (LITERAL_DEPTH_MAX + 1),
        "-" * 50_000 + "1",
        "'" + "x" * LITERAL_CHARS_MAX + "'",
        "9" * 10_000 + "**" + "9" * 10_000,
        "\0",
    ],
)
def test_what_is_no_plain_literal_within_bounds_is_not_read(text: str) -> None:
    assert literal(text) is None


def test_an_unread_marker_is_counted_and_kept_as_text() -> None:
    hostile = "{'mod': exit(), 'op': 'x', 'args': [], 'type': 0}"
    said = explain([hostile, "{'traceMarker': open('/etc/passwd')}"])
    assert (said.unread, said.markers, said.operators, said.call_sites) == (2, (hostile,), (), ())


def test_short_names_are_pyprofs() -> None:
    assert short_name("void at::native::(anonymous namespace)::gather<float, int>(int)") == "gather"


def test_a_list_too_long_loses_what_stands_last() -> None:
    text = list_text(["x" * (TEXT_CHARS_MAX // 3)] * 5)
    assert text is not None
    assert len(text) <= TEXT_CHARS_MAX
    assert text.count("x" * 10) > 0
    assert list_text([]) is None


def test_a_launch_is_within_what_begins_before_and_ends_after_it_on_its_thread() -> None:
    ranges = [
        Range(0, 0, 100, 1),
        Range(0, 10, 50, 2),
        Range(0, 12, 14, 3),
        Range(0, 20, 90, 4),
        Range(1, 0, 100, 5),
    ]
    launches = [Launch(0, 20, 30, 0), Launch(0, 40, 60, 1), Launch(1, 5, 6, 2), Launch(2, 5, 6, 3)]
    found = {launch.kernel: [r.number for r in around] for launch, around in enclosing(launches, ranges)}
    assert found == {0: [1, 2], 1: [1, 4], 2: [5], 3: []}


def test_depth_counts_the_open_ranges_of_a_thread() -> None:
    ranges = [
        Range(0, 0, 100, 1),
        Range(0, 10, 50, 2),
        Range(0, 20, 60, 3),
        Range(0, 50, 55, 4),
        Range(1, 1, 2, 5),
    ]
    assert [one.depth for one in with_depth(ranges)] == [0, 1, 2, 2, 0]
