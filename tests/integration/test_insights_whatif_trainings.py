"""Recorded trainings with and without a remedy: what is predicted is what the training with it held."""

from __future__ import annotations

from pathlib import Path

from remedy_runs import judge, pairs_of, read, record

CHANGES = ("base", "checkpoint", "chunks", "kept", "accumulate")


def test_the_peak_after_a_remedy_is_that_of_a_training_with_it(tmp_path: Path) -> None:
    path = tmp_path / "remedies.duckdb"
    record("post_norm", path, changes=CHANGES)
    steps = read(path, 0, CHANGES)
    pairs = [pair for pair in pairs_of("post_norm") if {pair.before, pair.after} <= set(CHANGES)]
    assert len(pairs) == 4
    for pair in pairs:
        found = judge(pair, steps[pair.before], steps[pair.after][0])
        assert abs(found.ours) < 0.01, found
        if pair.remedy == "checkpoint":
            assert abs(found.naive) > 0.02, "the peak moves"
            assert found.before_bytes > 2 * found.real_bytes
