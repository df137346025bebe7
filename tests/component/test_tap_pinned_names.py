"""The figures of pinned host memory under each name that a release of torch has given them.

tap_pinned.cpp is compiled against headers of a few lines that stand in for torch's, so that a release which
renames its statistics is not first noticed by a tap that does not build (``make matrix`` has the real ones).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rankmem_agent.spool.c_header import c_header
from rankmem_agent.tap import build

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

TAP = Path(build.__file__).parent
DEVICE_TYPE = """
#pragma once
namespace c10 { enum class DeviceType : signed char { CPU = 0, CUDA = 1 }; }
namespace at { using c10::DeviceType; }
"""
HEADER = """
#pragma once
#include <c10/core/DeviceType.h>
#include <cstdint>
namespace at {{
struct Stat {{ int64_t current = 0; }};
struct HostStats {{ {fields} }};
struct HostAllocator {{ HostStats {getter}() {{ return {{ {values} }}; }} }};
inline HostAllocator* getHostAllocator(DeviceType) {{ static HostAllocator one; return &one; }}
}}
"""
CONFIG = """
#pragma once
#include <cstddef>
namespace c10::CachingAllocator {
struct AcceleratorAllocatorConfig { static size_t pinned_max_cached_size(); };
}
"""
"""Of torch 2.13 and newer, which count what is in use rightly."""
UNKNOWN = 2**64 - 1
MAIN = """
#include "tap_pinned.cpp"
#include <cstdio>
namespace rankmem {
void write_record(RkmRecord& record) noexcept {
  std::printf("%llu %llu ", (unsigned long long)record.a, (unsigned long long)record.b);
}
}
int main() { std::printf("%d", rankmem::sample_pinned()); }
"""
NOTHING_TOLD = "-38"  # -ENOSYS


def _sampled(folder: Path, header: str | None, config: str | None = None) -> str:
    """What a tap built against these headers samples: taken from the system, in use, and the result."""
    (folder / "c10" / "core").mkdir(parents=True)
    (folder / "c10" / "core" / "DeviceType.h").write_text(DEVICE_TYPE)
    if config is not None:
        (folder / "c10" / "core" / "AllocatorConfig.h").write_text(config)
    if header is not None:
        (folder / "ATen" / "core").mkdir(parents=True)
        (folder / "ATen" / "core" / "CachingHostAllocator.h").write_text(header)
    (folder / "spool_layout.h").write_text(c_header())
    (folder / "main.cpp").write_text(MAIN)
    command = ["g++", "-std=c++20", f"-I{folder}", f"-I{TAP}", str(folder / "main.cpp")]
    done = subprocess.run([*command, "-o", str(folder / "main")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return subprocess.run([str(folder / "main")], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ("Stat active_bytes; Stat allocated_bytes;", "{100}, {300}"),  # 2.10 and newer
        ("Stat allocated_bytes; Stat reserved_bytes;", "{100}, {300}"),  # 2.8, 2.9
    ],
)
def test_bytes_taken_and_bytes_in_use_are_found_under_either_name(
    fields: str, values: str, tmp_path: Path
) -> None:
    header = HEADER.format(fields=fields, values=values, getter="get_stats")
    assert _sampled(tmp_path / "before", header) == f"300 {UNKNOWN} 0", "before 2.13 it is miscounted"
    assert _sampled(tmp_path / "since", header, CONFIG) == "300 100 0"


def test_names_that_no_release_has_had_are_no_figures_and_no_broken_build(tmp_path: Path) -> None:
    header = HEADER.format(fields="Stat bytes_now;", values="{5}", getter="get_stats")
    assert _sampled(tmp_path, header) == NOTHING_TOLD


def test_an_allocator_without_statistics_is_no_figures_and_no_broken_build(tmp_path: Path) -> None:
    header = HEADER.format(fields="Stat active_bytes;", values="{5}", getter="figures")
    assert _sampled(tmp_path, header) == NOTHING_TOLD


def test_a_torch_without_a_registry_of_host_allocators_is_no_figures_and_no_broken_build(
    tmp_path: Path,
) -> None:
    assert _sampled(tmp_path, None) == NOTHING_TOLD
