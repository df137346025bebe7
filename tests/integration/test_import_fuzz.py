"""Mutated recordings are imported, or refused by an error that names them; a few hundred here.

RANKMEM_FUZZ_MUTATIONS=N makes N of each; ``python tests/tools/fuzz_imports.py`` runs more (docs/formats.md).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuzz_imports import RECORDINGS, fuzz, made, recordings

MUTATIONS = int(os.environ.get("RANKMEM_FUZZ_MUTATIONS", "0"))
SMALL_BYTES = 130_000
"""Of a recording that is fuzzed without being asked for: the others take seconds each time."""


@pytest.mark.parametrize("number", range(4))
def test_mutations_of_our_own_recordings_are_imported_or_refused(number: int, tmp_path: Path) -> None:
    outcome = fuzz(made(tmp_path)[number], MUTATIONS or 60)
    assert outcome.faults == []
    assert outcome.imported > 0, "some mutations do no harm"
    assert outcome.refused["invalid"] > 0


def size_of(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*"))
    return path.stat().st_size


@pytest.mark.recordings
@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs ../shared/recordings")
def test_mutations_of_other_peoples_recordings_are_imported_or_refused() -> None:
    chosen = [path for path in recordings() if MUTATIONS or size_of(path) < SMALL_BYTES]
    assert chosen
    outcomes = {path.name: fuzz(path, MUTATIONS or 8, seed=3) for path in chosen}
    assert {name: outcome.faults for name, outcome in outcomes.items() if outcome.faults} == {}
    assert sum(outcome.imported for outcome in outcomes.values()) > 0
