"""Which recordings make one session, and which rank each is.

Stage: import, before anything is read to its end; the process of ``rankmem import``. In: recordings as found.
Out: jobs with their ranks. A session's id is a function of what is imported, so that importing the same files
again meets the same session. Recordings of one kind are one job, unless they themselves name another or their
clocks say that they were made far apart, or one after the other by one process (``job_times``).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import rankmem_agent
from rankmem_agent.readers.job_times import began_ns, marks, together
from rankmem_agent.readers.kinds import Found
from rankmem_agent.readers.recording import Identity, RankFacts, RankRecording
from rankmem_agent.readers.staging import StagedRank
from rankmem_agent.session_ids import given_id, id_of_text
from rankmem_protos.errors import Code, RankmemError

RANK_MAX: Final = 2**20 - 1
"""As the aggregator's: ten times the largest jobs known."""
READ_BYTES: Final = 1 << 20
"""Of a file at a time, for its fingerprint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A rank of a job, as one recording has it."""

    recording: RankRecording
    rank: int
    found: Found
    fingerprint: str
    """Of the recording's files."""


@dataclass(slots=True, kw_only=True)
class Job:
    """Recordings that become one session."""

    kind: str
    session_id: str
    name: str
    members: list[Member]
    _staged: list[StagedRank] = field(default_factory=list)

    def identity(self, member: Member) -> Identity:
        """Whose rows the member's are."""
        return Identity(self.session_id, 0, member.rank)

    def spool_id(self, member: Member) -> str:
        """The name of the member's log: of its content, so that another recording has another one."""
        return f"{self.session_id}-0-{member.rank}-import-{member.fingerprint[:16]}"

    def row_with(self, staged: Sequence[StagedRank]) -> dict[str, Any]:
        """The row of session as known with these ranks and those before."""
        self._staged += staged
        facts = [member.recording.facts for member in self.members]
        began = [rank.started_ns for rank in self._staged]
        ended = [rank.ended_ns for rank in self._staged]
        return {
            "session_id": self.session_id,
            "name": self.name,
            "source": self.kind,
            "world_size": max((one.world_size for one in facts if one.world_size), default=None),
            "command": _first_text(facts, "command"),
            "started_at_ns": min((ns for ns in began if ns is not None), default=None),
            "ended_at_ns": max((ns for ns in ended if ns is not None), default=None),
            "rankmem_version": getattr(rankmem_agent, "__version__", None),
            "torch_version": _first_text(facts, "torch_version"),
            "python_version": _first_text(facts, "python_version"),
        }


@dataclass(slots=True, kw_only=True)
class Plan:
    """What will be imported."""

    jobs: list[Job] = field(default_factory=list)
    failed: list[tuple[Path, RankmemError]] = field(default_factory=list)
    """Recordings that cannot be opened, or claim a rank that is taken."""


def plan(
    found: Sequence[Found],
    *,
    name: str | None = None,
    session: str | None = None,
    rank_from: str | None = None,
) -> Plan:
    """Opens the recordings and puts them together.

    Args:
        name: of each session; default: of the files.
        session: the session that they all belong to, an id or any text; default: by their content and time.
        rank_from: a regular expression whose one group is the rank, looked for in each path.

    Raises:
        RankmemError: INVALID for a pattern that cannot be used, or several kinds for one session.
    """
    pattern = _pattern(rank_from)
    result = Plan()
    groups: dict[tuple[str, str | None], list[Member]] = {}
    for one in found:
        try:
            recordings = one.reader.open(one.files)
            fingerprint = _fingerprint(one.files)
            ranks = [_said_rank(recording, pattern) for recording in recordings]
        except RankmemError as exc:
            result.failed.append((one.path, exc))
            continue
        for recording, rank in zip(recordings, ranks, strict=True):
            member = Member(recording=recording, rank=rank, found=one, fingerprint=fingerprint)
            groups.setdefault((one.reader.kind, recording.facts.job), []).append(member)
    if session is not None and len(groups) > 1:
        raise RankmemError(
            Code.INVALID,
            f"--session {session} for {len(groups)} jobs: {', '.join(sorted({kind for kind, _ in groups}))}",
            "import one kind, and one job, at a time",
        )
    for (kind, job), members_of in groups.items():
        for claims in [members_of] if session is not None else together(members_of):
            members = _ranked(claims, result)
            session_id = given_id(session) if session is not None else _session_id(kind, job, members)
            result.jobs.append(
                Job(kind=kind, session_id=session_id, name=name or _name_of(members), members=members)
            )
    return result


def _pattern(rank_from: str | None) -> re.Pattern[str] | None:
    if rank_from is None:
        return None
    try:
        pattern = re.compile(rank_from)
    except re.error as exc:
        raise RankmemError(
            Code.INVALID, f"--rank-from {rank_from!r} is no regular expression: {exc}", r"rank[-_]?(\d+)"
        ) from exc
    if pattern.groups != 1:
        raise RankmemError(
            Code.INVALID, f"--rank-from {rank_from!r} has {pattern.groups} groups, not one", r"rank[-_]?(\d+)"
        )
    return pattern


_UNSAID: Final = -1


def _said_rank(recording: RankRecording, pattern: re.Pattern[str] | None) -> int:
    """What the user's pattern or the recording says; _UNSAID if neither does."""
    match = pattern.search(str(recording.source)) if pattern is not None else None
    if match is not None and (match[1] or "").isdecimal():
        rank: int | None = int(match[1])
    else:
        rank = recording.facts.rank
        if rank is None and pattern is not None:
            raise RankmemError(
                Code.INVALID,
                f"--rank-from {pattern.pattern!r} finds no number in {recording.source}",
                "the first group of the pattern is the rank",
            )
    world_size = recording.facts.world_size
    if world_size is not None and not 0 <= world_size <= RANK_MAX + 1:
        raise RankmemError(Code.INVALID, f"{recording.source} says that its job has {world_size} ranks")
    if rank is None:
        return _UNSAID
    if not 0 <= rank <= RANK_MAX:
        raise RankmemError(Code.INVALID, f"{recording.source} says that it is of rank {rank}")
    return rank


def _ranked(claims: Sequence[Member], result: Plan) -> list[Member]:
    """Each with a rank of its own: what it says, else the lowest that is free, in the order of the files."""
    taken: dict[int, Member] = {}
    for claim in claims:
        if claim.rank == _UNSAID:
            continue
        first = taken.setdefault(claim.rank, claim)
        if first is not claim:
            result.failed.append((claim.recording.source, _taken_rank(claim, first)))
    free = 0
    seen = {mark: claim for claim in taken.values() for mark in marks(claim)}
    for claim in claims:
        if claim.rank != _UNSAID:
            continue
        own = marks(claim)
        other = next((seen[mark] for mark in own if mark in seen), claim)
        if other.found is not claim.found:
            result.failed.append((claim.recording.source, _doubled(claim, other)))
            continue
        seen |= dict.fromkeys(own, claim)
        while free in taken:
            free += 1
        taken[free] = Member(
            recording=claim.recording, rank=free, found=claim.found, fingerprint=claim.fingerprint
        )
    return [taken[rank] for rank in sorted(taken)]


def _taken_rank(claim: Member, first: Member) -> RankmemError:
    same = "the same recording as" if claim.fingerprint == first.fingerprint else "of the rank of"
    return RankmemError(
        Code.CONFLICT,
        f"{claim.recording.source} is {same} {first.recording.source}: rank {claim.rank}",
        "import recordings of another job by themselves, or tell ranks apart with --rank-from",
    )


def _doubled(claim: Member, first: Member) -> RankmemError:
    return RankmemError(
        Code.CONFLICT,
        f"{claim.recording.source} is the same recording as {first.recording.source}",
        "import one of the two",
    )


def _session_id(kind: str, job: str | None, members: Sequence[Member]) -> str:
    """The id of what is imported: the start of the job where that is known, and a hash."""
    lines = [kind, job or "", *(f"{member.rank} {member.fingerprint}" for member in members)]
    known = [began for member in members if (began := began_ns(member)) is not None]
    return id_of_text("\n".join(lines), min(known) // 10**9 if known else 0)


def _fingerprint(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                while chunk := file.read(READ_BYTES):
                    digest.update(chunk)
        except OSError as exc:
            raise RankmemError(Code.NOT_FOUND, f"cannot read {path}: {exc.strerror}") from exc
        digest.update(b"\0file\0")
    return digest.hexdigest()


def _name_of(members: Sequence[Member]) -> str:
    """The file's name, or of several files that of the folder they share."""
    paths = list(dict.fromkeys(member.found.path for member in members))
    if len(paths) == 1 and len(members[0].found.files) == 1:
        return paths[0].name
    return Path(os.path.commonpath([path.parent for path in paths])).name or paths[0].name


def _first_text(facts: Sequence[RankFacts], name: str) -> str | None:
    return next((value for one in facts if (value := getattr(one, name)) is not None), None)
