"""A report on the allocations that failed.

Stage: render. In: the answers of the named queries about out of memory. Out: tables on stdout and the lines
between them on stderr. Computes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from rankmem_aggregator.quantity_text import counted
from rankmem_cli.show import columns, not_recorded
from rankmem_cli.show.completeness import note_incompleteness, show_answer
from rankmem_cli.show.progress import show_progress
from rankmem_cli.show.render import Format, head, note, show_table
from rankmem_cli.show.session import SessionFacts
from rankmem_cli.show.units import bytes_text, safe_text
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.query.queries import Queries
    from rankmem_aggregator.query.types import BlockBy
    from rankmem_cli.show.table import Column

GROUPS_SHOWN: Final = 8
"""Rows of each part: the largest matter."""
RANKS_SHOWN: Final = 16
FAILURES_SHOWN: Final = 20
"""A program that catches the error and retries fails many times; ``--limit`` shows more."""
EVENTS_REPLAYED: Final = 100_000
"""Of a device, in this report: some seconds. ``--why`` takes 2 million."""
PARTS: Final = ("category", "operator", "line", "rank")
NOTHING_FAILED: Final = "no failed allocation was recorded"


def print_oom(
    queries: Queries,
    facts: SessionFacts,
    failures: pa.Table,
    *,
    number: int = 1,
    limit: int | None = None,
    rank: int | None = None,
) -> None:
    """Writes the failures, then one of them in detail.

    Args:
        failures: earliest first. The first usually causes the others, on its own rank or on ranks that
            waited for it.
        number: which one, from 1.
        limit: the user's limit of the table; None: FAILURES_SHOWN.
        rank: the one that the failures were asked for; None: all.
    """
    note(facts.title())
    if failures.num_rows == 0:
        note(NOTHING_FAILED)
        note_incompleteness(queries, facts)
        return
    chosen = _numbered(failures, number)
    shown_rows = head(failures, limit, output=Format.TABLE, table_rows=FAILURES_SHOWN)
    show_table(shown_rows, columns.oom(facts.started_ns))
    note("")
    for line in [
        *_in_words(chosen, _which(number, failures.num_rows)),
        *_why(queries, facts, number, rank),
        *not_recorded.notes(facts, ("operators", "stacks")),
    ]:
        note(line)
    for by in PARTS:
        rows = _part(queries, facts, chosen, by)
        shown = RANKS_SHOWN if by == "rank" else GROUPS_SHOWN
        note("")
        note(f"{_of(chosen, by)}:")
        show_table(rows.slice(0, shown), not_recorded.with_placeholders(_columns(facts, by), facts))
        if rows.num_rows > shown:
            again = facts.given.complete(f"rankmem oom --by {by}{_again(number, rank)}")
            note(f"… and {rows.num_rows - shown} more: {again}")
    if failures.num_rows > 1 and number == 1:
        others = failures.num_rows - 1
        note("")
        again = facts.given.complete(f"rankmem oom{_again(2, rank)}")
        note(f"{counted(others, 'more failure')}: {again} analyses the next")
    note_incompleteness(queries, facts)


def show_part(
    queries: Queries, facts: SessionFacts, failures: pa.Table, by: str, *, number: int = 1, output: Format
) -> None:
    """Writes one part of one failure, in any format.

    Raises:
        RankmemError: NOT_FOUND if fewer allocations failed.
    """
    if failures.num_rows == 0:
        raise RankmemError(
            Code.NOT_FOUND,
            f"{NOTHING_FAILED} in session {facts.session_id}",
            "rankmem peak shows how much memory each rank used",
        )
    chosen = _numbered(failures, number)
    rows = _part(queries, facts, chosen, by)
    show_answer(queries, facts, rows, _columns(facts, by), output=output, notes=(_of(chosen, by),))


def _why(queries: Queries, facts: SessionFacts, number: int, rank: int | None) -> list[str]:
    """What ``--why`` would say, where its replays take seconds."""
    with show_progress("replaying"):
        answer = queries.why_oom(facts.session_id, rank=rank, failure=number, events_max=EVENTS_REPLAYED)
    answer = answer.asked_with(facts.given)
    label = ": ".join(filter(None, (answer.certainty, answer.error)))
    said = [f"  why: {safe_text(answer.sentence)}"]
    if answer.verdict == "cannot tell":
        said = [f"  why: cannot tell: {safe_text(answer.sentence)}"]
    more = [f"    {label}"] if label else []
    again = facts.given.complete(f"rankmem oom --why{_again(number, rank)}")
    return [*said, *more, f"    {again} has the settings that were tried"]


def _again(number: int, rank: int | None) -> str:
    """The options that choose the same failure once more."""
    return f"{'' if rank is None else f' --rank {rank}'} --failure {number}"


def _numbered(failures: pa.Table, number: int) -> dict[str, Any]:
    if number > failures.num_rows:
        raise RankmemError(
            Code.NOT_FOUND,
            f"there is no failure {number}: {counted(failures.num_rows, 'allocation')} failed",
            f"--failure 1 to {failures.num_rows}, earliest first",
        )
    row: dict[str, Any] = failures.slice(number - 1, 1).to_pylist()[0]
    return row


def _which(number: int, of: int) -> str:
    if of == 1:
        return "the failure"
    return f"the first of {of}" if number == 1 else f"failure {number} of {of}"


def _part(queries: Queries, facts: SessionFacts, failed: dict[str, Any], by: str) -> pa.Table:
    """The bytes that every rank held at a failure, or those alive on its own rank by any grouping."""
    with show_progress("querying"):
        if by == "rank":
            return queries.held_at(failed["time_ns"], facts.session_id)
        place = {name: failed[name] for name in ("attempt", "rank", "device", "seq")}
        return queries.oom_held(facts.session_id, by=cast("BlockBy", by), **place)


def _columns(facts: SessionFacts, by: str) -> list[Column]:
    return columns.held_at(facts.started_ns) if by == "rank" else columns.oom_held(by)


def _of(failed: dict[str, Any], by: str) -> str:
    if by == "rank":
        return "held by every rank at the same instant"
    return f"alive on rank {failed['rank']} at that instant, by {by}"


def _in_words(row: dict[str, Any], which: str) -> list[str]:
    """What was requested and what there was, one sentence per line."""
    on_host = row["device"].startswith("cpu")
    who = safe_text(row["operator"]) if row["operator"] else "a call outside any operator"
    asked = f"{which}: {who} asked for {bytes_text(row['size_bytes'])}"
    asked += "" if on_host else " (rounded up by the allocator)"
    whose = f" on rank {row['rank']}, {safe_text(row['device'])}"
    lines = [f"{asked} with {bytes_text(row['requested_bytes'])} alive{whose}"]
    if row["line"]:
        lines.append(f"  at {safe_text(row['line'])}")
    free = row["device_free_bytes"]
    if free is not None:
        total = f" of {bytes_text(row['device_total_bytes'])}" if row["device_total_bytes"] else ""
        lines.append(
            f"  free on {'the host' if on_host else safe_text(row['device'])}: {bytes_text(free)}{total}"
        )
        if free >= row["size_bytes"]:
            limits = f"{'ulimit' if on_host else 'set_per_process_memory_fraction'}, a container limit"
            lines[-1] += f"; that was enough: a limit on the process stopped it ({limits})"
    if row["reserved_bytes"] is not None:
        lines.append(f"  reserved by PyTorch: {bytes_text(row['reserved_bytes'])}")
        if row["largest_free_bytes"] is not None:
            unused, largest = bytes_text(row["unused_bytes"]), bytes_text(row["largest_free_bytes"])
            lines[-1] += f", of which {unused} unused, largest piece {largest}"
    if row["app_bytes"] is not None:
        lines.append(f"  held by the process outside PyTorch: {bytes_text(row['app_bytes'])}")
    return lines
