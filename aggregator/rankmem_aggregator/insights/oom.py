"""Why an allocation failed: what would have helped, by replays of what came before it.

Stage: query, in the reader's process. In: a way to ask named queries. Out: an ``Answer``.

**Kinds**, the first that holds is the verdict, all that hold are in the figures. fragmented: under another
setting of the allocator the same requests find room. foreign: other processes hold at least what lacks.
single: the request is more than half of what the device gives. leak: a line leaks (``rankmem leaks``), and
has grown by at least what lacks. spike: this step needs more than any before. exhausted: none of these.

Where the blocks alive and the request together are more than the device gives, no setting can help: that
needs no model, and is exact.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.insights import oom_text as text
from rankmem_aggregator.insights.answer import Answer, Ask, Certainty, cannot_tell
from rankmem_aggregator.insights.fragmentation import tried_with
from rankmem_aggregator.insights.fragmentation_text import unused
from rankmem_aggregator.insights.leaks import leaking_of, leaks_of
from rankmem_aggregator.insights.oom_replay import (
    Tried,
    alive_bytes,
    capacity_of,
    is_reproduced,
    needed,
    tried,
    until,
)
from rankmem_aggregator.insights.reading import EVENTS_MAX, CannotTell, read_trace
from rankmem_aggregator.insights.replays import NEEDED_WITHIN_BYTES
from rankmem_aggregator.quantity_text import counted
from rankmem_protos.devices import HOST_MEMORY
from rankmem_protos.errors import Code, RankmemError

FOREIGN_SHARE_MIN: Final = 0.02
"""Of the device: the driver's own bytes and idle contexts are less, and are nobody's fault."""
SINGLE_SHARE: Final = 0.5
HELD_SHOWN: Final = 3
"""Categories and lines in the notes: the largest matter."""
STEPS_BEFORE_MIN: Final = 2
"""Steps that must have ended before one can need more than they."""

SCHEMA: Final = pa.schema(
    [
        ("settings", pa.string()),
        ("is_current", pa.bool_()),
        ("runs", pa.bool_()),
        ("needed_bytes", pa.int64()),
        ("lacks_bytes", pa.int64()),
        ("is_measured", pa.bool_()),
    ]
)
"""The rows of the answer, the least needed first; none where nothing could be replayed. settings: as in
PYTORCH_CUDA_ALLOC_CONF, empty for the default; runs: whether under them the request would have found room,
NULL where that depends on how much the device gave, which is known within bounds alone; lacks_bytes: needed
less what the device gave, negative where there was room; is_measured: as in ``fragmentation.SCHEMA``."""

Row = dict[str, Any]


def oom_of(
    ask: Ask, session_id: str, *, rank: int | None = None, number: int = 1, events_max: int = EVENTS_MAX
) -> Answer:
    """Why one of the failures happened.

    Args:
        ask: asks a named query.
        session_id: full id.
        rank: failures of this rank alone; None: of all.
        number: which one, from 1, the earliest first.
        events_max: a device with more is not replayed.

    Raises:
        RankmemError: NOT_FOUND if fewer allocations failed.
    """
    failures = ask("oom", session=session_id, rank=rank).to_pylist()
    if not failures and number == 1:
        if not ask("allocator_devices", session=session_id, rank=rank, attempt=None).num_rows:
            return cannot_tell("oom", session_id, text.NOTHING_RECORDED, SCHEMA)
        return Answer(
            question="oom",
            session_id=session_id,
            verdict="fine",
            certainty="exact",
            sentence="no failed allocation was recorded",
            rows=SCHEMA.empty_table(),
        )
    if not 1 <= number <= len(failures):
        raise RankmemError(
            Code.NOT_FOUND,
            f"there is no failure {number}: {counted(len(failures), 'allocation')} failed",
            f"1 to {len(failures)}, earliest first"
            if failures
            else "rankmem peak shows how high each rank got",
        )
    failed = failures[number - 1]
    figures = _state(failed, number, len(failures))
    figures["failure_of_rank"] = sum(row["rank"] == failed["rank"] for row in failures[:number])
    held = _held(ask, session_id, failed)
    try:
        rows, unused_note = _replayed(ask, session_id, failed, figures, events_max)
    except CannotTell as reason:
        return _without_replay(ask, session_id, failed, figures, held, str(reason))
    return _answer(ask, session_id, failed, figures, held, rows, unused_note)


def _state(failed: Row, number: int, num_failures: int) -> dict[str, Any]:
    """What was recorded of the failure."""
    total, free = failed["device_total_bytes"], failed["device_free_bytes"]
    reserved, beyond = failed["reserved_bytes"], failed["app_bytes"]
    others = None
    if None not in (total, free, reserved, beyond):
        others = max(total - free - reserved - beyond, 0)
    return {
        "attempt": failed["attempt"],
        "rank": failed["rank"],
        "device": failed["device"],
        "on_host": failed["device"].partition(":")[0] in HOST_MEMORY,
        "seq": failed["seq"],
        "failure": number,
        "num_failures": num_failures,
        "line": failed["line"],
        "operator": failed["operator"],
        "request_bytes": failed["size_bytes"],
        "live_bytes": failed["requested_bytes"],
        "reserved_bytes": reserved,
        "unused_bytes": failed["unused_bytes"],
        "largest_free_bytes": failed["largest_free_bytes"],
        "device_free_bytes": free,
        "device_total_bytes": total,
        "others_bytes": others,
        "kind": None,
        "kinds": [],
    }


def _held(ask: Ask, session_id: str, failed: Row) -> dict[str, list[Row]]:
    place = {name: failed[name] for name in ("attempt", "rank", "device", "seq")}
    return {
        by: ask("oom_held", session=session_id, by=by, **place).slice(0, HELD_SHOWN).to_pylist()
        for by in ("category", "line")
    }


def _replayed(
    ask: Ask, session_id: str, failed: Row, figures: dict[str, Any], events_max: int
) -> tuple[list[Row], tuple[str, ...]]:
    """The rows of the settings, and the note of one without effect; adds to the figures what replays told."""
    place = {name: failed[name] for name in ("rank", "attempt", "device")}
    trace = read_trace(ask, session_id, **place, events_max=events_max).trace
    own = [each for each in trace.failures if each.seq == failed["seq"]]
    if not own:
        raise CannotTell("the failed request is not among the allocator's events")
    capacity = capacity_of(trace, own[0], failed["device_free_bytes"])
    asked = until(trace, own[0])
    alive = alive_bytes(asked)
    found = tried(asked, capacity, tried_with(trace))
    figures |= {
        "capacity_bytes": capacity.high_bytes,
        "capacity_low_bytes": capacity.low_bytes,
        "needed_within_bytes": NEEDED_WITHIN_BYTES,
        "alive_with_request_bytes": alive,
        "is_reproduced": is_reproduced(asked, capacity),
        "num_older": trace.num_older,
    }
    rows = sorted(
        (_row(each, needed(asked, each, capacity), capacity.high_bytes) for each in found),
        key=lambda row: (row["needed_bytes"], row["settings"]),
    )
    return rows, unused(trace)


def _row(each: Tried, needed_bytes: int, capacity_bytes: int) -> Row:
    return {
        "settings": each.settings.text(),
        "is_current": each.is_current,
        "runs": each.runs,
        "needed_bytes": needed_bytes,
        "lacks_bytes": needed_bytes - capacity_bytes,
        "is_measured": each.settings.is_measured(),
    }


def _answer(
    ask: Ask,
    session_id: str,
    failed: Row,
    figures: dict[str, Any],
    held: dict[str, list[Row]],
    rows: list[Row],
    unused_note: tuple[str, ...],
) -> Answer:
    current = next(row for row in rows if row["is_current"])
    others = [row for row in rows if not row["is_current"]]
    best = next((row for row in others if row["runs"]), None)
    lacks = max(current["lacks_bytes"], 0)
    is_proven = figures["alive_with_request_bytes"] > figures["capacity_bytes"]
    if is_proven or current["runs"]:
        best = None
    figures |= {"lacks_bytes": lacks, "remedy": best["settings"] if best else None, "is_proven": is_proven}
    reason = text.undecided(figures, rows) if not (best or is_proven) else None
    if reason:
        return cannot_tell(
            "oom",
            session_id,
            reason,
            SCHEMA,
            figures=figures,
            notes=(*unused_note, *text.notes(figures, held, rows, None)),
            next_commands=text.next_commands(figures, None),
        )
    kinds = ["fragmented"] if best else []
    kinds += _kinds(ask, session_id, failed, figures, lacks)
    figures |= {"kinds": kinds or ["exhausted"], "kind": (kinds or ["exhausted"])[0]}
    certainty: Certainty = "exact" if is_proven else "predicted"
    if (not figures["is_reproduced"] and not is_proven) or _only_suspects(figures):
        certainty = "suspected"
    return Answer(
        question="oom",
        session_id=session_id,
        verdict="finding",
        certainty=certainty,
        error=text.error(figures, best),
        sentence=text.sentence(figures, best),
        rows=pa.Table.from_pylist(rows, schema=SCHEMA),
        figures=figures,
        notes=(*unused_note, *text.notes(figures, held, rows, best)),
        next_commands=text.next_commands(figures, best),
    )


def _without_replay(
    ask: Ask, session_id: str, failed: Row, figures: dict[str, Any], held: dict[str, list[Row]], reason: str
) -> Answer:
    """What can be told without a replay: that the bytes alive and the request are more than there was."""
    free, reserved = figures["device_free_bytes"], figures["reserved_bytes"]
    on_host = figures["on_host"]
    room = free if on_host else None if None in (free, reserved) else free + reserved
    wanted = figures["request_bytes"] + (0 if on_host else figures["live_bytes"] or 0)
    figures |= {"why_no_replay": reason, "is_proven": room is not None and wanted > room}
    if not figures["is_proven"]:
        why = text.no_replay(figures, reason)
        return cannot_tell(
            "oom",
            session_id,
            why,
            SCHEMA,
            figures=figures,
            notes=text.notes(figures, held, [], None),
            next_commands=text.next_commands(figures, None),
        )
    lacks = wanted - (room or 0)
    figures |= {"capacity_bytes": room, "alive_with_request_bytes": wanted, "lacks_bytes": lacks}
    kinds = _kinds(ask, session_id, failed, figures, lacks)
    figures |= {"kinds": kinds or ["exhausted"], "kind": (kinds or ["exhausted"])[0]}
    return Answer(
        question="oom",
        session_id=session_id,
        verdict="finding",
        certainty="suspected" if _only_suspects(figures) else "exact" if on_host else "predicted",
        error="" if on_host else "the request is known as the allocator rounded it alone",
        sentence=text.sentence(figures, None),
        rows=SCHEMA.empty_table(),
        figures=figures,
        notes=(*text.notes(figures, held, [], None), f"no setting was tried: {reason}"),
        next_commands=text.next_commands(figures, None),
    )


def _kinds(ask: Ask, session_id: str, failed: Row, figures: dict[str, Any], lacks: int) -> list[str]:
    """All that hold, but fragmentation."""
    kinds = []
    others, total = figures["others_bytes"], figures["device_total_bytes"]
    if others is not None and others >= max(lacks, (total or 0) * FOREIGN_SHARE_MIN, 1):
        kinds.append("foreign")
    whole = (total if figures["on_host"] else None) or figures["capacity_bytes"]
    if figures["request_bytes"] > SINGLE_SHARE * whole:
        kinds.append("single")
    grown, is_sure = _leaked(ask, session_id, failed)
    figures |= {"leaked_bytes": grown, "is_leak_sure": is_sure}
    if grown and grown >= lacks:
        kinds.append("leak")
    before = _steps_before(ask, session_id, failed)
    figures["highest_step_before_bytes"] = before
    if before is not None and (figures["live_bytes"] or 0) + figures["request_bytes"] > before:
        kinds.append("spike")
    return kinds


def _leaked(ask: Ask, session_id: str, failed: Row) -> tuple[int | None, bool]:
    """By how much the lines of the device that leak have grown, None where not known; whether they do."""
    answer = leaks_of(ask, session_id, rank=failed["rank"])
    if answer.verdict == "cannot tell":
        return None, False
    place = (failed["attempt"], failed["device"])
    leaking = [row for row in leaking_of(answer.rows.to_pylist()) if (row["attempt"], row["device"]) == place]
    is_sure = answer.certainty != "suspected" and all(row["verdict"] == "leaks" for row in leaking)
    return sum(row["grown_bytes"] for row in leaking), is_sure


def _only_suspects(figures: dict[str, Any]) -> bool:
    """Whether the kind is a leak of which ``leaks`` itself is not sure."""
    return figures["kind"] == "leak" and not figures["is_leak_sure"]


def _steps_before(ask: Ask, session_id: str, failed: Row) -> int | None:
    """The highest of the steps that had ended before; None where there are too few."""
    steps = ask("steps", session=session_id, rank=failed["rank"]).to_pylist()
    peaks = [
        row["peak_bytes"]
        for row in steps
        if (row["attempt"], row["device"]) == (failed["attempt"], failed["device"])
        and row["ended_ns"] is not None
        and row["ended_ns"] <= failed["time_ns"]
    ]
    highest: int | None = max(peaks) if len(peaks) >= STEPS_BEFORE_MIN else None
    return highest
