"""Programs around PyTorch's real caching allocator, built against a CUDA torch and a fake CUDA runtime.

Needs the libraries and headers of a CUDA build of torch: the installed one, or the folders of unpacked wheels
(``.../torch``) in RANKMEM_TEST_CUDA_TORCH, separated by ``:``. No GPU and no driver is needed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from rankmem_agent.spool.c_header import c_header
from rankmem_agent.spool.layout import Action
from rankmem_agent.tap import cuda_headers
from rankmem_protos.errors import RankmemError

FOLDER = Path(__file__).resolve().parents[1] / "e2e/cuda_fake"
TAP = Path(cuda_headers.__file__).parent
TORCH_ACTIONS = (
    Action.ALLOC,
    Action.FREE_REQUESTED,
    Action.FREE_COMPLETED,
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_FREE,
    Action.SEGMENT_MAP,
    Action.SEGMENT_UNMAP,
    Action.SNAPSHOT,
    Action.OOM,
)
"""TraceEntry::Action by number, as its header has them: another order than ours."""
WHY = "needs a CUDA build of torch (installed, or unpacked and named in RANKMEM_TEST_CUDA_TORCH) and g++"


def torch_dirs() -> list[Path]:
    """The folders of CUDA builds of torch at hand."""
    named = [Path(entry) for entry in os.environ.get("RANKMEM_TEST_CUDA_TORCH", "").split(":") if entry]
    spec = find_spec("torch")
    installed = [Path(entry) for entry in (spec.submodule_search_locations or ())] if spec else []
    return [folder for folder in (*named, *installed) if (folder / "lib" / "libc10_cuda.so").exists()]


def trainable_dirs(oldest: tuple[int, int] = (2, 6)) -> list[Path]:
    """Those of them for CUDA 13 and this Python: trainings run with them on ``matrix_stand_ins``' device."""
    return [
        folder
        for folder in torch_dirs()
        if list(folder.glob(f"_C.cpython-3{sys.version_info.minor}-*.so"))
        and re.search(r"^cuda.*'13\.", (folder / "version.py").read_text(), re.MULTILINE)
        and tuple(int(part) for part in version_of(folder).split(".")[:2]) >= oldest
    ]


def version_of(folder: Path) -> str:
    """The version of the torch in a folder."""
    match = re.search(r"__version__ = '([^']*)'", (folder / "version.py").read_text())
    return match.group(1) if match else folder.parent.name


def run(command: Sequence[str | Path]) -> None:
    """Runs a command that must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def build(torch_dir: Path, out: Path, name: str, *more: Path) -> Path:
    """The program ``name`` of ``cuda_fake/{name}.cpp`` and further sources, the fake runtime beside it."""
    soname = re.search(rb"libcudart\.so\.\d+", (torch_dir / "lib" / "libc10_cuda.so").read_bytes())
    assert soname is not None
    runtime = out / soname.group().decode()
    (out / "map").write_text(f"{runtime.name} {{ global: *; }};\n")
    (out / "spool_layout.h").write_text(c_header())
    script = f"-Wl,-soname,{runtime.name},--version-script={out / 'map'}"
    quiet = "-Wno-builtin-declaration-mismatch"
    run(
        [
            "gcc",
            "-O1",
            "-shared",
            "-fPIC",
            quiet,
            "-o",
            runtime,
            FOLDER / "fake_cudart.c",
            script,
            "-lpthread",
        ]
    )
    try:
        includes = cuda_headers.find(torch_dir)
    except RankmemError as error:
        pytest.skip(str(error))
    # Wheels of torch 2.6 are built with the old ABI of std::string.
    old_abi = b"_ZN3c105ErrorC1ENS_14SourceLocationESs" in (torch_dir / "lib" / "libc10.so").read_bytes()
    run(
        ["g++", "-std=c++20", "-O2", f"-D_GLIBCXX_USE_CXX11_ABI={int(not old_abi)}", "-o", out / name]
        + [FOLDER / f"{name}.cpp", *more, f"-I{out}", f"-I{TAP}", f"-isystem{torch_dir / 'include'}"]
        + [f"-isystem{folder}" for folder in includes]
        + [
            f"-L{torch_dir / 'lib'}",
            f"-L{out}",
            "-lc10_cuda",
            "-lc10",
            f"-l:{runtime.name}",
            "-ldl",
            "-lpthread",
        ]
        + [f"-Wl,-rpath,{torch_dir / 'lib'}:{out}", "-Wl,--allow-shlib-undefined"]
    )
    return out / name
