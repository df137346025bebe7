"""Stage ``source``: what was written after the allocator's source, against recordings made here.

Every recording is replayed out of the database and out of torch's own snapshot. The snapshots, without stacks
and times, are kept: small enough to become test data.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from gpu.checks import Check, Found, Place, equal, figure, within
from gpu.recorded import Recorded, record

MIB: Final = 1 << 20
BOUNDS: Final = """
SELECT count(*) AS calls FROM marker
WHERE kind = 'allocator' AND name LIKE 'torch.cuda.set_per_process_memory_fraction %'
"""
DECISIONS_MIN: Final = 0.999
RESERVED_MAX_MIB: Final = 20
FIT_MAX: Final = 0.01
AS_CUDA_MAX: Final = 0.03


def judge_check(what: str, found: Any, *, exact: bool) -> list[Found]:
    """A replay against its recording: exact with default settings, else as close as package 10 has it."""
    total = found.num_allocations
    measured = (
        f"{found.num_same_address} addresses and {found.num_same_decision} decisions of {total}, "
        f"reserved off by {found.reserved_difference_bytes} at most, "
        f"peak {found.replayed_peak_bytes} for {found.recorded_peak_bytes}"
    )
    if exact:
        return [Found(what=what, ok=found.is_exact and total > 0, measured=measured, expected="all equal")]
    close = (
        total > 0
        and found.num_same_decision >= DECISIONS_MIN * total
        and found.reserved_difference_bytes <= RESERVED_MAX_MIB * MIB
    )
    expected = f"decisions >= {DECISIONS_MIN}, reserved <= {RESERVED_MAX_MIB} MiB off"
    return [
        Found(what=what, ok=close, measured=measured, expected=expected),
        figure(f"{what}: exact", found.is_exact),
    ]


def _replayed(
    name: str, workload: str, *arguments: str, settings: str = "", allowed_mib: int = 0
) -> Callable[[Place], Iterator[Found]]:
    def look(place: Place) -> Iterator[Found]:
        from rankmem import replay

        kept = place.kept / f"{name}.pickle"
        given = ["--history", "--pickle", str(kept), *arguments]
        if allowed_mib:
            given += ["--allowed-mib", str(allowed_mib)]
        recording = record(place, workload, name, *given, settings=settings)
        if not place.on_gpu:
            yield figure("rehearsed", "the allocator of a CPU keeps no pool: nothing to replay")
            return
        yield figure("recording, KiB", kept.stat().st_size >> 10)
        stats = recording.told["stats"]
        yield figure("retries and failures", [stats["num_alloc_retries"], stats["num_ooms"]])
        with recording.queries() as queries:
            trace = queries.allocator_trace(rank=0)
            bounds = queries.sql(BOUNDS).to_pylist()[0]["calls"]
        yield equal("calls that bound the allocator", bounds, int(allowed_mib > 0))
        snapshot = replay.trace_of_snapshot(pickle.loads(kept.read_bytes()))
        for what, each in (("out of the database", trace), ("out of the snapshot", snapshot)):
            if allowed_mib:
                each.settings = replace(each.settings, allowed_bytes=allowed_mib * MIB)
            yield figure(f"{what}: settings", each.settings.text())
            yield from judge_check(what, replay.check(each), exact=not settings and not allowed_mib)
        free = replay.run(trace, trace.settings)
        yield figure("replayed with invented addresses", [free.reserved_peak_bytes, free.num_retries])

    return look


def _rows(answer: Any) -> dict[int, dict[str, Any]]:
    return {row["size"]: row for row in answer.rows.to_pylist()}


def judge_fit(what: str, predicted: Any, real: Any, size: int, at_most: float) -> Iterator[Found]:
    """A predicted size against the same size as it was recorded: answers of ``fit``."""
    ours, theirs = _rows(predicted).get(size), _rows(real).get(size)
    if ours is None or theirs is None:
        told = [predicted.sentence, real.sentence]
        yield Found(what=what, ok=False, measured=told, expected=f"a row for batch {size}")
        return
    for name in ("live_peak_bytes", "reserved_peak_bytes"):
        if ours[name] is None or theirs[name] is None:
            yield figure(f"{what}: {name}", [ours[name], theirs[name]])
        else:
            yield figure(f"{what}: {name}, predicted and real", [ours[name], theirs[name]])
            yield within(f"{what}: {name}", abs(ours[name] / theirs[name] - 1), at_most)
    low, high, found = ours["low_bytes"], ours["high_bytes"], theirs["live_peak_bytes"]
    told = f"{low} to {high}"
    yield Found(what=f"{what}: within its own bounds", ok=low <= found <= high, measured=found, expected=told)


def _fit(place: Place) -> Iterator[Found]:
    """Batch 16 out of 2 and 4."""
    sizes = (2, 4, 16)
    small, next_one, real = (
        record(place, "gpt", f"b{size}", "--batch", str(size), "--steps", "4") for size in sizes
    )
    with small.queries() as one, next_one.queries() as two, real.queries() as largest:
        predicted = one.fit(batch=[16], recorded=sizes[:2], others=[two])
        found = largest.fit(batch=[16], recorded=[16])
        yield figure("fit says", predicted.sentence)
        yield from judge_fit("x4", predicted, found, 16, FIT_MAX)


def _as_cuda(*more: str) -> Callable[[Place], Iterator[Found]]:
    """A CPU's recording of the whole model as on CUDA, against the recording there."""

    def look(place: Place) -> Iterator[Found]:
        arguments = ("--batch", "2", "--steps", "4", *more)
        on_gpu = record(place, "gpt", "gpu", *arguments)
        elsewhere = replace(place, device="cpu")
        whole = ("--whole",) if place.on_gpu else ()
        on_cpu: Recorded = record(elsewhere, "gpt", "cpu", *arguments, *whole)
        with on_cpu.queries() as cpu, on_gpu.queries() as gpu:
            predicted = cpu.fit(batch=[2], recorded=[2], as_device="cuda")
            real = gpu.fit(batch=[2], recorded=[2], as_device=None if place.on_gpu else "cuda")
        yield figure("fit says", predicted.sentence)
        yield from judge_fit("as cuda", predicted, real, 2, AS_CUDA_MAX)

    return look


_CHURN: Final = {
    "default": "",
    "expandable": "expandable_segments:True",
    "max_split": "max_split_size_mb:128",
    "roundup": "roundup_power2_divisions:8",
}
CHECKS: Final = (
    *(
        Check(name=name, look=_replayed(name, "churn", "--scale", "64", settings=settings), limit_s=70)
        for name, settings in _CHURN.items()
    ),
    Check(
        name="retry",
        look=_replayed("retry", "churn", "--scale", "64", allowed_mib=3700),
        limit_s=70,
    ),
    Check(
        name="collected",
        look=_replayed(
            "collected", "churn", "--scale", "64", settings="garbage_collection_threshold:0.8",
            allowed_mib=5000,
        ),
        limit_s=70,
    ),
    Check(name="streams", look=_replayed("streams", "streams", "--steps", "30"), limit_s=70, on_cpu=False),
    Check(name="graph", look=_replayed("graph", "graphs", "--steps", "10"), limit_s=70, on_cpu=False),
    Check(name="gpt", look=_replayed("gpt", "gpt", "--steps", "4", "--batch", "4"), limit_s=80),
    Check(name="fit", look=_fit, limit_s=150),
    Check(name="as_cuda", look=_as_cuda(), limit_s=300),
    Check(name="as_cuda_bf16", look=_as_cuda("--bf16"), limit_s=150),
)  # fmt: skip
