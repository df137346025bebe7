"""The checker itself: a row that is gone, twice, or changed is found."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from faults.ledger import Written, check
from faults.scene import opened

COUNT = 500


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A database that holds one rank of the reference run."""
    with opened(tmp_path_factory.mktemp("sound")) as scene:
        scene.start_aggregator()
        scene.start_rank(0, "--events", str(COUNT))
        scene.deliver()
        scene.close_aggregator()
        yield scene.database


def test_a_sound_database_passes(sound: Path) -> None:
    found = check(sound, [Written(rank=0, attempt=0, count=COUNT)])
    assert (found.expected, found.found, found.duplicated, found.reasons) == (COUNT, COUNT, 0, set())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("DELETE FROM packed.memory_event WHERE seq = 100", "are missing, gap rows tell of 0"),
        ("DELETE FROM packed.memory_event WHERE seq >= 500", "are missing, gap rows tell of 0"),
        ("INSERT INTO packed.memory_event FROM packed.memory_event WHERE seq = 100", "twice"),
        ("UPDATE packed.memory_event SET requested_bytes = 1 WHERE seq = 100", "naive sum"),
        ("DELETE FROM packed.allocation_record WHERE allocation_id = 100", "no block"),
        ("UPDATE rank_info SET complete = false", "rank 0"),
        ("UPDATE rank_info SET rank = 1", "0"),
    ],
)
def test_whatever_is_wrong_is_found(sound: Path, tmp_path: Path, change: str, complaint: str) -> None:
    copy = tmp_path / "changed.duckdb"
    shutil.copy(sound, copy)
    with duckdb.connect(copy) as connection:
        connection.execute(change)
    with pytest.raises((AssertionError, ValueError), match=complaint):
        check(copy, [Written(rank=0, attempt=0, count=COUNT)])


def test_more_than_was_written_is_found(sound: Path) -> None:
    check(sound, [Written(rank=0, attempt=0, count=COUNT - 1)])  # the witness may lag behind by a run
    with pytest.raises(AssertionError, match="missing"):
        check(sound, [Written(rank=0, attempt=0, count=COUNT + 1)])
