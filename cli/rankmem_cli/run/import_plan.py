"""What an import decided before it read anything: which recordings are one session, and why.

Stage: render, of ``rankmem import``. In: the plan. Out: lines for stderr, none where there was nothing to
decide.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from rankmem_imports.jobs import Job, Plan

WHY_MAX: Final = 3
"""Reasons of one session: one is enough, and a thousand folders may each have their own."""


def lines_of(plans: Plan) -> list[str]:
    """A line for each recording that is there twice, each session of several with the reason, and each reason
    why recordings are sessions by themselves."""
    lines = [f"{path}: already imported: the same recording as {first}" for path, first in plans.repeated]
    kinds = [job.kind for job in plans.jobs]
    decided = [job for job in plans.jobs if _num_recordings(job) > 1 or kinds.count(job.kind) > 1]
    lines += [_together(job) for job in decided if job.why]
    alone = [job for job in decided if not job.why and _num_recordings(job) == 1]
    doubts = Counter((job.kind, job.doubt or "nothing says that they belong together") for job in alone)
    for (kind, doubt), count in doubts.items():
        each = (
            "a recording is a session by itself" if count == 1 else f"{count} recordings are a session each"
        )
        lines.append(f"{kind}: {each}: {doubt}")
    if alone:
        lines.append("--session NAME puts recordings of one kind into one session")
    return lines


def whence(job: Job, rank: int) -> str:
    """Where a rank's number is from, if neither the recording nor the user gave it."""
    member = next(member for member in job.members if member.rank == rank)
    return f" ({member.rank_from})" if member.rank_from else ""


def _together(job: Job) -> str:
    more = f"; and {len(job.why) - WHY_MAX} more reasons" if len(job.why) > WHY_MAX else ""
    why = "; ".join(job.why[:WHY_MAX]) + more
    return f"session {job.session_id} ({job.name}): {_num_recordings(job)} recordings together: {why}"


def _num_recordings(job: Job) -> int:
    return len({member.found.path for member in job.members})
