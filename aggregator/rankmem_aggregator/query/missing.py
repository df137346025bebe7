"""What is missing from a session, as lines: the rows of the query ``incompleteness``, equal ranks together.

Stage: query, in the reader's process. In: rows; out: text for people, and the same in the metadata of an
answer's schema, with which it travels: ``complete`` ("False" where figures of bytes may be wrong, "None"
where that is not known) and ``missing`` (a JSON list of lines). Computes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

COMPLETE_KEY: Final = b"complete"
MISSING_KEY: Final = b"missing"

LINES_MAX: Final = 12
"""A thousand ranks may each miss something else: the view ``incompleteness`` has all of it."""
RUNS_MAX: Final = 8
"""Ranges of ranks in a line."""


def lines(missing: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each thing that is missing, as ``ranks 3, 5 to 9: never reported``; names alone last."""
    ranks: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(missing, key=lambda row: row.get("is_bytes", True) is False):
        ranks.setdefault(row["sentence"], []).append(row)
    found = [f"{_whose(rows)}: {sentence}" for sentence, rows in ranks.items()]
    more = len(found) - LINES_MAX
    return found if more <= 0 else [*found[:LINES_MAX], f"… and {more} more: SELECT * FROM incompleteness"]


def is_exact(missing: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether bytes are right, with at most names missing; None where that is not known."""
    known = [row.get("is_bytes", True) for row in missing]
    return False if True in known else None if None in known else True


def with_missing(answer: pa.Table, missing: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The answer with what is missing from its session in the schema's metadata.

    Args:
        answer: the rows.
        missing: rows of ``incompleteness``.
    """
    metadata = {
        COMPLETE_KEY: str(is_exact(missing)).encode(),
        MISSING_KEY: json.dumps(lines(missing)).encode(),
    }
    return answer.replace_schema_metadata({**(answer.schema.metadata or {}), **metadata})


def and_later(answer: pa.Table, sentence: str) -> pa.Table:
    """An answer with one more line on what it lacks, which is not known before it happens; empty: none."""
    if not sentence:
        return answer
    metadata = {
        COMPLETE_KEY: b"False" if is_complete(answer) is False else b"None",
        MISSING_KEY: json.dumps([*(missing_of(answer) or ()), sentence]).encode(),
    }
    return answer.replace_schema_metadata({**(answer.schema.metadata or {}), **metadata})


def missing_of(answer: pa.Table) -> list[str] | None:
    """The lines that an answer carries, none where nothing is missing; None where it carries no such list."""
    text = (answer.schema.metadata or {}).get(MISSING_KEY)
    return None if text is None else list(json.loads(text))


def is_complete(answer: pa.Table) -> bool | None:
    """Whether figures of bytes are right, as an answer carries it; None where that is not known."""
    text = (answer.schema.metadata or {}).get(COMPLETE_KEY, b"None")
    return {b"True": True, b"False": False}.get(text)


def _whose(rows: Sequence[Mapping[str, Any]]) -> str:
    """``rank 3``, ``ranks 3, 5 to 9``, by attempt where it is not the first alone."""
    attempts = sorted({row["attempt"] for row in rows})
    by_attempt = [(each, sorted({r["rank"] for r in rows if r["attempt"] == each})) for each in attempts]
    if attempts == [0]:
        return ranks_text(by_attempt[0][1])
    return ", ".join(f"{ranks_text(ranks)} (attempt {each})" for each, ranks in by_attempt)


def ranks_text(ranks: Collection[int]) -> str:
    """``rank 3``, ``ranks 3, 5 to 9``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    named = [
        ", ".join(map(str, run)) if len(run) < 3 else f"{run[0]} to {run[-1]}" for run in runs[:RUNS_MAX]
    ]
    words = f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(named)}"
    return words + (" …" if len(runs) > RUNS_MAX else "")
