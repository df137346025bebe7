"""A rank of a job, as one recording has it: what recordings are joined by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rankmem_imports.recording import RankRecording
from rankmem_imports.search import Found

NO_RANK: Final = -1
"""No source for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A rank of a job, as one recording has it."""

    recording: RankRecording
    rank: int
    found: Found
    fingerprint: str
    """Of the recording's files."""
    rank_from: str = ""
    """The origin of its rank, if neither the recording nor the user gives it."""

    @property
    def has_rank(self) -> bool:
        """Whether its rank is known."""
        return self.rank != NO_RANK

    @property
    def states_rank(self) -> bool:
        """Whether the recording or the user gives it."""
        return self.has_rank and not self.rank_from
