"""Reads what a device's allocator was asked, for a replay, or says why none is possible.

Stage: insights, in the reader's process. In: a way to ask named queries. Out: the device, and its
:class:`~rankmem_aggregator.insights.lives.Trace`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.insights.answer import Ask
from rankmem_aggregator.insights.lives import GAINS, LOSSES, Trace, trace_of
from rankmem_aggregator.insights.settings import Settings
from rankmem_protos.devices import HOST_MEMORY
from rankmem_protos.errors import Code, RankmemError

EVENTS_MAX: Final = 2_000_000
"""Of a device, that are replayed: some 3 s for one replay, two minutes for an answer of many, and 1 GiB."""
OF_SNAPSHOTS: Final = frozenset({"torch-snapshot", "snapshot"})
"""Sources whose events have the private pools of the segments at the end alone."""


class CannotTell(Exception):
    """The recording does not have what an answer rests on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedDevice:
    """A device of a rank, with what its allocator was asked."""

    attempt: int
    rank: int
    device: str
    device_bytes: int | None
    """Its memory, where known."""
    trace: Trace
    num_failed: int
    """Requests that failed, out of memory: they are not in the trace."""
    largest_failed_bytes: int | None

    @property
    def name(self) -> str:
        """For sentences: ``rank 0, cuda:0``."""
        return f"rank {self.rank}, {self.device}"


def read_trace(
    ask: Ask,
    session_id: str,
    *,
    rank: int | None,
    attempt: int | None = None,
    device: str | None = None,
    events_max: int = EVENTS_MAX,
) -> TracedDevice:
    """The device that was meant, ready for a replay.

    Args:
        ask: asks a named query.
        session_id: full id.
        rank: global rank; None: the one that got highest.
        attempt, device: None: those on which it got highest, host memory left out.
        events_max: a device with more is refused.

    Raises:
        CannotTell: no device fits, or its allocator cannot be replayed; the reason.
    """
    row = device_row(ask("allocator_devices", session=session_id, rank=rank, attempt=attempt), device)
    name = f"rank {row['rank']}, {row['device']}"
    if row["device_type"] == "cpu":
        raise CannotTell("the allocator of cpu keeps no pool: what is freed goes back to the system at once")
    if row["device_type"] in HOST_MEMORY:
        raise CannotTell(f"the allocator of {row['device']} memory is not modelled")
    if row["allocator"] not in (None, "", "native"):
        raise CannotTell(
            f"the allocator of {name} is {row['allocator']}; only PyTorch's native one is modelled"
        )
    try:
        settings = Settings.recorded(row["settings"], row["device"], row["total_bytes"])
    except RankmemError as error:
        if error.code not in (Code.UNSUPPORTED, Code.INVALID):
            raise
        raise CannotTell(f"{error.message}; {error.hint}") from error
    place = {name: row[name] for name in ("attempt", "rank", "device")}
    events = ask("allocator_events", session=session_id, at_most=events_max + 1, **place)
    if events.num_rows > events_max:
        raise CannotTell(f"{name} has more than {events_max:,} events, which a replay does not take")
    if events["address"].filter(pc.not_equal(events["action"], "oom")).null_count:
        raise CannotTell(f"the events of {name} have no addresses, so a replay cannot be checked")
    start = ask("allocator_start", session=session_id, **place)
    trace = trace_of(start, events, settings, row["total_bytes"])
    if row["source"] in OF_SNAPSHOTS:
        gone = events.filter(pc.is_in(events["action"], pa.array(sorted(LOSSES))))
        trace.num_unknown_pools = gone["pool"].null_count
    if not trace.num_allocations:
        raise CannotTell(f"no allocation of {name} was recorded, only what it held")
    if not row["num_segments"] and not set(events["action"].unique().to_pylist()) & (GAINS | LOSSES):
        raise CannotTell(f"no segments of {name} were recorded: how much was reserved is not known")
    failed = events.filter(pc.equal(events["action"], "oom"))
    return TracedDevice(
        **place,
        device_bytes=row["total_bytes"],
        trace=trace,
        num_failed=failed.num_rows,
        largest_failed_bytes=pc.max(failed["size_bytes"]).as_py(),
    )


def device_row(rows: pa.Table, device: str | None) -> dict[str, Any]:
    """The row of ``allocator_devices`` that was meant: the highest device, accelerators before host memory.

    Raises:
        CannotTell: there is none.
    """
    found: list[dict[str, Any]] = [row for row in rows.to_pylist() if device in (None, row["device"])]
    if not found:
        which = "" if device is None else f" on {device}"
        raise CannotTell(f"no allocations{which} were recorded")
    found.sort(key=lambda row: (row["device_type"] in HOST_MEMORY, not row["is_rank_peak"]))
    return found[0]
