"""Blocks that were held longer than any use of them that is recorded.

Stage: page, in the thread of a request. Dumps of msMemScope have each access of a block. Any other recording
knows the call that made it, and the backward calls of that call, after which nothing of the graph needs what
it made.
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
"""As in the statement."""
NEEDS: Final = {
    "early": ("uses",),
    "idle": ("uses", "backward"),
    "late": ("uses", "backward"),
    "wait": ("requests",),
    "outlives": ("steps",),
}
"""Columns of ``sql/page/use_recorded.sql``, of which one must hold."""
_RECORD: Final = (
    "on Ascend devices msmemscope --events=alloc,free,launch,access records each use: import its dump"
)
_NO_BACKWARD: Final = f"use is not recorded: no backward call here belongs to a known forward call; {_RECORD}"
_UNKNOWN: Final = {
    "early": f"use is not recorded: it is known who made a block, not who read it first; {_RECORD}",
    "idle": _NO_BACKWARD,
    "late": _NO_BACKWARD,
    "wait": "the allocator of this device does not report when a free was requested (that of CUDA does)",
    "outlives": "no step is recorded: no optimizer stepped, and rankmem_agent.step() was not called",
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
        "held before the first use, between two, after the last; while its free waited; after its step",
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
    device: dict[str, Value] = {"attempt": track.attempt, "rank": track.rank, "device": track.device}
    known = reading.ask("use_recorded", **device).to_pylist()[0]
    recorded = any(known[need] for need in NEEDS[asked.kind])
    rows = reading.show(
        "inefficient",
        **device,
        offset_ns=track.offset_ns,
        kind=asked.kind,
        from_ns=lives.from_ns,
        until_ns=lives.until_ns,
        end_ns=lives.event_ns,
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
        source="allocation_record, allocation_use, operator_call, step",
        kind=asked.kind,
        recorded=recorded,
        why=None if recorded else _UNKNOWN[asked.kind],
        num_blocks=first[0]["all_blocks"] if first else 0,
        bytes=first[0]["all_bytes"] if first else 0,
        gib_s=first[0]["all_gib_s"] if first else 0.0,
    )


ROUTES: Final = (SessionRoute(path="/inefficient", parameters=InefficientAsked, answer=inefficient),)
