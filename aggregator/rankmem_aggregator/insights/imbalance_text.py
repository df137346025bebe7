"""What the insight into imbalance says in words. Stage: query. In: rows and figures. Out: short sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankmem_aggregator.insights.explaining import FLOOR_BYTES
from rankmem_aggregator.quantity_text import bytes_text, counted

Row = dict[str, Any]

NO_EVENTS: Final = "no rank has recorded blocks, so there is nothing to compare"
NOT_IN_BLOCKS: Final = "not in blocks"
"""The part of a peak that no recorded block accounts for."""
PARTS_SHOWN: Final = 3
ERROR: Final = "rule-based: which ranks stand out is judged against their peers"


def change_text(num_bytes: int) -> str:
    """A difference with its sign."""
    return f"{'+' if num_bytes > 0 else ''}{bytes_text(num_bytes)}"


def parts_text(parts: Sequence[tuple[str, int]]) -> str:
    """The largest parts of a difference, and what the others add up to."""
    shown = [f"{name} {change_text(num_bytes)}" for name, num_bytes in parts[:PARTS_SHOWN]]
    rest = parts[PARTS_SHOWN:]
    if rest:
        shown.append(f"{counted(len(rest), 'other')} {change_text(sum(size for _, size in rest))}")
    return ", ".join(shown)


def too_few(num_ranks: int, least: int, device_type: str, num_left_out: int) -> str:
    """Why so few ranks cannot be compared."""
    what = f"recorded blocks on devices of type {device_type}" if num_left_out else "recorded"
    return (
        f"{counted(num_ranks, 'rank')} {what}, at least {least} are needed to tell one that stands out "
        "from the noise of its peers"
    )


def no_peers(ranks: int, least: int) -> str:
    """Why the stages of a pipeline cannot be compared."""
    return (
        f"a stage of the pipeline (pp) has {counted(ranks, 'rank')}, at least {least} are needed: stages "
        "hold different layers, and only ranks of the same stage are peers"
    )


def sentence(rows: Sequence[Row], figures: Mapping[str, Any]) -> str:
    """The answer in one sentence."""
    num_ranks = counted(figures["num_ranks"], "rank")
    if not rows and figures["num_small"]:
        others = figures["num_small"] - 1
        more = f", {counted(others, 'other')} by less" if others else ""
        return (
            f"no rank of {num_ranks} stands out from its peers by {bytes_text(FLOOR_BYTES)} or more; rank "
            f"{figures['small_rank']} differs from them by {change_text(figures['small_bytes'])}{more}"
        )
    if not rows:
        return f"no rank of {num_ranks} stands out from its peers"
    top = max(rows, key=lambda row: abs(row["beyond_bytes"]))
    out = figures["num_standing_out"]
    verb, whose = ("stands", "its") if out == 1 else ("stand", "their")
    most = f"{top['what']}{' most' if len(rows) > 1 else ''} with {change_text(top['beyond_bytes'])}"
    each = " on each of its ranks" if top["num_ranks"] > 1 else ""
    return f"{out:,} of {num_ranks} {verb} out from {whose} peers, {most}{each}"


def spread(figures: Mapping[str, Any]) -> tuple[str, ...]:
    """What the highest rank holds more than the lowest."""
    if not figures["difference_bytes"]:
        return (f"the {figures['num_ranks']:,} ranks have the same peak",) if figures["num_ranks"] > 1 else ()
    parts = parts_text(list(figures["parts"].items()))
    is_mixed = min(figures["parts"].values()) < 0
    when = ", each at its own instant" if is_mixed else ""
    return (
        f"the peak of rank {figures['highest_rank']} is {bytes_text(figures['difference_bytes'])} above that "
        f"of rank {figures['lowest_rank']}{when}: {parts}",
    )


def notes(figures: Mapping[str, Any], num_attempts: int, num_running: int) -> tuple[str, ...]:
    """What follows the table."""
    found = [*spread(figures)]
    shares = [f"{name} explains {share:.1%}" for name, share in figures["shares"].items() if share >= 0.001]
    if shares:
        found.append(f"of the variance {', '.join(shares)}")
    elif figures["difference_bytes"]:
        found.append("no coordinate explains the differences")
    if figures["is_inferred"]:
        found.append(
            f"{_coordinates(figures)}: a layout was looked for "
            "in the bytes. rankmem.parallel(pp=…, tp=…) states it"
        )
    if figures["odd_host"]:
        found.append(
            f"host {figures['odd_host']} holds {change_text(figures['odd_host_bytes'])} on each of its "
            "ranks, against the other hosts, which agree. It was taken for a part of the layout; if "
            "the hosts should be alike, it is at fault"
        )
    if figures["num_with_coordinates"] == figures["num_ranks"] or not figures["is_inferred"]:
        found += [
            f"{name} left out: only {number:,} of {figures['num_ranks']:,} ranks reported it"
            for name, number in figures["partly_known"].items()
        ]
    found += left_out(figures)
    if num_attempts > 1:
        found.append(f"peaks are of {num_attempts} starts of the workers: each rank's highest")
    if num_running:
        found.append(f"{counted(num_running, 'rank')} still running: peaks so far")
    return tuple(found)


def left_out(figures: Mapping[str, Any]) -> tuple[str, ...]:
    """That ranks of the session were not compared, if so."""
    if not figures["num_left_out"]:
        return ()
    ranks = counted(figures["num_left_out"], "rank")
    return (f"{ranks} left out: no blocks on devices of type {figures['device_type']}",)


def _coordinates(figures: Mapping[str, Any]) -> str:
    num_with, num_ranks = figures["num_with_coordinates"], figures["num_ranks"]
    if not num_with:
        return "no rank reported parallel coordinates"
    if num_with < num_ranks:
        return f"only {num_with:,} of {num_ranks:,} ranks reported parallel coordinates"
    if figures["partly_known"]:
        return "no parallel coordinate that all ranks reported differs between them"
    return "all ranks reported the same parallel coordinates"


def next_commands(rows: Sequence[Row]) -> tuple[str, ...]:
    """What to run next."""
    if not rows:
        return ()
    top = max(rows, key=lambda row: abs(row["beyond_bytes"]))
    return ("rankmem imbalance --by line", f"rankmem live --rank {top['rank']}")
