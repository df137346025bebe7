"""A timeline with its facts: whose curves they are, and how they are to be read.

Stage: query, in the reader's process. The facts travel as text in the metadata of the public answer's schema;
this module alone writes and reads them there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import pyarrow as pa

from rankmem_aggregator.query.missing import COMPLETE_KEY

_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "int": int,
    "bool": lambda text: text == "True",
    "str": str,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineFacts:
    """What is the same for all points of a timeline."""

    device: str = "?"
    """Device of the rank; the device type, where ranks are added up."""
    figure: str | None = None
    """Which bytes: requested, allocated, active or reserved, or all of them."""
    first_ns: int | None = None
    last_ns: int | None = None
    stacked: bool | None = None
    """The curves add up to a whole."""
    exact: bool = True
    """No point is left out."""
    attempt: int | None = None
    """Like rank and host_name for curves of one rank only."""
    rank: int | None = None
    host_name: str | None = None
    num_ranks: int | None = None
    """Like num_hosts for sums over ranks only."""
    num_hosts: int | None = None
    by_second: bool | None = None
    """The same: each rank stands at its highest of every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Curves, and their facts."""

    rows: pa.Table
    """Columns of ``thinning.SCHEMA``."""
    facts: TimelineFacts
    complete: bool | None = True
    """Whether bytes are right: False if events or ranks are missing, None where that is not known."""

    def table(self) -> pa.Table:
        """The rows, with the facts in their schema's metadata."""
        known = {field.name: getattr(self.facts, field.name) for field in fields(self.facts)}
        metadata = {name: str(value) for name, value in known.items() if value is not None}
        return self.rows.replace_schema_metadata(metadata)

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """The timeline in an answer of ``Queries.timeline``."""
        texts = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        facts = {
            field.name: _PARSERS[str(field.type).removesuffix(" | None")](texts[field.name])
            for field in fields(TimelineFacts)
            if field.name in texts
        }
        complete = {"False": False, "None": None}.get(texts.get(COMPLETE_KEY.decode(), ""), True)
        return cls(rows=table, facts=TimelineFacts(**facts), complete=complete)
