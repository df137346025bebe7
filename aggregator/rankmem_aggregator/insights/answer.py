"""The shape of every insight: one sentence, how certain it is, a table, what to run next.

Stage: query, in the reader's process. In: what an insight found, as an Arrow table. Out: an ``Answer``, which
the command line, Python and the page show alike. Computes nothing about memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from rankmem_aggregator.query.missing import is_complete, missing_of
from rankmem_aggregator.query.next_commands import GivenOptions

if TYPE_CHECKING:
    import pyarrow as pa

Ask = Callable[..., "pa.Table"]
"""Asks a named query: its name, and its parameters by name."""
Certainty = Literal["exact", "predicted", "suspected"]
CERTAINTIES: Final[tuple[Certainty, ...]] = ("suspected", "predicted", "exact")
"""From the least certain. exact: follows from the recorded events. predicted: from a model whose error was
measured. suspected: a rule that was wrong in the measured share of cases, or was not measured."""
Verdict = Literal["fine", "finding", "cannot tell"]
EXIT_FINDING: Final = 1
EXIT_CANNOT_TELL: Final = 2
FORMAT_VERSION: Final = 1
"""Of the JSON form; it only grows, as all formats here."""


COLUMNS_WITH_COMMANDS: Final = frozenset({"sentence", "remedy", "verb"})
"""Of an insight's rows."""
FIGURES_WITH_COMMANDS: Final = ("cannot_tell", "why_no_replay")
"""Sentences. All other texts among the figures are names, which may be any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an insight says about a session.

    The schema's metadata of ``rows`` has what is missing from the session, as any answer of ``Queries``.
    """

    question: str
    """The verb: leaks, imbalance, fragmentation."""
    session_id: str
    verdict: Verdict
    sentence: str
    """The answer; where the verdict is ``cannot tell``, the reason."""
    rows: pa.Table
    """The figures; empty where there are none. Bytes as integers."""
    certainty: Certainty | None = None
    """Of the sentence; None where nothing can be told."""
    error: str = ""
    """How far it may be off, or how often it was wrong, in words."""
    figures: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What the sentences state, for programs: plain values by name."""
    notes: tuple[str, ...] = ()
    """Further sentences, the most important first."""
    next_commands: tuple[str, ...] = ()
    """What to run next."""

    @property
    def missing(self) -> list[str]:
        """What the session lacks, a line each; none where nothing is known to be missing."""
        return missing_of(self.rows) or []

    @property
    def complete(self) -> bool | None:
        """Whether figures of bytes are right; None where that is not known."""
        return is_complete(self.rows)

    def over(self, rows: pa.Table) -> Answer:
        """The answer over its rows with what is missing from the session in the metadata.

        Where bytes are missing, nothing is more than suspected: a lost free looks like a leak.
        """
        known = replace(self, rows=rows)
        if known.complete is not False or self.certainty is None:
            return known
        error = "; ".join(filter(None, ("events are missing", self.error)))
        return replace(known, certainty="suspected", error=error)

    def asked_with(self, given: GivenOptions) -> Answer:
        """The answer whose commands ask the same session of the same store from the reader's shell."""
        import pyarrow as pa

        complete = given.complete
        rows = self.rows
        for name in COLUMNS_WITH_COMMANDS & set(rows.column_names):
            texts = pa.array([text and complete(text) for text in rows[name].to_pylist()], pa.string())
            rows = rows.set_column(rows.schema.get_field_index(name), rows.field(name), texts)
        return replace(
            self,
            sentence=complete(self.sentence),
            figures={
                name: _completed(value, complete) if name in FIGURES_WITH_COMMANDS else value
                for name, value in self.figures.items()
            },
            rows=rows,
            notes=tuple(map(complete, self.notes)),
            next_commands=tuple(map(complete, self.next_commands)),
        )

    def gaps_text(self) -> str:
        """One line on the completeness of the session, for every answer."""
        if self.complete and not self.missing:
            return "the recording is complete"
        if self.complete:
            return "the recording lacks names, no bytes"
        if self.complete is None:
            return "the recording may be incomplete: figures may be too low"
        return "the recording is incomplete: figures may be wrong"

    def exit_code(self, fail_on: Certainty | None = None) -> int:
        """0; 2 where nothing can be told; 1 for a finding that is at least as certain as ``fail_on``."""
        if self.verdict == "cannot tell":
            return EXIT_CANNOT_TELL
        if self.verdict == "fine" or fail_on is None or self.certainty is None:
            return 0
        is_certain = CERTAINTIES.index(self.certainty) >= CERTAINTIES.index(fail_on)
        return EXIT_FINDING if is_certain else 0

    def as_dict(self) -> dict[str, Any]:
        """The answer as JSON has it; the names and types are those of :data:`JSON_SCHEMA`."""
        return {
            "format_version": FORMAT_VERSION,
            "question": self.question,
            "session_id": str(self.session_id),
            "verdict": self.verdict,
            "sentence": self.sentence,
            "certainty": self.certainty,
            "error": self.error,
            "figures": dict(self.figures),
            "rows": self.rows.to_pylist(),
            "notes": list(self.notes),
            "next_commands": list(self.next_commands),
            "complete": self.complete,
            "missing": self.missing,
        }


def _completed(value: Any, complete: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return complete(value)
    if isinstance(value, Mapping):
        return {name: _completed(each, complete) for name, each in value.items()}
    return value


def cannot_tell(question: str, session_id: str, reason: str, schema: pa.Schema, **more: Any) -> Answer:
    """The answer where nothing can be told: why, and no rows.

    Args:
        question: the verb.
        session_id: full id.
        reason: a sentence.
        schema: of the rows that there would be.
        more: further fields of the answer.
    """
    return Answer(
        question=question,
        session_id=session_id,
        verdict="cannot tell",
        sentence=reason,
        rows=schema.empty_table(),
        **more,
    )


_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
JSON_SCHEMA: Final[Mapping[str, Any]] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "An answer of rankmem's insights",
    "type": "object",
    "properties": {
        "format_version": {"const": FORMAT_VERSION},
        "question": {"type": "string"},
        "session_id": {"type": "string"},
        "verdict": {"enum": ["fine", "finding", "cannot tell"]},
        "sentence": {"type": "string"},
        "certainty": {"enum": [*CERTAINTIES, None]},
        "error": {"type": "string"},
        "figures": {"type": "object"},
        "rows": {"type": "array", "items": {"type": "object"}},
        "notes": _TEXTS,
        "next_commands": _TEXTS,
        "complete": {"enum": [True, False, None]},
        "missing": _TEXTS,
    },
    "required": [
        "format_version", "question", "session_id", "verdict", "sentence", "certainty", "error", "figures",
        "rows", "notes", "next_commands", "complete", "missing",
    ],
}  # fmt: skip
"""What :meth:`Answer.as_dict` gives, draft 7; the columns of ``rows`` are those of each insight."""
