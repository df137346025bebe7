"""Blocks that only one of two sides holds: those of which the other has none, or fewer, that are alike.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.answers.diff import DIFF_S, others_of, stacks_of
from rankmem_aggregator.page.parameters import DEVICE, integer, parameter
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.sides import Side, side
from rankmem_aggregator.page.stacks import lines_of

ROWS_MAX: Final = 1000
_Kind = tuple[str | None, str | None, str | None, int]
"""Operator, line, category and size: blocks that have them in common are alike."""

_SCHEMA: Final = pa.schema(
    [
        pa.field("operator", pa.string()),
        pa.field("line", pa.string()),
        pa.field("category", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("only_a", pa.int64()),
        pa.field("only_b", pa.int64()),
        pa.field("difference_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffBlocksAsked:
    """Parameters of ``/diff_blocks``."""

    a: Side = parameter(side, "one side: SESSION/RANKS/MOMENT")
    b: Side = parameter(side, "the other side")
    device_type: str = parameter(DEVICE, "type of device", default="cpu")
    limit: int = parameter(integer(1, ROWS_MAX), "rows, at most", default=200)


def diff_blocks(reading: Reading, asked: DiffBlocksAsked) -> pa.Table:
    """Kinds of blocks of which one side holds more than the other, those of the most bytes first.

    Columns: operator, line (of a block of backward that of its forward call), category, size_bytes (of each);
    only_a and only_b (blocks that one side has beyond what the other has of the kind: one of the two is 0);
    difference_bytes (b - a). Facts: num_kinds, and of all of them only_a_blocks, only_a_bytes, only_b_blocks
    and only_b_bytes.
    """
    a, b = (_counted(reading, each, asked.device_type) for each in (asked.a, asked.b))
    of_a, of_b = a - b, b - a
    rows = [
        {
            **dict(zip(_SCHEMA.names[:4], kind, strict=True)),
            "only_a": of_a[kind],
            "only_b": of_b[kind],
            "difference_bytes": (of_b[kind] - of_a[kind]) * kind[3],
        }
        for kind in {*of_a, *of_b}
    ]
    rows.sort(
        key=lambda row: (-abs(row["difference_bytes"]), *(str(row[name]) for name in _SCHEMA.names[:4]))
    )
    return reading.answer(
        pa.Table.from_pylist(rows[: asked.limit], schema=_SCHEMA),
        exact=True,
        source="allocation_record",
        num_kinds=len(rows),
        only_a_blocks=of_a.total(),
        only_a_bytes=sum(kind[3] * count for kind, count in of_a.items()),
        only_b_blocks=of_b.total(),
        only_b_bytes=sum(kind[3] * count for kind, count in of_b.items()),
    )


def _counted(reading: Reading, of: Side, device_type: str) -> Counter[_Kind]:
    """The blocks of a side by kind."""
    found: Counter[_Kind] = Counter()
    rows = stacks_of(reading, of, device_type, by="line", apart=True)
    if rows is None:
        return found
    line_of = lines_of(reading, filter(None, rows["stack_id"].to_pylist()))
    for row in rows.drop_columns(["frames"]).to_pylist():
        line = line_of.get(row["stack_id"])
        found[(row["group_name"], line, row["category"], row["size_bytes"])] += row["blocks"]
    return found


ROUTES: Final = (
    SessionRoute(
        path="/diff_blocks", parameters=DiffBlocksAsked, answer=diff_blocks, limit_s=DIFF_S, others=others_of
    ),
)
