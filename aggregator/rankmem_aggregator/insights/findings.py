"""What each insight finds, in one shape: the bytes that the recomputed peak loses, and what to do.

Stage: query, in the reader's process. In: a way to ask named queries. Out: :class:`Found`, one for each entry
of :data:`FINDERS`. A further insight is a function here and a line there. Bytes are those by which the peak
falls when it is computed again without what was found; where nothing can be computed again there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.insights.finding import Finder, Finding, Found, Question
from rankmem_aggregator.insights.fragmentation import fragmentation_of
from rankmem_aggregator.insights.imbalance import imbalance_of
from rankmem_aggregator.insights.imbalance_text import change_text
from rankmem_aggregator.insights.leak_groups import growing, matters
from rankmem_aggregator.insights.leak_text import place as place_text
from rankmem_aggregator.insights.leaks import leaking_of, leaks_of
from rankmem_aggregator.insights.ledger import ledger_of
from rankmem_aggregator.insights.oom import oom_of
from rankmem_aggregator.insights.whatif import FINDING_SHARE as REMEDY_SHARE
from rankmem_aggregator.insights.whatif import FREE, UNSURE, Request, whatif_of
from rankmem_aggregator.insights.whatif_text import IF_UNUSED
from rankmem_aggregator.quantity_text import bytes_text, counted
from rankmem_aggregator.retention.limits import NS_PER_S
from rankmem_protos.devices import by_weight

Row = dict[str, Any]
WARM_UP_STEPS: Final = 2
"""Steps at the begin in which buffers and states are made."""
STEPS_LEAST: Final = 3
"""Steps that must follow these."""
EARLY_SHARE: Final = 1.03
"""A peak before the steady steps is a finding from so much above them, and what follows them."""


def failures(question: Question) -> Found:
    """The first allocation that failed."""
    answer = oom_of(question.ask, question.session_id, events_max=question.events_max)
    if "rank" not in answer.figures:
        return _nothing(answer)
    figures, rows = answer.figures, answer.rows.to_pylist()
    is_told = answer.verdict == "finding"
    best = next((row for row in rows if row["runs"]), None) if figures.get("remedy") is not None else None
    current = next((row for row in rows if row["is_current"]), None)
    saved = current["needed_bytes"] - best["needed_bytes"] if best and current else None
    evidence = _sql(
        "SELECT rank, time_utc, size_bytes, device_free_bytes, reserved_bytes, unused_bytes, "
        "largest_free_bytes FROM oom_overview WHERE session_id = {session} ORDER BY time_ns",
        question,
    )
    finding = Finding(
        kind="oom",
        rank=figures["rank"],
        bytes=saved,
        peak_after=best["needed_bytes"] if best else None,
        certainty=(answer.certainty or "suspected") if is_told else "suspected",
        evidence=evidence,
        remedy=answer.next_commands[0] if answer.next_commands else "rankmem oom --by line",
        sentence=answer.sentence,
        verb="rankmem oom --why",
    )
    return Found(findings=(finding,), cannot_tell=None if is_told else answer.sentence)


def early_peak(question: Question) -> Found:
    """A peak that came before the steady steps: while the model was made or loaded, or in the first steps."""
    peaks = question.ask("peak", session=question.session_id, rank=None, attempt=None).to_pylist()
    own = [row for row in peaks if row["is_rank_peak"]]
    if not own:
        return Found(cannot_tell="no allocator events were recorded")
    top = min(own, key=lambda row: by_weight(row["device_type"], row["peak_requested_bytes"]))
    place = tuple(top[name] for name in ("attempt", "rank", "device"))
    steps = question.ask("steps", session=question.session_id, rank=top["rank"]).to_pylist()
    steps = [row for row in steps if tuple(row[name] for name in ("attempt", "rank", "device")) == place]
    steps.sort(key=lambda row: row["ended_ns"])
    if len(steps) < WARM_UP_STEPS + STEPS_LEAST:
        few = counted(len(steps), "step") if steps else "no steps"
        return Found(
            cannot_tell=f"{few} of rank {top['rank']} recorded: where the steady ones begin is not known"
        )
    steady = max(row["peak_bytes"] for row in steps[WARM_UP_STEPS:])
    whole, began = top["peak_requested_bytes"], steps[WARM_UP_STEPS - 1]["ended_ns"]
    if whole <= steady * EARLY_SHARE or top["peak_time_ns"] > began:
        return Found()
    after = _highest_since(question, top, steps[-1]["ended_ns"], least=steady)
    if whole <= after * EARLY_SHARE:
        return Found()
    sentence = (
        f"rank {top['rank']}, {top['device']}: the peak of {bytes_text(whole)} comes before the steady "
        f"steps, which need {bytes_text(steady)}"
        f"{f'; what follows them needs {bytes_text(after)}' if after > steady else ''}"
    )
    finding = Finding(
        kind="early_peak",
        rank=top["rank"],
        bytes=whole - after,
        peak_after=after,
        certainty="exact",
        evidence=_sql(
            "SELECT step, device, peak_bytes FROM step_total({session}, of_rank := {rank}) "
            "ORDER BY device, step",
            question,
            rank=top["rank"],
        ),
        remedy="free what loading or the first steps alone need before the next step",
        sentence=sentence,
        verb=f"rankmem live --rank {top['rank']}",
    )
    return Found(findings=(finding,))


def _peak_of(question: Question, place: tuple[int, int, str]) -> int:
    """The peak of (attempt, rank, device), from the peaks of all, which are asked for once."""
    peaks = question.ask("peak", session=question.session_id, rank=None, attempt=None).to_pylist()
    own = (row for row in peaks if (row["attempt"], row["rank"], row["device"]) == place)
    return int(max(row["peak_requested_bytes"] for row in own))


def _highest_since(question: Question, device: Row, since_ns: int, *, least: int) -> int:
    """The most that a device held after an instant, such as in an evaluation after the last step.

    Args:
        least: less is not looked for.
    """
    place = {name: device[name] for name in ("attempt", "rank", "device")}
    range_ = {"session": question.session_id, **place, "from_ns": since_ns, "until_ns": None}
    seconds = question.ask("curve_overall_coarse", **range_).to_pylist()
    highest = max((least, *(row["requested"] for row in seconds if row["time_ns"] > since_ns)))
    # The highest of the first second may have come before the instant.
    if seconds and seconds[0]["time_ns"] <= since_ns and seconds[0]["requested"] > highest:
        range_ |= {"until_ns": since_ns + NS_PER_S}
        events = question.ask("curve_overall", **range_)["requested"].to_pylist()
        highest = max((highest, *events))
    return int(highest)


def fragmentation(question: Question) -> Found:
    """A setting of the allocator that saves much."""
    answer = fragmentation_of(question.ask, question.session_id, rank=None, events_max=question.events_max)
    if answer.verdict != "finding":
        return _nothing(answer)
    best = max(answer.rows.to_pylist(), key=lambda row: row["saved_bytes"])
    rank = answer.figures["rank"]
    finding = Finding(
        kind="fragmentation",
        rank=rank,
        bytes=best["saved_bytes"],
        peak_after=best["needed_bytes"],
        certainty=answer.certainty or "suspected",
        evidence=_sql(
            "SELECT attempt, rank, device, peak_allocated_bytes, peak_reserved_bytes FROM peak_by_rank "
            "WHERE session_id = {session} AND rank = {rank} ORDER BY attempt, device",
            question,
            rank=rank,
        ),
        remedy=answer.next_commands[0],
        sentence=answer.sentence,
        verb=f"rankmem fragmentation --rank {rank}",
    )
    return Found(findings=(finding,))


def leaks(question: Question) -> Found:
    """The rank whose lines leak fastest; its peak is computed again without what they have added."""
    answer = leaks_of(question.ask, question.session_id)
    if answer.verdict != "finding":
        return _nothing(answer)
    leaking = leaking_of(answer.rows.to_pylist())
    top, others = leaking[0], len(leaking) - 1
    place = (top["attempt"], top["rank"], top["device"])
    before, least, after = _peak_without_leaks(question, place)
    more = f", and {counted(others, 'more place')}" if others else ""
    is_sure = all(row["verdict"] == "leaks" for row in leaking)  # the peak is that without all of these
    finding = Finding(
        kind="leak",
        rank=top["rank"],
        bytes=before - after,
        peak_after=after,
        peak_after_least=least,
        certainty=(answer.certainty if is_sure else None) or "suspected",
        evidence=_sql(
            "SELECT step, device, end_bytes, end_growth_bytes FROM step_total({session}, of_rank := {rank}) "
            "ORDER BY device, step",
            question,
            rank=top["rank"],
        ),
        remedy=f"let go of what {place_text(top)} keeps{more}",
        sentence=answer.sentence,
        verb=f"rankmem leaks --rank {top['rank']}",
    )
    return Found(findings=(finding,))


def _peak_without_leaks(question: Question, place: tuple[int, int, str]) -> tuple[int, int, int]:
    """The peak of a device of a rank; and without its leaks what it would be at least, and at most.

    At most: each step's peak falls by what the leaking lines had added up to the step before, which was alive
    throughout; what they held when they began to grow, and what they keep of the step itself, may be meant to
    be there. At least: it falls by all that they hold before the step and by what they make in it that
    outlives it: what is replaced is there twice. A peak outside of the steps falls at most by the most that
    they ever hold.
    """
    of_rank = {"session": question.session_id, "rank": place[1]}
    tracks = question.ask("step_tracks", **of_rank).to_pylist()
    numbers = next(row["steps"] for row in tracks if (row["attempt"], row["rank"]) == place[:2])
    changes = question.ask("held_after_steps", **of_rank)
    added, held = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
    for group in growing(question.ask, of_rank, changes, {place[:2]: numbers}):
        if group.track != place or group.trend.growth != "leak":
            continue
        before = np.append(0, group.series[:-1])
        held += before + group.made
        if matters(group):
            added += np.maximum(before - int(group.series[max(group.trend.first - 1, 0)]), 0)
    whole = _peak_of(question, place)
    steps = question.ask("steps", **of_rank).to_pylist()
    own = {
        row["step"]: row["peak_bytes"]
        for row in steps
        if (row["attempt"], row["rank"], row["device"]) == place
    }
    inside = [(own[number], at) for at, number in enumerate(numbers) if number in own]
    least = max((peak - int(held[at]) for peak, at in inside), default=0)
    if max((peak for peak, _ in inside), default=0) != whole:
        return whole, max(0, least, whole - int(held.max(initial=0))), whole
    return whole, max(0, least), max(peak - int(added[at]) for peak, at in inside)


def imbalance(question: Question) -> Found:
    """The ranks that stand out; the highest peak is looked for again without what they hold beyond peers."""
    answer = imbalance_of(question.ask, question.session_id)
    if answer.verdict != "finding":
        return _nothing(answer)
    rows = answer.rows.to_pylist()
    top = max(rows, key=lambda row: row["beyond_bytes"])
    if top["beyond_bytes"] <= 0:
        return Found()
    highest, after = answer.figures["peak_bytes"], answer.figures["peak_without_bytes"]
    is_named = top["beyond_bytes"] == max(abs(row["beyond_bytes"]) for row in rows)
    more = "" if is_named else f"; {top['what']} holds most above them, {change_text(top['beyond_bytes'])}"
    finding = Finding(
        kind="imbalance",
        rank=top["rank"],
        bytes=highest - after,
        peak_after=after,
        certainty="suspected",
        evidence=_sql(
            "SELECT rank, device, peak_requested_bytes FROM peak_by_rank WHERE session_id = {session} "
            "AND is_rank_peak ORDER BY peak_requested_bytes DESC, rank, device",
            question,
        ),
        remedy=f"rankmem live --rank {top['rank']}",
        sentence=f"{answer.sentence}{more}",
        verb="rankmem imbalance",
    )
    return Found(findings=(finding,))


def beyond_pytorch(question: Question) -> Found:
    """Other processes, or bytes that nothing explains, on the fullest device."""
    answer = ledger_of(question.ask, question.session_id)
    if answer.verdict != "finding":
        return _nothing(answer)
    figures = answer.figures
    is_foreign = figures["finding"] == "other_processes"
    others = figures["other_processes_bytes"] if is_foreign else None
    remedy = "end the other processes on that device" if is_foreign else answer.next_commands[0]
    # Of what is not the ranks' a part may be the driver's own.
    certainty = "suspected" if is_foreign else answer.certainty or "suspected"
    finding = Finding(
        kind="other_processes" if is_foreign else "unexplained",
        rank=figures["rank"],
        bytes=others,
        peak_after=None if others is None else figures["used_bytes"] - others,
        certainty=certainty,
        evidence=_sql(
            "SELECT time_ns, app_reserved_bytes, known_bytes, app_bytes, device_used_bytes FROM app_curve "
            "WHERE session_id = {session} AND rank = {rank} ORDER BY device, seq",
            question,
            rank=figures["rank"],
        ),
        remedy=remedy,
        sentence=answer.sentence,
        verb=f"rankmem ledger --rank {figures['rank']}",
    )
    return Found(findings=(finding,))


def remedies(question: Question) -> Found:
    """What would lower the highest rank's steady peak at no cost; what costs something is a choice."""
    answer = whatif_of(question.ask, question.session_id, Request())
    if answer.verdict == "cannot tell":
        return _nothing(answer)
    figures = answer.figures
    least = figures["peak_bytes"] * REMEDY_SHARE
    free = [
        row
        for row in answer.rows.to_pylist()
        if row["costs"] == FREE and row["is_measured"] and row["saved_bytes"] >= least
    ]
    if not free:
        return Found()
    best, rank = free[0], figures["rank"]
    is_unsure = best["remedy"] in UNSURE
    whole = _peak_of(question, (figures["attempt"], rank, figures["device"]))
    is_elsewhere = whole > figures["peak_bytes"] * EARLY_SHARE
    elsewhere = f"; the peak of {bytes_text(whole)} is not in that step" if is_elsewhere else ""
    finding = Finding(
        kind="remedy",
        rank=rank,
        bytes=best["saved_bytes"],
        peak_after=best["peak_after_bytes"],
        certainty="suspected" if is_unsure else "predicted",
        evidence=_sql(
            "SELECT step, device, peak_bytes FROM step_total({session}, of_rank := {rank}) "
            "ORDER BY device, step",
            question,
            rank=rank,
        ),
        remedy=best["what"],
        sentence=(
            f"rank {rank}, {figures['device']}: {best['what']} would save {bytes_text(best['saved_bytes'])} "
            f"of the {bytes_text(figures['peak_bytes'])} that a steady step holds, at no cost"
            f"{IF_UNUSED if is_unsure else ''}{elsewhere}"
        ),
        verb=f"rankmem whatif --rank {rank}",
    )
    return Found(findings=(finding,))


FINDERS: Final[Mapping[str, Finder]] = MappingProxyType(
    {
        "oom": failures,
        "early peak": early_peak,
        "leaks": leaks,
        "ledger": beyond_pytorch,
        "imbalance": imbalance,
        "whatif": remedies,
        "fragmentation": fragmentation,
    }
)
"""By the name of the insight, the quick ones first: where time is short, the last are left out."""


def _nothing(answer: Answer) -> Found:
    return Found(cannot_tell=answer.sentence if answer.verdict == "cannot tell" else None)


def _sql(text: str, question: Question, **numbers: int) -> str:
    """A statement for the user to run: the session's id as a literal."""
    literal = "'" + str(question.session_id).replace("'", "''") + "'"
    return text.format(session=literal, **numbers)
