"""Taps that a wheel brings: for some releases of torch, so that a machine without a compiler records exactly.

Stage: tap. In: the libraries in ``taps/``, if this installation has any; out: the one that was made for
the very torch, Python and sources that are here, or none. Runs in the trainer when recording starts and in
``rankmem doctor``. Standard library and torch only. ``make taps`` makes them.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_agent.spool.c_header import c_header

logger = logging.getLogger(__name__)

FOLDER: Final = Path(__file__).parent / "taps"

# C++20: torch's headers use concepts from 2.12 on; 2.6's compile the same way.
FLAGS: Final = (
    "-std=c++20",
    "-O2",
    "-g1",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-plt",
    "-pthread",
)
"""What a tap is compiled with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A tap that can be loaded."""

    path: Path
    """The shared library."""
    has_cuda: bool
    """Whether CUDA's events can be recorded with it."""
    compiled_s: float
    """Seconds the compiler took now; 0.0 if it was in the cache or came with rankmem."""
    is_prebuilt: bool
    """Whether it came with rankmem."""
    cuda_missing: str
    """Why it has no CUDA although torch does; empty otherwise."""


def find_prebuilt() -> Build | None:
    """The tap for this Python and torch that came with rankmem, if one did and this system can load it."""
    import torch

    if not FOLDER.is_dir():
        return None
    has_cuda = torch.version.cuda is not None
    path = FOLDER / file_name(tap_key(has_cuda=has_cuda))
    if not path.is_file():
        return None
    try:
        ctypes.CDLL(str(path))
    except OSError as exc:  # made for a newer C library, say
        logger.warning("the tap that came with rankmem cannot be loaded, so one is built here: %s", exc)
        return None
    return Build(path=path, has_cuda=has_cuda, compiled_s=0.0, is_prebuilt=True, cuda_missing="")


def file_name(key: str) -> str:
    """Of the tap with this key, below :data:`FOLDER`."""
    return f"tap-{key}.so"


def tap_key(*, has_cuda: bool, with_evidence: bool = False) -> str:
    """What a tap was made for, in 16 letters: all that may change it but the compiler."""
    import torch

    facts = (
        torch.__version__, torch.version.git_version, torch.version.cuda, has_cuda,
        torch.compiled_with_cxx11_abi(), sys.version_info[:2], platform.machine(), FLAGS,
    )  # fmt: skip
    digest = hashlib.sha256(repr((*facts, *(["evidence"] if with_evidence else []))).encode())
    for source in sources(has_cuda=has_cuda):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    digest.update(c_header().encode())
    return digest.hexdigest()[:16]


def sources(*, has_cuda: bool) -> list[Path]:
    """The files that a tap is compiled of."""
    folder = Path(__file__).parent
    files = sorted([*folder.rglob("*.cpp"), *folder.rglob("*.h")])  # with the stand-ins for CUDA's headers
    return [file for file in files if has_cuda or "cuda" not in str(file.relative_to(folder))]
