"""Both sides of a comparison as one tree: where in the program they differ.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.page.answers.diff import DIFF_S, others_of, stacks_of
from rankmem_aggregator.page.answers.flame import MIN_SHARE, paths_of
from rankmem_aggregator.page.flame_tree import Step, bounded, tree_of
from rankmem_aggregator.page.parameters import DEVICE, choice, parameter, real
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.sides import Side, side


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffFlameAsked:
    """Parameters of ``/diff_flame``."""

    a: Side = parameter(side, "one side: SESSION/RANKS/MOMENT")
    b: Side = parameter(side, "the other side")
    by: str = parameter(choice(("line", "module", "operator")), "what a level is", default="line")
    device_type: str = parameter(DEVICE, "type of device", default="cpu")
    min_share: float = parameter(real(MIN_SHARE, 1), "least share of a node in both together", default=0.002)


def diff_flame(reading: Reading, asked: DiffFlameAsked) -> pa.Table:
    """Nodes in depth-first order, those that are largest in both sides together first.

    Columns: parent (its place, -1 for the root), kind, name, a_bytes, b_bytes. Facts: a_bytes and b_bytes of
    all; min_share, as in ``/flame``.
    """
    a, b = (_paths(reading, each, asked) for each in (asked.a, asked.b))
    # A node's bytes are those of both sides; its second figure is A's part of them.
    root = tree_of(
        itertools.chain(((path, size, size) for path, size in a), ((path, size, 0) for path, size in b))
    )
    nodes = bounded(root, asked.min_share)
    both, of_a = np.array(nodes.bytes, np.int64), np.array(nodes.blocks, np.int64)
    found = pa.table(
        {
            "parent": pa.array(nodes.parent, pa.int32()),
            "kind": pa.array(nodes.kind, pa.string()).dictionary_encode(),
            "name": pa.array(nodes.name, pa.string()),
            "a_bytes": pa.array(of_a),
            "b_bytes": pa.array(both - of_a),
        }
    )
    return reading.answer(
        found,
        exact=True,
        source="allocation_record",
        a_bytes=root.blocks,
        b_bytes=root.bytes - root.blocks,
        min_share=nodes.min_share,
    )


def _paths(reading: Reading, of: Side, asked: DiffFlameAsked) -> Iterator[tuple[Sequence[Step], int]]:
    rows = stacks_of(reading, of, asked.device_type, by=asked.by)
    return ((path, size) for path, size, _ in paths_of(rows, asked.by)) if rows is not None else iter(())


ROUTES: Final = (
    SessionRoute(
        path="/diff_flame", parameters=DiffFlameAsked, answer=diff_flame, limit_s=DIFF_S, others=others_of
    ),
)
