"""The tap with its CUDA side compiles as the one translation unit that it is, where CUDA is not installed.

The tests of the CUDA side itself need a CUDA build of torch and are skipped without one; two parts that take
the same name would go unnoticed until then. Here the names that torch's headers want of CUDA come from a few
lines beside this file.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from rankmem_agent.spool.c_header import c_header
from rankmem_agent.tap import build

TAP = Path(build.__file__).parent
INCLUDE = Path(torch.__file__).parent / "include"
NAMES = Path(__file__).parent / "cuda_names"
pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or not (INCLUDE / "c10" / "cuda" / "CUDACachingAllocator.h").is_file(),
    reason="needs g++ and torch's headers for CUDA",
)


@pytest.mark.parametrize("with_evidence", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_tap_with_its_cuda_side_compiles_without_cuda(tmp_path: Path, with_evidence: bool) -> None:
    (tmp_path / "spool_layout.h").write_text(c_header())
    includes = [f"-I{tmp_path}", f"-I{TAP}", f"-isystem{INCLUDE}", f"-isystem{NAMES}"]
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-DRKM_WITH_CUDA"]
    flags += ["-DRKM_WITH_EVIDENCE"] if with_evidence else []
    command = ["g++", *flags, *includes, str(TAP / "unity.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
