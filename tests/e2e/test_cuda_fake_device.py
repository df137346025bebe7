"""The CUDA side of the tap against PyTorch's real caching allocator, on a fake CUDA runtime: no GPU needed.

Needs the libraries and headers of a CUDA build of torch: the installed one, or the folders of unpacked wheels
(``.../torch``) in RANKMEM_TEST_CUDA_TORCH, separated by ``:``. The oracle is the allocator's own history,
snapshot and statistics, taken in the same process while two threads allocate, free and run out of memory.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from fake_cuda import FOLDER, TAP, TORCH_ACTIONS, WHY, build, run, torch_dirs, version_of
from rankmem_agent.spool.layout import Action, Kind
from rankmem_aggregator.insights.replays import check
from rankmem_aggregator.insights.settings import Settings
from replayed_requests import Start, trace

DIRS = torch_dirs()
pytestmark = pytest.mark.skipif(not DIRS or shutil.which("g++") is None, reason=WHY)


@pytest.fixture(scope="module", params=DIRS, ids=version_of)
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The harness, built against one torch; the fake runtime beside it."""
    return build(request.param, tmp_path_factory.mktemp("cuda_fake"), "harness", TAP / "tap_cuda.cpp")


class Seen:
    """What a run of the harness printed, by device."""

    def __init__(self, harness: Path, *arguments: str, **environ: str) -> None:
        command = [str(harness), *arguments]
        done = subprocess.run(
            command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.records: list[list[int]] = [line["r"] for line in lines if "r" in line]
        self.texts: list[dict[str, Any]] = [line["text"] for line in lines if "text" in line]
        self.traces: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        self.blocks: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.segments: dict[int, int] = defaultdict(int)
        for line in lines:
            if "t" in line:
                self.traces[line["t"][0]].append((TORCH_ACTIONS[line["t"][1]], *line["t"][2:]))
            if "s" in line and line["s"][4] > 0:
                self.blocks[line["s"][0]][line["s"][1]] = (line["s"][3], line["s"][4])
            if "g" in line:
                self.segments[line["g"][0]] += line["g"][2]
        self.stats = {line["f"][0]: line["f"][1:] for line in lines if "f" in line}
        self.pinned = next((line["pinned"] for line in lines if "pinned" in line), 0)
        self.samples_asked = next((line["samples_asked"] for line in lines if "samples_asked" in line), 0)
        self.records_cpu = next((line["cpu"] for line in lines if "cpu" in line), [])
        self.end = next((line for line in lines if "attached" in line), {})

    def of(self, kind: Kind, device: int) -> list[list[int]]:
        return [record for record in self.records if record[1] == kind and record[3] == device]


@pytest.fixture(scope="module", params=[1, 2, 3])
def seen(request: pytest.FixtureRequest, harness: Path) -> Seen:
    return Seen(harness, "check", str(request.param))


def split_trace(trace: list[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The allocator's own history before and after the snapshot that the tap took at attaching."""
    at = next(number for number, entry in enumerate(trace) if entry[0] == Action.SNAPSHOT)
    after = trace[at + 1 :]
    while after and after[-1][0] == Action.SNAPSHOT:  # the harness' own last snapshot
        after.pop()
    return trace[:at], after


def replay(entries: list[tuple[int, ...]], live: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Blocks alive after the entries: address to (requested bytes, 2 allocated or 1 awaiting its free)."""
    live = dict(live)
    for action, address, size, *_ in entries:
        if action == Action.ALLOC:
            live[address] = (size, 2)
        elif action == Action.FREE_REQUESTED:
            live[address] = (live[address][0], 1)
        elif action == Action.FREE_COMPLETED:
            del live[address]
    return live


def baseline(seen: Seen, device: int) -> dict[int, tuple[int, int]]:
    return replay([(r[2], r[4], r[5]) for r in seen.of(Kind.PREEXISTING, device)], {})


@pytest.mark.parametrize("device", [0, 1])
def test_the_tap_sees_each_event_of_the_allocators_own_history_in_order(seen: Seen, device: int) -> None:
    _, expected = split_trace(seen.traces[device])
    with_pool = any(entry[4] for entry in seen.traces[0])  # torch 2.6 knows no pool
    events = []
    for _, _, action, _, address, size, stream, pool, _ in seen.of(Kind.EVENT, device):
        oom = action == Action.OOM  # there the allocator has the free bytes in the place of the address
        events.append((action, pool if oom else address, size, stream, 0 if oom or not with_pool else pool))
    while events and events[-1][0] == Action.SNAPSHOT:
        events.pop()
    assert len(expected) > 1000
    assert events == [(*entry[:4], 0 if entry[0] == Action.OOM else entry[4]) for entry in expected]


@pytest.mark.parametrize("device", [0, 1])
def test_blocks_older_than_the_recording_are_those_of_the_instant_it_starts(seen: Seen, device: int) -> None:
    before, _ = split_trace(seen.traces[device])
    assert baseline(seen, device) == replay(before, {})
    records = [r for r in seen.records if r[1] in (Kind.EVENT, Kind.PREEXISTING) and r[3] == device]
    kinds = [record[1] for record in records]
    assert kinds == sorted(kinds, reverse=True), "PREEXISTING records come before the first event"


@pytest.mark.parametrize("device", [0, 1])
def test_replaying_the_log_gives_the_blocks_segments_and_counters_of_the_allocator(
    seen: Seen, device: int
) -> None:
    log = [(r[2], r[4], r[5]) for k in (Kind.PREEXISTING, Kind.EVENT) for r in seen.of(k, device)]
    live = replay(log, {})
    assert live == seen.blocks[device]
    sign = {Action.SEGMENT_ALLOC: 1, Action.SEGMENT_MAP: 1, Action.SEGMENT_FREE: -1, Action.SEGMENT_UNMAP: -1}
    reserved = sum(sign.get(Action(action), 0) * size for action, _, size in log)
    allocated, active, held, requested, peak_allocated, peak_reserved = seen.stats[device]
    assert (sum(size for size, _ in live.values()), reserved, reserved) == (
        requested,
        held,
        seen.segments[device],
    )
    assert seen.of(Kind.COUNTERS, device)[-1][4:8] == [allocated, active, held, requested]
    peaks = seen.of(Kind.PEAKS, device)[-1]
    assert (peaks[4], peaks[6]) == (peak_allocated, peak_reserved)


def test_ooms_pools_and_facts_are_there(seen: Seen) -> None:
    assert seen.end["attached"] == [0, -errno.EALREADY]
    ooms = [record for record in seen.records if record[1] == Kind.EVENT and record[2] == Action.OOM]
    assert ooms
    assert all(record[4] == 0 and 0 <= record[7] <= 2 << 30 and record[5] >= 3 << 30 for record in ooms)
    if any(entry[4] for entry in seen.traces[0]):
        assert sum(r[7] == 7 and r[2] == Action.ALLOC for r in seen.of(Kind.EVENT, 0)) >= 50
    assert len(seen.texts) == 2
    facts = {"name", "uuid", "total_bytes", "allocator", "settings", "source"}
    assert all(facts == set(text) and text["source"] == "tap" for text in seen.texts)


@pytest.mark.parametrize(
    ("variable", "value", "allocator"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "cudaMallocAsync"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "native"),
    ],
)
def test_an_allocator_without_events_gives_samples_only_and_says_so(
    harness: Path, variable: str, value: str, allocator: str
) -> None:
    seen = Seen(harness, "backend", **{variable: value})
    assert seen.end["attached"] == [-errno.EINVAL, -errno.EOPNOTSUPP]
    assert [(t["source"], t["allocator"]) for t in seen.texts] == [("samples", allocator)]
    assert "only samples" in seen.texts[0]["settings"]


def test_facts_come_from_the_driver_and_samples_from_nvml(harness: Path, tmp_path: Path) -> None:
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        source = FOLDER / "fake_driver.c"
        run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", tmp_path / soname, source])
    seen = Seen(harness, "samples", LD_LIBRARY_PATH=str(tmp_path))
    assert [(t["name"], t["uuid"], t["total_bytes"]) for t in seen.texts] == [
        ('Fake "0"', "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", 2 << 30),
        ('Fake "1"', "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f", (2 << 30) + 1),
    ]
    samples = seen.of(Kind.SAMPLE, 0)
    assert [r[5:8] for r in samples] == [[400, 600, 1000]] * 4
    assert [r[4] for r in samples] == [123, 124, 126, 129], "the fake counts how often it is asked"
    assert [r[4:8] for r in seen.of(Kind.SAMPLE, 1)] == [[77, 400, 600, 2000]] * 4
    assert seen.pinned == 2, "pinned host memory is sampled in the same rounds"
    assert seen.samples_asked == 3, "at attaching, and at the first event of each device"


def test_cpu_memory_is_recorded_until_the_first_event_of_a_device(harness: Path) -> None:
    """Attaching is no use: torch's own optimizers initialise CUDA in a training on the CPU."""
    seen = Seen(harness, "samples")
    assert seen.records_cpu == [True, False], "as CUDA is attached, and in the end"
    moves = [record for record in seen.records if record[1] in (Kind.DEVICE, Kind.EVENT)]
    assert next(record[1] for record in moves if record[2] != Action.SNAPSHOT) == Kind.DEVICE
    assert sum(record[1] == Kind.DEVICE for record in moves) == 1 + len(seen.texts)


def test_without_a_driver_library_there_are_no_samples_and_no_harm(harness: Path) -> None:
    seen = Seen(harness, "samples")
    assert not [record for record in seen.records if record[1] == Kind.SAMPLE]
    assert [text["uuid"] for text in seen.texts] == ["", ""]


@pytest.mark.parametrize("device", [0, 1])
def test_what_the_tap_recorded_is_replayed_to_the_address(seen: Seen, device: int) -> None:
    older = [(*r[4:8], r[8], r[2]) for r in seen.of(Kind.PREEXISTING, device)]
    start = Start(
        segments=[
            (a, size, stream, pool)
            for a, size, stream, pool, _, what in older
            if what == Action.SEGMENT_ALLOC
        ],
        blocks=[
            (a, own, size, stream, pool) for a, size, stream, pool, own, what in older if what == Action.ALLOC
        ],
    )
    assert start.segments or device == 1
    assert all(own >= size for _, own, size, _, _ in start.blocks)
    events = [(r[2], *r[4:8]) for r in seen.of(Kind.EVENT, device)]
    found = check(trace(events, Settings(), start))
    assert found.num_allocations > 1000
    assert found.is_exact
