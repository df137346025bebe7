"""The checks of ``rankmem doctor`` on CUDA: headers, devices, allocator, NVML, and the fallback.

Stage: tap; runs in the command's process. In: the installed torch, the machine. Out: checks like those of
:mod:`rankmem_agent.tap.doctor`. It allocates nothing on a device and creates no CUDA context; it must
never raise for a machine that lacks something.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any, Final

from rankmem_agent.tap import build, cuda_headers
from rankmem_agent.tap.accelerators import WITHOUT_TAP, Accelerator
from rankmem_agent.tap.doctor import Check
from rankmem_agent.tap.snapshot_ring import TorchHistory
from rankmem_protos.errors import RankmemError

NVML_LIBRARY: Final = "libnvidia-ml.so.1"
NO_CACHING: Final = "PYTORCH_NO_CUDA_MEMORY_CACHING"


def examine(torch: Any = None, environ: Mapping[str, str] = os.environ) -> list[Check]:
    """The checks of CUDA, or of the accelerators that torch is built for instead.

    Args:
        torch: the module torch; default: the installed one.
        environ: what the trainer's environment will be.
    """
    if torch is None:
        import torch
    others = [_without_tap(each, torch) for each in WITHOUT_TAP if each.is_built(torch)]
    if torch.version.cuda is None:
        return others or [
            Check(name="cuda", ok=True, detail="this torch is built without CUDA: nothing to record there")
        ]
    headers = _headers()
    checks = [headers, _devices(torch), _allocator(torch, environ), _nvml()]
    if not headers.ok or build.find_compiler() is None:
        checks.append(_fallback(torch))
    return checks + others


def _without_tap(accelerator: Accelerator, torch: Any) -> Check:
    """Whether an accelerator's own history can be drained."""
    name = accelerator.label.lower()
    if not accelerator.has_history(torch):
        detail = "its allocator keeps no history in this torch: its memory is not recorded, which answers say"
        return Check(name=name, ok=False, detail=detail, hint="update torch")
    if not accelerator.has_device():
        return Check(name=name, ok=True, detail=f"no device here: none of {', '.join(accelerator.nodes)}")
    detail = "recorded through PyTorch's memory history, without operators; never tried on such a device"
    return Check(name=name, ok=True, detail=detail)


def _headers() -> Check:
    try:
        folder, *_ = cuda_headers.find()
    except RankmemError as exc:
        return Check(name="cuda headers", ok=False, detail=exc.message, hint=exc.hint)
    return Check(name="cuda headers", ok=True, detail=str(folder))


def _devices(torch: Any) -> Check:
    """Not a failure without any: the tap may be built ahead where there is no GPU."""
    count = torch.cuda.device_count()
    if not count:
        return Check(name="cuda devices", ok=True, detail="none is visible here: nothing was tried on one")
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    return Check(name="cuda devices", ok=True, detail=f"{count}: {names}")


def _allocator(torch: Any, environ: Mapping[str, str]) -> Check:
    """Whether the allocator reports its events."""
    backend = str(torch.cuda.memory.get_allocator_backend())
    name = "cuda allocator"
    if backend != "native":
        detail = f"{backend} reports no events: a rank gets samples of its devices' memory only"
        return Check(name=name, ok=False, detail=detail, hint="unset backend in PYTORCH_CUDA_ALLOC_CONF")
    if NO_CACHING in environ:
        detail = f"{NO_CACHING} is set: allocations bypass the allocator: only samples are recorded"
        return Check(name=name, ok=False, detail=detail, hint=f"unset {NO_CACHING}")
    settings = (
        environ.get("PYTORCH_ALLOC_CONF") or environ.get("PYTORCH_CUDA_ALLOC_CONF") or "default settings"
    )
    return Check(name=name, ok=True, detail=f"native, {settings}")


def _nvml() -> Check:
    """Samples of a device's memory are taken through NVML, which comes with the driver."""
    try:
        ctypes.CDLL(NVML_LIBRARY)
    except OSError:
        detail = f"no {NVML_LIBRARY}: events are recorded, samples of the devices' memory are not"
        hint = "install the NVIDIA driver's library, or start the container with the capability utility"
        return Check(name="nvml", ok=False, detail=detail, hint=hint)
    return Check(name="nvml", ok=True, detail=NVML_LIBRARY)


def _fallback(torch: Any) -> Check:
    """Whether PyTorch's own history can stand in for the tap."""
    try:
        TorchHistory(torch)
    except RankmemError as exc:
        return Check(name="cuda fallback", ok=False, detail=exc.message, hint=exc.hint)
    return Check(name="cuda fallback", ok=True, detail="PyTorch's memory history, drained by snapshots")
