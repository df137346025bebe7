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
    """A line for each thing that is missing, such as ``ranks 3, 5 to 9: never reported``."""
    ranks: dict[str, list[Mapping[str, Any]]] = {}
    for row in missing:
        ranks.setdefault(row["sentence"], []).append(row)
    said = [f"{_whose(rows)}: {sentence}" for sentence, rows in ranks.items()]
    more = len(said) - LINES_MAX
    return said if more <= 0 else [*said[:LINES_MAX], f"… and {more} more: SELECT * FROM incompleteness"]


def _whose(rows: Sequence[Mapping[str, Any]]) -> str:
    """``rank 3``, ``ranks 3, 5 to 9``, by attempt where it is not the first alone."""
    attempts = sorted({row["attempt"] for row in rows})
    by_attempt = [(each, sorted({r["rank"] for r in rows if r["attempt"] == each})) for each in attempts]
    if attempts == [0]:
        return _named(by_attempt[0][1])
    return ", ".join(f"{_named(ranks)} (attempt {each})" for each, ranks in by_attempt)


def _named(ranks: Sequence[int]) -> str:
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
    return who + (" …" if len(runs) > RUNS_MAX else "")
