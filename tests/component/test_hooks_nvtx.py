"""NVTX ranges become markers, and torch's own functions do what they did."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.cuda import nvtx

from hook_recorder import Recorded
from rankmem_agent.hooks import user_api as told
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.nvtx import NvtxRanges
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.spool.layout import Kind, MarkerKind


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """With a library below torch's functions that counts depth, as NVIDIA's does."""
    depth: list[str] = []
    native = SimpleNamespace(
        rangePushA=lambda msg: depth.append(msg) or len(depth) - 1,
        rangePop=lambda: depth.pop() and len(depth),
    )
    monkeypatch.setattr(nvtx, "_nvtx", native)
    for name in ("range_push", "range_pop"):
        monkeypatch.setattr(nvtx, name, getattr(nvtx, name))
    made = Recorded()
    told.connect(made, Steps(made), torch.compiler.is_compiling)
    NvtxRanges(Guard(0)).install(nvtx)
    yield made
    told.disconnect()


def markers(recorded: Recorded) -> list[Any]:
    """Names at begins, None at ends."""
    return [
        recorded.strings[f["name"]] if kind is Kind.MARKER_BEGIN else None for kind, f in recorded.records
    ]


def test_ranges_nest_and_what_torch_returns_is_returned(recorded: Recorded) -> None:
    assert nvtx.range_push("outer") == 0
    with nvtx.range("inner {}", 7):
        pass
    assert nvtx.range_pop() == 0
    assert markers(recorded) == ["outer", "inner 7", None, None]
    begins = [f for kind, f in recorded.records if kind is Kind.MARKER_BEGIN]
    ends = [f["marker_id"] for kind, f in recorded.records if kind is Kind.MARKER_END]
    assert {f["marker_kind"] for f in begins} == {MarkerKind.NVTX}
    assert ends == [begins[1]["marker_id"], begins[0]["marker_id"]]


def test_without_nvtx_the_error_is_torchs_and_nothing_is_told(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("NVTX functions not installed")

    monkeypatch.setattr(nvtx, "_nvtx", SimpleNamespace(rangePushA=fail, rangePop=fail))
    with pytest.raises(RuntimeError, match="NVTX functions not installed"):
        nvtx.range_push("range")
    assert recorded.records == []


def test_a_range_that_began_before_the_agent_is_no_marker(recorded: Recorded) -> None:
    nvtx._nvtx.rangePushA("older")
    assert nvtx.range_pop() == 0
    assert recorded.records == []
