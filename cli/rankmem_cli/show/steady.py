"""A line on steps that were not observed since they were known (``RANKMEM_STEADY``).

Stage: render. In: rows of ranks, with the columns of the view ``rank_steady``. Out: a line, or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rankmem_aggregator.quantity_text import counted
from rankmem_aggregator.query.missing import ranks_text
from rankmem_cli.show.units import count_text
from rankmem_protos.tables import STEADY_COUNTS

if TYPE_CHECKING:
    import pyarrow as pa


def steady_lines(ranks: pa.Table) -> list[str]:
    """One line for all ranks with such steps; none if every step was observed.

    Args:
        ranks: the answer of ``Queries.ranks`` or ``Queries.status``; those of an older version have no such
            columns.
    """
    rows = [row for row in ranks.to_pylist() if row.get("template_blocks") is not None]
    if not rows:
        return []
    total = {name: sum(row[name] or 0 for row in rows) for name in STEADY_COUNTS}
    steps = _range_text(row["steady_steps"] for row in rows)
    of = _range_text(row["num_steps"] for row in rows)
    known = [f"{count_text(total['template_blocks'])} blocks are known by template"]
    known += [
        f"{count_text(total[name])} {how}"
        for name, how in (("prefix_blocks", "by the beginning of one"), ("evidence_blocks", "by evidence"))
        if total[name]
    ]
    misses = "1 miss" if total["steady_misses"] == 1 else f"{count_text(total['steady_misses'])} misses"
    differences = total["audit_differences"]
    found = counted(differences, "difference") if differences else "no difference"
    whose = ranks_text({row["rank"] for row in rows})
    return [
        f"{whose}: calls were not observed in {steps} of {of} steps, known from earlier ones "
        f"(RANKMEM_STEADY): {', '.join(known)}; {misses}, audits found {found}"
    ]


def _range_text(numbers: Iterable[int | None]) -> str:
    known = [number or 0 for number in numbers]
    least, most = min(known), max(known)
    return count_text(most) if least == most else f"{count_text(least)} to {count_text(most)}"
