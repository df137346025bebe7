"""Allocations that failed, as a report.

Stage: render. In come the answers of the named queries about out of memory, out go tables on stdout and, on
stderr, the lines between them. Computes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rankmem_cli import columns
from rankmem_cli.completeness import say, show_answer
from rankmem_cli.patience import patience
from rankmem_cli.render import Format, head, note, show_table
from rankmem_cli.target import SessionFacts
from rankmem_cli.units import bytes_text, safe_text
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.queries import BlockBy, Queries
    from rankmem_cli.table import Column

GROUPS_SHOWN: Final = 8
"""Rows of each part: the largest tell most."""
RANKS_SHOWN: Final = 16
FAILURES_SHOWN: Final = 20
"""A program that catches the error and tries again fails many times."""
PARTS: Final = ("category", "operator", "line", "rank")
NOTHING_FAILED: Final = "no allocation failed"


def print_oom(queries: Queries, facts: SessionFacts, failures: pa.Table) -> None:
    """Writes the failures, then the last one taken apart."""
    note(facts.title())
    if failures.num_rows == 0:
        note(NOTHING_FAILED)
        say(queries, facts)
        return
    show_table(
        head(failures, None, output=Format.TABLE, table_rows=FAILURES_SHOWN), columns.oom(facts.started_ns)
    )
    last = _last(failures)
    note("")
    for line in _in_words(last, only=failures.num_rows == 1):
        note(line)
    for by in PARTS:
        rows = _part(queries, facts, last, by)
        shown = RANKS_SHOWN if by == "rank" else GROUPS_SHOWN
        note("")
        note(f"{_of(last, by)}:")
        show_table(rows.slice(0, shown), _columns(facts, by))
        if rows.num_rows > shown:
            note(f"… and {rows.num_rows - shown} more: rankmem oom --by {by}")
    say(queries, facts)


def show_part(queries: Queries, facts: SessionFacts, failures: pa.Table, by: str, *, output: Format) -> None:
    """Writes one part of the last failure alone, in any format.

    Raises:
        RankmemError: NOT_FOUND where no allocation failed.
    """
    if failures.num_rows == 0:
        raise RankmemError(
            Code.NOT_FOUND,
            f"{NOTHING_FAILED} in session {facts.session_id}",
            "rankmem peak: how high each rank got",
        )
    last = _last(failures)
    rows = _part(queries, facts, last, by)
    show_answer(queries, facts, rows, _columns(facts, by), output=output, notes=(_of(last, by),))


def _last(failures: pa.Table) -> dict[str, Any]:
    row: dict[str, Any] = failures.slice(failures.num_rows - 1).to_pylist()[0]
    return row


def _part(queries: Queries, facts: SessionFacts, failed: dict[str, Any], by: str) -> pa.Table:
    """What every rank held at a failure, or what was alive on its own, by any grouping."""
    with patience("asking"):
        if by == "rank":
            return queries.held_at(failed["time_ns"], facts.session_id)
        place = {name: failed[name] for name in ("attempt", "rank", "device", "seq")}
        return queries.oom_held(facts.session_id, by=_by(by), **place)


def _columns(facts: SessionFacts, by: str) -> list[Column]:
    return columns.held_at(facts.started_ns) if by == "rank" else columns.oom_held(by)


def _of(failed: dict[str, Any], by: str) -> str:
    if by == "rank":
        return "what every rank held at the same instant"
    return f"alive on rank {failed['rank']} then, by {by}"


def _in_words(row: dict[str, Any], *, only: bool) -> list[str]:
    """What was asked for against what there was, a sentence a line."""
    on_host = row["device"].startswith("cpu")
    who = safe_text(row["operator"]) if row["operator"] else "a call outside of operators"
    asked = f"{'it' if only else 'the last'}: {who} asked for {bytes_text(row['size_bytes'])}"
    asked += "" if on_host else " (rounded up by the allocator)"
    said = [f"{asked} with {bytes_text(row['requested_bytes'])} alive"]
    free = row["device_free_bytes"]
    if free is not None:
        total = f" of {bytes_text(row['device_total_bytes'])}" if row["device_total_bytes"] else ""
        said.append(
            f"  free on {'the host' if on_host else safe_text(row['device'])}: {bytes_text(free)}{total}"
        )
        if free >= row["size_bytes"]:
            limits = "ulimit, a container's" if on_host else "set_per_process_memory_fraction, a container's"
            said[-1] += f"; that was enough: a limit of the process stopped it ({limits})"
    if row["reserved_bytes"] is not None:
        said.append(f"  reserved by PyTorch: {bytes_text(row['reserved_bytes'])}")
        if row["largest_free_bytes"] is not None:
            unused, largest = bytes_text(row["unused_bytes"]), bytes_text(row["largest_free_bytes"])
            said[-1] += f", of it unused {unused}, the largest piece {largest}"
    if row["app_bytes"] is not None:
        said.append(f"  held by the process beyond it: {bytes_text(row['app_bytes'])}")
    return said


def _by(by: str) -> BlockBy:
    return by  # type: ignore[return-value]
