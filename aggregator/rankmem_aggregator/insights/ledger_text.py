"""What the ledger says in words. Stage: query. In: rows and figures. Out: short sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankmem_aggregator.quantity_text import bytes_text, counted
from rankmem_protos.devices import HOST_MEMORY

Row = Mapping[str, Any]

ALLOCATOR: Final = "the allocator's own figure"
SAMPLED: Final = "sampled by the driver"
REPORTED: Final = "reported by the library for its communicator; what it does not count is in the rest"
NO_RUNTIME: Final = (
    "no sample is older than the allocator's first event, or within 100 ms after it; or it held something "
    "before the recording began"
)
NO_COMMUNICATORS: Final = "the recording has no samples of communication libraries"
NOT_LISTED: Final = "the driver did not tell what the process holds, as within a container"
NO_ALLOCATOR: Final = "what the allocator held then is not known"
OUTSIDE: Final = "used on the device, less what is known of the ranks: other processes are in it"
REST_OF_DEVICE: Final = "used on the device, less what the ranks' processes hold; the driver's own is in it"
REST_OF_HOST: Final = "used on the host, less what the ranks' processes hold; the system's own is in it"
OVERLAP_ON_HOST: Final = (
    "the ranks' processes hold more than is used on the host, which leaves out pages of files that can be "
    "dropped, such as libraries and weights that are mapped"
)
MOVED: Final = "the ranks' samples add up to more than the device's, which was sampled at another instant"
NO_DEVICE: Final = "what is used on the device in all was not sampled"
SHARED_INDEX: Final = (
    "several ranks name a device so and its UUID is not known: it may be one device or several"
)
NAMES: Final = {
    "pytorch": "PyTorch",
    "communicators": "communicators",
    "runtime": "runtime",
    "component": "component",
    "unexplained": "unexplained",
    "other_processes": "other processes and the driver",
    "outside_allocators": "outside of the allocators",
}


def name_of(part: str, device: str) -> str:
    """A part in words; a host has no driver."""
    if part == "other_processes" and device.partition(":")[0] in HOST_MEMORY:
        return "other processes and the system"
    return NAMES[part]


def no_samples(rank: int | None, device: str | None) -> str:
    """Why there is no ledger."""
    of = "" if rank is None else f" of rank {rank}"
    on = "" if device is None else f" on {device}"
    return f"no samples of processes{of}{on} were recorded: what they hold beyond the allocator is not known"


def nothing_outside(rank: int, device: str) -> str:
    """Why samples give no ledger."""
    return (
        f"the samples of rank {rank} on {device} tell neither what the process holds nor what is used on the "
        "device"
    )


def not_there(rank: int) -> str:
    """That the device of a rank was fullest without it."""
    return f"rank {rank} is not in this sum: its process was over by then, or its recording had not begun"


def runtime(after_ns: int) -> str:
    """What the runtime's figure rests on; ``after_ns``: from the allocator's first event to the sample."""
    if after_ns < 0:
        return "held by the process before its allocator's first event"
    return f"held beyond the allocator at a sample {after_ns / 1e6:.3g} ms after the allocator's first event"


def too_much(excess_bytes: int, device: str) -> str:
    """Why the rest is not known."""
    why = (
        "PyTorch's blocks may have pages that were never touched"
        if device.startswith("cpu")
        else "the parts were sampled at different instants, or overlap"
    )
    return f"the parts add up to {bytes_text(excess_bytes)} more than the process holds: {why}"


def rest(hidden: Sequence[str], device: str) -> str:
    """What the rest of a process is."""
    text = "held by the process, less the parts above"
    if device.partition(":")[0] in HOST_MEMORY:
        return f"{text}: Python, its libraries and what they allocate themselves"
    if not hidden:
        return text
    return f"{text}; {' and '.join(NAMES[part] for part in hidden)}, unknown, {_is(hidden)} in it"


def _is(hidden: Sequence[str]) -> str:
    return "is" if hidden == ["runtime"] else "are"


def sentence(figures: Row, rows: Sequence[Row]) -> str:
    """The answer in one sentence."""
    used = figures["used_bytes"]
    whose = counted(figures["num_ranks"], "rank") if figures["num_ranks"] > 1 else f"rank {figures['rank']}"
    held = "used" if figures["is_device"] else "held by the process"
    if figures["num_ranks"] > 1 and not figures["is_device"]:
        held = "held by the processes"
    largest: Counter[str] = Counter()
    for row in rows:
        if row["bytes"] and row["part"] not in ("unexplained", "other_processes", "outside_allocators"):
            name = row["name"] or name_of(row["part"], figures["device"])
            largest[name.partition(" ")[0] if row["part"] == "communicators" else name] += row["bytes"]
    parts = [f"{name} {bytes_text(size)}" for name, size in largest.most_common()]
    for part in ("other_processes", "unexplained", "outside_allocators"):
        size = sum(row["bytes"] or 0 for row in rows if row["part"] == part)
        if size:
            parts.append(f"{name_of(part, figures['device'])} {bytes_text(size)} ({size / used:.1%})")
    unknown = [name_of(part, figures["device"]) for part in figures["unknown_parts"]]
    more = f"; unknown: {', '.join(unknown)}" if unknown else ""
    return f"{figures['device']} of {whose}: of {bytes_text(used)} {held} {', '.join(parts)}{more}"


def error(figures: Row, apart_ns_max: int) -> str:
    """How far the figures may be off."""
    apart = figures["samples_apart_ns"]
    parts = []
    if figures["num_unknown"]:
        parts.append(f"{counted(figures['num_unknown'], 'part')} unknown")
    if apart > apart_ns_max:
        parts.append(f"the samples are up to {apart / 1e9:.1f} s apart")
    if figures["device"].partition(":")[0] in HOST_MEMORY:
        parts.append(
            "a process's bytes include pages of files (libraries, weights that are mapped), which do not "
            "count as used on the host: others may hold more by as much"
        )
    parts.append("by samples, about one a second: between them more may have been held")
    return "; ".join(parts)


def notes(figures: Row, rows: Sequence[Row], *, is_host: bool) -> tuple[str, ...]:
    """What to know of the table."""
    found = []
    total, used = figures["device_total_bytes"], figures["used_bytes"]
    if total is not None and figures["is_device"]:
        found.append(f"free then: {bytes_text(total - used)} of {bytes_text(total)}")
    for row in rows:
        if row["bytes"] is None:
            whose = "" if row["rank"] is None else f" (rank {row['rank']})"
            found.append(f"{name_of(row['part'], row['device'])}{whose} unknown: {row['basis']}")
    if is_host and figures["num_ranks"] > 1:
        found.append("pages that processes share count in each of them")
    return tuple(dict.fromkeys(found))


def of_one_start(attempt: int, starts: Sequence[int]) -> str:
    """Which of several starts of the workers the instants are of."""
    all_of_them = ", ".join(map(str, starts))
    return f"attempt {attempt} alone, in which it held most; the session has attempts {all_of_them}"


def sources(rows: Sequence[Row]) -> str:
    """How each part is known, over all rows."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        found.setdefault(row["source"], {})[name_of(row["part"], row["device"])] = None
    kinds = ("measured", "derived", "unknown")
    return "; ".join(f"{kind}: {', '.join(found[kind])}" for kind in kinds if kind in found)


def next_commands(figures: Row) -> tuple[str, ...]:
    """What to run next."""
    return (f"rankmem peak --by component --rank {figures['rank']}",)
