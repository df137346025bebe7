"""When recordings were made and by which process, as far as known, and which of them are the same.

Stage: import, before anything is read to its end; the process of ``rankmem import``. In: recordings with
their facts; out: windows on a wall clock, distances between them, marks by which a recording is known again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rankmem_imports.job_names import named_device, named_rank
from rankmem_protos.clock import has_clock

if TYPE_CHECKING:
    from rankmem_imports.members import Member

APART_NS: Final = 3600 * 10**9
"""An hour: the ranks of a job record the same steps, or the way to the same failure. Recordings that begin
further apart, with none in between, are from several jobs, whatever their names say."""

Process = tuple[int, int, str | None]
"""Rank, process id and host, as far as known."""


class Window(NamedTuple):
    """From when to when, in ns since 1970 on a wall clock."""

    began_ns: int
    ended_ns: int

    def gap_ns(self, other: Window) -> int:
        """The time between the two; 0 where they overlap or touch."""
        return max(0, other.began_ns - self.ended_ns, self.began_ns - other.ended_ns)


def hull(windows: Sequence[Window]) -> Window | None:
    """The shortest window that holds all of these; None for none."""
    if not windows:
        return None
    return Window(min(one.began_ns for one in windows), max(one.ended_ns for one in windows))


def window_of(member: Member) -> Window | None:
    """The recording's window, an instant where its end is not known; None if it has no wall clock."""
    began, ended = began_ns(member), member.recording.facts.ended_ns
    return None if began is None else Window(began, began if ended is None else max(began, ended))


def began_ns(member: Member) -> int | None:
    """The start by a wall clock; None if the recording has none."""
    began = member.recording.facts.started_ns
    return began if began is not None and has_clock(began) else None


def process_of(member: Member) -> Process | None:
    """The process; None without a process id."""
    facts = member.recording.facts
    return None if facts.pid is None else (member.rank, facts.pid, facts.host_name)


def marks(member: Member) -> list[Hashable]:
    """Marks that no other recording has; two that share one are the same recording.

    Its bytes, which a clock makes unmistakable; its window with its process, or with its path's rank, packed
    or not. Without a clock two ranks that did the same have the same bytes: then the rank counts, too.
    """
    began, ended, process = began_ns(member), member.recording.facts.ended_ns, process_of(member)
    if began is None:
        return [(member.fingerprint, _rank_of(member))]
    found: list[Hashable] = [(began, member.fingerprint)]
    if ended is not None and process is not None:
        found.append((began, ended, process))
    elif ended is not None and ended > began and not member.states_rank:
        found.append((began, ended, _rank_of(member)))
    return found


def _rank_of(member: Member) -> int | None:
    """Its own rank, or else the number in its path."""
    if member.states_rank:
        return member.rank
    rank = named_rank(member.found.path)
    return named_device(member.found.path) if rank is None else rank
