"""A rank of a job, as one recording has it: what recordings are joined by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rankmem_imports.recording import RankRecording
from rankmem_imports.search import Found

NO_RANK: Final = -1
"""Nothing gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A rank of a job, as one recording has it."""

    recording: RankRecording
    rank: int
    found: Found
    fingerprint: str
    """Of the recording's files."""
    rank_from: str = ""
    """Where its rank is from, if neither the recording nor the user says it."""

    @property
    def has_rank(self) -> bool:
        """Whether anything gives its rank."""
        return self.rank != NO_RANK

    @property
    def says_rank(self) -> bool:
        """Whether the recording or the user gives it."""
        return self.has_rank and not self.rank_from
