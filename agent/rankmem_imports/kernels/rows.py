"""Rows of ``kernel_launch``, and of ``marker`` for their ranges, from a reader's findings.

Stage: readers, for all that profile kernels; the process of ``rankmem import``. In: one :class:`Kernel` or
range at a time; out: parts of at most PART_ROWS_MAX rows, so that memory does not grow with the recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rankmem_imports.kernels.pyprof_markers import NO_MODULE, Explained, Placed, short_name
from rankmem_imports.recording import Identity, Part
from rankmem_ship.pairing.columns import rows_of

PART_ROWS_MAX: Final = 20_000
"""Rows of a part: some 20 MB of columns where every kernel has its own markers."""
TEXT_CHARS_MAX: Final = 16_000
"""Of a name or list: the database takes 64 KiB of a name, and a letter has up to four bytes. Longer is cut,
a list between two of its texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel as in a profiler's table; None for what it does not state."""

    kernel_id: int
    name: str
    device: int
    stream: int | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    started_ns: int
    ended_ns: int
    correlation_id: int | None = None
    launched_ns: int | None = None
    launch_ended_ns: int | None = None
    process_id: int | None = None
    thread_id: int | None = None
    thread: int | None = None


def kernel_of(row: Sequence[Any], *, name: str, base_ns: int = 0) -> Kernel:
    """A kernel without its launch, from a row of the statement ``kernels`` of either format."""
    place, correlation, start, end, device, stream, *dimensions, _ = row
    return Kernel(
        kernel_id=place,
        name=name,
        device=device,
        stream=stream,
        grid=(dimensions[0], dimensions[1], dimensions[2]),
        block=(dimensions[3], dimensions[4], dimensions[5]),
        started_ns=start + base_ns,
        ended_ns=end + base_ns,
        correlation_id=correlation,
    )


def device_row(number: int, **columns: object) -> dict[str, Any]:
    """The columns of a GPU in device_info but those of its rank."""
    return {"device": f"cuda:{number}", **columns}


def kernel_row(
    kernel: Kernel, explained: Explained, placed: Placed, between: Sequence[int]
) -> dict[str, Any]:
    """The columns of one kernel but those of its rank."""
    module = next(iter(explained.operator_modules), NO_MODULE)
    return {
        "device": f"cuda:{kernel.device}",
        "kernel_id": kernel.kernel_id,
        "kernel": kernel.name[:TEXT_CHARS_MAX],
        "short_name": short_name(kernel.name)[:TEXT_CHARS_MAX],
        "stream": kernel.stream,
        "grid": _dimensions(kernel.grid),
        "block": _dimensions(kernel.block),
        "started_ns": kernel.started_ns,
        "ended_ns": kernel.ended_ns,
        "correlation_id": kernel.correlation_id,
        "launched_ns": kernel.launched_ns,
        "launch_ended_ns": kernel.launch_ended_ns,
        "process_id": kernel.process_id,
        "thread_id": kernel.thread_id,
        "thread": kernel.thread,
        "operator": _first(explained.operators),
        "operator_module": None if module == NO_MODULE else module[:TEXT_CHARS_MAX],
        "layer": _first(explained.layers[-1:]),
        "call_site": _first(explained.call_sites[-1:]),
        "direction": explained.direction,
        "layers": list_text(explained.layers),
        "call_sites": list_text(explained.call_sites),
        "operators": list_text(explained.operators),
        "operator_modules": list_text(explained.operator_modules),
        "markers": list_text(explained.markers),
        "representations": list_text(explained.representations),
        "sequence_markers": list_text(explained.sequence_markers),
        "sequence_ids": list_text(placed.sequence_ids),
        "alternative_sequence_ids": list_text(placed.alternative_sequence_ids),
        "between_sequence_ids": list_text(between),
        "sub_sequence": placed.sub_sequence,
    }


def range_row(
    *, number: int, text: str, depth: int, thread: int, started_ns: int, ended_ns: int | None
) -> dict[str, Any]:
    """The columns of an NVTX range in ``marker`` but those of its rank."""
    return {
        "marker_id": number,
        "name": text[:TEXT_CHARS_MAX],
        "kind": "nvtx",
        "depth": depth,
        "thread": thread,
        "started_ns": started_ns,
        "ended_ns": ended_ns,
    }


def parts_of(
    table: str, rows: Iterable[Mapping[str, Any]], identity: Identity, *, sequence_last: int
) -> Iterator[Part]:
    """Rows of one table as parts."""
    rank = identity._asdict()
    waiting: list[Mapping[str, Any]] = []
    for row in rows:
        waiting.append({**rank, **row})
        if len(waiting) == PART_ROWS_MAX:
            yield Part(rows=[(table, rows_of(table, waiting))], sequence_last=sequence_last)
            waiting = []
    if waiting:
        yield Part(rows=[(table, rows_of(table, waiting))], sequence_last=sequence_last)


def list_text(values: Sequence[str] | Sequence[int]) -> str | None:
    """A list as JSON, which DuckDB casts to VARCHAR[] or BIGINT[]; None if empty. The end of a list that
    is too long is cut off."""
    parts: list[str] = []
    length = 0
    for value in values:
        part = json.dumps(value, ensure_ascii=False)
        length += len(part) + 2
        if length > TEXT_CHARS_MAX:
            break
        parts.append(part)
    return f"[{', '.join(parts)}]" if parts else None


def _first(texts: Sequence[str]) -> str | None:
    return texts[0][:TEXT_CHARS_MAX] if texts else None


def _dimensions(numbers: tuple[int, int, int] | None) -> str | None:
    return None if numbers is None else ",".join(map(str, numbers))
