"""The curves of MindStudio's Memory view, under its own names and in its own units.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.parameters import RANK, TIME, check_range, choice, parameter
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_protos.errors import Code, RankmemError

GROUPS: Final = ("overall", "stream", "component")
EVENTS_MAX: Final = 300_000
"""Of the rank in the session: its views compute the whole of it for each question."""
ROWS_MAX: Final = 200_000
"""Points of an answer: 5 MB on the wire."""
NS_PER_MS: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class MindStudioAsked:
    """Parameters of ``/mindstudio_curve``."""

    rank: int = parameter(RANK, "global rank")
    from_ns: int = parameter(TIME, "begin, ns since the session's start", name="from")
    until_ns: int = parameter(TIME, "end", name="to")
    by: str = parameter(choice(GROUPS), "MindStudio's Group By", default="overall")


def mindstudio_curve(reading: Reading, asked: MindStudioAsked) -> pa.Table:
    """Each curve in order of time; columns: those of ``sql/page/mindstudio_curve.sql``.

    Facts: ``peaks``, the highest of each curve by its legend, in MB.
    """
    check_range(asked.from_ns, asked.until_ns)
    events = reading.ask("rank_events", rank=asked.rank)["events"][0].as_py()
    if events > EVENTS_MAX:
        raise RankmemError(
            Code.EXHAUSTED,
            f"rank {asked.rank} has {events:,} events; MindStudio's curves are made for up to {EVENTS_MAX:,}",
            "choose the style rankmem, which shows any number",
        )
    rows = reading.show(
        "mindstudio_curve",
        rank=asked.rank,
        by=asked.by,
        from_ms=asked.from_ns / NS_PER_MS,
        until_ms=asked.until_ns / NS_PER_MS,
    )
    if rows.num_rows > ROWS_MAX:
        raise RankmemError(
            Code.EXHAUSTED,
            f"these curves have {rows.num_rows:,} points, more than {ROWS_MAX:,}",
            "choose a shorter range",
        )
    highest = rows.group_by("legend").aggregate([("mb", "max")]).to_pylist()
    return reading.answer(
        rows,
        exact=True,
        source=f"mindstudio.{asked.by}_curve",
        by=asked.by,
        peaks={row["legend"]: row["mb_max"] for row in highest},
    )


ROUTES: Final = (SessionRoute(path="/mindstudio_curve", parameters=MindStudioAsked, answer=mindstudio_curve),)
