"""Buckets: a device's highest and last totals in each short range of a rank's log, from its points.

Stage: pairing; shipper process, pure functions over arrays. A bucket is cut where its second ends, where
the records' numbers pass a multiple of BUCKET_RECORDS, and where the batch ends. So a bucket covers few
events however dense they are, which is what the search for the job's peak lives on (views/group_peak.sql).
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from rankmem_protos.tables import BUCKET_RECORDS
from rankmem_ship.pairing.devices import is_host_memory
from rankmem_ship.pairing.points import Totals
from rankmem_ship.pairing.state import Array

BUCKET_NS: Final = 1_000_000_000
"""One second of the host's time."""


class Places(Protocol):
    """Where in the log and on which device totals are known: the first columns of Points."""

    @property
    def seq(self) -> Array:
        """Ascending."""

    @property
    def time_ns(self) -> Array:
        """Not decreasing."""

    @property
    def is_event(self) -> Array:
        """Whether it counts as an event."""

    @property
    def device(self) -> Array:
        """Dense number."""


def buckets_of(
    points: Places, totals: Totals, devices: Array, records: int = BUCKET_RECORDS
) -> dict[str, Array]:
    """The columns of memory_bucket (device as its dense number), ABSENT where not known.

    Args:
        records: positions of the log in a bucket, at most; a multiple of these ends it.
    """
    parts = [
        _device_buckets(points, totals, int(number), records, is_host_memory(int(devices["code"][number])))
        for number in np.unique(points.device)
    ]
    if not parts:
        return {}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _device_buckets(
    points: Places, totals: Totals, number: int, records: int, on_host: bool
) -> dict[str, Array]:
    at = np.flatnonzero(points.device == number)
    time_ns, seq, requested = points.time_ns[at], points.seq[at], totals.requested[at]
    second = time_ns // BUCKET_NS
    bucket = seq // records
    # Times do not decrease, numbers grow.
    is_cut = (second[1:] != second[:-1]) | (bucket[1:] != bucket[:-1])
    begins = np.flatnonzero(np.concatenate([[True], is_cut]))
    lengths = np.diff(np.concatenate([begins, [len(at)]]))
    ends = begins + lengths - 1
    top = np.maximum.reduceat(requested, begins)
    hits = np.flatnonzero(requested == np.repeat(top, lengths))
    first_hit = hits[np.searchsorted(hits, begins)]
    columns = {
        "device": np.full(len(begins), number),
        "bucket_ns": second[begins] * BUCKET_NS,
        "seq_first": seq[begins],
        "seq_last": seq[ends],
        "first_ns": time_ns[begins],
        "last_ns": time_ns[ends],
        "events": np.add.reduceat(points.is_event[at].astype(np.int64), begins),
        "requested_peak_bytes": top,
        "requested_peak_ns": time_ns[first_hit],
        "requested_peak_seq": seq[first_hit],
        "requested_last_bytes": requested[ends],
    }
    for name in ("allocated", "active", "reserved"):
        course, risen = _course(totals, name, at, on_host)
        columns[f"{name}_peak_bytes"] = np.maximum.reduceat(np.maximum(course, risen), begins)
        columns[f"{name}_last_bytes"] = course[ends]
    return columns


def _course(totals: Totals, name: str, at: Array, on_host: bool) -> tuple[Array, Array]:
    """A total over the points, and what the allocator's own peaks add to it."""
    if on_host:
        return totals.requested[at], totals.requested[at]
    if name == "reserved":
        return totals.reserved[at], totals.reserved[at]
    course: Array = getattr(totals, name)[at]
    return course, getattr(totals, f"{name}_risen")[at]
