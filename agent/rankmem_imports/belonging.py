"""Which recordings of one kind belong to one job, and what says so.

Stage: import, before anything is read to its end; the process of ``rankmem import``. In: recordings with
their facts; out: parts of them, each a session, with the reason in words. Recordings belong together only
where something says so, in this order: they are in one file; their paths differ in the rank alone; they say
that they are ranks of one job of N; they were recorded at the same time. Against it speaks: the same rank or
process twice, another world size, an hour between their beginnings. Where two recordings claim a rank at the
same time, their folders decide; if these do not either, each stays by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rankmem_imports.job_names import buckets, named_device, named_rank
from rankmem_imports.job_times import APART_NS, Process, Window, hull, process_of, window_of

if TYPE_CHECKING:
    from rankmem_imports.members import Member

SAME_TIME: Final = "they were recorded at the same time"


class SaidJob(NamedTuple):
    """A job as a recording describes it."""

    world_size: int
    parallel_sizes: tuple[tuple[str, int], ...]
    """By dimension; empty where it says none."""

    def may_be(self, other: SaidJob) -> bool:
        """Whether the two descriptions can be of one job."""
        sizes, others = self.parallel_sizes, other.parallel_sizes
        return self.world_size == other.world_size and (not sizes or not others or sizes == others)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.parallel_sizes)
        return f"a job of {self.world_size} ranks" + (f" ({sizes})" if sizes else "")


@dataclass(slots=True, kw_only=True)
class Part:
    """Recordings that become one session."""

    members: list[Member]
    why: list[str] = field(default_factory=list)
    """What says that they belong together; nothing for a recording by itself."""
    doubt: str = ""
    """Why nothing could be said."""
    span: Window | None = None
    """From its first recording's beginning to the last one's end; None without a clock."""
    begins: set[int] = field(default_factory=set)
    """When its recordings began."""
    began_last_ns: int = 0
    processes: set[Process] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    """Those that are known."""
    jobs: set[SaidJob] = field(default_factory=set)
    """What its recordings say of their job."""

    def __post_init__(self) -> None:
        windows = [window for member in self.members if (window := window_of(member)) is not None]
        self.begins = {window.began_ns for window in windows}
        self.began_last_ns = max(self.begins, default=0)
        self.span = hull(windows)
        self.processes = {process for member in self.members if (process := process_of(member)) is not None}
        self.ranks = {member.rank for member in self.members if member.has_rank}
        for facts in (member.recording.facts for member in self.members):
            if facts.world_size is not None:
                self.jobs.add(SaidJob(facts.world_size, tuple(sorted(facts.parallel_sizes.items()))))

    @property
    def path(self) -> Path:
        """Of its first recording."""
        return self.members[0].found.path

    @property
    def knows_ranks(self) -> bool:
        """Whether all of its recordings have a rank of their own."""
        return all(member.has_rank for member in self.members)

    def gap_ns(self, other: Part) -> int:
        """The time between the two; 0 without a clock on either side."""
        return self.span.gap_ns(other.span) if self.span is not None and other.span is not None else 0

    def fits(self, other: Part, *, must_overlap: bool) -> bool:
        """Whether nothing speaks against one job of both."""
        if not (self.ranks.isdisjoint(other.ranks) and self.processes.isdisjoint(other.processes)):
            return False
        if not all(one.may_be(two) for one in self.jobs for two in other.jobs):
            return False
        if any(job.world_size == 1 for job in self.jobs | other.jobs):
            return False
        if must_overlap:
            return self._overlaps(other)
        first, second = self._began(), other._began()
        return first is None or second is None or first.gap_ns(second) <= APART_NS

    def _overlaps(self, other: Part) -> bool:
        """Whether both recorded at one time; two that begin at the very same instant and name no process are
        of one: its history, dumped twice."""
        if self.span is None or other.span is None or self.gap_ns(other) > 0:
            return False
        is_told_apart = bool(other.ranks or self.processes or other.processes)
        return is_told_apart or self.begins.isdisjoint(other.begins)

    def _began(self) -> Window | None:
        """From the first beginning to the last; None without a clock."""
        return None if self.span is None else Window(self.span.began_ns, self.began_last_ns)

    def is_rival_of(self, other: Part) -> bool:
        """Whether both claim a rank, and time does not say that they are two windows of it."""
        return self.gap_ns(other) == 0 and not self.ranks.isdisjoint(other.ranks)

    def take(self, other: Part, why: str) -> None:
        """Makes the other's recordings its own."""
        self.members += other.members
        self.begins |= other.begins
        self.began_last_ns = max(self.began_last_ns, other.began_last_ns)
        self.span = hull([span for span in (self.span, other.span) if span is not None])
        self.processes |= other.processes
        self.ranks |= other.ranks
        self.jobs |= other.jobs
        self.why += [each for each in (*other.why, why) if each not in self.why]


def together(members: Sequence[Member], told_by: str | None = None) -> list[Part]:
    """The recordings by job, in the order given within each.

    Args:
        told_by: an option by which the user said each one's rank: then that is what says so.
    """
    place = {id(member.recording): number for number, member in enumerate(members)}
    by_file: dict[Path, list[Member]] = {}
    for member in members:
        by_file.setdefault(member.found.path, []).append(member)
    parts = [Part(members=of_file) for of_file in by_file.values()]
    parts = _as_found(parts) if told_by is None else _as_told(parts, f"{told_by} gives their ranks")
    for part in parts:
        part.members.sort(key=lambda member: place[id(member.recording)])
    return sorted(parts, key=lambda part: place[id(part.members[0].recording)])


def _as_found(parts: Sequence[Part]) -> list[Part]:
    """The parts by what the recordings themselves say, the strongest reason first."""
    parts = _with_named_ranks(parts)
    named = buckets(parts, lambda part: part.path)
    parts = _joined(parts, [(f"their paths differ in the rank alone ({name})", of) for name, of in named])
    parts = _joined(parts, _by_world_size(parts))
    return _joined(parts, _by_time(parts), must_overlap=True)


def in_one(members: Sequence[Member], told_by: str) -> Part:
    """All of the recordings as one job, because the user says so."""
    parts = _with_named_ranks([Part(members=[member]) for member in members])
    return Part(members=[part.members[0] for part in parts], why=[told_by])


def _as_told(parts: Sequence[Part], why: str) -> list[Part]:
    """The parts by time: windows that follow one another are several jobs. What claims a rank beside another
    stays with it: whoever gives ranks their numbers refuses it."""
    found: list[Part] = []
    for part in sorted(parts, key=_began_ns):
        fitting = [one for one in found if one.is_rival_of(part) or one.fits(part, must_overlap=False)]
        if fitting:
            min(fitting, key=part.gap_ns).take(part, why)
        else:
            found.append(part)
    return found


def _with_named_ranks(parts: Sequence[Part]) -> list[Part]:
    """The parts; those whose recordings say no rank have the one that their path names."""
    several = {id(part) for _, of in buckets(parts, lambda part: part.path) for part in of}
    return [_with_named_rank(part, is_of_several=id(part) in several) for part in parts]


def _with_named_rank(part: Part, *, is_of_several: bool) -> Part:
    if len(part.members) > 1 or part.members[0].says_rank:
        return part
    rank = named_rank(part.path)
    if rank is None and is_of_several:
        rank = named_device(part.path)
    return (
        part
        if rank is None
        else Part(members=[replace(part.members[0], rank=rank, rank_from="from its path")])
    )


def _by_world_size(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """Parts with ranks that say the same of their job."""
    found: dict[SaidJob, list[Part]] = {}
    for part in parts:
        if part.knows_ranks and len(part.jobs) == 1:
            found.setdefault(next(iter(part.jobs)), []).append(part)
    return [(f"they say that they are from {job}", of) for job, of in found.items()]


def _by_time(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """Parts whose windows meet, directly or by one between; those with ranks apart from those without."""
    found: list[tuple[str, list[Part]]] = []
    for knows_ranks in (True, False):
        until_ns: int | None = None
        timed = [part for part in parts if part.span is not None and part.knows_ranks is knows_ranks]
        for part in sorted(timed, key=_began_ns):
            if until_ns is None or _began_ns(part) > until_ns:
                found.append((SAME_TIME, []))
                until_ns = 0
            found[-1][1].append(part)
            until_ns = max(until_ns, 0 if part.span is None else part.span.ended_ns)
    return found


def _joined(
    parts: Sequence[Part], sets: Sequence[tuple[str, list[Part]]], *, must_overlap: bool = False
) -> list[Part]:
    """The parts, those of a set as one where they fit; the earliest of them has taken the others."""
    gone: set[int] = set()
    for why, of_set in sets:
        for claims in _without_rivals(of_set):
            into: list[Part] = []
            for part in sorted(claims, key=_began_ns):  # stable: without a clock in the order given
                open_to = [one for one in into if one.fits(part, must_overlap=must_overlap)]
                if not open_to:
                    into.append(part)
                    continue
                min(open_to, key=part.gap_ns).take(part, why)
                gone.add(id(part))
    return [part for part in parts if id(part) not in gone]


def _without_rivals(parts: list[Part]) -> list[list[Part]]:
    """The parts, by folder where two claim a rank at the same time; each alone where folders do not tell."""
    rivals = _rivals(parts)
    if rivals is None:
        return [parts]
    folders = _by_folder(parts)
    if len(folders) > 1 and any(len(folder) > 1 for folder in folders):
        return [claims for folder in folders for claims in _without_rivals(folder)]
    one, other = rivals
    rank = min(one.ranks & other.ranks)
    for part in parts:
        part.doubt = f"rank {rank} is claimed by {one.path} and by {other.path}"
    return [[part] for part in parts]


def _rivals(parts: Sequence[Part]) -> tuple[Part, Part] | None:
    """Two parts that claim a rank at the same time, if there are any."""
    latest: dict[int, Part] = {}
    for part in sorted(parts, key=_began_ns):
        for rank in part.ranks:
            before = latest.get(rank)
            if before is not None and part.is_rival_of(before):
                return before, part
            latest[rank] = part
    return None


def _by_folder(parts: Sequence[Part]) -> list[list[Part]]:
    """By the first folder in which the paths differ."""
    found: dict[str, list[Part]] = {}
    paths = [part.path.parts for part in parts]
    depth = next((n for n, names in enumerate(zip(*paths, strict=False)) if len(set(names)) > 1), 0)
    for part in parts:
        found.setdefault(part.path.parts[depth], []).append(part)
    return list(found.values())


def _began_ns(part: Part) -> int:
    return 0 if part.span is None else part.span.began_ns
