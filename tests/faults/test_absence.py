"""An aggregator that is not there, and what was left on disk: delivered later, or told to be missing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from faults.ledger import Totals, check
from faults.scene import Scene
from main_job import RANKMEM, call
from rankmem_agent.spool.folder import spools
from rankmem_agent.spool.layout import RECORDS_PER_SEGMENT
from waiting import DEADLINE_S, until

EVENTS = 150_000


def whole(found: Totals) -> bool:
    return (found.found, found.explained, found.duplicated) == (found.expected, 0, 0)


@pytest.mark.long
def test_an_aggregator_that_comes_late_gets_everything(scene: Scene) -> None:
    for rank in range(2):
        scene.start_rank(rank, "--events", str(EVENTS), "--seconds", "0.5", "--world-size", "2")
    for started in scene.ranks:
        assert started.process.wait(DEADLINE_S) == 0
    scene.start_aggregator()
    scene.deliver()
    scene.close_aggregator()
    assert whole(check(scene.database, scene.written()))


def test_an_aggregator_that_begins_again_with_nothing_is_told_of_the_rest_and_of_what_it_lacks(
    scene: Scene,
) -> None:
    """What the first one acknowledged is deleted here: for the second it is one gap row and no more."""
    scene.start_aggregator()
    rank = scene.start_rank(0, "--events", str(EVENTS), "--seconds", "1", "--pause-at", "100000")
    session_dir = scene.session_dir()
    until("a segment is stored and deleted", lambda: is_deleted(session_dir))
    scene.kill_aggregator()
    scene.forget_database()
    scene.start_aggregator()
    rank.process.send_signal(signal.SIGUSR1)
    assert rank.process.wait(DEADLINE_S) == 0
    scene.deliver()
    scene.close_aggregator()
    found = check(scene.database, scene.written())
    assert found.reasons == {"other_database"}
    assert RECORDS_PER_SEGMENT - 100 <= found.explained < found.expected


def is_deleted(session_dir: Path) -> bool:
    """Whether the first segment of the only spool is gone."""
    return any(
        (spool / "checkpoint").exists() and not (spool / "segment-00000000").exists()
        for spool in spools(session_dir)
    )


def test_what_everybody_s_death_left_on_disk_is_delivered_by_hand(scene: Scene) -> None:
    """Ranks, shipper and aggregator are killed in the middle; the next day somebody says ``rankmem ship``."""
    scene.start_aggregator()
    for rank in range(2):
        pace = ("--events", str(EVENTS), "--seconds", "1", "--pause-at", "100000")
        scene.start_rank(rank, *pace, "--world-size", "2")
    until(
        "some of it is stored", lambda: any((s / "checkpoint").exists() for s in spools(scene.session_dir()))
    )
    for started in scene.ranks:
        started.process.kill()
        started.process.wait(DEADLINE_S)
    scene.kill_shippers()
    scene.kill_aggregator()
    until("the shippers are gone", lambda: not scene.shippers())
    done = call(
        (*RANKMEM, "ship", str(scene.session_dir().parent), "--db", str(scene.database)), scene.folder
    )
    assert done.returncode == 0, done.stderr
    assert not spools(scene.session_dir())
    found = check(scene.database, scene.written())
    assert found.found == found.expected
    assert found.reasons <= {"torn"}


def test_over_its_budget_a_rank_drops_whole_segments_and_records_again_once_some_are_stored(
    scene: Scene,
) -> None:
    """``RANKMEM_SPOOL_BYTES`` of two segments, and nobody to take them."""
    half = 4 * RECORDS_PER_SEGMENT
    pause = ("--pause-at", str(half - 1), "--budget-mib", "9")
    rank = scene.start_rank(0, "--events", str(2 * half), "--seconds", "1", *pause)
    until("it has written half", lambda: rank.count >= half)
    scene.start_aggregator()
    session_dir = scene.session_dir()
    until("what was kept is stored and deleted", lambda: is_deleted(session_dir))
    rank.process.send_signal(signal.SIGUSR1)
    assert rank.process.wait(DEADLINE_S) == 0
    scene.deliver()
    scene.close_aggregator()
    found = check(scene.database, scene.written())
    assert found.reasons == {"spool_full"}
    assert found.explained >= RECORDS_PER_SEGMENT
    assert found.found > 2.5 * RECORDS_PER_SEGMENT, "none was recorded after the first two"
