"""The shape of what an insight has to say to ``rankmem diagnose``. Plain values; computes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankmem_aggregator.insights.answer import Ask, Certainty


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of every insight."""

    ask: Ask
    session_id: str
    events_max: int
    """A device with more is not replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found."""

    kind: str
    rank: int | None
    bytes: int | None
    """By which the peak falls without it; None where that was not computed."""
    peak_after: int | None
    """The peak then, at most."""
    certainty: Certainty
    evidence: str
    """SQL that shows it."""
    remedy: str
    sentence: str
    verb: str
    """The command that has the whole answer."""
    peak_after_least: int | None = None
    """The peak then at least, where it is not known to the byte; None: it is ``peak_after``."""

    @property
    def is_lower_bound(self) -> bool:
        """Whether the peak falls by at least so much, to at most the peak then."""
        return self.peak_after_least is not None and self.peak_after_least != self.peak_after


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one insight has to say."""

    findings: tuple[Finding, ...] = ()
    cannot_tell: str | None = None
    """Why it can tell nothing, or not all."""


Finder = Callable[[Question], Found]
