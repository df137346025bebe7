"""A candidate's log becomes a rank's: its place among the ranks, and what becomes of those without one.

Stage: trainer, when a process turns out to be a rank; ``rankmem run`` and ``rankmem ship`` for a process that
died before it did. Comes in: a candidate's folder. Goes out: a spool with its ``meta.json``, or nothing.
Standard library only.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankmem_agent.spool import folder, launches, layout, life
from rankmem_agent.spool.layout import Kind
from rankmem_protos.errors import RankmemError

_OF_USE = (Kind.EVENT, Kind.OFF)
"""Records by which a process used tensors, or may have: without a tap the events come late."""
SHARED_LAUNCHES = ("tasks ", "torchrun ", "numbered ", "group ")
"""Beginnings of names of launches that several hosts share (see :func:`rankmem_agent.facts.launch`, and
:func:`rankmem_agent.preload.candidate.place_in` for groups); other names are of a process of one host."""
_NAME_CHARS = 16
_HEARTBEAT_OFFSET = next(field.offset for field in layout.CONTROL_FIELDS if field.name == "heartbeat_ns")
_KIND_OFFSET = next(field.offset for field in layout.RECORD_FIELDS if field.name == "kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which rank a process is, and of what."""

    rank: int
    world_size: int
    """0: not known."""
    local_rank: int | None
    launch: str
    """See :func:`rankmem_agent.spool.launches.take`."""
    restart: int
    joins_the_dead: bool = True

    def take(self, session_dir: Path, holder: str, *, trains: bool, first: int | None = None) -> int | None:
        """The attempt in which ``holder`` has this place; None where another process has it."""
        return launches.take(
            session_dir,
            self.launch,
            self.restart,
            self.rank,
            holder,
            trains=trains,
            joins_the_dead=self.joins_the_dead,
            first=first,
        )

    def has_successor(self, session_dir: Path, holder: str, *, ended_ticks: int | None = None) -> bool:
        """Whether ``holder`` only prepared what a later process did."""
        return launches.has_successor(
            session_dir, self.launch, self.restart, self.rank, holder, ended_ticks=ended_ticks
        )

    def facts(self, facts: Mapping[str, Any], attempt: int, process: str, start: int) -> dict[str, Any]:
        """The facts in ``meta.json`` for a process in this place.

        Args:
            facts: the same without a place.
            attempt: from :meth:`take`.
            process: from :func:`rankmem_agent.spool.launches.process`.
            start: how many spools the process had before.
        """
        placed = copy.deepcopy(dict(facts))
        spool_id = f"{placed['session']['session_id']}-{attempt}-{self.rank}-{process}"
        spool_id += f"-{start}" if start else ""
        placed["spool_id"] = spool_id
        placed["session"]["world_size"] = self.world_size or None
        placed["start"] = self._start(str((placed.get("start") or {}).get("launch", "")), attempt)
        placed["rank"] |= {
            "attempt": attempt,
            "rank": self.rank,
            "local_rank": self.local_rank,
            "world_size": self.world_size or None,
            "spool_id": spool_id,
        }
        return placed

    def _start(self, launched_by: str, attempt: int) -> dict[str, str]:
        """The keys of a start of the workers at the aggregator: ``OpenSpool`` in collector.proto."""
        if self.launch.startswith(SHARED_LAUNCHES):
            key = f"{self.launch} {self.restart} {self.world_size}"
        else:
            key = f"{launched_by} {attempt}"
        return {"key": _hash(key) if launched_by else "", "launch": _hash(launched_by) if launched_by else ""}


def _hash(text: str) -> str:
    """Ids of jobs may be words of the user's: what leaves the host is short and reveals nothing."""
    return hashlib.sha256(text.encode()).hexdigest()[:_NAME_CHARS]


def write_candidate(
    spool_dir: Path,
    place: Place,
    process: str,
    facts: Mapping[str, Any],
    *,
    counts: bool,
    has_heartbeat: bool = False,
) -> None:
    """Writes what :func:`settle` needs to know of a candidate.

    Args:
        counts: whether a candidate that died without having trained is a rank if it used tensors.
        has_heartbeat: whether the control page shows until when it lived.
    """
    written = {"process": process, "counts": counts, "place": asdict(place), "facts": dict(facts)}
    folder.write_candidate(spool_dir, written | {"has_heartbeat": has_heartbeat})


def settle(session_dir: Path) -> bool:
    """Makes spools of what processes left that died before they were known to be ranks, where no other
    process is that rank; removes the rest. True if there are new spools."""
    has_new = False
    if folder.why_not_ours(session_dir.resolve()) is not None:
        return has_new
    for spool_dir in folder.candidates(session_dir):
        # Half gone, cut short, or no room for another spool.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RankmemError):
            left = json.loads((spool_dir / folder.CANDIDATE_NAME).read_text("utf-8"))
            if not life.is_held(spool_dir) and not launches.is_alive(left["process"]):
                has_new |= _settle(session_dir, spool_dir, left)
    for spool_dir in folder.unfinished(session_dir):
        with contextlib.suppress(OSError, ValueError, IndexError):  # not one of ours, or not empty
            _remove_unfinished(spool_dir)
    return has_new


def _remove_unfinished(spool_dir: Path) -> None:
    """Removes what a process left that died as it made the folder: nothing shows what that was to be."""
    is_candidate = spool_dir.name.startswith(folder.CANDIDATE_PREFIX)
    pid = spool_dir.name.split("-")[1 if is_candidate else 2]
    if life.is_held(spool_dir) or launches.is_alive(launches.process(int(pid))):
        return  # the lock shows one in another container
    if is_candidate:
        shutil.rmtree(spool_dir, ignore_errors=True)
    else:
        os.rmdir(spool_dir)  # if it is empty: a log may still be of use


def _settle(session_dir: Path, spool_dir: Path, left: Mapping[str, Any]) -> bool:
    place, process = Place(**left["place"]), str(left["process"])
    attempt = launches.attempt_held(session_dir, process)  # it died while it was published
    may_be = left["counts"] and may_have_used_tensors(spool_dir)
    if attempt is None and may_be:
        ended = _ended_ticks(spool_dir) if left.get("has_heartbeat") else None
        if not place.has_successor(session_dir, process, ended_ticks=ended):
            attempt = place.take(session_dir, process, trains=False)
    if attempt is None:
        shutil.rmtree(spool_dir, ignore_errors=True)
        return False
    pid = int(process.partition("-")[0])
    if spool_dir.name.startswith(folder.CANDIDATE_PREFIX):
        final, start = folder.create_spool(session_dir, attempt=attempt, rank=place.rank, pid=pid)
        try:
            os.rename(spool_dir, final)
        except OSError:  # somebody else settles it
            os.rmdir(final)
            raise
    else:
        final, start = spool_dir, int((spool_dir.name + "-0").split("-")[3])
    publish(final, place.facts(left["facts"], attempt, process, start))
    return True


def _ended_ticks(spool_dir: Path) -> int:
    """Until when the process of a log lived, in clock ticks since boot, as process starts are counted."""
    with (spool_dir / "control").open("rb") as control:
        control.seek(_HEARTBEAT_OFFSET)
        monotonic_ns = int.from_bytes(control.read(8), "little")
    slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return (monotonic_ns + slept_ns) * os.sysconf("SC_CLK_TCK") // 1_000_000_000


def publish(spool_dir: Path, facts: Mapping[str, Any]) -> None:
    """Makes a spool of a candidate's folder that lies where spools do."""
    folder.write_meta(spool_dir, facts)
    with contextlib.suppress(OSError):
        os.unlink(spool_dir / folder.CANDIDATE_NAME)


def may_have_used_tensors(spool_dir: Path) -> bool:
    """Whether the log holds an event of an allocator, or some may be missing."""
    for segment in sorted(spool_dir.glob("segment-*")):
        records = segment.read_bytes()[layout.SEGMENT_HEADER_BYTES :]
        kinds = records[_KIND_OFFSET :: layout.RECORD_BYTES]
        if any(bytes([kind]) in kinds for kind in _OF_USE):
            return True
    return False
