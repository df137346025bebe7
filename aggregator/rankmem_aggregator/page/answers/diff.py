"""What is different between two sides: ranks, groups of ranks, instants, steps, ranges or sessions.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, get_args

import pyarrow as pa

from rankmem_aggregator.page.as_sql import as_sql
from rankmem_aggregator.page.job_shares import PEAK_S
from rankmem_aggregator.page.parameters import DEVICE, choice, parameter
from rankmem_aggregator.page.reading import Reading, statement
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.side_points import check_ranks, points_of, session_of
from rankmem_aggregator.page.sides import Side, side
from rankmem_aggregator.query.types import BlockBy, Value
from rankmem_protos.bounds import NUMBER_MAX

DIFF_S: Final = PEAK_S
"""Both sides may be at the job's peak."""

_SCHEMA: Final = pa.schema(
    [
        pa.field("group_name", pa.string()),
        pa.field("a_bytes", pa.int64()),
        pa.field("b_bytes", pa.int64()),
        pa.field("difference_bytes", pa.int64()),
        pa.field("a_blocks", pa.int64()),
        pa.field("b_blocks", pa.int64()),
    ]
)
_JOINED: Final = """SELECT
    group_name,
    coalesce(a.bytes, 0) AS a_bytes,
    coalesce(b.bytes, 0) AS b_bytes,
    b_bytes - a_bytes AS difference_bytes,
    coalesce(a.blocks, 0) AS a_blocks,
    coalesce(b.blocks, 0) AS b_blocks
FROM (
{a}
) AS a
FULL JOIN (
{b}
) AS b USING (group_name)
ORDER BY abs(b_bytes - a_bytes) DESC, a_bytes DESC, group_name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffAsked:
    """Parameters of ``/diff``."""

    a: Side = parameter(side, "one side: SESSION/RANKS/MOMENT")
    b: Side = parameter(side, "the other side")
    by: str = parameter(choice(get_args(BlockBy)), "grouping of blocks", default="category")
    device_type: str = parameter(DEVICE, "type of device", default="cpu")


def diff(reading: Reading, asked: DiffAsked) -> pa.Table:
    """Groups of both sides, those that differ most first.

    Columns: group_name (``none`` where a block has none), a_bytes, b_bytes, difference_bytes (b - a),
    a_blocks, b_blocks. Facts: ``a`` and ``b``, each with bytes, blocks and num_ranks of that side;
    ``different``, the number of groups that differ in bytes or blocks.
    """
    sides = [_Asked(reading, each, asked) for each in (asked.a, asked.b)]
    held = [{row["group_name"]: row for row in each.rows} for each in sides]
    rows = []
    for name in dict.fromkeys([*held[0], *held[1]]):
        a, b = (side.get(name, _NOTHING) for side in held)
        rows.append(
            {
                "group_name": name,
                "a_bytes": a["bytes"],
                "b_bytes": b["bytes"],
                "difference_bytes": b["bytes"] - a["bytes"],
                "a_blocks": a["blocks"],
                "b_blocks": b["blocks"],
            }
        )
    rows.sort(key=lambda row: (-abs(row["difference_bytes"]), -row["a_bytes"], row["group_name"]))
    reading.shown_as(_JOINED.format(a=sides[0].statement, b=sides[1].statement))
    different = sum(row["a_bytes"] != row["b_bytes"] or row["a_blocks"] != row["b_blocks"] for row in rows)
    return reading.answer(
        pa.Table.from_pylist(rows, schema=_SCHEMA),
        exact=True,
        source="allocation_record",
        a=sides[0].facts,
        b=sides[1].facts,
        different=different,
    )


_NOTHING: Final = {"bytes": 0, "blocks": 0}


class _Asked:
    """The rows of a side, its statement and its totals."""

    def __init__(self, reading: Reading, of: Side, asked: DiffAsked) -> None:
        state = session_of(reading, of)
        given: dict[str, Value] = {"session": state.session_id, "by": asked.by}
        if of.is_range:
            name = "side_made"
            given |= {"device_type": asked.device_type, "kept": of.moment == "kept", **of.parameters}
            given |= {"first": of.first + state.origin_ns, "last": of.last + state.origin_ns}
        else:
            name = "side_held"
            given["points"] = json.dumps(points_of(reading, of, asked.device_type))
            given["lines"] = True if asked.by == "line" else None
        text, given = statement(name, given)
        found = reading.queries.sql(text, given)
        self.rows: list[dict[str, Any]] = [
            {**row, "group_name": "none" if row["group_name"] is None else row["group_name"]}
            for row in found.to_pylist()
        ]
        if not self.rows:
            check_ranks(reading, of)
        shown = as_sql(text, given)
        self.statement = f"SELECT * REPLACE (coalesce(group_name, 'none') AS group_name) FROM (\n{shown}\n)"
        self.facts = {
            "session": str(state.session_id),
            "bytes": sum(row["bytes"] for row in self.rows),
            "blocks": sum(row["blocks"] for row in self.rows),
            "num_ranks": max((row["num_ranks"] for row in self.rows), default=0),
        }


def stacks_of(
    reading: Reading, of: Side, device_type: str, *, by: str, apart: bool = False
) -> pa.Table | None:
    """The blocks of a side by what made them: rows of ``sql/page/flame.sql``; None where it has no device.

    Args:
        by: line, module or operator.
        apart: blocks of different categories, sizes or operators are rows of their own.

    Raises:
        RankmemError: NOT_FOUND where the session has no such ranks.
    """
    state = session_of(reading, of)
    points = points_of(reading, of, device_type)
    if not points:
        check_ranks(reading, of)
        return None
    return reading.show(
        "flame",
        session=state.session_id,
        points=json.dumps(points),
        rank_first=points[0]["rank"],
        rank_last=points[-1]["rank"],
        which=of.moment if of.is_range else "alive",
        from_ns=of.first + state.origin_ns if of.is_range else -NUMBER_MAX,
        until_ns=of.last + state.origin_ns if of.is_range else NUMBER_MAX,
        by=by,
        with_category=apart,
        with_size=apart,
        pick=None,
    )


def others_of(asked: Any) -> tuple[str, ...]:
    """The sessions that the sides of a request name."""
    return tuple(each.session for each in (asked.a, asked.b) if each.session)


ROUTES: Final = (
    SessionRoute(path="/diff", parameters=DiffAsked, answer=diff, limit_s=DIFF_S, others=others_of),
)
