"""Finds the tap for the torch that is installed: one that came with rankmem, or one built here, once.

Stage: tap. In: the taps in ``taps/``, if this installation has any; the C++ sources beside this module,
the spool's layout, torch's headers, a C++ compiler. Out: the path of a shared library, there or in the cache
(``RANKMEM_TAP_CACHE``, else ``~/.cache/rankmem``). Runs in
the trainer when recording starts and in ``rankmem doctor``; any number of processes at once, of which one
compiles and the others wait for it. Standard library and torch only. It must never leave a half-written
library where another process finds it, nor load one that somebody else may write.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_agent.spool.c_header import c_header
from rankmem_agent.tap.prebuilt import FLAGS, Build, find_prebuilt, tap_key
from rankmem_protos.cache_folder import cache_folder
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

COMPILE_TIMEOUT_S: Final = 300
"""3 s on an idle core, a minute when eight jobs start on two; more means that it hangs."""
COMPILER_LINES_KEPT: Final = 12
"""Of a failing compiler's output: the first error stands near the end of its chain of includes."""
COMPILER_HINT: Final = "install a C++20 compiler (g++ 10 or clang++ 12 or newer) or name one in CXX"

_CUDA_SOURCE: Final = "tap_cuda.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The target of a build: everything that may change the library is in the key."""

    include_dirs: tuple[Path, ...]
    library_dir: Path
    has_cuda: bool
    cuda_missing: str
    cxx11_abi: bool
    with_evidence: bool
    key: str


def build_tap(*, with_evidence: bool = False) -> Path:
    """The path of the tap for this Python, torch and machine, compiled now if it never was.

    Args:
        with_evidence: one that can show where a block is made (``What.EVIDENCE``); it takes longer to
            compile, and none comes with rankmem.

    Raises:
        RankmemError: UNSUPPORTED without a compiler or headers that work, DENIED if the cache belongs to
            another user.
    """
    return ensure_built(with_evidence=with_evidence).path


def ensure_built(*, with_evidence: bool = False) -> Build:
    """As :func:`build_tap`, with what was found out on the way (for ``rankmem doctor``)."""
    prebuilt = None if with_evidence else find_prebuilt()
    if prebuilt is not None:
        return prebuilt
    target = _find_target(with_evidence=with_evidence)
    if target.cuda_missing:
        logger.warning("rankmem records no CUDA events here: %s", target.cuda_missing)
    cache = cache_dir()
    compiler = find_compiler()
    if compiler is None:
        return _found(target, _any_cached(cache, target), 0.0)
    path = cache / f"tap-{target.key}-{_compiler_key(compiler)}.so"
    if path.exists():
        return _found(target, path, 0.0)
    with _locked(path.with_suffix(".lock")):
        if path.exists():  # another rank built it while we waited
            return _found(target, path, 0.0)
        began = time.monotonic()
        _compile(compiler, target, path)
        return _found(target, path, time.monotonic() - began)


def cache_dir() -> Path:
    """The folder of built taps, made if absent, readable by this user alone.

    Raises:
        RankmemError: as :func:`~rankmem_protos.cache_folder.cache_folder`: what lies there is run.
    """
    return cache_folder("RANKMEM_TAP_CACHE")


def find_compiler() -> str | None:
    """The first C++ compiler of ``$CXX``, g++, c++, clang++ that is there; its path."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


def torch_include_dir() -> Path:
    """Where the installed torch keeps its headers.

    Raises:
        RankmemError: UNSUPPORTED if the ones needed are not there.
    """
    import torch

    include = Path(torch.__file__).parent / "include"
    if not (include / "ATen" / "record_function.h").is_file():
        raise RankmemError(
            Code.UNSUPPORTED,
            f"torch {torch.__version__} has no headers in {include}",
            "install torch from its wheel",
        )
    return include


def _find_target(*, with_evidence: bool) -> _Target:
    import torch

    include_dirs = [torch_include_dir()]
    cuda_dirs, missing = _find_cuda(torch.version.cuda)
    return _Target(
        include_dirs=(*include_dirs, *cuda_dirs),
        library_dir=Path(torch.__file__).parent / "lib",
        has_cuda=bool(cuda_dirs),
        cuda_missing=missing,
        cxx11_abi=torch.compiled_with_cxx11_abi(),
        with_evidence=with_evidence,
        key=tap_key(has_cuda=bool(cuda_dirs), with_evidence=with_evidence),
    )


def _find_cuda(cuda_version: str | None) -> tuple[tuple[Path, ...], str]:
    """CUDA's include folders; none, and why, where this torch has CUDA but the tap cannot."""
    if cuda_version is None:
        return (), ""
    if not (Path(__file__).parent / _CUDA_SOURCE).is_file():
        return (), f"this installation has no {_CUDA_SOURCE}"
    from rankmem_agent.tap import cuda_headers

    try:
        return tuple(cuda_headers.find()), ""
    except RankmemError as exc:
        return (), str(exc)


def _compiler_key(compiler: str) -> str:
    """Distinguishes compilers without starting them (a start costs 10 ms of the trainer's)."""
    real = os.path.realpath(compiler)
    facts = os.stat(real)
    return hashlib.sha256(f"{real} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()[:8]


def _found(target: _Target, path: Path, compiled_s: float) -> Build:
    return Build(
        path=path,
        has_cuda=target.has_cuda,
        compiled_s=compiled_s,
        is_prebuilt=False,
        cuda_missing=target.cuda_missing,
    )


def _any_cached(cache: Path, target: _Target) -> Path:
    """Without a compiler: a library that one built ahead, for the very same torch and Python."""
    for path in sorted(cache.glob(f"tap-{target.key}-*.so")):
        return path
    raise RankmemError(Code.UNSUPPORTED, "no C++ compiler found and no tap built ahead", COMPILER_HINT)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)  # gives the lock back; the file stays, removing it would let two in


def _compile(compiler: str, target: _Target, path: Path) -> None:
    """Compile into a folder beside the target, then rename: the library is seen whole or not at all."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
        Path(folder, "spool_layout.h").write_text(c_header())
        output = Path(folder, "tap.so")
        command = _command(compiler, target, folder, output)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=COMPILE_TIMEOUT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise RankmemError(
                Code.UNSUPPORTED, f"{compiler} did not build the tap: {exc}", COMPILER_HINT
            ) from exc
        if done.returncode != 0:
            raise _refused(compiler, done.stderr)
        os.chmod(output, 0o600)
        os.rename(output, path)


def _command(compiler: str, target: _Target, folder: str, output: Path) -> list[str]:
    # libtorch_cuda is never linked: what the tap uses of CUDA is in c10_cuda.
    libraries = ["libc10.so", "libtorch_cpu.so", *(["libc10_cuda.so"] if target.has_cuda else [])]
    return [
        compiler,
        *FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(target.cxx11_abi)}",
        *(["-DRKM_WITH_CUDA"] if target.has_cuda else []),
        *(["-DRKM_WITH_EVIDENCE"] if target.with_evidence else []),
        f"-I{folder}",
        f"-I{Path(__file__).parent}",
        *(f"-isystem{include}" for include in target.include_dirs),
        str(Path(__file__).parent / "unity.cpp"),
        "-o",
        str(output),
        # No path to them is kept: torch has loaded them by then, and a tap fits the same torch elsewhere.
        *(str(target.library_dir / library) for library in libraries),
        "-Wl,-z,nodelete",  # torch's allocator and calls lead into it for as long as the process lives
    ]


def _refused(compiler: str, output: str) -> RankmemError:
    errors = [line for line in output.splitlines() if "error" in line.lower()] or output.splitlines()
    text = "\n".join(errors[:COMPILER_LINES_KEPT])
    return RankmemError(Code.UNSUPPORTED, f"{compiler} could not build the tap:\n{text}", COMPILER_HINT)
