"""Allocations that failed, as a report.

Stage: render. In come the answers of the named queries about out of memory, out go tables on stdout and, on
stderr, the lines between them. Computes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rankmem_cli import columns
from rankmem_cli.patience import patience
from rankmem_cli.render import Format, head, note, show_table
from rankmem_cli.target import SessionFacts
from rankmem_cli.units import bytes_text, safe_text

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.queries import BlockBy, Queries

GROUPS_SHOWN: Final = 8
"""Rows of each part: the largest tell most."""
RANKS_SHOWN: Final = 16
FAILURES_SHOWN: Final = 20
"""A program that catches the error and tries again fails many times."""
PARTS: Final[tuple[BlockBy, ...]] = ("category", "operator", "line")


def print_oom(queries: Queries, facts: SessionFacts, failures: pa.Table) -> None:
    """Writes the failures, then the last one taken apart."""
    note(facts.title())
    if failures.num_rows == 0:
        note("no allocation failed")
        return
    show_table(
        head(failures, None, output=Format.TABLE, table_rows=FAILURES_SHOWN), columns.oom(facts.started_ns)
    )
    last = failures.slice(failures.num_rows - 1).to_pylist()[0]
    note("")
    note(_headline(last, only=failures.num_rows == 1))
    for by in PARTS:
        with patience("asking"):
            rows = queries.oom_held(
                facts.session_id,
                attempt=last["attempt"],
                rank=last["rank"],
                device=last["device"],
                seq=last["seq"],
                by=by,
            )
        note(f"alive on rank {last['rank']} then, by {by}:")
        show_table(rows.slice(0, GROUPS_SHOWN), columns.oom_held(by))
    with patience("asking"):
        ranks = queries.held_at(last["time_ns"], facts.session_id)
    note("what every rank held at the same instant:")
    show_table(ranks.slice(0, RANKS_SHOWN), columns.held_at(facts.started_ns))


def _headline(row: dict[str, Any], *, only: bool) -> str:
    """What was asked for against what there was, in a sentence."""
    who = safe_text(row["operator"]) if row["operator"] else "a call outside of operators"
    said = f"{'it' if only else 'the last'}: {who} asked for {bytes_text(row['size_bytes'])}"
    if not row["device"].startswith("cpu"):
        said += " (rounded up by the allocator)"
    said += f" with {bytes_text(row['requested_bytes'])} alive"
    if row["device_free_bytes"] is not None:
        said += f" and {bytes_text(row['device_free_bytes'])} free on {safe_text(row['device'])}"
    if row["largest_free_bytes"] is not None:
        said += (
            f"; {bytes_text(row['unused_bytes'])} reserved but unused, the largest piece "
            f"{bytes_text(row['largest_free_bytes'])}"
        )
    return said
