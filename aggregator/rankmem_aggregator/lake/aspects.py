"""What a question sees of a session whose events are partly on their hosts.

Stage: query, in the process that reads the lake: a reader's, or an aggregator. In: a statement, its
parameters and a connection; out: the connection's variables (``not_here``). A question about one rank sees
the rows of that rank alone, and is refused for none of another. A statement's text says which question it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import duckdb

from rankmem_aggregator.lake.not_here import ABOUT_RANKS, MISSING_AS
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.sql import named_scatters

OF_FAILURES: Final = frozenset({"oom"})
"""Questions about the ranks alone that ran out of memory: all that stayed of these comes unasked."""
BOUNDS: Final[Mapping[str, str]] = {
    "job_peak_lowest": "lowest",
    "job_peak_highest": "highest",
    "job_peak_bound_here": "lowest",
}
"""By named query what stands in place of events that are not here. The last is asked where none that it reads
is missing."""
_FAILED: Final = "SELECT DISTINCT rank FROM oom WHERE session_id = $session ORDER BY rank"


def needs_aspect(text: str, parameters: Mapping[str, Value]) -> bool:
    """Whether a statement is a question that sees less, or other rows, where events are on their hosts."""
    name, _ = named_scatters().get(text, ("", ""))
    return name in BOUNDS or name in OF_FAILURES or (bool(name) and isinstance(parameters.get("rank"), int))


def set_aspect(cursor: duckdb.DuckDBPyConnection, text: str, parameters: Mapping[str, Value]) -> None:
    """Has a connection show what a question needs; of one that needs nothing it shows all.

    Args:
        cursor: that the statement runs on, and no other.
        text: the statement.
        parameters: its parameters.
    """
    if not needs_aspect(text, parameters):
        return
    name, _ = named_scatters()[text]
    rank = parameters.get("rank")
    if name in BOUNDS:
        cursor.execute(f"SET VARIABLE {MISSING_AS} = '{BOUNDS[name]}'")
    elif isinstance(rank, int):
        cursor.execute(f"SET VARIABLE {ABOUT_RANKS} = [{rank}]")
    else:
        failed = cursor.execute(_FAILED, {"session": parameters.get("session")}).fetchall()
        ranks = ", ".join(str(rank) for (rank,) in failed)
        cursor.execute(f"SET VARIABLE {ABOUT_RANKS} = [{ranks}]::INTEGER[]")
