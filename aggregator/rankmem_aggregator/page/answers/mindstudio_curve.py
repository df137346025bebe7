"""The curves of MindStudio's Memory view, under its own names and in its own units.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.page.answers.curve import PX_DEFAULT, PX_MAX
from rankmem_aggregator.page.parameters import RANK, TIME, check_range, choice, integer, parameter
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_protos.errors import Code, RankmemError

GROUPS: Final = ("overall", "stream", "component")
EVENTS_MAX: Final = 300_000
"""Of the rank in the session: its views compute the whole of it for each question."""
RECORDS_PER_PIXEL: Final = 3
"""As long as a curve has at most so many, every one is sent."""
NS_PER_MS: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class MindStudioAsked:
    """Parameters of ``/mindstudio_curve``."""

    rank: int = parameter(RANK, "global rank")
    from_ns: int = parameter(TIME, "begin, ns since the session's start", name="from")
    until_ns: int = parameter(TIME, "end", name="to")
    by: str = parameter(choice(GROUPS), "MindStudio's Group By", default="overall")
    px: int = parameter(integer(1, PX_MAX), "columns to draw at most", default=PX_DEFAULT)


def mindstudio_curve(reading: Reading, asked: MindStudioAsked) -> pa.Table:
    """Each curve in order of time; columns: those of ``sql/page/mindstudio_curve.sql``.

    Of a curve with many records in a pixel those are sent with which it began, was highest and lowest, and
    ended. Facts: ``peaks``, the highest of each curve by its legend, in MB.
    """
    check_range(asked.from_ns, asked.until_ns)
    reading.track(asked.rank)  # NOT_FOUND where the session has no such rank
    events = reading.ask("rank_events", rank=asked.rank)["events"][0].as_py()
    if events > EVENTS_MAX:
        raise RankmemError(
            Code.EXHAUSTED,
            f"rank {asked.rank} has {events:,} events; MindStudio's curves are made for up to {EVENTS_MAX:,}",
            "switch to the rankmem style, which has no such limit",
        )
    rows = reading.show(
        "mindstudio_curve",
        rank=asked.rank,
        by=asked.by,
        from_ms=asked.from_ns / NS_PER_MS,
        until_ms=asked.until_ns / NS_PER_MS,
    )
    highest = rows.group_by("legend").aggregate([("mb", "max")]).to_pylist()
    drawn = thinned(rows, asked.from_ns / NS_PER_MS, asked.until_ns / NS_PER_MS, asked.px)
    is_whole = drawn.num_rows == rows.num_rows
    return reading.answer(
        drawn,
        exact=is_whole,
        note="every record is drawn" if is_whole else "highest and lowest of each pixel are drawn",
        source=f"mindstudio.{asked.by}_curve",
        by=asked.by,
        peaks={row["legend"]: row["mb_max"] for row in highest},
    )


def thinned(rows: pa.Table, from_ms: float, until_ms: float, px: int) -> pa.Table:
    """The rows, of each curve with too many only the first, highest, lowest and last of each pixel."""
    legend = rows["legend"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    time_ms, mb = rows["time_ms"].to_numpy(), rows["mb"].to_numpy()
    kept = []
    for code in np.unique(legend):
        own = np.flatnonzero(legend == code)
        if len(own) > RECORDS_PER_PIXEL * px:
            pixel = np.floor((time_ms[own] - from_ms) * px / max(until_ms - from_ms, 1e-9))
            begins = np.flatnonzero(np.append(True, pixel[1:] != pixel[:-1]))
            by_height = own[np.lexsort((mb[own], pixel))]
            ends = np.append(begins[1:], len(own)) - 1
            own = np.unique(np.concatenate([own[begins], own[ends], by_height[begins], by_height[ends]]))
        kept.append(own)
    return rows.take(np.concatenate(kept)) if kept else rows


ROUTES: Final = (SessionRoute(path="/mindstudio_curve", parameters=MindStudioAsked, answer=mindstudio_curve),)
