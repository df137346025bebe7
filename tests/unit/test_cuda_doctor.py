"""What the doctor says of CUDA on machines that have or lack parts of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankmem_agent.tap import build, cuda_headers, doctor_cuda
from rankmem_agent.tap.accelerators import ROCM
from rankmem_agent.tap.doctor import Check
from rankmem_protos.errors import Code, RankmemError


def fake_torch(*, cuda: str | None = "13.0", backend: str = "native", devices: int = 1) -> Any:
    memory = SimpleNamespace(
        get_allocator_backend=lambda: backend, _record_memory_history=lambda **_: None, _snapshot=dict
    )
    return SimpleNamespace(
        __version__="2.11.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(
            memory=memory, device_count=lambda: devices, get_device_name=lambda index: f"NVIDIA H200 {index}"
        ),
        _C=SimpleNamespace(_cuda_isHistoryEnabled=bool, _cuda_memoryStats=dict),
    )


@pytest.fixture(autouse=True)
def _with_headers_and_without_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_headers, "find", lambda: [tmp_path])
    monkeypatch.setattr(build, "find_compiler", lambda: "/usr/bin/g++")
    monkeypatch.setattr(doctor_cuda, "NVML_LIBRARY", "libno-such-library.so.1")


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_a_cpu_build_of_torch_is_no_failure() -> None:
    [check] = doctor_cuda.examine(fake_torch(cuda=None), {})
    assert check.ok
    assert "without CUDA" in check.detail


@pytest.mark.parametrize(("has_device", "has_history"), [(True, True), (False, True), (True, False)])
def test_an_accelerator_without_a_tap_is_told_of(
    has_device: bool, has_history: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = fake_torch(cuda=None)
    torch.version.hip = "7.0"
    node = tmp_path if has_device else tmp_path / "none"
    monkeypatch.setattr(doctor_cuda, "WITHOUT_TAP", [replace(ROCM, nodes=(str(node),))])
    if not has_history:
        del torch.cuda.memory._snapshot
    [check] = doctor_cuda.examine(torch, {})
    assert (check.name, check.ok) == ("rocm", has_history)
    there = "through PyTorch's memory history" if has_device else str(node)
    assert (there if has_history else "no history") in check.detail


def test_a_machine_that_has_all_but_the_driver_is_told_what_it_loses() -> None:
    checks = by_name(
        doctor_cuda.examine(fake_torch(devices=2), {"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    )
    assert list(checks) == ["cuda headers", "cuda devices", "cuda allocator", "nvml"]
    assert checks["cuda devices"].detail == "2: NVIDIA H200 0, NVIDIA H200 1"
    assert checks["cuda allocator"].detail == "native, expandable_segments:True"
    assert [check.ok for check in checks.values()] == [True, True, True, False]
    assert "samples" in checks["nvml"].detail


@pytest.mark.parametrize(
    ("backend", "environ"), [("cudaMallocAsync", {}), ("native", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})]
)
def test_an_allocator_without_events_fails_with_what_to_unset(backend: str, environ: dict[str, str]) -> None:
    check = by_name(doctor_cuda.examine(fake_torch(backend=backend), environ))["cuda allocator"]
    assert not check.ok
    assert "only samples" in check.detail or "samples of its devices" in check.detail
    assert check.hint.startswith("unset ")


def test_without_headers_the_command_and_the_fallback_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> list[Path]:
        raise RankmemError(Code.UNSUPPORTED, "no cuda_runtime_api.h", "pip install nvidia-cuda-runtime")

    monkeypatch.setattr(cuda_headers, "find", missing)
    checks = by_name(doctor_cuda.examine(fake_torch(), {}))
    assert checks["cuda headers"].hint == "pip install nvidia-cuda-runtime"
    assert checks["cuda fallback"].ok


def test_the_installed_torch_can_be_examined() -> None:
    pytest.importorskip("torch")
    assert all(isinstance(check, Check) for check in doctor_cuda.examine())
