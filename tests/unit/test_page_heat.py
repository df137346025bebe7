"""How the heat map orders, pools and quantises, how intervals are counted, and which ranks are odd."""

from __future__ import annotations

import numpy as np
import pytest

from rankmem_aggregator.page import rank_matrix
from rankmem_aggregator.page.answers.heat import (
    ordered,
    pooled_rows,
    quantised,
    row_begins,
    weights,
)
from rankmem_aggregator.page.answers.odd import judged
from rankmem_aggregator.page.rank_matrix import UNKNOWN, Bins, Places, RankMatrix


def matrix_of(cells: object) -> RankMatrix:
    values = np.array(cells, np.int64)
    return RankMatrix(ranks=np.arange(len(values)), cells=values, exact=True, source="")


def places_of(*rows: dict[str, object]) -> Places:
    blank = {"host_name": None, "dp": None, "tp": None, "pp": None, "cp": None, "ep": None}
    return Places(rows={(rank, 0): blank | row for rank, row in enumerate(rows)})


def test_intervals_cover_a_range_without_holes_and_the_ends_are_outside() -> None:
    bins = Bins(from_ns=100, until_ns=199, count=7)
    found = bins.place(np.arange(98, 203))
    assert found[:2].tolist() == [-1, -1]
    assert found[-3:].tolist() == [7, 7, 7]
    assert sorted(set(found[2:-3].tolist())) == list(range(7))
    assert (np.diff(found) >= 0).all()


def test_a_range_of_centuries_does_not_overflow() -> None:
    bins = Bins(from_ns=-(2**61), until_ns=2**61, count=1024)
    assert bins.unit_ns > 1
    assert bins.place(np.array([-(2**61), 0, 2**61])).tolist() == [0, 511, 1023]
    assert Bins(from_ns=0, until_ns=90 * 86_400 * 10**9, count=512).unit_ns == 1


def test_medians_are_numpys_over_what_is_known() -> None:
    random = np.random.default_rng(3)
    values = random.integers(0, 2**50, (40, 30))
    values[random.random(values.shape) < 0.3] = UNKNOWN
    values[:, 7] = UNKNOWN
    groups: list[str | None] = [None if rank % 5 == 4 else str(rank % 5) for rank in range(40)]
    found = rank_matrix.medians(matrix_of(values), groups)
    for rank, group in enumerate(groups):
        mine = values[[other == group for other in groups]]
        for column in range(30):
            known = mine[:, column][mine[:, column] != UNKNOWN]
            expected = np.median(known) if len(known) else np.nan
            assert np.array_equal(found[rank, column], expected, equal_nan=True)


@pytest.mark.parametrize("mode", ["abs", "headroom", "median"])
def test_of_ranks_that_share_a_row_the_one_that_matters_is_kept(mode: str) -> None:
    values = np.array([[5, -9], [7, 3], [-8, 2], [1, 1]])
    known = np.array([[True, True], [True, False], [True, True], [False, False]])
    pooled, some = pooled_rows(values, known, np.array([0, 2]), mode)
    expected = {"abs": [[7, -9], [-8, 2]], "headroom": [[5, -9], [-8, 2]], "median": [[7, -9], [-8, 2]]}
    assert pooled.tolist() == expected[mode]
    assert some.all()


def test_rows_share_the_ranks_evenly() -> None:
    assert row_begins(10, 4).tolist() == [0, 2, 5, 7]
    assert row_begins(3, 250).tolist() == [0, 1, 2]
    assert row_begins(0, 250).tolist() == []
    assert np.diff([*row_begins(10_000, 250), 10_000]).tolist() == [40] * 250


def test_cells_state_their_scale() -> None:
    known = np.array([[True, True, True, False]])
    cells, low, high = quantised(np.array([[100, 200, 300, 999]]), known, "abs")
    assert (cells.tolist(), low, high) == ([[1, 128, 255, 0]], 100, 300)
    cells, low, high = quantised(np.array([[-400, 100, 0, 999]]), known, "median")
    assert (cells.tolist(), low, high) == ([[1, 128 + 64, 128, 0]], -400, 400)
    cells, low, high = quantised(np.array([[7, 7, 7, 7]]), known & False, "abs")
    assert (cells.tolist(), low, high) == ([[0, 0, 0, 0]], 0, 0)


def test_rows_are_ordered_by_rank_peak_or_where_ranks_belong() -> None:
    places = places_of({"pp": 10}, {"pp": 9, "host_name": "b"}, {}, {"pp": 9, "host_name": "a"})
    cells = np.array([[1, 5], [9, 2], [5, 5], [UNKNOWN, UNKNOWN]])
    matter = weights(cells, cells != UNKNOWN, "abs")
    ranks = np.arange(4)
    assert ordered(ranks, matter, places, "rank")[0].tolist() == [0, 1, 2, 3]
    assert ordered(ranks, matter, places, "peak")[0].tolist() == [1, 0, 2, 3]
    found, groups = ordered(ranks, matter, places, "pp")
    assert (found.tolist(), groups) == ([1, 3, 0, 2], ["9", "9", "10", None])
    assert ordered(ranks, matter, places, "host")[1] == ["a", "b", None, None]


def course(level: float = 0, growth: float = 0, fall: float = 0, spike: float = 0) -> list[int]:
    """Bytes of a rank: a saw tooth around 10 GiB, with what is odd about it."""
    step = np.arange(240)
    bytes_ = (10 << 30) + (step % 10) * (100 << 20) + level + growth * step / 240 - fall * (step > 100)
    bytes_[120] += spike
    return [int(value) for value in bytes_]


GIB = 1 << 30


@pytest.mark.parametrize(
    ("odd", "reason", "off_bytes"),
    [
        (course(level=2 * GIB), "high", 2 * GIB),
        (course(level=-2 * GIB), "low", -2 * GIB),
        (course(growth=4 * GIB), "growing", 3 * GIB),
        (course(fall=3 * GIB), "fell", -3 * GIB),
        (course(spike=5 * GIB), "high", 4.2 * GIB),
    ],
)
def test_an_odd_rank_has_a_reason(odd: list[int], reason: str, off_bytes: float) -> None:
    usual = [course(level=rank * 1e6) for rank in range(-3, 4)]
    (found,) = judged(matrix_of([*usual, odd]), ["job"] * 8)
    assert (found["place"], found["reason"]) == (7, reason)
    assert found["off_bytes"] == pytest.approx(off_bytes, rel=0.05)


def test_ranks_that_behave_as_their_group_are_not_odd() -> None:
    big = [course(level=8 * GIB + rank * 1e6) for rank in range(4)]
    small = [course(level=rank * 1e6) for rank in range(4)]
    assert judged(matrix_of([*big, *small]), [*["0"] * 4, *["1"] * 4]) == []
    assert judged(matrix_of([big[0]]), ["job"]) == []
    assert judged(matrix_of(np.full((3, 240), UNKNOWN)), ["job"] * 3) == []


def test_what_ended_did_not_fall() -> None:
    ended = course()
    ended[100:] = [UNKNOWN] * 140
    assert judged(matrix_of([course(), course(), course(), ended]), ["job"] * 4) == []
