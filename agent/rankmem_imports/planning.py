"""Groups recordings into sessions and gives each its rank.

Stage: import, before anything is read to its end; the process of ``rankmem import``. In: recordings as
found. Out: sessions with their ranks. A session's id is a function of its recordings, so importing the same
files again gives the same session. Recordings of one format share a session only for a reason
(``belonging``).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rankmem_agent
from rankmem_agent.session_ids import given_id, id_of_text
from rankmem_imports.belonging import in_one, together
from rankmem_imports.job_times import began_ns, marks
from rankmem_imports.members import NO_RANK, Member
from rankmem_imports.rank_numbers import rank_number, world_size_number
from rankmem_imports.recording import Identity, NothingHereError, RankFacts, RankRecording
from rankmem_imports.search import Found
from rankmem_protos.clock import has_clock
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_imports.staging import StagedRank

READ_BYTES: Final = 1 << 20
"""Of a file at a time, for its fingerprint."""


@dataclass(slots=True, kw_only=True)
class PlannedSession:
    """Recordings that become one session."""

    format: str
    session_id: str
    name: str
    members: list[Member]
    why: tuple[str, ...] = ()
    """The reasons why its recordings belong together; none for a single one."""
    doubt: str = ""
    """Why a single recording was not added to others, if there is a particular reason."""
    _staged: list[StagedRank] = field(default_factory=list)

    def identity(self, member: Member) -> Identity:
        """The first columns of the member's rows."""
        return Identity(self.session_id, 0, member.rank)

    def spool_id(self, member: Member) -> str:
        """The name of the member's log, made from its content: another recording has another name."""
        return f"{self.session_id}-0-{member.rank}-import-{member.fingerprint[:16]}"

    def row_with(self, staged: Sequence[StagedRank]) -> dict[str, Any]:
        """The row of session, as known from these ranks and all earlier ones."""
        self._staged += staged
        facts = [member.recording.facts for member in self.members]
        times = [(rank.started_ns, rank.ended_ns) for rank in self._staged]
        # Ranks without a clock count from 0: they date the session only where no other rank does.
        timed = [(began, ended) for began, ended in times if began is not None and has_clock(began)] or times
        return {
            "session_id": self.session_id,
            "name": self.name,
            "source": self.format,
            "world_size": max((one.world_size for one in facts if one.world_size), default=None),
            "command": _first_text(facts, "command"),
            "started_at_ns": min((ns for ns, _ in timed if ns is not None), default=None),
            "ended_at_ns": max((ns for _, ns in timed if ns is not None), default=None),
            "rankmem_version": getattr(rankmem_agent, "__version__", None),
            "torch_version": _first_text(facts, "torch_version"),
            "python_version": _first_text(facts, "python_version"),
        }


@dataclass(slots=True, kw_only=True)
class Plan:
    """The sessions to import."""

    sessions: list[PlannedSession] = field(default_factory=list)
    skipped: list[tuple[Path, RankmemError]] = field(default_factory=list)
    """Recordings in folders that hold nothing to import."""
    failed: list[tuple[Path, RankmemError]] = field(default_factory=list)
    """Recordings that cannot be opened, or have a rank that is taken."""
    repeated: list[tuple[Path, Path]] = field(default_factory=list)
    """Recordings given more than once, each with the first that is the same."""


def plan(
    found: Sequence[Found],
    *,
    name: str | None = None,
    session: str | None = None,
    rank_from: str | None = None,
) -> Plan:
    """Opens the recordings and groups them into sessions.

    Args:
        name: of each session; default: the name of its files.
        session: the session that they all belong to, an id or any text; default: by their content and time.
        rank_from: a regular expression whose only group is the rank, searched for in each path.

    Raises:
        RankmemError: INVALID for a pattern that cannot be used, or several formats for one session.
    """
    pattern = _pattern(rank_from)
    result = Plan()
    groups: dict[tuple[str, str | None], list[Member]] = {}
    for one in found:
        try:
            recordings = one.format.open(one.files)
            fingerprint = _fingerprint(one.files)
            ranks = [_given_rank(recording, pattern) for recording in recordings]
        except RankmemError as exc:
            (result.skipped if is_skipped(one, exc) else result.failed).append((one.path, exc))
            continue
        for recording, rank in zip(recordings, ranks, strict=True):
            member = Member(recording=recording, rank=rank, found=one, fingerprint=fingerprint)
            groups.setdefault((one.format.name, recording.facts.job), []).append(member)
    if session is not None and len(groups) > 1:
        raise RankmemError(
            Code.INVALID,
            f"--session {session} for {len(groups)} jobs: {', '.join(sorted({name for name, _ in groups}))}",
            "import one format, and one job, at a time",
        )
    for (format_name, job), same_job in groups.items():
        once = _once(same_job, result)
        if session is not None:
            recording_groups = [in_one(once, "--session")]
        else:
            recording_groups = together(once, option=None if pattern is None else "--rank-from")
        for group in recording_groups:
            members = _ranked(group.members, result)
            session_id = given_id(session) if session is not None else _session_id(format_name, job, members)
            result.sessions.append(
                PlannedSession(
                    format=format_name,
                    session_id=session_id,
                    name=name or _name_of(members),
                    members=members,
                    why=tuple(group.why),
                    doubt=group.doubt,
                )
            )
    return result


def is_skipped(found: Found, error: RankmemError) -> bool:
    """Whether the error is no failure: the user did not name the file, and it holds nothing to import."""
    return isinstance(error, NothingHereError) and not found.was_named


def _pattern(rank_from: str | None) -> re.Pattern[str] | None:
    if rank_from is None:
        return None
    try:
        pattern = re.compile(rank_from)
    except re.error as exc:
        raise RankmemError(
            Code.INVALID, f"--rank-from {rank_from!r} is not a regular expression: {exc}", r"rank[-_]?(\d+)"
        ) from exc
    if pattern.groups != 1:
        raise RankmemError(
            Code.INVALID, f"--rank-from {rank_from!r} has {pattern.groups} groups, not one", r"rank[-_]?(\d+)"
        )
    return pattern


def _given_rank(recording: RankRecording, pattern: re.Pattern[str] | None) -> int:
    """The rank by the user's pattern, or else by the recording; NO_RANK if neither gives one."""
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
    if recording.facts.world_size is not None:
        world_size_number(recording.source, recording.facts.world_size)
    return NO_RANK if rank is None else rank_number(recording.source, rank)


def _once(members: Sequence[Member], result: Plan) -> list[Member]:
    """The recordings without those that are the same as an earlier one, renamed or compressed."""
    seen: dict[Hashable, Member] = {}
    found = []
    for member in members:
        own = marks(member)
        first = next((seen[mark] for mark in own if mark in seen), None)
        if first is not None and first.found is not member.found:
            result.repeated.append((member.recording.source, first.recording.source))
            continue
        seen |= dict.fromkeys(own, member)
        found.append(member)
    return found


def _ranked(claims: Sequence[Member], result: Plan) -> list[Member]:
    """The members with a rank each: their own, or else the lowest that is free, in the order of the files."""
    taken: dict[int, Member] = {}
    for claim in claims:
        if not claim.has_rank:
            continue
        first = taken.setdefault(claim.rank, claim)
        if first is not claim:
            result.failed.append((claim.recording.source, _taken_rank(claim, first)))
    free = 0
    for claim in claims:
        if claim.has_rank:
            continue
        while free in taken:
            free += 1
        taken[free] = replace(
            claim, rank=free, rank_from="by its place among the files" if len(claims) > 1 else ""
        )
    return [taken[rank] for rank in sorted(taken)]


def _taken_rank(claim: Member, first: Member) -> RankmemError:
    return RankmemError(
        Code.CONFLICT,
        f"{claim.recording.source} is from the same rank as {first.recording.source}: rank {claim.rank}",
        "import recordings of another job separately, or number the ranks with --rank-from",
    )


def _session_id(format_name: str, job: str | None, members: Sequence[Member]) -> str:
    """The id: the start of the job where that is known, and a hash of its recordings."""
    lines = [format_name, job or "", *(f"{member.rank} {member.fingerprint}" for member in members)]
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
    """The name of the file, or of the folder that several files share."""
    paths = list(dict.fromkeys(member.found.path for member in members))
    if len(paths) == 1 and len(members[0].found.files) == 1:
        return paths[0].name
    return Path(os.path.commonpath([path.parent for path in paths])).name or paths[0].name


def _first_text(facts: Sequence[RankFacts], name: str) -> str | None:
    return next((value for one in facts if (value := getattr(one, name)) is not None), None)
