"""Blocks that were held longer than any use of them that is recorded.

Stage: page, in the thread of a request. No recording says who reads a block. What is known of its uses: the
call that made it, and the backward calls of that call, after which nothing of the graph needs what it made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.lives import lives_of
from rankmem_aggregator.page.parameters import DEVICE, RANK, TIME, choice, integer, parameter
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.selection import PICK, picked
from rankmem_aggregator.query.types import Value
from rankmem_protos.bounds import NUMBER_MAX

ROWS_MAX: Final = 1000
"""A table of more is not read: the largest come first."""
STEPS_MAX: Final = 1_000_000
"""No training has a block that outlives more."""
KINDS: Final = ("early", "idle", "late", "wait", "outlives")
"""``early``: made long before its first use, which nothing records; the others as in the statement."""
NEEDS: Final = {"idle": "backward", "late": "backward", "wait": "requests", "outlives": "steps"}
_UNKNOWN: Final = {
    "early": "use is not recorded: rankmem knows who made a block, not who reads it first",
    "idle": "use is not recorded: no backward call of this rank is known to belong to a forward call",
    "late": "use is not recorded: no backward call of this rank is known to belong to a forward call",
    "wait": "the allocator of this device does not report when a free was requested",
    "outlives": "no step of this rank is recorded",
}
TIMES: Final = ("allocated_ns", "freed_ns", "held_from_ns", "held_until_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class InefficientAsked:
    """Parameters of ``/inefficient``."""

    rank: int = parameter(RANK, "global rank")
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)
    kind: str = parameter(
        choice(KINDS),
        "held before the first use, between two, after the last; or until freed",
        default="late",
    )
    from_ns: int | None = parameter(TIME, "begin, ns since the session's start", name="from", default=None)
    until_ns: int | None = parameter(TIME, "end, included", name="to", default=None)
    least_ns: int = parameter(integer(0, NUMBER_MAX // 2), "held in vain that long at least", default=0)
    least_steps: int = parameter(integer(0, STEPS_MAX), "outlives: that many steps at least", default=1)
    pick: str | None = parameter(PICK, "groups as kind:value;kind:value", default=None)
    limit: int = parameter(integer(1, ROWS_MAX), "rows at most", default=100)


def inefficient(reading: Reading, asked: InefficientAsked) -> pa.Table:
    """The blocks with the largest size times time first. Columns: those of ``sql/page/inefficient.sql``.

    Facts: kind; recorded, whether what it needs is; why, the sentence for where it is not, and then no rows;
    num_blocks, bytes, gib_s of all that fit.
    """
    track = reading.track(asked.rank, asked.attempt, asked.device)
    lives = lives_of(reading, track, "touching", None, asked.from_ns, asked.until_ns)
    end_ns = lives_of(reading, track, "touching", None, None, None).at_ns
    device: dict[str, Value] = {"attempt": track.attempt, "rank": track.rank, "device": track.device}
    known = reading.ask("use_recorded", **device).to_pylist()[0]
    recorded = asked.kind in NEEDS and known[NEEDS[asked.kind]]
    rows = reading.show(
        "inefficient",
        **device,
        offset_ns=track.offset_ns,
        kind=asked.kind,
        from_ns=lives.from_ns,
        until_ns=lives.until_ns,
        end_ns=end_ns,
        least_ns=asked.least_ns,
        least_steps=asked.least_steps,
        has_steps=known["steps"],
        pick=picked(reading, asked.pick),
        at_most=asked.limit,
    )
    first = rows.slice(0, 1).to_pylist()
    return reading.answer(
        reading.relative(rows.drop_columns(["all_blocks", "all_bytes", "all_gib_s"]), *TIMES),
        exact=True,
        source="allocation_record, operator_call, step",
        kind=asked.kind,
        recorded=bool(recorded),
        why=None if recorded else _UNKNOWN[asked.kind],
        num_blocks=first[0]["all_blocks"] if first else 0,
        bytes=first[0]["all_bytes"] if first else 0,
        gib_s=first[0]["all_gib_s"] if first else 0.0,
    )


ROUTES: Final = (SessionRoute(path="/inefficient", parameters=InefficientAsked, answer=inefficient),)
