"""What holds a device's memory, seen from outside: every process's allocator, and what lies beyond it.

Stage: query, in the reader's process. In: a way to ask named queries. Out: an ``Answer``.

**The sum.** used on the device = over its processes (PyTorch's allocator + communicators + runtime + other
components + unexplained) + other processes, at the instant at which the device held most. Each part is
*measured* (an allocator's own figure, or a sample by the driver), *derived* (the difference of measured ones,
or what the process held about its first allocation) or *unknown*, never 0 instead. The parts that are known
add up to what is used. Over time it is the same sum at many instants.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.insights import ledger_text as text
from rankmem_aggregator.insights.answer import Answer, Ask, cannot_tell
from rankmem_protos.devices import HOST_MEMORY

COMMUNICATORS: Final = frozenset({"HCCL", "NCCL", "RCCL"})
"""Alone, or followed by the process group whose communicator it is."""
RUNTIMES: Final = frozenset({"RUNTIME", "CUDA"})
OF_PYTORCH: Final = frozenset({"APP"})
"""What a driver samples under this name is what PyTorch's allocator took from it: counted once."""
FINDING_SHARE: Final = 0.05
"""Of what is used: unexplained or other processes' bytes from here on are a finding."""
FINDING_DEVICE_SHARE: Final = 0.02
"""Of the whole device: less is none, since a driver holds some hundreds of MiB for itself."""
DRIVER_BYTES: Final = 1 << 30
"""The same of what is not the ranks', where the size of the device is not known: 2 % of 50 GiB."""
APART_NS_MAX: Final = 2_000_000_000
"""Samples come about once a second; parts further apart leave the answer suspected."""
SAME_ROUND_NS: Final = 500_000_000
"""Samples of one round are less apart."""

SCHEMA: Final = pa.schema(
    [
        ("at_ns", pa.int64()),
        ("used_bytes", pa.int64()),
        ("part", pa.string()),
        ("name", pa.string()),
        ("attempt", pa.int64()),
        ("rank", pa.int64()),
        ("device", pa.string()),
        ("bytes", pa.int64()),
        ("share", pa.float64()),
        ("source", pa.string()),
        ("basis", pa.string()),
    ]
)
"""The rows of the answer, instant after instant (common clock), process after process. used_bytes: of the
device then, or of its processes where that was not sampled; part: one of :data:`PARTS`; name: the component's
own; rank: NULL for what is of no rank; bytes: NULL where unknown; share: of what is used; source: measured,
derived or unknown; basis: what the figure rests on, in words."""

PARTS: Final = (
    "pytorch",
    "communicators",
    "runtime",
    "component",
    "unexplained",
    "other_processes",
    "outside_allocators",
)
"""The last where what a process holds is not known."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Sum:
    """The ledger of a device at an instant."""

    processes: list[Row]
    rows: list[Row]
    used_bytes: int | None
    apart_ns: int
    """How far the samples of its parts lie from the instant, at most."""


def ledger_of(
    ask: Ask, session_id: str, *, rank: int | None = None, device: str | None = None, num_instants: int = 0
) -> Answer:
    """The ledger of one device.

    Args:
        ask: asks a named query.
        session_id: full id.
        rank: a rank that has the device; None: the fullest device of the session, accelerators first.
        device: type and index as that rank names it; None: any.
        num_instants: rows of so many instants, at most, from the first sample of the device to its last, in
            the start of the workers in which it held most; 0: of the fullest alone, which the sentence and
            the figures are about in both cases.
    """
    unplaced = {"place": None, "attempt": None, "num_instants": None}
    processes = ask("ledger_processes", session=session_id, **unplaced).to_pylist()
    place = _place(processes, rank, device)
    if place is None:
        return cannot_tell("ledger", session_id, text.no_samples(rank, device), SCHEMA)
    own = [row for row in processes if row["place"] == place and row["is_there"]]
    if all(row["app_reserved_bytes"] is None is row["device_used_bytes"] for row in own):
        reason = text.nothing_outside(own[0]["rank"], own[0]["device"])
        return cannot_tell("ledger", session_id, reason, SCHEMA)
    (fullest,) = _sums(ask, session_id, own)
    absent = () if rank is None or rank in {row["rank"] for row in own} else (text.not_there(rank),)
    if not num_instants:
        answer = _answer(session_id, fullest, fullest.rows)
        return replace(answer, notes=(*absent, *answer.notes))
    placed = {"place": place, "attempt": own[0]["attempt"], "num_instants": num_instants}
    course = ask("ledger_processes", session=session_id, **placed).to_pylist()
    sums = _sums(ask, session_id, [row for row in course if row["is_there"]], from_first=True)
    rows = [row for each in sums for row in each.rows]
    answer = _answer(session_id, fullest, rows)
    starts = sorted({row["attempt"] for row in ask("rank_coordinates", session=session_id).to_pylist()})
    more = (text.of_one_start(own[0]["attempt"], starts),) if len(starts) > 1 else ()
    return replace(answer, notes=(*absent, *answer.notes, *more, text.sources(rows)))


def _has_begun(sample: Row) -> bool:
    """Whether the process, or the component, was there by the instant, as far as its first sample shows."""
    return bool(sample["sampled_ns"] is None or sample["sampled_ns"] <= sample["at_ns"] + SAME_ROUND_NS)


def _sums(ask: Ask, session_id: str, processes: Sequence[Row], *, from_first: bool = False) -> Iterator[_Sum]:
    """The sums of one device, by the instants that its processes' rows are of.

    Args:
        ask: asks a named query.
        session_id: full id.
        processes: rows of ``ledger_processes``, the earliest first.
        from_first: processes and components count from their first sample on; else the first one stands for
            what was before it.
    """
    if from_first:
        processes = [row for row in processes if _has_begun(row)]
    of_track: dict[tuple[Any, ...], list[Row]] = {}
    for row in processes:
        of_track.setdefault((row["attempt"], row["rank"], row["device"]), []).append(row)
    components: dict[tuple[Any, ...], list[Row]] = {}
    for track, rows in of_track.items():
        runtime_bytes = _runtime_bytes(ask, session_id, rows[0])
        for row in rows:
            row["runtime_bytes"] = runtime_bytes
        for each in _components(ask, session_id, rows):
            if not from_first or _has_begun(each):
                components.setdefault((*track, each["at_ns"]), []).append(each)
    for at_ns, group in groupby(processes, key=lambda row: row["at_ns"]):
        own = list(group)
        parts: list[Row] = []
        sampled: list[int] = []
        for process in own:
            key = (process["attempt"], process["rank"], process["device"], at_ns)
            named = components.get(key, [])
            parts += _parts(process, named)
            sampled += [each["sampled_ns"] for each in (process, *named) if each["sampled_ns"] is not None]
        used, others = _others(own, parts)
        for row in (parts := [*parts, *others]):
            row |= {"at_ns": at_ns, "used_bytes": used}
            row["share"] = row["bytes"] / used if used and row["bytes"] is not None else None
        apart_ns = max((abs(sampled_ns - at_ns) for sampled_ns in sampled), default=0)
        yield _Sum(own, parts, used, apart_ns)


def by_instant(rows: pa.Table) -> pa.Table:
    """The same by instant: each part's bytes of all processes together, and what is used.

    Returns:
        at_ns, used_bytes, a column for each of :data:`PARTS` (``pytorch_bytes``; NULL where unknown of all
        processes, or not there), unknown (parts that are unknown of a process, and lie in the rest).
    """
    found = []
    for at_ns, group in groupby(rows.to_pylist(), key=lambda row: row["at_ns"]):
        sums: Counter[str] = Counter()
        unknown: dict[str, None] = {}
        used = None
        for row in group:
            used = row["used_bytes"]
            if row["bytes"] is None:
                unknown[row["part"]] = None
            else:
                sums[row["part"]] += row["bytes"]
        parts = {f"{part}_bytes": sums.get(part) for part in PARTS}
        found.append({"at_ns": at_ns, "used_bytes": used, **parts, "unknown": list(unknown)})
    sizes = [(f"{name}_bytes", pa.int64()) for name in ("used", *PARTS)]
    schema = pa.schema([("at_ns", pa.int64()), *sizes, ("unknown", pa.list_(pa.string()))])
    return pa.Table.from_pylist(found, schema=schema)


def _place(processes: Sequence[Row], rank: int | None, device: str | None) -> str | None:
    """The device that was meant: the one used most of those that fit, host memory after all others."""
    fitting = [row for row in processes if rank in (None, row["rank"]) and device in (None, row["device"])]
    if not fitting:
        return None
    best = min(
        fitting,
        key=lambda row: (
            row["device"].partition(":")[0] in HOST_MEMORY,
            -(row["device_used_bytes"] or row["app_reserved_bytes"] or 0),
            row["rank"],
            row["device"],
        ),
    )
    return str(best["place"])


def _runtime_bytes(ask: Ask, session_id: str, process: Row) -> int | None:
    """What the process held beyond its allocator about its first event; None where no sample tells it."""
    early_bytes: int | None = process["early_bytes"]
    if early_bytes is None:
        return None
    whose = {key: process[key] for key in ("attempt", "rank", "device")}
    (then,) = ask("ledger_reserved", session=session_id, **whose, seq=process["early_seq"]).to_pylist()
    reserved_bytes = then["reserved_bytes"]
    if reserved_bytes is None or reserved_bytes > early_bytes:
        return None
    return early_bytes - int(reserved_bytes)


def _components(ask: Ask, session_id: str, rows: Sequence[Row]) -> list[Row]:
    """Those of one process at all instants that its rows are of."""
    instants = [{"at_ns": row["at_ns"], "seq": row["sampled_seq"]} for row in rows]
    found: list[Row] = ask(
        "ledger_components",
        session=session_id,
        attempt=rows[0]["attempt"],
        rank=rows[0]["rank"],
        device=rows[0]["device"],
        instants=json.dumps(instants),
    ).to_pylist()
    return found


def _parts(process: Row, components: Sequence[Row]) -> list[Row]:
    """The rows of one process."""
    allocators = [each for each in components if each["is_allocator"]]
    sampled = [each for each in components if not each["is_allocator"]]
    names = {each["component"].casefold() for each in sampled}
    known = process["known_bytes"]
    others = sum(each["reserved_bytes"] for each in allocators)
    kind = "measured" if known is not None else "unknown"
    pytorch = None if known is None else known - others
    rows = [_row(process, "pytorch", pytorch, kind, text.ALLOCATOR)]
    rows += [_sampled(process, each) for each in sampled if each["component"] not in OF_PYTORCH]
    rows += [
        _row(process, "component", each["reserved_bytes"], "measured", text.ALLOCATOR, each["component"])
        for each in allocators
        if each["component"].casefold() not in names and each["reserved_bytes"] > 0
    ]
    parts = {row["part"] for row in rows}
    on_host = process["device"].partition(":")[0] in HOST_MEMORY
    if "communicators" not in parts and not on_host:
        rows.append(_row(process, "communicators", None, "unknown", text.NO_COMMUNICATORS))
    if "runtime" not in parts and not on_host:
        runtime = process["runtime_bytes"]
        basis = text.NO_RUNTIME if runtime is None else text.runtime(process["early_after_ns"])
        rows.append(_row(process, "runtime", runtime, "unknown" if runtime is None else "derived", basis))
    rows.append(_unexplained(process, rows))
    return rows


def _sampled(process: Row, sample: Row) -> Row:
    name = sample["component"]
    library, _, group = name.partition(" ")
    part = "communicators" if library in COMMUNICATORS else "runtime" if name in RUNTIMES else "component"
    basis = text.REPORTED if part == "communicators" and group else text.SAMPLED
    return _row(process, part, sample["reserved_bytes"], "measured", basis, name)


def _unexplained(process: Row, rows: Sequence[Row]) -> Row:
    """What the process holds beyond its parts, by the same samples."""
    whole = process["app_reserved_bytes"]
    if whole is None:
        return _row(process, "unexplained", None, "unknown", text.NOT_LISTED)
    if rows[0]["bytes"] is None:
        return _row(process, "unexplained", None, "unknown", text.NO_ALLOCATOR)
    rest = whole - sum(row["bytes"] or 0 for row in rows)
    if rest < 0:
        return _row(process, "unexplained", None, "unknown", text.too_much(-rest, process["device"]))
    hidden = [row["part"] for row in rows if row["bytes"] is None]
    return _row(process, "unexplained", rest, "derived", text.rest(hidden, process["device"]))


def _row(process: Row, part: str, num_bytes: int | None, source: str, basis: str, name: str = "") -> Row:
    whose = {key: process[key] for key in ("attempt", "rank", "device")}
    more = {"part": part, "name": name or None, "bytes": num_bytes, "source": source, "basis": basis}
    return whose | more


def _answer(session_id: str, fullest: _Sum, rows: Sequence[Row]) -> Answer:
    processes, parts = fullest.processes, fullest.rows
    figures = _figures(processes, parts, fullest.used_bytes) | {"samples_apart_ns": fullest.apart_ns}
    on_host = processes[0]["device"].partition(":")[0] in HOST_MEMORY
    figures["finding"] = None if on_host else _finding(figures)
    is_sure = figures["num_unknown"] == 0 and fullest.apart_ns <= APART_NS_MAX and not on_host
    return Answer(
        question="ledger",
        session_id=session_id,
        verdict="finding" if figures["finding"] else "fine",
        certainty="exact" if is_sure else "suspected",
        error=text.error(figures, APART_NS_MAX),
        sentence=text.sentence(figures, parts),
        rows=pa.Table.from_pylist(rows, schema=SCHEMA),
        figures=figures,
        notes=text.notes(figures, parts, is_host=on_host),
        next_commands=text.next_commands(figures),
    )


def _others(processes: Sequence[Row], rows: Sequence[Row]) -> tuple[int | None, list[Row]]:
    """What is used in all, and the rows that are of no rank."""
    first = processes[0]
    device = {"attempt": first["attempt"], "rank": None, "device": first["device"]}
    used = max((row["device_used_bytes"] for row in processes if row["device_used_bytes"]), default=None)
    held = [row["app_reserved_bytes"] for row in processes]
    if used is None:
        known = [each for each in held if each is not None]
        return sum(known), [_row(device, "other_processes", None, "unknown", text.NO_DEVICE)]
    if len(processes) > 1 and not first["has_uuid"] and not first["device"].startswith("cpu"):
        return used, [_row(device, "other_processes", None, "unknown", text.SHARED_INDEX)]
    if None in held:
        rest = used - sum(row["bytes"] or 0 for row in rows)
        source, basis = ("derived", text.OUTSIDE) if rest >= 0 else ("unknown", text.MOVED)
        return used, [_row(device, "outside_allocators", rest if rest >= 0 else None, source, basis)]
    rest = used - sum(held)
    on_host = first["device"].partition(":")[0] in HOST_MEMORY
    if rest < 0:
        why = text.OVERLAP_ON_HOST if on_host else text.MOVED
        return used, [_row(device, "other_processes", None, "unknown", why)]
    basis = text.REST_OF_HOST if on_host else text.REST_OF_DEVICE
    return used, [_row(device, "other_processes", rest, "derived", basis)]


def _finding(figures: Row) -> str | None:
    """The part that is a finding; None for none."""
    of_used, total = FINDING_SHARE * (figures["used_bytes"] or 0), figures["device_total_bytes"]
    of_device = FINDING_DEVICE_SHARE * (total or 0)
    for part, of_driver in (("other_processes", DRIVER_BYTES), ("unexplained", 0)):
        least = max(of_used, of_driver if total is None else of_device)
        size = figures[f"{part}_bytes"]
        if size is not None and size >= least > 0:
            return part
    return None


def _figures(processes: Sequence[Row], rows: Sequence[Row], used: int | None) -> dict[str, Any]:
    first = processes[0]
    sums = Counter[str]()
    for row in rows:
        sums[row["part"]] += row["bytes"] or 0
    unknown = {row["part"] for row in rows if row["bytes"] is None}
    is_device = any(row["device_used_bytes"] is not None for row in processes)
    parts = ("pytorch", "communicators", "runtime", "component", "unexplained", "other_processes")
    return {
        "attempt": first["attempt"],
        "rank": first["rank"],
        "device": first["device"],
        "num_ranks": len(processes),
        "at_ns": first["at_ns"],
        "used_bytes": used,
        "is_device": is_device,
        "device_total_bytes": first["device_total_bytes"],
        **{f"{part}_bytes": None if part in unknown else sums.get(part) for part in parts},
        "num_unknown": sum(row["bytes"] is None for row in rows),
        "unknown_parts": sorted(unknown),
    }
