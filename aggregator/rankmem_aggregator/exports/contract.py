"""What every kind of export is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rankmem_aggregator.query.queries import Queries


def silent(text: str) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is exported."""

    queries: Queries
    session_id: str
    """Full id; empty for a kind that takes the whole database."""
    ranks: tuple[int, ...] | None = None
    """Global ranks; None for all, or for the one that stood highest where a file holds one."""
    from_ns: int | None = None
    """The beginning, ns on the common clock; None for the first event."""
    until_ns: int | None = None
    """The end, likewise."""
    say: Callable[[str], None] = silent
    """Is told what goes on, for whoever waits."""
    missing: tuple[str, ...] = ()
    """What the session lacks, a line each: a file that can carry it does."""


@dataclass(slots=True, kw_only=True)
class ExportResult:
    """What an export did."""

    counts: dict[str, int] = field(default_factory=dict)
    """What of each there is in it, such as ``events``."""
    remarks: list[str] = field(default_factory=list)
    """What was left out, thinned, or cannot be said in such a file; a sentence each."""
