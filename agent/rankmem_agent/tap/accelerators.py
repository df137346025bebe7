"""The accelerators that torch may use here, and how a rank follows their allocators.

Stage: trainer, while the agent attaches. The one place for what differs between them. CUDA has the native
tap. The others are followed through the history that their allocators keep themselves
(:mod:`rankmem_agent.tap.snapshot_drain`): it has the same functions and the same entries under each name.

Source: ``torch/cuda/memory.py`` (a ROCm build's as well), ``torch/xpu/memory.py`` (2.13), torch_npu's
``npu/memory.py``. Only CUDA's was run on a device.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rankmem_agent.spool.layout import DeviceType


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A kind of device, as a build of torch knows it."""

    label: str
    """As its users call it."""
    name: str
    """Of torch's devices, of the part of torch that drives them, and in RANKMEM_DEVICES."""
    device_type: DeviceType
    built_for: str = ""
    """What ``torch.version`` has where torch is built for it."""
    package: str = ""
    """Or the package that adds it to torch."""
    nodes: tuple[str, ...]
    """One is there where a device can be used: its driver makes it."""
    settings: str
    """The variable with its allocator's settings."""
    tells_recording: bool = True
    """Whether torch says if the history is switched on."""

    def is_built(self, torch: Any) -> bool:
        """Whether this torch can use such devices."""
        if self.package:
            return self.package in sys.modules and hasattr(torch, self.name)
        return getattr(torch.version, self.built_for, None) is not None

    def has_device(self) -> bool:
        """Whether there is one to be used. Does not initialise it."""
        return any(Path(node).exists() for node in self.nodes)

    def part(self, torch: Any) -> Any:
        """``torch.cuda`` or its like."""
        return getattr(torch, self.name)

    def native(self, torch: Any, what: str) -> Any:
        """The function of this kind in C++, as ``_cuda_memoryStats``; None where it is absent."""
        module = sys.modules[self.package] if self.package else torch
        return getattr(getattr(module, "_C", None), f"_{self.name}_{what}", None)

    def has_history(self, torch: Any) -> bool:
        """Whether its allocator keeps a history that can be read."""
        return not self.missing(torch)

    def missing(self, torch: Any) -> list[str]:
        """What a history needs and this torch lacks."""
        memory = getattr(self.part(torch), "memory", None)
        wanted = ("_record_memory_history", "_snapshot")
        native = ("memoryStats", *(("isHistoryEnabled",) if self.tells_recording else ()))
        return [name for name in wanted if not hasattr(memory, name)] + [
            f"_{self.name}_{name}" for name in native if self.native(torch, name) is None
        ]


CUDA: Final = Accelerator(
    label="CUDA",
    name="cuda",
    device_type=DeviceType.CUDA,
    built_for="cuda",
    nodes=("/dev/nvidiactl",),
    settings="PYTORCH_CUDA_ALLOC_CONF",
)
ROCM: Final = Accelerator(
    label="ROCm",
    name="cuda",  # torch's own name for them
    device_type=DeviceType.CUDA,
    built_for="hip",
    nodes=("/dev/kfd",),
    settings="PYTORCH_HIP_ALLOC_CONF",
)
XPU: Final = Accelerator(
    label="XPU",
    name="xpu",
    device_type=DeviceType.XPU,
    built_for="xpu",
    nodes=("/dev/dri", "/dev/dxg"),
    settings="PYTORCH_ALLOC_CONF",
    tells_recording=False,
)
NPU: Final = Accelerator(
    label="NPU",
    name="npu",
    device_type=DeviceType.NPU,
    package="torch_npu",
    nodes=("/dev/davinci_manager",),
    settings="PYTORCH_NPU_ALLOC_CONF",
)
WITHOUT_TAP: Final = (ROCM, XPU, NPU)
