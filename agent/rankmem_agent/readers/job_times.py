"""Which recordings of one kind belong together by what they say of time and process.

Stage: import, before anything is read to its end; the process of ``rankmem import``. In: recordings with
their facts; out: parts of them, each a session. Made far apart, they are of several jobs. Several windows
of one process, such as the cycles of ``torch.profiler.schedule``, are no two ranks: the first window of each
process is one session, the second another.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rankmem_agent.readers.jobs import Member

EARLIEST_NS: Final = 946_684_800 * 10**9
"""The year 2000: an earlier start is no wall clock's, and says nothing in a session's id."""
APART_NS: Final = 3600 * 10**9
"""An hour: the ranks of a job record the same steps, or the way to the same failure. Recordings that begin
further apart, with none in between, are of several jobs."""


def together(members: Sequence[Member]) -> list[list[Member]]:
    """The members by session, in the order given within each."""
    given = {id(member): place for place, member in enumerate(members)}
    parts = [cycle for part in _by_hours(members) for cycle in _by_cycle(part)]
    return [sorted(part, key=lambda member: given[id(member)]) for part in parts]


def began_ns(member: Member) -> int | None:
    """When, by a wall clock; None if the recording has none."""
    began = member.recording.facts.started_ns
    return began if began is not None and began >= EARLIEST_NS else None


def marks(member: Member) -> list[Hashable]:
    """What no other recording has: its bytes, which a clock makes unmistakable, and its process with its
    window, packed or not. Two that share one are one recording."""
    began, ended, process = began_ns(member), member.recording.facts.ended_ns, _process(member)
    if began is None:
        return []
    found: list[Hashable] = [(began, member.fingerprint)]
    return found if process is None or ended is None else [*found, (began, ended, *process)]


def _by_hours(members: Sequence[Member]) -> list[list[Member]]:
    """Members that began within APART_NS of the next; those that do not say when are with the first."""
    parts: list[list[Member]] = [[member for member in members if began_ns(member) is None]]
    before: int | None = None
    for member in sorted(members, key=lambda member: began_ns(member) or 0):
        began = began_ns(member)
        if began is None:
            continue
        if before is not None and began - before > APART_NS:
            parts.append([])
        parts[-1].append(member)
        before = began
    return parts


def _by_cycle(members: Sequence[Member]) -> list[list[Member]]:
    """The n-th windows of all processes; what says no process or no window is with the first."""
    parts: list[list[Member]] = [[]]
    latest: dict[tuple[int, int, str | None], tuple[int, int]] = {}
    for member in sorted(members, key=lambda member: began_ns(member) or 0):
        process, began, ended = _process(member), began_ns(member), member.recording.facts.ended_ns
        number = 0
        if process is not None and began is not None and ended is not None:
            number, busy_until = latest.get(process, (0, began))
            number += began >= busy_until and process in latest
            latest[process] = (number, max(ended, busy_until))
        if number == len(parts):
            parts.append([])
        parts[number].append(member)
    return parts


def _process(member: Member) -> tuple[int, int, str | None] | None:
    """Rank, process id and host, as far as known; None without a process id."""
    facts = member.recording.facts
    return None if facts.pid is None else (member.rank, facts.pid, facts.host_name)
