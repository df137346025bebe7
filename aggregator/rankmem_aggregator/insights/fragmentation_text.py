"""What the insight into fragmentation says in words. Stage: query. In: figures. Out: short sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankmem_aggregator.insights.lives import Trace
from rankmem_aggregator.insights.replays import Check
from rankmem_aggregator.quantity_text import bytes_text, counted

Figures = Mapping[str, Any]
Row = Mapping[str, Any]

NOT_ON_DEVICES: Final = "was checked against PyTorch's own allocator on a simulated device, not on a GPU"


def sentence(name: str, figures: Figures, best: Row | None) -> str:
    """The answer in one sentence."""
    text = (
        f"{name}: fragmentation costs {bytes_text(figures['stuck_bytes'])}: the recorded run needs "
        f"{bytes_text(figures['needed_bytes'])} to hold {bytes_text(figures['live_peak_bytes'])} of blocks"
    )
    if best is None:
        return f"{text}; none of the settings tried saves much"
    setting = best["settings"] or "the default setting"
    return f"{text}; {setting} would save {bytes_text(best['saved_bytes'])}"


def error(figures: Figures, best: Row | None, *, may_be_of_older: bool) -> str:
    """How far the figures may be off.

    Args:
        may_be_of_older: what is saved is within what assumed places of older blocks were measured to move.
    """
    parts = [f"by replays; what is needed is found within {bytes_text(figures['needed_within_bytes'])}"]
    if figures["reserved_difference_bytes"]:
        parts.append(
            f"reserved differs from the recording by up to {bytes_text(figures['reserved_difference_bytes'])}"
        )
    if may_be_of_older:
        parts.append(
            "as much as is saved may come of where blocks older than the recording are assumed to lie"
        )
    if best is not None and not best["is_measured"]:
        parts.append(f"the model of that setting {NOT_ON_DEVICES}")
    return "; ".join(parts)


def unused(trace: Trace) -> tuple[str, ...]:
    """That a setting had no effect, if so."""
    if not trace.lacks_expandable:
        return ()
    return (
        "expandable_segments:True was set, but segments were taken whole: the platform may have no "
        "expandable ones, or it was set later; the replay takes whole ones, too, and no setting that expands "
        "them was tried",
    )


def notes(figures: Figures, rows: Sequence[Row]) -> tuple[str, ...]:
    """What to know of the table."""
    found = []
    if figures["num_failed"]:
        failed = counted(figures["num_failed"], "request")
        found.append(
            f"{failed} of the recorded run failed, out of memory, the largest for "
            f"{_size(figures['largest_failed_bytes'])}: that is not in these figures; rankmem oom shows why"
        )
    found.append(
        f"reserved {bytes_text(figures['recorded_reserved_peak_bytes'])} at its highest, of which "
        f"{bytes_text(figures['cache_bytes'])} is cache, released before an allocation would fail"
    )
    if figures["num_unknown_frees"]:
        found.append(f"{counted(figures['num_unknown_frees'], 'free')} of blocks that are not known left out")
    if figures["packed_bytes"] is not None:
        over = figures["packed_bytes"] / figures["live_peak_bytes"] - 1
        found.append(
            f"with all lives known beforehand {bytes_text(figures['packed_bytes'])} would do, {over:.2%} "
            "above what is alive at once"
        )
    found.append(
        f"check: of {counted(figures['num_allocations'], 'allocation')} the replay gives "
        f"{figures['num_same_address']:,} the recorded address, with reserved off by at most "
        f"{bytes_text(figures['reserved_difference_bytes'])}"
    )
    if figures["num_older"]:
        found.append(
            f"{counted(figures['num_older'], 'block')} older than the recording; their addresses are "
            "assumed, which moves reserved by -3.7 to +0.5 % where that was measured"
        )
    found += [
        f"{row['settings']} needs {bytes_text(row['saved_bytes'])} less, but where there is room it reserves "
        f"{bytes_text(row['reserved_change_bytes'])} more"
        for row in rows
        if row["saved_bytes"] > 0 and row["reserved_change_bytes"] > row["saved_bytes"]
    ]
    if not all(row["is_measured"] for row in rows):
        found.append(f"checked on devices, no: the model of that setting {NOT_ON_DEVICES}")
    return tuple(found)


def next_commands(figures: Figures, best: Row | None) -> tuple[str, ...]:
    """What to run next."""
    if best is None:
        return (f"rankmem live --rank {figures['rank']}",)
    variable = f"PYTORCH_{'NPU' if figures['device'].startswith('npu') else 'CUDA'}_ALLOC_CONF"
    chosen = f"{variable}={best['settings']}" if best["settings"] else f"env --unset={variable}"
    return (f"{chosen} rankmem run -- COMMAND",)


def _size(num_bytes: int | None) -> str:
    return "unknown bytes" if num_bytes is None else bytes_text(num_bytes)


def differs(name: str, found: Check) -> str:
    """Why nothing can be told of a recording that its replay does not reproduce."""
    why = (*found.reasons, "events may be missing, or the allocator is another version")
    return (
        f"the replay does not reproduce the recording of {name}: reserved differs by up to "
        f"{bytes_text(found.reserved_difference_bytes)} of {bytes_text(found.recorded_peak_bytes)}, and "
        f"{found.num_same_address:,} of {found.num_allocations:,} addresses are the recorded ones; "
        f"{'; '.join(why)}"
    )
