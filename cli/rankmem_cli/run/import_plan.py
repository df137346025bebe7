"""Describes the plan of an import: which recordings are one session, and why.

Stage: render, of ``rankmem import``. In: the plan. Out: lines for stderr, none without a decision.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from rankmem_imports.planning import Plan, PlannedSession

WHY_MAX: Final = 3
"""Reasons listed for a session: a thousand folders may each have their own."""


def lines_of(plans: Plan) -> list[str]:
    """A line for each recording that is given twice, for each session of several recordings, and for each
    reason why recordings are separate sessions."""
    lines = [f"{path}: already imported: the same recording as {first}" for path, first in plans.repeated]
    num_of_format = Counter(one.format for one in plans.sessions)
    decided = [one for one in plans.sessions if _num_recordings(one) > 1 or num_of_format[one.format] > 1]
    lines += [_together(one) for one in decided if one.why]
    alone = [one for one in decided if not one.why and _num_recordings(one) == 1]
    doubts = Counter((one.format, one.doubt or "nothing shows that they belong together") for one in alone)
    for (name, doubt), count in doubts.items():
        each = "one recording is a session" if count == 1 else f"{count} recordings are a session each"
        lines.append(f"{name}: {each}: {doubt}")
    if alone:
        lines.append("--session NAME puts recordings of one format into one session")
    return lines


def rank_source(session: PlannedSession, rank: int) -> str:
    """Where a rank's number comes from, if neither the recording nor the user gave it."""
    member = next(member for member in session.members if member.rank == rank)
    return f" ({member.rank_from})" if member.rank_from else ""


def _together(session: PlannedSession) -> str:
    why, count = "; ".join(session.why[:WHY_MAX]), _num_recordings(session)
    if len(session.why) > WHY_MAX:
        why += f"; and {len(session.why) - WHY_MAX} more reasons"
    return f"session {session.session_id} ({session.name}): {count} recordings together: {why}"


def _num_recordings(session: PlannedSession) -> int:
    return len({member.found.path for member in session.members})
