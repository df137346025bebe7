"""Fragmentation: recordings that others made on devices (``../shared/recordings``), imported and replayed.

The naive figure of what is lost: the highest reserved bytes less the bytes alive at once.
"""

from __future__ import annotations

import time
from pathlib import Path

from harness import Figure, Options, of_samples, say

from import_read import imported
from rankmem import connect, replay
from rankmem_aggregator.insights.fragmentation import TRIED
from rankmem_aggregator.insights.lives import Op, Trace
from rankmem_aggregator.insights.packing import intervals, live_peak_bytes, packed_bytes

FOLDER = Path(__file__).resolve().parents[3] / "shared/recordings/torch_snapshot"
RECORDINGS = (
    "complete_small.pickle", "forward_fp32.pickle", "forward_large.pickle", "npu_empty_cache.pkl",
    "npu_expandable.pkl",
)  # fmt: skip
EVENTS_PER_S_MIN = 500_000
ROUNDS = 3
EVENTS = 400_000
QUICK_EVENTS = 60_000
SETTINGS_EVENTS = 20_000
SETTINGS_S_MAX = 2.0
PACKED_SHARE_MAX = 1.01
MIB = 1 << 20


def measure(options: Options) -> list[Figure]:
    """All figures of this benchmark."""
    if not FOLDER.is_dir():
        say("no ../shared/recordings: nothing is measured")
        return []
    traces = {name: _trace(options.folder / f"{name}.duckdb", FOLDER / name) for name in RECORDINGS}
    figures = []
    for name, trace in traces.items():
        figures += _exactness(name, trace)
    events = QUICK_EVENTS if options.quick else EVENTS
    figures += _speed(traces["forward_large.pickle"], events)
    return figures


def _trace(database: Path, recording: Path) -> Trace:
    imported(database, recording)
    with connect(database) as queries:
        return queries.allocator_trace(0)


def _exactness(name: str, trace: Trace) -> list[Figure]:
    found = replay.check(trace)
    lives = intervals(trace, trace.settings)
    bound, packed = live_peak_bytes(lives), packed_bytes(lives)
    needed = replay.needed_bytes(trace, trace.settings)
    naive = found.recorded_peak_bytes - bound
    assert packed is not None
    return [
        Figure(
            what=f"{name}: addresses as recorded",
            value=found.num_same_address / found.num_allocations,
            at_least=1.0,
            note=f"{found.num_allocations:,} allocations, {trace.num_older:,} blocks older",
        ),
        Figure(
            what=f"{name}: largest difference of reserved after an allocation",
            value=found.reserved_difference_bytes,
            unit="bytes",
            at_most=0,
        ),
        Figure(
            what=f"{name}: offline packing over bytes alive at once",
            value=packed / bound,
            at_most=PACKED_SHARE_MAX,
            note=f"{len(lives):,} blocks",
        ),
        Figure(
            what=f"{name}: lost to fragmentation",
            value=(needed - bound) / MIB,
            unit="MiB",
            note=f"naive, reserved less in blocks: {naive / MIB:,.1f} MiB",
        ),
    ]


def _speed(trace: Trace, events: int) -> list[Figure]:
    long = repeated(trace, events)
    figures = []
    for text in ("", "expandable_segments:True"):
        settings = trace.settings.changed(text)
        samples = []
        for _ in range(ROUNDS):
            begin = time.process_time()
            replay.run(long, settings)
            samples.append(len(long.ops) / (time.process_time() - begin))
        figures.append(
            of_samples(
                f"replay, {text or 'default settings'}",
                samples,
                "events/s",
                at_least=EVENTS_PER_S_MIN,
                note=f"{len(long.ops):,} requests and frees, CPU time",
            )
        )
    short = repeated(trace, SETTINGS_EVENTS)
    begin = time.process_time()
    for text in TRIED:
        settings = trace.settings.changed(text)
        replay.needed_bytes(short, settings, replay.run(short, settings))
    figures.append(
        Figure(
            what=f"{len(TRIED)} settings with what they need",
            value=time.process_time() - begin,
            unit="s",
            at_most=SETTINGS_S_MAX,
            note=f"{len(short.ops):,} requests and frees, CPU time",
        )
    )
    return figures


def repeated(trace: Trace, events: int) -> Trace:
    """The recording over and over, with what each round leaves behind freed at its end."""
    long = Trace(settings=trace.settings, groups=list(trace.groups))
    for name in ("older_address", "older_requested", "older_block_bytes", "older_group"):
        setattr(long, name, list(getattr(trace, name)))
    older, count = trace.num_older, trace.num_older
    while len(long.ops) < events:
        numbers: dict[int, int] = {}
        for op, block, requested, group in zip(
            trace.ops, trace.block, trace.requested, trace.group, strict=True
        ):
            if op == Op.ALLOC:
                numbers[block] = count
                count += 1
                _add(long, op, numbers[block], requested, group)
            elif op == Op.FREE and block >= older:
                _add(long, op, numbers.pop(block), 0, 0)
        for number in numbers.values():
            _add(long, Op.FREE, number, 0, 0)
    return long


def _add(trace: Trace, op: int, block: int, requested: int, group: int) -> None:
    trace.ops.append(op)
    trace.block.append(block)
    trace.requested.append(requested)
    trace.group.append(group)
