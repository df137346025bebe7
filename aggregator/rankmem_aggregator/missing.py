"""What a session lacks, in lines: the rows of the query ``incompleteness``, equal ranks named together.

Stage: query, in the reader's process. In: rows; out: text for people. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

LINES_MAX: Final = 12
"""A thousand ranks may each lack something else: the view ``incompleteness`` has all of it."""
RUNS_MAX: Final = 8
"""Stretches of ranks named in a line."""


def lines(missing: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each thing that is missing, such as ``ranks 3, 5 to 9: never came``."""
    ranks: dict[str, list[Mapping[str, Any]]] = {}
    for row in missing:
        ranks.setdefault(row["sentence"], []).append(row)
    said = [f"{_whose(rows)}: {sentence}" for sentence, rows in ranks.items()]
    more = len(said) - LINES_MAX
    return said if more <= 0 else [*said[:LINES_MAX], f"… and {more} more: SELECT * FROM incompleteness"]


def _whose(rows: Sequence[Mapping[str, Any]]) -> str:
    """``rank 3``, ``ranks 3, 5 to 9``, with the attempt where it is not the first."""
    attempts = sorted({row["attempt"] for row in rows})
    ranks = sorted({row["rank"] for row in rows})
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    named = [
        ", ".join(map(str, run)) if len(run) < 3 else f"{run[0]} to {run[-1]}" for run in runs[:RUNS_MAX]
    ]
    who = f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(named)}"
    who += " …" if len(runs) > RUNS_MAX else ""
    return who if attempts == [0] else f"{who} (attempt {', '.join(map(str, attempts))})"
