"""Which process is which rank of which attempt on this host: no two are the same one.

Stage: trainer, when a process becomes a rank (:mod:`rankmem_agent.preload.candidate`), and ``rankmem run``.
One ``rankmem run`` may run a script that prepares data and then a torchrun, or two torchruns in a row: each
counts its own restarts from 0, and rows of two processes with one (attempt, rank) would be mixed up for
good. Comes in: what launched this rank, its restart count, its rank and process. Goes out: the attempt, or
that another process is this rank. Standard library only; a lock on the session's folder, held for a read and
a write of one small file.

A place is free once its process has ended: the process that takes it then belongs to another start of the
same launch, which counts as a launch of its own. A process that was taken for a rank without having trained
(it used tensors for a while) keeps its place only against others of its kind.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from rankmem_agent.spool import life
from rankmem_agent.spool.process_stat import process_is_alive, process_start_ticks
from rankmem_agent.spool.whole_file import write_whole

FILE_NAME: Final = "launches.json"
_BESIDE_S: Final = 0.5
"""A wrapper lives at least so long beside the process that it wraps, which takes longer to import torch. The
next command of a shell starts as the one before ends."""


@dataclass(slots=True)
class _Launch:
    """The attempts of one launch."""

    first: int
    last: int = -1
    places: dict[str, list[Any]] = field(default_factory=dict)
    """``attempt/rank`` → holder, whether it trains."""


def process(pid: int) -> str:
    """Names a process for good: its id and its start; the start is 0 where there is no such process."""
    return f"{pid}-{process_start_ticks(pid)}"


def is_alive(name: str) -> bool:
    """Whether the process of this name runs, as seen from here (see :func:`_lives`); one that has ended and
    was not waited for does not."""
    pid, _, ticks = name.partition("-")
    return process_is_alive(int(pid), int(ticks))


def take(
    session_dir: Path,
    launch: str,
    restart: int,
    rank: int,
    holder: str,
    *,
    trains: bool = True,
    joins_the_dead: bool = True,
    first: int | None = None,
) -> int | None:
    """The attempt in which ``holder`` is ``rank`` from now on; None where a living process is that rank.

    The first launch of a session begins at attempt 0, the next where the ones before it ended.

    Args:
        session_dir: the session's folder on this host; exists.
        launch: names what launched the rank; the same for all its ranks and restarts.
        restart: how often it has restarted its workers.
        rank: the place.
        holder: from :func:`process`.
        trains: False where the process has not been seen to train.
        joins_the_dead: whether a rank belongs to a start whose other ranks have all ended: yes where a
            launcher numbers its ranks, each of which may end before the next one begins.
        first: the launch's first attempt, where no other of its ranks has come.

    Raises:
        OSError: the file cannot be read or written; no place has changed.
    """
    held = _lock(session_dir)
    try:
        known = _known(session_dir)
        own = _own(known, launch, restart, rank, holder)
        for start in count() if own is None else (own,):
            name = f"{launch}#{start}" if start else launch
            one = known.setdefault(name, _Launch(_next(known) if first is None else first))
            attempt = one.first + restart
            found = one.places.get(f"{attempt}/{rank}")
            if found is not None and found[0] != holder:
                if _lives(session_dir, found[0]) and (found[1] or not trains):
                    return None
                continue
            others = [p[0] for place, p in one.places.items() if place.partition("/")[0] == str(attempt)]
            if found is None and others and not joins_the_dead and not _any_lives(session_dir, others):
                continue
            one.places[f"{attempt}/{rank}"] = [holder, trains or bool(found and found[1])]
            one.last = max(one.last, attempt)
            _write(session_dir, known)
            return attempt
    finally:
        os.close(held)
    raise AssertionError  # count() has no end


def is_held(session_dir: Path, launch: str, rank: int) -> bool:
    """Whether a living process that was seen to train is this rank of the launch."""
    return any(
        trains and place.rpartition("/")[2] == str(rank) and _lives(session_dir, holder)
        for name, one in _known(session_dir).items()
        if name.partition("#")[0] == launch
        for place, (holder, trains) in one.places.items()
    )


def attempt_held(session_dir: Path, holder: str) -> int | None:
    """The attempt in which ``holder`` is a rank, if it is one."""
    places = (place for one in _known(session_dir).values() for place in one.places.items())
    return next((int(place.partition("/")[0]) for place, found in places if found[0] == holder), None)


def has_successor(
    session_dir: Path, launch: str, restart: int, rank: int, holder: str, *, ended_ticks: int | None = None
) -> bool:
    """Whether a process that started while ``holder`` lived, or with it, became a rank: this one, or one of
    another launch. Then ``holder`` prepared what that one did; other ranks of its own launch stand beside it,
    and those of another restart come after it.

    Args:
        ended_ticks: when ``holder`` ended, in clock ticks since boot; None: it lives, or not known.
    """
    own_ticks = int(holder.partition("-")[2])
    last_ticks = None if ended_ticks is None else ended_ticks - _BESIDE_S * os.sysconf("SC_CLK_TCK")
    return any(
        other != holder
        and own_ticks <= int(other.partition("-")[2])
        and (last_ticks is None or int(other.partition("-")[2]) <= last_ticks)
        and (name.partition("#")[0] != launch or place == f"{one.first + restart}/{rank}")
        for name, one in _known(session_dir).items()
        for place, (other, _) in one.places.items()
    )


def _lives(session_dir: Path, holder: str) -> bool:
    """Whether a holder runs: as seen from here, or by the lock of its folder (in a container of its own)."""
    return is_alive(holder) or life.lives_in(session_dir, holder)


def _any_lives(session_dir: Path, holders: Iterable[str]) -> bool:
    return any(_lives(session_dir, holder) for holder in holders)


def _own(known: dict[str, _Launch], launch: str, restart: int, rank: int, holder: str) -> int | None:
    """The start of the launch in which ``holder`` has this place already."""
    for start in count():
        one = known.get(f"{launch}#{start}" if start else launch)
        if one is None:
            return None
        if one.places.get(f"{one.first + restart}/{rank}", [""])[0] == holder:
            return start
    return None


def _next(known: dict[str, _Launch]) -> int:
    return max((one.last for one in known.values()), default=-1) + 1


def _known(session_dir: Path) -> dict[str, _Launch]:
    """The content of the file; it is whole whenever it is read."""
    try:
        text = (session_dir / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return {}
    try:
        return {
            launch: _Launch(int(first), int(last), dict(*places))
            for launch, (first, last, *places) in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):  # cut short, as an older version left it after a kill
        return {}


def _lock(session_dir: Path) -> int:
    """A descriptor that holds the session's folder: the file itself is another one after each change."""
    held = os.open(session_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
    except BaseException:
        os.close(held)
        raise
    return held


def _write(session_dir: Path, known: dict[str, _Launch]) -> None:
    text = json.dumps({launch: [one.first, one.last, one.places] for launch, one in known.items()})
    write_whole(session_dir / FILE_NAME, text.encode())
