"""The columns of the tables that show the results of named queries.

Stage: render. For each query the columns in order, with their headings and their importance on a narrow
terminal. The second names are the results' own columns, as declared in the aggregator package's
``sql/queries/*.sql``.
"""

from __future__ import annotations

from rankmem_cli.show.table import (
    NAME_CELLS_MIN,
    Column,
    age,
    count,
    flag,
    module,
    number,
    offset,
    operator,
    parts,
    path,
    percent,
    signed_size,
    size,
    text,
    tree,
    utc,
    utc_day,
    words,
)
from rankmem_cli.show.units import safe_text


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
        count("records lost", "records_lost", importance=4),
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
        text("state", "state", importance=5),
        number("exit code", "exit_code", importance=3),
        text("exception", "exception", importance=4),
        size("peak", "peak_requested_bytes", importance=8),
        count("events", "events", importance=5),
        count("records lost", "records_lost", importance=7),
        size("unexplained", "unexplained_bytes", importance=1),
        flag("complete", "complete", importance=7),
    ]


def status() -> list[Column]:
    """Columns of ``rankmem status``: the state of each rank's log."""
    return [
        number("rank", "rank"),
        number("attempt", "attempt", importance=1),
        text("host", "host_name", importance=4),
        text("state", "state", importance=0),
        age("lag", "lag_ns", importance=8),
        age("silent for", "silent_ns", importance=7),
        count("events", "events", importance=3),
        count("records lost", "records_lost", importance=8),
        count("gaps", "gaps", importance=6),
        size("in spool", "spool_bytes", importance=5),
        size("sent", "sent_bytes", importance=1),
        flag("complete", "complete", importance=5),
    ]


def top() -> list[Column]:
    """Columns of ``rankmem top``: the memory that each rank holds, and what is left."""
    return [
        number("rank", "rank"),
        text("host", "host_name", importance=3),
        text("device", "device", importance=6),
        size("used", "used_bytes", importance=0),
        size("reserved", "reserved_bytes", importance=4),
        size("process", "app_reserved_bytes", importance=2),
        size("peak", "peak_requested_bytes", importance=7),
        size("headroom", "headroom_bytes", importance=8),
        percent("left", "headroom_share", importance=5),
        size("device total", "device_total_bytes", importance=1),
        age("age", "age_ns", importance=4),
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
        count("records lost", "records_lost", importance=3),
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


def peak_of_blocks(group: str, started_ns: int | None) -> list[Column]:
    """Columns of ``rankmem peak --by`` category, phase, operator …: a group of a rank's blocks."""
    return [
        _group(group),
        number("rank", "rank"),
        number("attempt", "attempt", importance=1),
        text("host", "host_name", importance=2),
        text("device", "device", importance=5),
        size("at rank's peak", "bytes_at_rank_peak", importance=0),
        size("own peak", "peak_bytes", importance=0),
        offset("own peak at", "peak_time_ns", started_ns, importance=8),
        utc("own peak at (UTC)", "peak_time_ns", importance=1),
        size("rank's peak", "rank_peak_bytes", importance=7),
        offset("rank's peak at", "rank_peak_ns", started_ns, importance=6),
    ]


def peak_of_allocator(group: str, started_ns: int | None) -> list[Column]:
    """Columns of ``rankmem peak --by`` stream or component: the same and the bytes of the segments."""
    reserved = [
        size("reserved", "peak_reserved_bytes", importance=7),
        offset("reserved at", "peak_reserved_ns", started_ns, importance=2),
    ]
    of_blocks = peak_of_blocks(group, started_ns)
    place = next(at for at, column in enumerate(of_blocks) if column.name == "rank_peak_bytes")
    return [*of_blocks[:place], *reserved, *of_blocks[place:]]


def peak_of_ranks(group: str, started_ns: int | None) -> list[Column]:
    """Columns of ``rankmem peak --by`` host, device or a parallel dimension: a group of ranks."""
    return [
        text(group, "group_name", importance=0),
        text("devices", "device_type", importance=4),
        count("ranks", "num_ranks", importance=6),
        size("sum of peaks", "sum_of_peaks_bytes", importance=8),
        size("own peak", "peak_bytes", importance=0),
        offset("own peak at", "peak_time_ns", started_ns, importance=8),
        utc("own peak at (UTC)", "peak_time_ns", importance=1),
        number("highest rank", "highest_rank", importance=7),
        size("its peak", "highest_peak_bytes", importance=7),
        number("lowest rank", "lowest_rank", importance=5),
        size("its peak", "lowest_peak_bytes", importance=5),
    ]


def summary(started_ns: int | None, *, is_delivered: bool) -> list[Column]:
    """Columns of the summary of ``rankmem run``; ``complete`` only once everything is stored."""
    columns = [
        number("rank", "rank"),
        text("host", "host_name", importance=3),
        text("device", "device", importance=4),
        size("peak", "peak_requested_bytes", importance=0),
        size("reserved", "peak_reserved_bytes", importance=2),
        offset("at", "peak_time_ns", started_ns, importance=5),
        flag("complete", "complete", importance=1),
    ]
    return columns if is_delivered else columns[:-1]


def job_peak(started_ns: int | None) -> list[Column]:
    """Columns of ``rankmem job-peak``: each device's share at that instant."""
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


def job_peak_shares() -> list[Column]:
    """Columns of the shares in the overview of ``rankmem job-peak``, whose heading gives the instant."""
    return [column for column in job_peak(None) if not column.name.startswith("job_peak")]


def job_peak_held(group: str) -> list[Column]:
    """Columns of the groups that held the job's memory at its peak."""
    return [
        _group(group),
        text("device", "device_type", importance=1),
        size("alive then", "live_bytes", importance=0),
        count("blocks", "live_allocations", importance=5),
        size("largest", "largest_bytes", importance=4),
        count("ranks", "num_ranks", importance=3),
    ]


def oom(started_ns: int | None) -> list[Column]:
    """Columns of ``rankmem oom``: an allocation that failed."""
    return [
        number("rank", "rank"),
        number("attempt", "attempt", importance=1),
        text("host", "host_name", importance=2),
        text("device", "device", importance=5),
        offset("at", "time_ns", started_ns, importance=7),
        size("asked for", "size_bytes", importance=0),
        size("free", "device_free_bytes", importance=8),
        size("alive", "requested_bytes", importance=9),
        size("reserved", "reserved_bytes", importance=4),
        size("outside", "app_bytes", importance=3),
        size("unused", "unused_bytes", importance=2),
        size("largest piece", "largest_free_bytes", importance=6),
        percent("fragmented", "fragmentation", importance=3),
        operator("operator", "operator", importance=8),
        path("line", "line", importance=6),
    ]


def oom_held(group: str) -> list[Column]:
    """Columns of the groups alive when an allocation failed."""
    return [
        _group(group),
        size("alive then", "live_bytes", importance=0),
        count("blocks", "live_allocations", importance=5),
        size("largest", "largest_bytes", importance=4),
    ]


def held_at(started_ns: int | None) -> list[Column]:
    """Columns of the memory that every rank held at an instant."""
    return [
        number("rank", "rank"),
        number("attempt", "attempt", importance=1),
        text("host", "host_name", importance=4),
        text("device", "device", importance=5),
        size("held", "requested_bytes", importance=0),
        offset("since", "time_ns", started_ns, importance=2),
    ]


def _group(group: str) -> Column:
    """The column that names a group."""
    kind = {"operator": operator, "line": path, "module": module}.get(group, text)
    return kind(group, "group_name", importance=0)


def ops() -> list[Column]:
    """Columns of ``rankmem ops``, for any grouping: columns that the result lacks are skipped."""
    return [
        text("device", "device_type", importance=1),
        number("rank", "rank"),
        operator("operator", "operator", importance=0),
        path("line", "line", importance=0),
        module("module", "module"),
        text("category", "category", importance=0),
        text("phase", "phase", importance=0),
        number("step", "step"),
        text("annotation", "annotation", importance=0),
        text("stream", "stream", importance=0),
        text("component", "component", importance=0),
        size("alive at peak", "live_bytes_at_peak", importance=9),
        count("blocks", "live_allocations_at_peak", importance=5),
        size("alive then", "live_bytes_at_time", importance=9),
        count("blocks", "live_allocations_at_time", importance=5),
        size("total allocated", "allocated_bytes", importance=7),
        count("allocations", "num_allocations", importance=6),
        size("largest", "largest_bytes", importance=4),
        count("ranks", "num_ranks", importance=3),
    ]


def modules() -> list[Column]:
    """Columns of ``rankmem modules``."""
    return [
        text("device", "device_type", importance=1),
        tree("module", "tree"),
        text("class", "class", importance=3),
        size("with submodules", "total_bytes", importance=0),
        size("own", "own_bytes", importance=8),
        count("own blocks", "own_allocations", importance=4),
        count("ranks", "num_ranks", importance=2),
    ]


def weights() -> list[Column]:
    """Columns of ``rankmem weights``."""
    return [
        number("rank", "rank"),
        path("name", "name", importance=0),
        size("size", "size_bytes", importance=9),
        size("gradient", "grad_size_bytes", importance=7),
        text("type", "dtype", importance=5),
        text("shape", "shape", importance=6),
        path("made at", "line", importance=4),
    ]


def steps(started_ns: int | None) -> list[Column]:
    """Columns of ``rankmem steps``."""
    return [
        number("rank", "rank"),
        number("attempt", "attempt", importance=1),
        text("device", "device", importance=3),
        number("step", "step"),
        size("peak", "peak_bytes", importance=0),
        signed_size("peak growth", "peak_growth_bytes", importance=7),
        size("at end", "end_bytes", importance=8),
        signed_size("growth at end", "end_growth_bytes", importance=9),
        size("allocated", "allocated_bytes", importance=6),
        count("allocations", "num_allocations", importance=4),
        age("took", "duration_ns", importance=5),
        offset("peak at", "peak_time_ns", started_ns, importance=2),
        words("ended by", "optimizers", importance=1),
    ]


def live(started_ns: int | None) -> list[Column]:
    """Columns of ``rankmem live``; JSON includes the whole stack of a block."""
    return [
        text("device", "device", importance=1),
        size("size", "size_bytes", importance=0),
        operator("operator", "operator", importance=8),
        path("line", "line", importance=7),
        path("forward line", "forward_line", importance=5),
        text("category", "category", importance=6),
        text("module", "module", importance=3),
        text("phase", "phase", importance=3),
        number("step", "step", importance=2),
        age("age", "age_ns", importance=5),
        offset("allocated", "allocated_ns", started_ns, importance=1),
        Column(header="address", name="address", forms=(_hex,), numeric=True, importance=4),
    ]


def _hex(address: int | None) -> str:
    return "-" if address is None else f"0x{address:x}"


def leaks() -> list[Column]:
    """Columns of ``rankmem leaks``."""
    return [
        text("verdict", "verdict", importance=0),
        path("line", "line", importance=9),
        operator("operator", "operator", importance=8),
        size("per step", "bytes_per_step", importance=7),
        number("since step", "since_step", importance=5),
        size("in 10,000 steps", "bytes_ahead", importance=4),
        size("held", "held_bytes", importance=3),
        number("on rank", "rank", importance=6),
        count("ranks", "num_ranks", importance=2),
        module("module", "module", importance=1),
    ]


def imbalance() -> list[Column]:
    """Columns of ``rankmem imbalance``."""
    return [
        text("what", "what", importance=0),
        count("ranks", "num_ranks", importance=3),
        size("peak", "bytes", importance=4),
        signed_size("beyond peers", "beyond_bytes", importance=9),
        number("rank", "rank", importance=5),
        number("against", "peer_rank", importance=6),
        signed_size("difference", "difference_bytes", importance=7),
        parts("of which", "parts", importance=8),
        text("host", "host_name", importance=2),
    ]


def diff(*, with_moves: bool) -> list[Column]:
    """Columns of ``rankmem diff``, if wanted with the names in base of code that moved."""
    return [
        text("what", "what", importance=0),
        number("rank", "rank", importance=1),
        size("base", "base_bytes", importance=8),
        size("head", "head_bytes", importance=7),
        signed_size("change", "difference_bytes", importance=9),
        Column(header="share", name="share", forms=(_share,), numeric=True, importance=6),
        text("verdict", "verdict", importance=5),
        text("category", "category", importance=4),
        text("operator", "operator", importance=3),
        text("function", "function", importance=2),
        path("file", "file", importance=1),
        *([path("moved from", "moved_from", importance=2)] if with_moves else ()),
        text("module", "module", importance=1),
    ]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:+.2%}" if share else "0"


def fragmentation() -> list[Column]:
    """Columns of ``rankmem fragmentation``."""
    return [
        Column(header="setting", name="settings", forms=(_settings,), cells_min=NAME_CELLS_MIN, importance=0),
        size("needs", "needed_bytes", importance=9),
        signed_size("saves", "saved_bytes", importance=8),
        size("reserved peak", "reserved_peak_bytes", importance=7),
        signed_size("reserved", "reserved_change_bytes", importance=6),
        flag("now", "is_current", importance=5),
        flag("on devices", "is_measured", importance=4),
    ]


def ledger() -> list[Column]:
    """Columns of ``rankmem ledger``."""
    return [
        number("rank", "rank", importance=7),
        text("part", "part", importance=0),
        text("name", "name", importance=6),
        size("bytes", "bytes", importance=9),
        percent("of used", "share", importance=5),
        text("source", "source", importance=8),
        text("from", "basis", importance=1),
    ]


def ledger_over_time() -> list[Column]:
    """Columns of ``rankmem ledger --over-time``."""
    return [
        utc("at (UTC)", "at_ns", importance=9),
        size("used", "used_bytes", importance=8),
        size("PyTorch", "pytorch_bytes", importance=7),
        size("communicators", "communicators_bytes", importance=4),
        size("runtime", "runtime_bytes", importance=3),
        size("components", "component_bytes", importance=2),
        size("unexplained", "unexplained_bytes", importance=5),
        size("others", "other_processes_bytes", importance=6),
        size("outside", "outside_allocators_bytes", importance=1),
        words("unknown", "unknown", importance=0),
    ]


def fit(what: str) -> list[Column]:
    """Columns of ``rankmem fit``; ``what``: batch or length."""
    return [
        count(what, "size", importance=9),
        Column(header="of recorded", name="times", forms=(_times,), numeric=True, importance=8),
        size("live peak", "live_peak_bytes", importance=7),
        size("at least", "low_bytes", importance=2),
        size("at most", "high_bytes", importance=3),
        size("needs", "needed_bytes", importance=6),
        size("reserved", "reserved_peak_bytes", importance=4),
        text("fits", "fits", importance=5),
        flag("recorded", "is_recorded", importance=1),
    ]


def whatif(*, with_least: bool) -> list[Column]:
    """Columns of ``rankmem whatif``; with the least that the peak may be then, where that is not the most."""
    return [
        size("saves at least" if with_least else "saves", "saved_bytes", importance=9),
        *([size("then at least", "peak_after_least_bytes", importance=7)] if with_least else ()),
        size("then at most" if with_least else "peak then", "peak_after_bytes", importance=8),
        text("what", "what", importance=0),
        text("in", "phase_after", importance=3),
        text("costs", "costs", importance=4),
        flag("measured", "is_measured", importance=6),
        flag("fits", "fits", importance=5),
    ]


def _times(times: float) -> str:
    return f"{times:g}x"


def diagnose(*, with_least: bool) -> list[Column]:
    """Columns of ``rankmem diagnose``; with the least that a peak may be then, where that is not the most."""
    return [
        text("finding", "kind", importance=0),
        number("rank", "rank", importance=6),
        size("saves at least" if with_least else "saves", "bytes", importance=9),
        *([size("then at least", "peak_after_least", importance=4)] if with_least else ()),
        size("then at most" if with_least else "peak then", "peak_after", importance=8),
        text("certainty", "certainty", importance=7),
    ]


def why_oom() -> list[Column]:
    """Columns of ``rankmem oom --why``."""
    return [
        Column(header="setting", name="settings", forms=(_settings,), cells_min=NAME_CELLS_MIN, importance=0),
        flag("runs", "runs", importance=9),
        size("needs", "needed_bytes", importance=8),
        signed_size("lacks", "lacks_bytes", importance=7),
        flag("now", "is_current", importance=5),
        flag("on devices", "is_measured", importance=4),
    ]


def _settings(settings: str) -> str:
    return safe_text(settings) if settings else "(default)"
