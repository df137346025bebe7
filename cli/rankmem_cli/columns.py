"""What the tables of the named queries show of their results.

Stage: render. For each query the columns in order, with their headings and how much they matter where
the terminal is narrow. The names on the right are the results' own columns: ``sql/queries/*.sql``
of the aggregator package declares them.
"""

from __future__ import annotations

from rankmem_cli.table import (
    Column,
    age,
    count,
    flag,
    number,
    offset,
    operator,
    path,
    size,
    text,
    utc,
    utc_day,
)


def sessions() -> list[Column]:
    """Columns of ``rankmem sessions``."""
    return [
        text("session", "session_id", importance=0),
        text("name", "name", importance=8),
        text("state", "state", importance=4),
        utc_day("started (UTC)", "started_ns", importance=6),
        age("took", "duration_ns", importance=3),
        count("ranks", "num_ranks", importance=6),
        count("hosts", "num_hosts", importance=1),
        size("highest peak", "peak_requested_bytes", importance=7),
        number("on rank", "highest_rank", importance=2),
        count("events", "events", importance=2),
        count("lost", "events_lost", importance=4),
        flag("complete", "complete", importance=5),
    ]


def ranks(started_ns: int | None) -> list[Column]:
    """Columns of ``rankmem ranks``."""
    return [
        number("rank", "rank"),
        number("attempt", "attempt", importance=2),
        text("host", "host_name", importance=6),
        number("pid", "pid", importance=1),
        offset("started", "started_ns", started_ns, importance=2),
        offset("ended", "ended_ns", started_ns, importance=4),
        text("end", "end_reason", importance=5),
        size("peak", "peak_requested_bytes", importance=8),
        count("events", "events", importance=5),
        count("lost", "events_lost", importance=7),
        size("unexplained", "unexplained_bytes", importance=1),
        flag("complete", "complete", importance=7),
    ]


def hosts() -> list[Column]:
    """Columns of ``rankmem hosts``."""
    return [
        text("host", "host_name", importance=0),
        text("address", "address", importance=2),
        text("os", "os", importance=1),
        count("cpus", "cpu_count", importance=2),
        size("memory", "memory_bytes", importance=4),
        text("gpu driver", "gpu_driver", importance=1),
        count("ranks", "num_ranks", importance=6),
        size("highest peak", "peak_requested_bytes", importance=5),
        count("events", "events", importance=3),
        count("lost", "events_lost", importance=3),
        age("clock error", "clock_error_ns", importance=2),
    ]


def peak(started_ns: int | None) -> list[Column]:
    """Columns of ``rankmem peak``: the rank's own peak of requested bytes, and the allocator's figures."""
    return [
        number("rank", "rank"),
        number("attempt", "attempt", importance=1),
        text("host", "host_name", importance=7),
        text("device", "device", importance=6),
        size("peak", "peak_requested_bytes", importance=0),
        size("allocated", "peak_allocated_bytes", importance=2),
        size("reserved", "peak_reserved_bytes", importance=3),
        offset("at", "peak_time_ns", started_ns, importance=8),
        utc("at (UTC)", "peak_time_ns", importance=4),
        flag("complete", "complete", importance=5),
    ]


def summary(started_ns: int | None) -> list[Column]:
    """Columns of the few lines that end ``rankmem run``."""
    return [
        number("rank", "rank"),
        text("host", "host_name", importance=3),
        text("device", "device", importance=4),
        size("peak", "peak_requested_bytes", importance=0),
        size("reserved", "peak_reserved_bytes", importance=2),
        offset("at", "peak_time_ns", started_ns, importance=5),
        flag("complete", "complete", importance=1),
    ]


def job_peak(started_ns: int | None) -> list[Column]:
    """Columns of ``rankmem job-peak``: each device's share at the one instant."""
    return [
        number("rank", "rank"),
        number("attempt", "attempt", importance=1),
        text("host", "host_name", importance=5),
        text("device", "device", importance=4),
        size("share", "requested_bytes", importance=0),
        size("job's peak", "job_peak_bytes", importance=6),
        offset("at", "job_peak_ns", started_ns, importance=7),
        utc("at (UTC)", "job_peak_ns", importance=3),
        age("clock error", "clock_error_ns", importance=2),
    ]


def ops() -> list[Column]:
    """Columns of ``rankmem ops``, whatever it is grouped by: those the result lacks are passed over."""
    return [
        text("device", "device_type", importance=1),
        number("rank", "rank"),
        operator("operator", "operator", importance=0),
        path("line", "line", importance=0),
        size("alive at peak", "live_bytes_at_peak", importance=9),
        count("blocks", "live_allocations_at_peak", importance=5),
        size("alive then", "live_bytes_at_time", importance=9),
        count("blocks", "live_allocations_at_time", importance=5),
        size("allocated in all", "allocated_bytes", importance=7),
        count("allocations", "num_allocations", importance=6),
        size("largest", "largest_bytes", importance=4),
        count("ranks", "num_ranks", importance=3),
    ]


def live(started_ns: int | None) -> list[Column]:
    """Columns of ``rankmem live``; the whole stack of a block is in its JSON."""
    return [
        text("device", "device", importance=1),
        size("size", "size_bytes", importance=0),
        operator("operator", "operator", importance=8),
        path("line", "line", importance=7),
        text("phase", "phase", importance=3),
        number("step", "step", importance=3),
        age("age", "age_ns", importance=5),
        offset("allocated", "allocated_ns", started_ns, importance=2),
        Column(header="address", name="address", forms=(_hex,), numeric=True, importance=4),
    ]


def _hex(address: int | None) -> str:
    return "-" if address is None else f"0x{address:x}"
