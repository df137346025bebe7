"""Steps of equal input: what a line, the same inputs, and noise of many sizes make of a difference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_aggregator.insights.compare import Numbers, Side, compared, equal_input, some_steps

SIZES = st.lists(st.integers(1, 64), min_size=3, max_size=40)


def side(sizes: list[int] | Numbers, *, named: bool = False) -> Side:
    values = np.array(sizes, float)
    return Side(sizes=values, names=[str(each) if named else None for each in values])


@given(SIZES, SIZES, st.integers(-1000, 1000), st.integers(0, 500), st.booleans())
def test_of_lines_the_difference_is_exact_whatever_the_batches(
    base: list[int], head: list[int], more: int, slope: int, named: bool
) -> None:
    one, other = side(base, named=named), side(head, named=named)
    if equal_input(one.sizes, other.sizes) is None:
        assert max(min(base), min(head)) > min(max(base), max(head))
        with pytest.raises(ValueError, match="do not overlap"):
            compared(one, one.sizes, other, other.sizes)
        return
    found = compared(one, 5000 + slope * one.sizes, other, 5000 + more + slope * other.sizes)
    assert found.difference == pytest.approx(more, abs=1e-6)
    assert found.error == pytest.approx(0, abs=1e-6)


def test_the_same_inputs_are_compared_with_each_other_where_no_line_fits() -> None:
    rng = np.random.default_rng(1)
    base, head = rng.integers(2, 9, 60), rng.integers(3, 9, 60)
    found = compared(side(base, named=True), 2.0**base * 1000, side(head, named=True), 2.0**head * 1000 + 7)
    assert found.difference == 7
    assert found.error == 0
    assert abs(compared(side(base), 2.0**base * 1000, side(head), 2.0**head * 1000 + 7).error) > 0


@pytest.mark.parametrize("seed", range(5))
def test_of_a_square_over_other_ranges_the_difference_is_small(seed: int) -> None:
    """Lengths of 16 to 128 and of 96 to 160: lines through all would differ by some per cent."""
    rng = np.random.default_rng(seed)
    base, head = (np.sort(rng.choice(np.arange(*ends), 40)).astype(float) for ends in ((16, 129), (96, 161)))
    values = [1e6 + 1000 * each + 400 * each**2 for each in (base, head)]
    found = compared(side(base), values[0], side(head), values[1])
    assert abs(found.difference) < 0.01 * found.base
    assert abs(found.difference) < 3 * found.error


@pytest.mark.parametrize("count", [3, 5, 10, 30])
def test_differences_beyond_three_errors_are_rare_where_there_is_none(count: int) -> None:
    rng = np.random.default_rng(count)
    beyond = 0
    for _ in range(300):
        sizes = [rng.integers(8, 64, count).astype(float) for _ in range(2)]
        if equal_input(*sizes) is None:
            continue
        values = [1e6 + 1000 * each + rng.normal(0, 20_000, count) for each in sizes]
        found = compared(side(sizes[0]), values[0], side(sizes[1]), values[1])
        beyond += abs(found.difference) > 3 * found.error
    assert beyond <= 300 * 0.05


def test_some_steps_are_the_first_the_last_and_some_between() -> None:
    assert list(some_steps(3)) == [0, 1, 2]
    chosen = some_steps(1000, 24)
    assert (len(chosen), chosen[0], chosen[-1]) == (24, 0, 999)
