"""A process that may be a rank, until it shows whether it is one.

Stage: trainer. Comes in: evidence, as it comes: a process group, an optimizer's step, much that was
recorded, the end. Goes out: a spool that is shipped (the process is a rank: it is *published*), or none. What
is recorded before lies in a provisional folder that is not shipped: nothing of a model's first blocks is
missed, and a process that trains nothing leaves nothing.

Who trains is decided here, and by :mod:`rankmem_agent.spool.launches` among several processes: one for each
rank of an attempt. A process group's numbers win over those of the environment, except where it has fewer
members than the launcher has workers: then it is a group among them.
"""

from __future__ import annotations

import contextlib
import enum
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rankmem_agent import facts
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.preload.evidence import Group
from rankmem_agent.preload.rank_detection import PLAIN, DetectedRank
from rankmem_agent.preload.recording import Recording
from rankmem_agent.spool import folder, launches, places
from rankmem_agent.spool.places import Place

BUSY_AFTER_S: Final = 30.0
"""A script that uses tensors for so long is a rank without having trained: inference, most likely. Long
enough for most trainings to reach their process group, which numbers them."""
BUSY_AFTER_NUMBERED_S: Final = 5.0
"""The same where a launcher has numbered it."""
LATE_NUMBERED: Final = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")
"""With these modules a plain script becomes rank 0 of many once its model and data are ready, however long
that takes."""
_RAN: Final = "this process ran a model and is not recorded"
_RAN_BELOW: Final = (
    f"{_RAN}: another process of this job started it, and it neither trained nor joined a process group "
    "(try: torch.distributed.init_process_group in it)"
)
_RAN_BESIDE: Final = (
    f"{_RAN}: another process, which started later, is a rank of this job "
    "(try: start it with its own rankmem run)"
)
NOT_RECORDED: Final = (
    "this process trains but is not recorded: another process is already recorded as this rank "
    "(try: start it with its own rankmem run)"
)


class Evidence(enum.Enum):
    """Evidence that a process is a rank."""

    GIVEN = enum.auto()
    """The user named it."""
    GROUP = enum.auto()
    STEP = enum.auto()
    BUSY = enum.auto()
    EXIT = enum.auto()


TRAINS: Final = frozenset({Evidence.GIVEN, Evidence.GROUP, Evidence.STEP})


class Candidate:
    """The provisional folder of a process, and its way from there.

    Args:
        session_dir: folder of the session on this host.
        is_worker: it was started for one function: what it uses tensors for may be anything.
        published: called when the process has become a rank.
        refused: called when it trains and another process is its rank: it is to record nothing more.
    """

    def __init__(
        self,
        detected: DetectedRank,
        guard: Guard,
        recording: Recording,
        session_dir: Path,
        *,
        is_worker: bool,
        published: Callable[[], None],
        refused: Callable[[], None],
    ) -> None:
        self._detected = detected
        self._guard = guard
        self._recording = recording
        self._session_dir = session_dir
        self._is_worker = is_worker
        self._published = published
        self._refused = refused
        self._process = launches.process(os.getpid())
        self._facts: Mapping[str, Any] = {}
        self._place = place_in(self._detected, None)
        self._trains = False
        self._is_refused = False
        self.ran_a_model: Callable[[], bool] = lambda: False
        """Asked at the end of a process that is no rank."""
        self.contradiction = ""
        """Numbers of its process group that came too late for its rows, in a line."""
        self.attempt: int | None = None
        """None until it is published."""
        self.spool_dir = folder.create_candidate(session_dir)

    def describe(self, meta: Mapping[str, Any]) -> None:
        """Keeps the facts for ``meta.json``, also for whatever settles this process's place after a kill."""
        self._facts = meta
        counts = not self._is_worker and not self._detected.is_child
        beats = self._recording.has_heartbeat
        places.write_candidate(
            self.spool_dir, self._place, self._process, meta, counts=counts, has_heartbeat=beats
        )

    @property
    def busy_after_s(self) -> float:
        """When much that was recorded makes it a rank, in seconds."""
        return BUSY_AFTER_S if self._detected.key == PLAIN else BUSY_AFTER_NUMBERED_S

    @property
    def is_published(self) -> bool:
        """Whether it has become a rank."""
        return self.attempt is not None

    def gives(self, evidence: Evidence, group: Group | None = None) -> dict[str, int] | None:
        """Takes evidence; returns columns of ``rank_info`` that have changed for a known rank.

        Raises:
            RankmemError, OSError: it cannot be published.
        """
        if self._is_refused:
            return None
        trains = evidence in TRAINS
        if self.is_published:
            return self._trains_after_all(group) if trains else None
        counts = trains or self._counts(evidence)
        place = place_in(self._detected, group)
        attempt = place.take(self._session_dir, self._process, trains=trains) if counts else None
        if attempt is not None:
            self._publish(place, attempt, trains=trains)
        elif trains:
            self._refuse()
        elif evidence is Evidence.EXIT:
            self._report_unrecorded()
        return None

    def give_way(self, group: Group | None) -> int:
        """In a forked child that trains and cannot be recorded: takes the place, so that its parent is not
        taken for the rank; which one it is."""
        place = place_in(self._detected, group)
        place.take(self._session_dir, launches.process(os.getpid()), trains=True)
        return place.rank

    def discard(self) -> None:
        """Removes what was recorded of a process that is no rank."""
        if not self.is_published:
            shutil.rmtree(self.spool_dir, ignore_errors=True)

    def _publish(self, place: Place, attempt: int, *, trains: bool) -> None:
        spool_dir, start = folder.create_spool(self._session_dir, attempt=attempt, rank=place.rank)
        try:
            self._recording.publish(spool_dir)
        except BaseException:
            with contextlib.suppress(OSError):
                spool_dir.rmdir()
            raise
        self.spool_dir, self._place, self._trains, self.attempt = spool_dir, place, trains, attempt
        self._guard.rank = place.rank
        places.publish(spool_dir, place.facts(self._facts, attempt, self._process, start))
        self._published()

    def _refuse(self) -> None:
        self._is_refused = True
        self._guard.report(NOT_RECORDED)
        self._refused()
        self.discard()

    def _report_unrecorded(self) -> None:
        """At the end of a process that is no rank, and yet may have been what the user looks for.

        What another process started may do a little with a model beside its work; a script may have prepared
        what the later process did, but not by running a model.
        """
        is_below = self._is_worker or self._detected.is_child
        if self.ran_a_model() and (not is_below or self._recording.has_recorded_much()):
            self._guard.report(_RAN_BELOW if is_below else _RAN_BESIDE)

    def _counts(self, evidence: Evidence) -> bool:
        """Whether evidence that it uses tensors makes it a rank."""
        if self._is_worker or self._detected.is_child or not self._recording.has_recorded():
            return False
        if evidence is Evidence.BUSY and self._detected.key == PLAIN and is_numbered_late():
            return False
        return not self._place.has_successor(self._session_dir, self._process)

    def _trains_after_all(self, group: Group | None) -> dict[str, int] | None:
        """A rank that was published before it trained, or before its process group came."""
        if not self._trains:
            self._trains = True
            self._place.take(self._session_dir, self._process, trains=True)
        place = place_in(self._detected, group)
        if place.world_size == self._place.world_size and place.rank == self._place.rank:
            return None
        is_same = place.rank == self._place.rank and self.attempt == place.take(
            self._session_dir, self._process, trains=True, first=self.attempt
        )
        if not is_same:
            self.contradiction = (
                f"recorded as rank {self._place.rank} of {self._place.world_size}, attempt {self.attempt}, "
                f"but its process group, created later, makes it rank {place.rank} of {place.world_size}"
            )
            self._guard.report(self.contradiction)
            return None
        self._place = place
        return {"world_size": place.world_size}


def place_in(detected: DetectedRank, group: Group | None) -> Place:
    """The place of a process, as its process group and its launcher number it."""
    is_outside = group is None or group.world_size < detected.world_size or group.world_size == 1
    if group is None or is_outside or (detected.key != PLAIN and group.world_size == detected.world_size):
        place = place_of(detected)
        return place if group is None or is_outside else replace(place, rank=group.rank)
    local_rank = os.environ.get("LOCAL_RANK", "")
    return Place(
        rank=group.rank,
        world_size=group.world_size,
        local_rank=int(local_rank) if local_rank.isdecimal() else None,
        launch=f"group {group.world_size} {group.rendezvous}",
        restart=detected.attempt,
        joins_the_dead=False,
    )


def place_of(detected: DetectedRank) -> Place:
    """The place that a launcher gave, or a plain script's."""
    return Place(
        rank=detected.rank,
        world_size=detected.world_size,
        local_rank=detected.local_rank,
        launch=facts.launch(detected),
        restart=detected.attempt,
    )


def is_numbered_late() -> bool:
    """Whether a process group is still to come that will number this plain script."""
    announced = os.environ.get("WORLD_SIZE", "")
    has_peers = "LOCAL_RANK" in os.environ or (announced.isdecimal() and int(announced) > 1)
    return has_peers or any(name in sys.modules for name in LATE_NUMBERED)
