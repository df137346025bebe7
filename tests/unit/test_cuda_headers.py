"""The search for CUDA's headers: what it finds first, and what it says where one is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankmem_agent.tap import cuda_headers
from rankmem_agent.tap.cuda_headers import RUNTIME_HEADER, SHIM_DIR, TORCH_HEADERS, find, runtime_package
from rankmem_protos.errors import Code, RankmemError


@pytest.fixture(autouse=True)
def _no_cuda_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_headers, "_TOOLKITS", (tmp_path / "usr-local-cuda",))
    monkeypatch.setattr(cuda_headers, "_VERSIONED_TOOLKITS", tmp_path / "usr-local")
    monkeypatch.setattr(sys, "path", [])


@pytest.fixture
def torch_dir(tmp_path: Path) -> Path:
    """A CUDA 13 build of torch, as its wheel lies in site-packages."""
    folder = tmp_path / "site-packages" / "torch"
    for header in TORCH_HEADERS:
        path = folder / "include" / header
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    return folder


def with_runtime(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUNTIME_HEADER).touch()
    return folder


@pytest.mark.parametrize("place", ["nvidia/cu13/include", "nvidia/cuda_runtime/include"])
def test_the_headers_that_came_with_torch_are_found(torch_dir: Path, place: str) -> None:
    folder = with_runtime(torch_dir.parent / place)
    assert find(torch_dir, {}) == [folder, SHIM_DIR]


def test_cuda_home_comes_before_the_packages_and_those_before_the_machines_toolkit(
    torch_dir: Path, tmp_path: Path
) -> None:
    toolkit = with_runtime(tmp_path / "usr-local-cuda" / "include")
    assert find(torch_dir, {}) == [toolkit, SHIM_DIR]
    package = with_runtime(torch_dir.parent / "nvidia" / "cu13" / "include")
    assert find(torch_dir, {}) == [package, SHIM_DIR]
    home = with_runtime(tmp_path / "home" / "targets" / "sbsa-linux" / "include")
    assert find(torch_dir, {"CUDA_HOME": str(tmp_path / "home")}) == [home, SHIM_DIR]


def test_a_versioned_toolkit_is_found_newest_first(torch_dir: Path, tmp_path: Path) -> None:
    with_runtime(tmp_path / "usr-local" / "cuda-12.4" / "include")
    newest = with_runtime(tmp_path / "usr-local" / "cuda-13.0" / "include")
    assert find(torch_dir, {})[0] == newest


def test_without_headers_the_error_names_the_header_and_one_command(torch_dir: Path) -> None:
    with pytest.raises(RankmemError, match=RUNTIME_HEADER) as raised:
        find(torch_dir, {})
    assert raised.value.code is Code.UNSUPPORTED
    assert raised.value.hint == "pip install 'nvidia-cuda-runtime==13.*'"


@pytest.mark.parametrize(
    ("version", "package"),
    [
        ("cuda: Optional[str] = '12.4'\n", "nvidia-cuda-runtime-cu12"),
        ("cuda = '11.8'\n", "nvidia-cuda-runtime-cu11"),
        ("cuda: Optional[str] = '13.2'\n", "'nvidia-cuda-runtime==13.*'"),
        ("cuda: Optional[str] = None\n", "nvidia-cuda-runtime"),
    ],
)
def test_the_package_is_that_of_torchs_cuda_version(tmp_path: Path, version: str, package: str) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.x'\n{version}")
    assert runtime_package(tmp_path) == package


def test_a_cpu_build_of_torch_is_named_as_the_reason(torch_dir: Path) -> None:
    (torch_dir / "include" / TORCH_HEADERS[1]).unlink()
    with pytest.raises(RankmemError, match="built without CUDA"):
        find(torch_dir, {})


def test_the_shim_has_the_headers_that_the_wheels_lack() -> None:
    assert {path.name for path in (SHIM_DIR / "crt").iterdir()} >= {"host_defines.h", "host_config.h"}
