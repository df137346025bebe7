"""Groups recordings of one format by job, with the reasons.

Stage: import, before anything is read to its end; the process of ``rankmem import``. In: recordings with
their facts; out: groups of them, each a session, with the reasons in words. Recordings are grouped only for
a reason, in this order: they are in one file; their paths differ only in the rank; they state the same
world size and parallel sizes; they were recorded at the same time. Reasons against it: the same rank or
process twice, another world size, an hour between their beginnings. Where two recordings have the same rank
at the same time, their folders decide; if those do not, each stays separate.
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


class JobDescription(NamedTuple):
    """A job as a recording describes it."""

    world_size: int
    parallel_sizes: tuple[tuple[str, int], ...]
    """By dimension; empty where the recording states none."""

    def may_be(self, other: JobDescription) -> bool:
        """Whether the two descriptions can be of one job."""
        sizes, others = self.parallel_sizes, other.parallel_sizes
        return self.world_size == other.world_size and (not sizes or not others or sizes == others)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.parallel_sizes)
        return f"a job of {self.world_size} ranks" + (f" ({sizes})" if sizes else "")


@dataclass(slots=True, kw_only=True)
class RecordingGroup:
    """Recordings that become one session."""

    members: list[Member]
    why: list[str] = field(default_factory=list)
    """The reasons why they belong together; none for a single recording."""
    doubt: str = ""
    """Why it could not be grouped with others."""
    span: Window | None = None
    """From its first recording's beginning to the last one's end; None without a clock."""
    begins: set[int] = field(default_factory=set)
    """When its recordings began."""
    began_last_ns: int = 0
    processes: set[Process] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    """The known ones."""
    jobs: set[JobDescription] = field(default_factory=set)
    """The job as its recordings describe it."""

    def __post_init__(self) -> None:
        windows = [window for member in self.members if (window := window_of(member)) is not None]
        self.begins = {window.began_ns for window in windows}
        self.began_last_ns = max(self.begins, default=0)
        self.span = hull(windows)
        self.processes = {process for member in self.members if (process := process_of(member)) is not None}
        self.ranks = {member.rank for member in self.members if member.has_rank}
        for facts in (member.recording.facts for member in self.members):
            if facts.world_size is not None:
                self.jobs.add(JobDescription(facts.world_size, tuple(sorted(facts.parallel_sizes.items()))))

    @property
    def path(self) -> Path:
        """Of its first recording."""
        return self.members[0].found.path

    @property
    def knows_ranks(self) -> bool:
        """Whether all of its recordings have a rank of their own."""
        return all(member.has_rank for member in self.members)

    def gap_ns(self, other: RecordingGroup) -> int:
        """The time between the two; 0 without a clock on either side."""
        return self.span.gap_ns(other.span) if self.span is not None and other.span is not None else 0

    def fits(self, other: RecordingGroup, *, must_overlap: bool) -> bool:
        """Whether there is no reason against one job of both."""
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

    def _overlaps(self, other: RecordingGroup) -> bool:
        """Whether both recorded at one time; two that begin at the very same instant and name no process are
        of one: its history, dumped twice."""
        if self.span is None or other.span is None or self.gap_ns(other) > 0:
            return False
        is_distinguishable = bool(other.ranks or self.processes or other.processes)
        return is_distinguishable or self.begins.isdisjoint(other.begins)

    def _began(self) -> Window | None:
        """From the first beginning to the last; None without a clock."""
        return None if self.span is None else Window(self.span.began_ns, self.began_last_ns)

    def is_rival_of(self, other: RecordingGroup) -> bool:
        """Whether both have the same rank, and time does not show them to be two windows of it."""
        return self.gap_ns(other) == 0 and not self.ranks.isdisjoint(other.ranks)

    def take(self, other: RecordingGroup, why: str) -> None:
        """Takes over the other's recordings."""
        self.members += other.members
        self.begins |= other.begins
        self.began_last_ns = max(self.began_last_ns, other.began_last_ns)
        self.span = hull([span for span in (self.span, other.span) if span is not None])
        self.processes |= other.processes
        self.ranks |= other.ranks
        self.jobs |= other.jobs
        self.why += [each for each in (*other.why, why) if each not in self.why]


def together(members: Sequence[Member], option: str | None = None) -> list[RecordingGroup]:
    """The recordings by job, in the order given within each.

    Args:
        option: the option that gave each one its rank, if the user gave it: then that is the reason.
    """
    place = {id(member.recording): number for number, member in enumerate(members)}
    by_file: dict[Path, list[Member]] = {}
    for member in members:
        by_file.setdefault(member.found.path, []).append(member)
    groups = [RecordingGroup(members=of_file) for of_file in by_file.values()]
    groups = _by_own_facts(groups) if option is None else _by_gaps(groups, f"{option} gives their ranks")
    for group in groups:
        group.members.sort(key=lambda member: place[id(member.recording)])
    return sorted(groups, key=lambda group: place[id(group.members[0].recording)])


def _by_own_facts(groups: Sequence[RecordingGroup]) -> list[RecordingGroup]:
    """The groups by the recordings' own facts, the strongest reason first."""
    groups = _with_named_ranks(groups)
    named = buckets(groups, lambda group: group.path)
    groups = _joined(groups, [(f"their paths differ in the rank alone ({name})", of) for name, of in named])
    groups = _joined(groups, _by_world_size(groups))
    return _joined(groups, _by_time(groups), must_overlap=True)


def in_one(members: Sequence[Member], option: str) -> RecordingGroup:
    """All of the recordings as one job, as the option asks."""
    groups = _with_named_ranks([RecordingGroup(members=[member]) for member in members])
    return RecordingGroup(members=[group.members[0] for group in groups], why=[option])


def _by_gaps(groups: Sequence[RecordingGroup], why: str) -> list[RecordingGroup]:
    """The groups by time: windows that follow one another are several jobs. Recordings with the same rank
    stay together: they are refused where ranks are numbered."""
    found: list[RecordingGroup] = []
    for group in sorted(groups, key=_began_ns):
        fitting = [one for one in found if one.is_rival_of(group) or one.fits(group, must_overlap=False)]
        if fitting:
            min(fitting, key=group.gap_ns).take(group, why)
        else:
            found.append(group)
    return found


def _with_named_ranks(groups: Sequence[RecordingGroup]) -> list[RecordingGroup]:
    """The groups; recordings without a rank get the one in their path."""
    several = {id(group) for _, of in buckets(groups, lambda group: group.path) for group in of}
    return [_with_named_rank(group, is_of_several=id(group) in several) for group in groups]


def _with_named_rank(group: RecordingGroup, *, is_of_several: bool) -> RecordingGroup:
    if len(group.members) > 1 or group.members[0].states_rank:
        return group
    rank = named_rank(group.path)
    if rank is None and is_of_several:
        rank = named_device(group.path)
    return (
        group
        if rank is None
        else RecordingGroup(members=[replace(group.members[0], rank=rank, rank_from="from its path")])
    )


def _by_world_size(groups: Sequence[RecordingGroup]) -> list[tuple[str, list[RecordingGroup]]]:
    """Groups with ranks that describe the same job."""
    found: dict[JobDescription, list[RecordingGroup]] = {}
    for group in groups:
        if group.knows_ranks and len(group.jobs) == 1:
            found.setdefault(next(iter(group.jobs)), []).append(group)
    return [(f"they state that they are from {job}", of) for job, of in found.items()]


def _by_time(groups: Sequence[RecordingGroup]) -> list[tuple[str, list[RecordingGroup]]]:
    """Groups whose windows meet, directly or through one between; those with and without ranks separately."""
    found: list[tuple[str, list[RecordingGroup]]] = []
    for knows_ranks in (True, False):
        until_ns: int | None = None
        timed = [group for group in groups if group.span is not None and group.knows_ranks is knows_ranks]
        for group in sorted(timed, key=_began_ns):
            if until_ns is None or _began_ns(group) > until_ns:
                found.append((SAME_TIME, []))
                until_ns = 0
            found[-1][1].append(group)
            until_ns = max(until_ns, 0 if group.span is None else group.span.ended_ns)
    return found


def _joined(
    groups: Sequence[RecordingGroup],
    sets: Sequence[tuple[str, list[RecordingGroup]]],
    *,
    must_overlap: bool = False,
) -> list[RecordingGroup]:
    """The groups, with those of a set merged where they fit: the earliest has taken the others."""
    gone: set[int] = set()
    for why, of_set in sets:
        for claims in _without_rivals(of_set):
            into: list[RecordingGroup] = []
            for group in sorted(claims, key=_began_ns):  # stable: without a clock in the order given
                open_to = [one for one in into if one.fits(group, must_overlap=must_overlap)]
                if not open_to:
                    into.append(group)
                    continue
                min(open_to, key=group.gap_ns).take(group, why)
                gone.add(id(group))
    return [group for group in groups if id(group) not in gone]


def _without_rivals(groups: list[RecordingGroup]) -> list[list[RecordingGroup]]:
    """The groups, by folder if two have the same rank at the same time; each alone if that does not help."""
    rivals = _rivals(groups)
    if rivals is None:
        return [groups]
    folders = _by_folder(groups)
    if len(folders) > 1 and any(len(folder) > 1 for folder in folders):
        return [claims for folder in folders for claims in _without_rivals(folder)]
    one, other = rivals
    rank = min(one.ranks & other.ranks)
    for group in groups:
        group.doubt = f"rank {rank} is claimed by {one.path} and by {other.path}"
    return [[group] for group in groups]


def _rivals(groups: Sequence[RecordingGroup]) -> tuple[RecordingGroup, RecordingGroup] | None:
    """Two groups with the same rank at the same time, if there are any."""
    latest: dict[int, RecordingGroup] = {}
    for group in sorted(groups, key=_began_ns):
        for rank in group.ranks:
            before = latest.get(rank)
            if before is not None and group.is_rival_of(before):
                return before, group
            latest[rank] = group
    return None


def _by_folder(groups: Sequence[RecordingGroup]) -> list[list[RecordingGroup]]:
    """By the first folder in which the paths differ."""
    found: dict[str, list[RecordingGroup]] = {}
    paths = [group.path.parts for group in groups]
    depth = next((n for n, names in enumerate(zip(*paths, strict=False)) if len(set(names)) > 1), 0)
    for group in groups:
        found.setdefault(group.path.parts[depth], []).append(group)
    return list(found.values())


def _began_ns(group: RecordingGroup) -> int:
    return 0 if group.span is None else group.span.began_ns
