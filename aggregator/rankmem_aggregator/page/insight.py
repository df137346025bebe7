"""An insight as the page shows it: the rows of its answer, and what it says of them as facts.

Stage: page, in the thread of a request. In: a judged question of ``Queries``. Out: an Arrow table with the
fact ``insight``. Nothing is judged here: the figures and sentences are those of the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.page.reading import PageSession, Reading
from rankmem_aggregator.page.shared_rows import SharedRows

ANSWERS_KEPT: Final = 64
"""Leaks are of a row a line, and of a figure a device that leaks: some 1 MB at 10,000 ranks."""
INSIGHT_S: Final = 60.0
"""For an answer; statements are interrupted then, replays are bounded by their events."""
REPLAYED_MAX: Final = 100_000
"""Events of a device that is replayed, under some seven settings, each several times: 20 s of CPU at most."""
_KEY: Final = b"insight"

_kept = SharedRows(ANSWERS_KEPT)


def insight(
    reading: Reading, asked: str, ask: Callable[[], Answer], *, others: Sequence[PageSession] = ()
) -> pa.Table:
    """The rows of an answer, asked once a state of the session; :func:`said` has what it says.

    Args:
        asked: the question with its parameters, for others who ask the same.
        ask: asks it.
        others: further sessions that the answer depends on.
    """
    states = (f"{each.session_id} {each.watermark}" for each in (reading.session, *others))
    given = reading.given
    key = (reading.queries.target, given.text(), *states, asked)
    return _kept.get(key, lambda: _rows_of(ask().asked_with(given)))


def leaks_of(reading: Reading) -> pa.Table:
    """The rows of ``rankmem leaks``, with which several panels begin."""
    return insight(reading, "leaks", lambda: reading.queries.leaks(reading.session.session_id))


def _rows_of(answer: Answer) -> pa.Table:
    told = answer.as_dict()
    for name in ("rows", "session_id", "complete", "missing", "format_version"):
        del told[name]
    return answer.rows.replace_schema_metadata({_KEY: json.dumps(told).encode()})


def said(rows: pa.Table) -> dict[str, Any]:
    """What an answer says: question, verdict, sentence, certainty, error, figures, notes, next_commands."""
    return dict(json.loads(rows.schema.metadata[_KEY]))


def shown(reading: Reading, rows: pa.Table, **facts: Any) -> pa.Table:
    """The page's answer of an insight, with the fact ``insight``: see :func:`said`."""
    told = said(rows)
    return reading.answer(
        rows.replace_schema_metadata(None),
        exact=told["certainty"] == "exact",
        source=f"rankmem {told['question']}",
        insight=told,
        **facts,
    )
