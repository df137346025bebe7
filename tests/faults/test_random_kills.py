"""Kills at random moments: every event that was written is in the database once, or a gap row says why not.

A round is three ranks, a shipper and an aggregator, and one kind of fault, several times. In CI each kind has
one round; ``RANKMEM_FAULT_ROUNDS=12`` gives each twelve, and ``RANKMEM_FAULT_REPORT=FILE`` keeps what was
found, a line of JSON a round, from which ``table.py`` makes the table in docs/reliability.md.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from faults.ledger import check
from faults.scene import Rank, Scene
from repetitions import long_but
from waiting import DEADLINE_S

ROUNDS = int(os.environ.get("RANKMEM_FAULT_ROUNDS", "1"))
SEED = int(os.environ.get("RANKMEM_FAULT_SEED", "2026"))
RANKS = 3
EVENTS = 90_000  # more than a segment holds
SECONDS = 2.0


class Round:
    """One round's dice and actors."""

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        self.scene = scene
        self.rng = rng

    def pause(self, longest_s: float = 0.7) -> None:
        time.sleep(self.rng.uniform(0.0, longest_s))

    def living(self) -> list[Rank]:
        return [rank for rank in self.scene.ranks if rank.process.poll() is None]

    # -- what may happen -------------------------------------------------------------------------

    def kill_rank(self) -> None:
        for rank in self.rng.sample(self.living(), min(1, len(self.living()))):
            rank.process.send_signal(self.rng.choice([signal.SIGKILL, signal.SIGABRT]))

    def kill_ranks(self) -> None:
        for rank in self.living():
            rank.process.kill()

    def kill_shipper(self) -> None:
        self.scene.kill_shippers()

    def kill_aggregator(self) -> None:
        self.scene.kill_aggregator()
        self.pause(0.5)
        self.scene.start_aggregator()

    def suspend(self) -> None:
        pids = [*self.scene.shippers(), *(rank.process.pid for rank in self.living())]
        if self.scene.aggregator is not None:
            pids.append(self.scene.aggregator.pid)
        pid = self.rng.choice(pids)
        try:
            os.kill(pid, signal.SIGSTOP)
            self.pause(1.0)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


KINDS: dict[str, tuple[Callable[[Round], None], ...]] = {
    "a trainer killed": (Round.kill_rank,),
    "all trainers killed": (Round.kill_ranks,),
    "the shipper killed": (Round.kill_shipper,) * 4,
    "the aggregator killed": (Round.kill_aggregator,) * 2,
    "all of it, mixed": (
        Round.kill_shipper,
        Round.kill_aggregator,
        Round.kill_rank,
        Round.suspend,
        Round.kill_shipper,
    ),
}


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize(
    "kind", long_but(KINDS, "a trainer killed", "all trainers killed", "all of it, mixed")
)
def test_every_event_is_there_once_whoever_is_killed(scene: Scene, kind: str, number: int) -> None:
    play = Round(scene, random.Random(f"{SEED} {kind} {number}"))
    late = kind == "all of it, mixed" and play.rng.random() < 0.5
    if not late:
        scene.start_aggregator()
    for rank in range(RANKS):
        scene.start_rank(rank, "--events", str(EVENTS), "--seconds", str(SECONDS), "--world-size", str(RANKS))
    if late:
        play.pause(1.0)
        scene.start_aggregator()
    for fault in play.rng.sample(KINDS[kind], len(KINDS[kind])):
        play.pause()
        fault(play)
    for rank in scene.ranks:
        rank.process.wait(DEADLINE_S)
    recovery_s = scene.deliver()
    scene.close_aggregator()
    found = check(scene.database, scene.written(), fault=kind, recovery_s=round(recovery_s, 2))
    assert (found.found, found.duplicated) == (found.expected, 0)
    assert found.reasons <= {"torn"}
