"""Recorded trainings at several sizes: what is predicted for a size is what it held."""

from __future__ import annotations

from pathlib import Path

import pytest

from fit_runs import predictions, read, record
from rankmem_aggregator import connect


def test_each_size_of_a_recorded_training_is_predicted_from_the_others(tmp_path: Path) -> None:
    path = tmp_path / "lengths.duckdb"
    record("llama", "length", (16, 32, 96), path)
    found = list(predictions("llama", "length", read(path, (16, 32, 96))))
    assert len(found) == 2
    for each in found:
        assert each.ours is not None
        assert abs(each.ours) < 0.002
        assert abs(each.naive) > 0.02, "attention grows with the square: a line through peaks misses"
        assert each.reserved is not None
        assert abs(each.reserved) < 0.01


@pytest.mark.long
def test_a_size_with_autocast_beside_one_without_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mixed.duckdb"
    record("llama", "batch", (2, 4), path, autocast=(4,))
    with connect(path) as queries:
        answer = queries.fit(batch=[8], recorded=[2, 4])
    assert answer.verdict == "cannot tell"
    assert "same program" in answer.sentence
