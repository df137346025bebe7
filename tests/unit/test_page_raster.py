"""The rasters and stacks of the block map are exact: against pixels summed one by one over blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankmem_aggregator.page.address_space import GAP_BYTES, address_space, address_text
from rankmem_aggregator.page.raster import FULL, Rectangles, coverage, raster_of
from rankmem_aggregator.page.stacking import Stack, stacked

Array = np.ndarray[Any, Any]
SIDES = st.floats(-3, 12, allow_nan=False)
BOXES = st.lists(st.tuples(SIDES, SIDES, SIDES, SIDES), max_size=8)
LIVES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 30), st.integers(1, 1000)), min_size=1, max_size=25
)


def boxes_of(boxes: list[tuple[float, float, float, float]]) -> Rectangles:
    sides = np.array(boxes, np.float64).reshape(-1, 4)
    return Rectangles(
        x_begin=np.minimum(sides[:, 0], sides[:, 1]),
        x_end=np.maximum(sides[:, 0], sides[:, 1]),
        y_begin=np.minimum(sides[:, 2], sides[:, 3]),
        y_end=np.maximum(sides[:, 2], sides[:, 3]),
    )


def slow_coverage(boxes: Rectangles, width: int, height: int) -> Array:
    """Pixel by pixel, box by box."""
    found = np.zeros((height, width))
    for x0, x1, y0, y1 in zip(boxes.x_begin, boxes.x_end, boxes.y_begin, boxes.y_end, strict=True):
        for j in range(height):
            for i in range(width):
                wide = max(0.0, min(x1, i + 1) - max(x0, i))
                found[j, i] += wide * max(0.0, min(y1, j + 1) - max(y0, j))
    return found


@given(BOXES)
def test_the_coverage_of_each_pixel_is_exact(boxes: list[tuple[float, float, float, float]]) -> None:
    rectangles = boxes_of(boxes)
    assert np.allclose(coverage(rectangles, 9, 7), slow_coverage(rectangles, 9, 7), rtol=0, atol=1e-9)


def test_a_pixel_has_the_group_that_covers_most_of_it_and_is_never_empty_where_anything_is() -> None:
    first, second = boxes_of([(0, 1, 0, 0.4)]), boxes_of([(0, 1, 0.4, 1), (2, 2.001, 0, 1)])
    raster = raster_of([first, second], 4, 1)
    assert raster.shares.tolist() == [[FULL, 0, 1, 0]]
    assert raster.groups.tolist() == [[1, 0, 1, 0]]


def at(stack: Stack, ends: Array, when: int) -> dict[int, int]:
    """Bytes below each chosen block that is alive at an instant."""
    found = {}
    for number, block in enumerate(stack.chosen.tolist()):
        begins = stack.x[stack.first[number] : stack.first[number + 1]]
        below = stack.y[stack.first[number] : stack.first[number + 1]]
        if begins[0] <= when < ends[block]:
            found[block] = int(below[np.searchsorted(begins, when, side="right") - 1])
    return found


@given(LIVES, st.integers(1, 60))
def test_blocks_lie_on_the_older_ones_alive_and_the_others_on_top_of_all(
    lives: list[tuple[int, int, int]], pieces_max: int
) -> None:
    lives = sorted(lives, key=lambda life: life[0])
    begin = np.array([life[0] for life in lives])
    end = begin + np.array([life[1] for life in lives])
    size = np.array([life[2] for life in lives])
    stack = stacked(begin, end, size, pieces_max=pieces_max)
    assert len(stack.x) <= pieces_max
    chosen = set(stack.chosen.tolist())
    for when in range(int(end.max())):
        alive = [i for i in range(len(lives)) if begin[i] <= when < end[i]]
        expected, below = {}, 0
        for block in alive:
            if block in chosen:
                expected[block] = below
                below += int(size[block])
        assert at(stack, end, when) == expected
        place = np.searchsorted(stack.rest_x, when, side="right") - 1
        rest = sum(int(size[i]) for i in alive if i not in chosen)
        drawn = (int(stack.rest_y[place]), int(stack.rest_bytes[place])) if place >= 0 else (0, 0)
        assert drawn == (below, rest)
        assert stack.highest_bytes >= below + rest


def test_as_many_blocks_are_drawn_one_by_one_as_their_pieces_allow_the_largest_first() -> None:
    # The first block's free lets all others sink: 5 blocks, 9 pieces.
    begin, end = np.arange(5), np.array([5, 9, 9, 9, 9])
    size = np.array([100, 50, 40, 30, 20])
    assert len(stacked(begin, end, size, pieces_max=9).chosen) == 5
    assert stacked(begin, end, size, pieces_max=8).chosen.tolist() == [0, 1, 2, 3]
    assert stacked(begin, end, size, pieces_max=1).chosen.tolist() == [0]


def test_long_gaps_between_addresses_are_left_out_of_the_axis_at_any_address() -> None:
    low, high = -(2**63), 2**63 - 4096
    begins = np.array([high, low, low + 4096, 1 << 60, low + 8192 + GAP_BYTES + 1])
    sizes = np.full(5, 4096)
    space = address_space(begins, sizes)
    assert space.total_bytes == 5 * 4096 - 1  # the last byte of all has no address after it
    assert space.begins.tolist() == [low, low + 8192 + GAP_BYTES + 1, 1 << 60, high]
    assert space.offset_of(begins).tolist()[1:3] == [0, 4096]
    assert [address_text(each) for each in (low, -1, 255)] == [
        "0x8000000000000000",
        "0xffffffffffffffff",
        "0xff",
    ]


def test_gaps_up_to_the_least_segment_are_kept() -> None:
    space = address_space(np.array([0, 4096 + GAP_BYTES]), np.full(2, 4096))
    assert (space.begins.tolist(), space.total_bytes) == ([0], 8192 + GAP_BYTES)
