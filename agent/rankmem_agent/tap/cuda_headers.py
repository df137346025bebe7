"""Where the CUDA headers are that the CUDA side of the tap needs, or what is missing and how to get it.

Stage: tap, at build time (trainer on first use, or ``rankmem doctor``). Comes in: the folder of the installed
torch and the environment. Goes out: include folders in the order of search. Reads the file system only;
it must never import torch, start a compiler or fail without naming the header and the one command.

torch's own headers include ``cuda_runtime_api.h``. A wheel of torch depends on the package that has it
(nvidia-cuda-runtime); that package lacks the ``crt`` folder, for which ``cuda_shim`` beside this module
stands in, so no toolkit is needed: with both the object code is the same byte for byte (torch 2.11 and 2.15).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rankmem_protos.errors import Code, RankmemError

RUNTIME_HEADER: Final = "cuda_runtime_api.h"
TORCH_HEADERS: Final = ("c10/cuda/CUDACachingAllocator.h", "c10/cuda/impl/cuda_cmake_macros.h")
"""Headers that torch itself must bring; the CPU wheel has the first and lacks the second."""
SHIM_DIR: Final = Path(__file__).parent / "cuda_shim"

_TOOLKITS: Final = (Path("/usr/local/cuda"), Path("/opt/cuda"))
_VERSIONED_TOOLKITS: Final = Path("/usr/local")
_CUDA_VERSION: Final = re.compile(r"^cuda\b[^=]*=\s*'(\d+)\.", re.MULTILINE)


def find(torch_dir: Path | None = None, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Include folders for compiling against ``c10/cuda``, in order of search; torch's own is not among them.

    Args:
        torch_dir: folder of the package torch; default: the one that Python would import.
        environ: CUDA_HOME, CUDA_PATH and CONDA_PREFIX are read from it.

    Returns:
        One folder with ``cuda_runtime_api.h`` (and ``crt`` where it has one), then the shim for ``crt``.

    Raises:
        RankmemError: UNSUPPORTED, naming the missing header and the command that brings it.
    """
    torch_dir = torch_dir or _torch_dir()
    for header in TORCH_HEADERS:
        if not (torch_dir / "include" / header).is_file():
            message = f"this torch has no {header} ({torch_dir}): it is built without CUDA"
            raise RankmemError(Code.UNSUPPORTED, message, "install a CUDA build of torch")
    for folder in _candidates(torch_dir, environ):
        if (folder / RUNTIME_HEADER).is_file():
            return [folder, SHIM_DIR]
    raise RankmemError(
        Code.UNSUPPORTED,
        f"no {RUNTIME_HEADER}: looked in CUDA_HOME, torch's nvidia packages and /usr/local/cuda",
        f"pip install {runtime_package(torch_dir)}",
    )


def runtime_package(torch_dir: Path) -> str:
    """The package that holds the CUDA headers of this torch's CUDA version, as pip takes it."""
    major = cuda_major(torch_dir)
    if major is None:
        return "nvidia-cuda-runtime"
    return f"nvidia-cuda-runtime-cu{major}" if major <= 12 else f"'nvidia-cuda-runtime=={major}.*'"


def cuda_major(torch_dir: Path) -> int | None:
    """The major CUDA version that torch is built with, from its ``version.py``; None without one."""
    try:
        match = _CUDA_VERSION.search((torch_dir / "version.py").read_text())
    except OSError:
        return None
    return int(match.group(1)) if match else None


def _candidates(torch_dir: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Folders to look in: what the user names, what came with torch, what the machine has."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield from _toolkit_includes(Path(environ[name]))
    site_packages = (torch_dir.parent, *(Path(entry) for entry in sys.path if entry))
    for folder in dict.fromkeys(site_packages):
        yield folder / "nvidia" / f"cu{cuda_major(torch_dir)}" / "include"
        yield folder / "nvidia" / "cuda_runtime" / "include"
    if environ.get("CONDA_PREFIX"):
        yield from _toolkit_includes(Path(environ["CONDA_PREFIX"]))
    for toolkit in (*_TOOLKITS, *sorted(_VERSIONED_TOOLKITS.glob("cuda-*"), reverse=True)):
        yield from _toolkit_includes(toolkit)


def _toolkit_includes(home: Path) -> Iterator[Path]:
    yield home / "include"
    yield from sorted((home / "targets").glob("*-linux/include"))


def _torch_dir() -> Path:
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise RankmemError(Code.UNSUPPORTED, "torch is not installed here", "install torch")
    return Path(spec.submodule_search_locations[0])
