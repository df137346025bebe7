"""What every export is given, and its result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.sql import export_text

_PARAMETER: Final = re.compile(r"\$(\w+)")


def silent(text: str) -> None:
    """Ignores the progress of an export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The data to export."""

    queries: Queries
    session_id: str
    """Full id; empty for a kind that exports the whole database."""
    ranks: tuple[int, ...] | None = None
    """Global ranks; None for all, or for the highest where a file holds one."""
    from_ns: int | None = None
    """Start of the range, ns on the common clock; None for the first event."""
    until_ns: int | None = None
    """Its end, likewise."""
    progress: Callable[[str], None] = silent
    """Called with what is being written."""
    lacks: tuple[str, ...] = ()
    """What the session lacks, a line each."""
    marks: str = ""
    """Ranges and instants that a user of the page named, as its link has them; of the page in one file."""

    @property
    def missing(self) -> tuple[str, ...]:
        """That, and what was read while a store is away: a file that can carry it does."""
        return (*self.lacks, self.queries.stale) if self.queries.stale else self.lacks

    def rows(self, name: str, **values: Value) -> list[dict[str, Any]]:
        """The rows of ``exports/{name}.sql``; see :meth:`stream_of`."""
        text = export_text(name)
        return self.queries.sql(text, self._parameters(text, values)).to_pylist()  # type: ignore[no-any-return]

    def stream(self, name: str, **values: Value) -> Iterator[pa.RecordBatch]:
        """The same, batch by batch."""
        return self.stream_of(export_text(name), **values)

    def stream_of(self, text: str, **values: Value) -> Iterator[pa.RecordBatch]:
        """The batches of a statement.

        Args:
            text: SQL.
            values: for its parameters; it gets those that it names. ``session``, ``ranks``, ``from_ns`` and
                ``until_ns`` are the selection's where they are not given.
        """
        return self.queries.stream(text, self._parameters(text, values))

    def _parameters(self, text: str, values: dict[str, Value]) -> dict[str, Value]:
        known: dict[str, Value] = {
            "session": self.session_id,
            "ranks": None if self.ranks is None else ",".join(map(str, self.ranks)),
            "from_ns": self.from_ns,
            "until_ns": self.until_ns,
            **values,
        }
        return {name: known[name] for name in _PARAMETER.findall(text)}


@dataclass(slots=True, kw_only=True)
class ExportResult:
    """The result of an export."""

    counts: dict[str, int] = field(default_factory=dict)
    """The number of each kind of thing written, such as ``events``."""
    remarks: list[str] = field(default_factory=list)
    """What was left out or thinned, or has no place in such a file; a sentence each."""

    def add(self, what: str, count: int = 1) -> None:
        """Adds to a count."""
        self.counts[what] = self.counts.get(what, 0) + count
