"""How the databases of nvprof and Nsight Systems are recognised. Light: imported before any reader."""

from __future__ import annotations

from typing import Final

from rankmem_imports.probing import Probe

NVPROF: Final = "nvprof"
NVPROF_STRINGS: Final = "StringTable"
NVPROF_KERNELS: Final = "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"
RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
"""Of either."""

NSYS: Final = "nsys"
NSYS_STRINGS: Final = "StringIds"
NSYS_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
NSYS_MEMORY: Final = "CUDA_GPU_MEMORY_USAGE_EVENTS"
NSYS_RANGES: Final = "NVTX_EVENTS"
NSYS_START: Final = "TARGET_INFO_SESSION_START_TIME"
_OF_NSYS: Final = frozenset(
    {NSYS_KERNELS, NSYS_MEMORY, NSYS_RANGES, NSYS_START, "META_DATA_EXPORT", "EXPORT_META_DATA"}
)


def recognises_nvprof(probe: Probe) -> bool:
    """CUPTI's tables beside nvprof's table of strings."""
    return {NVPROF_STRINGS, NVPROF_KERNELS, RUNTIME} <= probe.sqlite_tables


def recognises_nsys(probe: Probe) -> bool:
    """The exporter's tables."""
    return NSYS_STRINGS in probe.sqlite_tables and not _OF_NSYS.isdisjoint(probe.sqlite_tables)
