"""What the insight into leaks says in words. Stage: query. In: rows and figures. Out: short sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from rankmem_aggregator.insights.trend import STEPS_LEAST, WARM_UP_LEAST
from rankmem_aggregator.quantity_text import bytes_text, counted

Row = dict[str, Any]

NO_LINES: Final = (
    "the recording has neither operators nor stacks, so no line can be named; rankmem steps shows whether "
    "the total grows"
)
NO_BLOCKS: Final = (
    "no blocks are recorded that outlive a step, only totals at best, so no line can be named; rankmem steps "
    "shows whether the total grows"
)
AHEAD_STEPS: Final = 10_000
NEGLIGIBLE_BYTES: Final = 1 << 20
"""What grows less than this in :data:`AHEAD_STEPS` steps is no finding."""
NOTED_MAX: Final = 3
"""Lines that stopped growing, and caches, which are named; the rows have all."""
_ENDS: Final = {
    "cache": ", only in steps whose input has a size that none before had: it ends when all have come",
    "input": ", made anew in each step and as large as its input needs: it ends when inputs grow no more",
    "model": "",
    "stopped": "",
}
"""By the verdict of what is no leak what is said of it."""
_PREDICTED: Final = "rule-based; correct on all 60 held-out trainings (30 to 65 steps)"
_MAY_FILL: Final = "after fewer than 60 steps a cache that is still filling looks the same"
_MAY_GO_ON: Final = "the steps end before growth that comes every few steps would show again"
SLOWS: Final = "it grew up to the end, though more slowly than before"
_MAY_BE_KEPT: Final = (
    "gradients or state of the optimizer grow, within what the parameters explain; beyond that it is a leak"
)
_MAY_HIDE: Final = "fewer than 60 steps; a leak that adds to memory only every few steps may not show yet"


def too_few(steps: Mapping[tuple[int, int], Sequence[int]]) -> str:
    """Why no rank can be judged."""
    least = STEPS_LEAST + WARM_UP_LEAST
    most = max((len(own) for own in steps.values()), default=0)
    if not steps:
        return "no rank of the session has reported"
    if most == 0:
        return (
            "no steps were recorded: no optimizer stepped and rankmem_agent.step() was not called; a leak is "
            "growth from step to step"
        )
    return f"{counted(most, 'step')} recorded, at least {least} are needed to tell growth from warm-up"


def began_late(num_steps: int) -> str:
    """Why growth of so many steps may be no leak."""
    return f"{counted(num_steps, 'step')} after it began a cache that is still filling looks the same"


def place(row: Mapping[str, Any]) -> str:
    """The line and the operator of a row."""
    names = [name for name in (row["line"], row["operator"]) if name]
    return " ".join(names) if names else "blocks without a line or operator"


def may_go_on(rows: Sequence[Row]) -> list[Row]:
    """The rows of what stopped growing, if it did: more may be due, or it merely slowed down."""
    return [row for row in rows if row["may_go_on"] and row["grown_bytes"] >= NEGLIGIBLE_BYTES]


def _still_due(row: Row) -> str:
    """That growth may go on, and why that is not known."""
    grew, last = f"{place(row)} grew by {bytes_text(row['grown_bytes'])}", row["last_step"]
    if row["unsure"] == SLOWS:
        return f"{grew}, still in step {last}, though more slowly than before, and may go on"
    return f"{grew}, about every {counted(row['grows_each'], 'step')}, last in step {last}, and may go on"


def sentence(leaking: Sequence[Row], figures: Mapping[str, Any], unsure: Sequence[Row] = ()) -> str:
    """The answer in one sentence.

    Args:
        leaking: what leaks or grows, the former first.
        unsure: as :func:`may_go_on` has them.
    """
    if not leaking and unsure:
        others = f", and so may {counted(len(unsure) - 1, 'more place')}" if len(unsure) > 1 else ""
        return f"no leak is sure: {_still_due(unsure[0])}{others}: record more steps"
    if not leaking:
        what = "no line's memory keeps growing from step to step"
        if figures["num_bounded"]:
            what = "what keeps growing is bounded by the inputs or by the model"
        if figures["num_negligible"]:
            what = (
                f"each line that keeps growing adds less than {bytes_text(NEGLIGIBLE_BYTES)} in "
                f"{AHEAD_STEPS:,} steps"
            )
        return f"no leak found: {what} ({counted(figures['num_ranks'], 'rank')} checked)"
    top = leaking[0]
    alike = [row for row in leaking if row["verdict"] == top["verdict"]]
    attempts = {row["attempt"] for row in leaking}
    where = f"on rank {top['rank']}" if top["num_ranks"] == 1 else f"on {counted(top['num_ranks'], 'rank')}"
    text = f"{place(top)} {top['verdict']} by {bytes_text(top['bytes_per_step'])} a step {where}"
    text += f", since step {top['since_step']}"
    if top["attempt"] or len(attempts) > 1:
        text += f" of attempt {top['attempt']}"
    also = (("does" if len(alike) == 2 else "do", len(alike) - 1), ("may", len(leaking) - len(alike)))
    more = [f"so {verb} {counted(number, 'more place')}" for verb, number in also if number]
    return ", and ".join((text, *more))


def may_be_kept(rows: Sequence[Row]) -> list[Row]:
    """The rows of what has bounds, but looks as it would if it were kept by mistake, and matters."""
    own = [row for row in rows if row["verdict"] in ("model", "cache") and row["unsure"]]
    return [row for row in own if row["grown_bytes"] >= NEGLIGIBLE_BYTES]


def error(certainty: str, leaking: Sequence[Row], unsure: Sequence[Row], bounded: Sequence[Row]) -> str:
    """How far the verdict can be trusted.

    Args:
        leaking, unsure: as for :func:`sentence`.
        bounded: as :func:`may_be_kept` has them.
    """
    is_leak = bool(leaking)
    if unsure and not is_leak:
        return SLOWS if unsure[0]["unsure"] == SLOWS else _MAY_GO_ON
    if bounded and not is_leak:
        kinds = [_MAY_BE_KEPT if row["verdict"] == "model" else row["unsure"] for row in bounded]
        return "; ".join(dict.fromkeys(kinds))
    reasons = "; ".join(dict.fromkeys(row["unsure"] for row in leaking if row["unsure"]))
    if certainty == "predicted":
        return f"{_PREDICTED}; of what grows: {reasons}" if reasons else _PREDICTED
    if reasons:
        return reasons
    return _MAY_FILL if is_leak else _MAY_HIDE


def notes(
    rows: Sequence[Row],
    figures: Mapping[str, Any],
    steps: Mapping[tuple[int, int], Sequence[int]],
    judged: Mapping[tuple[int, int], Sequence[int]],
    tracks: Sequence[Row],
) -> tuple[str, ...]:
    """What follows the table."""
    found = [*_forecast(figures, {row["verdict"] for row in rows}), *_graph(rows)]
    for verdict, tail in _ENDS.items():
        own = [row for row in rows if row["verdict"] == verdict]
        for row in own[:NOTED_MAX]:
            grew = f"{place(row)} grew by {bytes_text(row['grown_bytes'])}, to step {row['last_step']}"
            due = may_go_on([row])
            why = f", {row['unsure']}" if verdict == "model" else tail
            why += f"; but {row['unsure']}" if verdict == "cache" and row["unsure"] else ""
            found.append(
                f"not known to have stopped: {_still_due(row)}" if due else f"{verdict}: {grew}{why}"
            )
        if len(own) > NOTED_MAX:
            found.append(f"{verdict}: {counted(len(own) - NOTED_MAX, 'more place')}")
    found.append(f"looked at the last {counted(figures['least_steps_looked_at'], 'step')} after warm-up")
    left_out = {rank for _, rank in steps} - {rank for _, rank in judged}
    if left_out:
        least = STEPS_LEAST + WARM_UP_LEAST
        why = f"with fewer than {least} steps on an attempt, or without blocks"
        found.append(f"{counted(len(left_out), 'rank')} not looked at, {why}")
    running = {row["rank"] for row in tracks if row["is_running"]}
    if running:
        found.append(f"{counted(len(running), 'rank')} still running: as of the last step stored")
    return tuple(found)


def _forecast(figures: Mapping[str, Any], verdicts: Set[str]) -> list[str]:
    left = figures.get("steps_left")
    if left is None:
        return []
    low, high = figures["steps_left_low"], figures["steps_left_high"]
    until = f"{high:,}" if high is not None else "never"
    span = "" if low == high else f" ({low:,} to {until})"
    where = f"rank {figures['full_rank']}, {figures['full_device']}"
    rate = "the rate of all that leaks or may leak" if {"leaks", "grows"} <= verdicts else "this rate"
    return [
        f"at {rate} {where} is out of memory about {left:,} steps{span} after the last one recorded, with "
        f"{bytes_text(figures['usable_bytes'])} usable; fragmentation may end it earlier"
    ]


def _graph(rows: Sequence[Row]) -> list[str]:
    own = [row for row in rows if row["in_graph"]]
    if not own:
        return []
    modules = sorted({row["module"].partition(".")[0] for row in own if row["module"]})
    of = f" in {', '.join(modules[:NOTED_MAX])}" if modules else ""
    return [
        f"an autograd graph is being kept alive: {len(own)} places{of} each keep blocks from the same steps. "
        "Something holds the loss or an output: keep loss.item() or output.detach() instead"
    ]


def next_commands(leaking: Sequence[Row]) -> tuple[str, ...]:
    """What to run next."""
    if not leaking:
        return ()
    return (f"rankmem live --rank {leaking[0]['rank']}", f"rankmem steps --rank {leaking[0]['rank']}")
