"""The model of the caching allocator against PyTorch's own, the library itself, on a fake CUDA runtime.

Needs a CUDA build of torch, as test_cuda_fake_device. Requests at random, on three streams, with private
pools, emptied caches, memory fractions and devices that are too small; what the real allocator did is
compared with what the model does, request by request.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fake_cuda import TORCH_ACTIONS, WHY, build, torch_dirs, version_of
from rankmem_agent.spool.layout import Action
from rankmem_aggregator.insights.lives import Op
from rankmem_aggregator.insights.replays import check
from rankmem_aggregator.insights.settings import Settings
from replayed_requests import Entry, Start, drive, trace

MIB, GIB = 1 << 20, 1 << 30
DIRS = torch_dirs()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DIRS or shutil.which("g++") is None, reason=WHY),
]
SETTINGS = (
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:64",
    "max_split_size_mb:24,max_non_split_rounding_mb:21",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
)
COLLECTING = ("garbage_collection_threshold:0.6", "garbage_collection_threshold:0.6,max_split_size_mb:20")
FRACTION = 0.75


@pytest.fixture(scope="module", params=DIRS, ids=version_of)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(request.param, tmp_path_factory.mktemp("replayed"), "replayed")


def asked(
    program: Path,
    text: str,
    device: int,
    seed: int,
    *,
    empties: int = 0,
    pools: int = 0,
    fraction: float = 0.0,
) -> tuple[list[Entry], Start]:
    """The allocator's entries, and its state when half of the requests were made."""
    arguments = [str(seed), "5000", "30e6", str(empties), str(pools), str(fraction)]
    environ = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": text, "FAKE_DEVICE_BYTES": str(device)}
    done = subprocess.run(
        [str(program), *arguments], env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    entries = [(TORCH_ACTIONS[line["t"][0]], *line["t"][1:]) for line in lines if "t" in line]
    segments, blocks = ([tuple(line[key]) for line in lines if key in line] for key in "gb")
    return entries, Start(segments=segments, blocks=blocks)


def settings_of(text: str, device: int) -> Settings:
    allowed = int(device * FRACTION) if "garbage" in text else None
    return replace(Settings.parse(text), device_bytes=device, allowed_bytes=allowed)


@pytest.mark.parametrize("text", [*SETTINGS, *COLLECTING])
@pytest.mark.parametrize("device", [2 * GIB, 300 * MIB])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_block_is_where_pytorchs_own_allocator_put_it(
    program: Path, text: str, device: int, seed: int
) -> None:
    fraction = FRACTION if text in COLLECTING else 0.0
    entries, _ = asked(program, text, device, seed, empties=8, pools=1, fraction=fraction)
    recorded = trace(entries, settings_of(text, device))
    found = check(recorded)
    assert found.num_allocations > 1500
    assert found.num_same_address == found.num_same_decision == found.num_allocations
    assert found.reserved_difference_bytes == 0
    assert recorded.ops.count(Op.EMPTY_CACHE) > 10
    assert any(pool for _, _, _, _, pool in entries)
    assert len({stream for _, _, _, stream, _ in entries}) >= 3


@pytest.mark.parametrize("text", [*SETTINGS, *COLLECTING])
@pytest.mark.parametrize("device", [GIB, 300 * MIB])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_model_flushes_collects_and_fails_where_pytorchs_own_allocator_does(
    program: Path, text: str, device: int, seed: int
) -> None:
    fraction = FRACTION if text in COLLECTING else 0.0
    entries, _ = asked(program, text, device, seed, fraction=fraction)
    settings = replace(settings_of(text, device), capacity_bytes=device)
    # Where a request fails that needs a new expandable segment, its addresses are in no entry.
    by_address = not settings.expandable_segments
    found = drive(entries, settings, by_address=by_address)
    assert found.requests > 2000
    assert found.failed > 5
    assert found.same_end == found.same_actions == found.requests
    assert found.same_address == found.requests - found.failed or not by_address


@pytest.mark.parametrize("text", SETTINGS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_recording_that_begins_late_goes_on_from_the_state_of_its_begin(
    program: Path, text: str, seed: int
) -> None:
    entries, start = asked(program, text, 4 * GIB, seed, empties=4)
    late = entries[next(at for at, entry in enumerate(entries) if entry[0] == Action.SNAPSHOT) :]
    found = check(trace(late, settings_of(text, 4 * GIB), start))
    assert len(start.blocks) > 20
    assert found.num_allocations > 800
    assert found.num_same_address == found.num_same_decision == found.num_allocations
    assert found.reserved_difference_bytes == 0
