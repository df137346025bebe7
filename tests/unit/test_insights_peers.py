"""Which ranks stand out from their peers: planted faults in jobs that never ran."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from numpy.typing import NDArray

from made_jobs import MIB
from peers_measured import measured
from rankmem_aggregator.insights.explaining import dense, explained, inferred, medians
from rankmem_aggregator.insights.peers import median_peer, standing_of, with_pairs

GIB = 1 << 30
RANKS = np.arange(64)
STAGES = dense(RANKS // 16)


def totals(seed: int = 3) -> NDArray[np.float64]:
    """64 ranks in four stages that differ by 2 GiB each, with noise of 0.3 %."""
    rng = np.random.default_rng(seed)
    return (20 - 2 * STAGES) * GIB * rng.normal(1, 0.003, 64)


def test_what_a_coordinate_explains_does_not_stand_out() -> None:
    standing = standing_of(totals(), {"dp": dense(RANKS % 16), "pp": STAGES})
    assert standing.shares[0][0] == "pp"
    assert standing.shares[0][1] > 0.99
    assert not len(standing.ranks)
    assert not standing.levels


@pytest.mark.parametrize("change", [1.5 * GIB, -1.5 * GIB])
def test_a_rank_that_holds_more_or_less_than_its_peers_stands_out(change: float) -> None:
    held = totals()
    held[37] += change
    standing = standing_of(held, {"pp": STAGES})
    assert standing.ranks.tolist() == [37]
    assert standing.beyond[37] == pytest.approx(change, abs=0.2 * GIB)


def test_a_host_whose_ranks_all_hold_more_is_one_level() -> None:
    held = totals()
    hosts = dense(RANKS // 4)
    held[8:12] += GIB
    standing = standing_of(held, {"pp": STAGES}, {"host": hosts})
    (level,) = standing.levels
    assert (level.coordinate, level.ranks.tolist()) == ("host", [8, 9, 10, 11])
    assert level.beyond == pytest.approx(GIB, rel=0.2)
    assert not len(standing.ranks)


def test_two_faulty_ranks_of_four_are_no_level() -> None:
    held = totals()
    held[[8, 10]] += 2 * GIB
    standing = standing_of(held, {"pp": STAGES}, {"host": dense(RANKS // 4)})
    assert sorted(standing.ranks.tolist()) == [8, 10]
    assert not standing.levels


def test_the_load_of_a_pair_of_coordinates_is_one_level() -> None:
    held = totals()
    coordinates = {"pp": STAGES, "dp": dense(RANKS // 4 % 4)}
    held[(coordinates["pp"] == 1) & (coordinates["dp"] == 2)] += GIB
    standing = standing_of(held, coordinates, with_pairs(coordinates))
    assert [level.ranks.tolist() for level in standing.levels] == [[24, 25, 26, 27]]
    assert standing.levels[0].coordinate == "pp, dp"


def test_the_layout_is_found_from_bytes_alone() -> None:
    layouts = inferred(totals(), RANKS, 64)
    standing = standing_of(totals(), layouts)
    assert standing.shares[0][0] == "rank // 16 % 4"
    assert not len(standing.ranks)


def test_the_peer_is_the_median_of_the_same_stage() -> None:
    held = totals()
    held[37] += GIB
    standing = standing_of(held, {"pp": STAGES})
    peer = median_peer(held, standing, 37, standing.ranks)
    own = [held[rank] for rank in range(32, 48) if rank != 37]
    assert peer is not None
    assert STAGES[peer] == STAGES[37]
    assert held[peer] == min(own, key=lambda each: abs(each - statistics.median(own)))


def test_medians_and_explained_variance_are_numpys() -> None:
    rng = np.random.default_rng(0)
    values, labels = rng.normal(size=201), dense(rng.integers(0, 7, 201))
    expected = [np.median(values[labels == level]) for level in range(7)]
    assert medians(values, labels).tolist() == pytest.approx(expected)
    within = sum(((values[labels == k] - values[labels == k].mean()) ** 2).sum() for k in range(7))
    adjusted = 1 - within / (201 - 7) / values.var(ddof=1)
    assert explained(values, labels) == pytest.approx(max(0, adjusted))


def test_equal_ranks_differ_in_nothing() -> None:
    standing = standing_of(np.full(64, 3.0 * GIB), {"pp": STAGES})
    assert standing.shares == ()
    assert not len(standing.ranks)


@pytest.mark.parametrize(
    ("experts", "precision", "recall"), [(None, 0.88, 0.85), (False, 0.95, 0.95)], ids=["a third", "none"]
)
def test_planted_faults_are_found_in_jobs_that_were_not_tuned_on(
    experts: bool | None, precision: float, recall: float
) -> None:
    ours, naive = measured(range(5000, 5012), experts=experts, world=512)
    assert ours.precision >= precision
    assert ours.recall >= recall
    assert ours.causes >= 0.9
    assert naive.precision < 0.5


def test_a_host_that_is_a_replica_of_a_stage_is_not_its_own_measure() -> None:
    ranks = np.arange(128)
    stages, replicas, hosts = dense(ranks // 32), dense(ranks // 8 % 4), dense(ranks // 8)
    rng = np.random.default_rng(1)
    held = (20 - 2 * stages) * GIB + rng.normal(0, 10 * MIB, 128)
    held[hosts == 2] += GIB
    standing = standing_of(held, {"pp": stages, "dp": replicas}, {"host": hosts})
    assert [(level.coordinate, level.level) for level in standing.levels] == [("host", 2)]


def test_a_fault_is_a_size() -> None:
    held = np.full(64, 1.0 * GIB)
    held[5] += 60 * MIB
    assert not len(standing_of(held, {"pp": STAGES}).ranks)
    held[5] += 10 * MIB
    assert standing_of(held, {"pp": STAGES}).ranks.tolist() == [5]
