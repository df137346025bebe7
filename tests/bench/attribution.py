"""How much of what backward allocates finds its forward call, its module and its line: several small models.

Each model trains under the real tap and hooks in a process of its own; the spool is read and paired here,
no aggregator is needed. What backward allocates is told by a range around ``backward()``, not by the records
that attribution goes by. A loss computed outside of every module (``functional.cross_entropy`` in the
training script) has a forward call and a line, but no module: its bytes are told apart, and the share that
finds its module is given of all bytes and of those whose forward call ran in one.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from harness import Figure, Options, main, say

from recorded_models import recorded_model
from trained_models import BACKWARD, MODELS

STEPS = 10
QUICK_STEPS = 3
SHARE_MIN = 0.95


def measure(options: Options) -> list[Figure]:
    """All figures of this benchmark."""
    figures = []
    for name in MODELS:
        folder = options.folder / name
        folder.mkdir()
        rows = recorded_model(name, folder, QUICK_STEPS if options.quick else STEPS)
        figures += shares(name, rows["allocation_record"])
        say(f"{name}: {figures[-1].note}")
    return figures


def shares(name: str, allocations: pa.Table) -> list[Figure]:
    """Of the bytes that backward allocated: attributed at all, to a forward line, to a module; recomputed."""
    within = allocations.filter(pc.equal(allocations["annotation"].cast(pa.string()), BACKWARD))
    recomputed = within["recomputed"]
    total, again = _bytes(within), _bytes(within.filter(recomputed))
    attributed = pc.or_(pc.is_valid(within["forward_call_id"]), recomputed)
    line = pc.or_(pc.is_valid(within["forward_stack_id"]), recomputed)
    no_module = pc.is_null(within["module"])
    outside = _bytes(within.filter(pc.and_(no_module, pc.is_valid(within["forward_call_id"]))))
    in_module = total - _bytes(within.filter(no_module))
    note = f"{total:,} bytes in backward, {again / total:.1%} of them recomputed"
    return [
        Figure(
            what=f"{name}: to a forward call, or recomputed",
            value=_bytes(within.filter(attributed)) / total,
            at_least=SHARE_MIN,
            note=note,
        ),
        Figure(
            what=f"{name}: to a line of forward",
            value=_bytes(within.filter(line)) / total,
            at_least=SHARE_MIN,
            note=note,
        ),
        Figure(
            what=f"{name}: to a module, of what ran in one",
            value=in_module / (total - outside),
            at_least=SHARE_MIN,
            note=f"{outside / total:.1%} of all belongs to calls outside of every module: the loss",
        ),
        Figure(what=f"{name}: to a module, of all", value=in_module / total, note=note),
    ]


def _bytes(allocations: pa.Table) -> int:
    return int(pc.sum(allocations["size_bytes"]).as_py() or 0)


if __name__ == "__main__":
    main("attribution", "bytes of backward led to their forward call", measure)
