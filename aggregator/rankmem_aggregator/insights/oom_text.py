"""What the insight into a failed allocation says. Stage: query. In: figures. Out: short sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankmem_aggregator.insights.fragmentation_text import NOT_ON_DEVICES
from rankmem_aggregator.quantity_text import bytes_text, counted

Figures = Mapping[str, Any]
Row = Mapping[str, Any]

NOTHING_RECORDED: Final = "nothing of an allocator was recorded, so none of its failures was"


def request(figures: Figures) -> str:
    """What was asked for, where: ``rank 0, cuda:0: 100.00 MiB at train.py:47 (aten::mm) failed``."""
    where = f" at {figures['line']}" if figures["line"] else ""
    who = f" ({figures['operator']})" if figures["operator"] else ""
    name = f"rank {figures['rank']}, {figures['device']}"
    return f"{name}: {bytes_text(figures['request_bytes'])}{where}{who} failed"


def state(figures: Figures) -> str:
    """What there was: unused pieces, and what was free on the device."""
    parts = []
    if figures["unused_bytes"] == 0:
        parts.append("nothing unused")
    elif figures["unused_bytes"] is not None:
        parts.append(
            f"{bytes_text(figures['unused_bytes'])} unused in pieces of at most "
            f"{bytes_text(figures['largest_free_bytes'])}"
        )
    if figures["device_free_bytes"] is not None:
        where = "host" if figures["on_host"] else "device"
        parts.append(f"{bytes_text(figures['device_free_bytes'])} free on the {where}")
    return " and ".join(parts)


def sentence(figures: Figures, best: Row | None) -> str:
    """The answer in one sentence."""
    said = state(figures)
    text = request(figures) + (f" with {said}" if said else "")
    return f"{text}. {_cause(figures, best)}"


def _cause(figures: Figures, best: Row | None) -> str:
    lacks = bytes_text(figures["lacks_bytes"])
    kind = figures["kind"]
    if best is not None:
        setting = best["settings"] or "the default setting"
        spare = bytes_text(-best["lacks_bytes"])
        return f"Fragmentation: with {setting} the same requests find room, with {spare} to spare"
    words = f"Exhausted: {lacks} short"
    if kind != "exhausted":
        cause = _cause_text(figures, kind)
        words = cause[0].upper() + cause[1:] + ("" if kind == "single" else f": {lacks} short")
    proof = "no setting of the allocator tried would have helped"
    if figures["is_proven"] and figures["on_host"]:
        proof = "more was asked for than was free"
    elif figures["is_proven"]:
        alive = bytes_text(figures["alive_with_request_bytes"])
        proof = f"no setting can help: blocks alive and the request are {alive}, of {_capacity(figures)}"
    return f"{words}; {proof}"


def _cause_text(figures: Figures, kind: str) -> str:
    if kind == "foreign":
        return f"other processes hold {bytes_text(figures['others_bytes'])} of the device"
    if kind == "single":
        return f"this request alone is more than half of what {_giver(figures)}"
    if kind == "leak":
        return f"{_leak(figures)} have grown by {_leaked(figures)} (rankmem leaks)"
    return f"this step needs more than any before it, which needed at most {_before(figures)}"


def _giver(figures: Figures) -> str:
    if figures["on_host"]:
        return "the host has"
    return f"the device gives, {_capacity(figures)}"


def _capacity(figures: Figures) -> str:
    return bytes_text(figures["capacity_bytes"])


def _leak(figures: Figures) -> str:
    return "a leak: lines that leak" if figures.get("is_leak_sure") else "perhaps a leak: lines that may leak"


def _leaked(figures: Figures) -> str:
    return bytes_text(figures.get("leaked_bytes"))


def _before(figures: Figures) -> str:
    return bytes_text(figures.get("highest_step_before_bytes"))


def undecided(figures: Figures, rows: Sequence[Row]) -> str | None:
    """Why nothing can be told of the settings; None where something can."""
    open_ones = [row for row in rows if row["runs"] is None and not row["is_current"]]
    current = next(row for row in rows if row["is_current"])
    why = None
    if current["runs"]:
        why = "in the replay under the recording's own settings it finds room: the device gave less than it "
        why += "seemed to, or events are missing"
    elif open_ones:
        why = (
            "what the device would have given is known only to be "
            f"{bytes_text(figures['capacity_low_bytes'])} to {_capacity(figures)}, and whether a setting "
            "would have helped depends on it"
        )
    return None if why is None else f"{request(figures)}; {why}"


def no_replay(figures: Figures, reason: str) -> str:
    """Why nothing can be told without a replay."""
    said = state(figures)
    text = request(figures) + (f" with {said}" if said else "")
    free = figures["device_free_bytes"]
    if figures["on_host"] and free is None:
        return f"{text}; what was free on the host then is not known"
    if figures["on_host"] and free is not None and free >= figures["request_bytes"]:
        return f"{text}: that was enough, so a limit on the process stopped it (ulimit, a container's limit)"
    return f"{text}; why cannot be told without a replay: {reason}"


def error(figures: Figures, best: Row | None) -> str:
    """How sure it is."""
    if figures["is_proven"]:
        return ""
    parts = ["by replays of all requests up to this one; what would have come after it is not known"]
    if not figures["is_reproduced"]:
        parts.append("the replay under the recording's own settings does not fail at this request")
    if figures["num_older"]:
        parts.append(f"{counted(figures['num_older'], 'block')} older than the recording placed anew")
    if best is None or not best["is_measured"]:
        which = "that setting" if best is not None else "most of the settings tried"
        parts.append(f"the model of {which} {NOT_ON_DEVICES}")
    return "; ".join(parts)


def notes(
    figures: Figures, held: Mapping[str, Sequence[Row]], rows: Sequence[Row], best: Row | None
) -> tuple[str, ...]:
    """What to know besides."""
    found = []
    for by, groups in held.items():
        named = [f"{row['group_name'] or 'unknown'} {bytes_text(row['live_bytes'])}" for row in groups]
        if named:
            found.append(f"held by {by}: {', '.join(named)}")
    if figures["others_bytes"] and figures["kind"] != "foreign":
        found.append(_cause_text(figures, "foreign"))
    more = [kind for kind in figures["kinds"] if kind not in (figures["kind"], "foreign")]
    found += [_cause_text(figures, kind) for kind in more]
    if figures["num_failures"] > 1:
        which = f"failure {figures['failure']} of {figures['num_failures']}, the earliest first"
        found.append(f"{which}: --failure N has another")
    if rows and not all(row["is_measured"] for row in rows):
        found.append(f"checked on devices, no: the model of that setting {NOT_ON_DEVICES}")
    return tuple(found)


def next_commands(figures: Figures, best: Row | None) -> tuple[str, ...]:
    """What to run next."""
    if best is not None:
        variable = f"PYTORCH_{'NPU' if figures['device'].startswith('npu') else 'CUDA'}_ALLOC_CONF"
        chosen = f"{variable}={best['settings']}" if best["settings"] else f"env --unset={variable}"
        return (f"{chosen} rankmem run -- COMMAND",)
    first = {"foreign": "rankmem ledger", "leak": "rankmem leaks"}.get(
        figures["kind"], "rankmem oom --by line"
    )
    number = figures["failure_of_rank"]
    which = f" --failure {number}" if number > 1 and first.startswith("rankmem oom") else ""
    return (f"{first} --rank {figures['rank']}{which}",)
