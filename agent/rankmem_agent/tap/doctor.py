"""The checks of ``rankmem doctor`` on this machine: can the tap be built, loaded and trusted here?

Stage: tap; runs in the command's process, or under a test. In: the installed torch, the compiler, the
spool's folder. Out: a list of checks with what to do about each that failed. It builds the tap if it is
not in the cache, and records a few tensors in a process of its own: the allocator and callback that a tap
attaches stay for good, so they never enter the process that asks. It must never raise for a machine that
lacks something: that is its answer.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_agent.spool.folder import SHARED_MEMORY, free_bytes
from rankmem_agent.spool.layout import SEGMENT_BYTES
from rankmem_agent.tap import build
from rankmem_agent.tap.library import CpuSees
from rankmem_protos.errors import Code, RankmemError

SELF_TEST_TIMEOUT_S: Final = 120  # importing torch from a cold network file system takes half of it
SELF_TEST_BLOCKS: Final = 64
ROOM_BYTES: Final = 8 * SEGMENT_BYTES
_CUDA_CHECKS: Final = "rankmem_agent.tap.doctor_cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    """The finding, with the value."""
    hint: str = ""
    """What to do if it is not ok."""


def examine() -> list[Check]:
    """All checks, in the order in which one needs the other; what needs a failed one is left out."""
    checks = [_guarded("torch", _torch)]
    if not checks[0].ok:
        return checks
    checks += [_guarded("compiler", _compiler), _guarded("torch headers", _headers), _guarded("tap", _tap)]
    if checks[-1].ok:
        checks += _self_test()
    checks += _cuda()
    checks.append(_guarded("spool folder", _spool_folder))
    return checks


def _guarded(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except RankmemError as exc:
        return Check(name=name, ok=False, detail=exc.message, hint=exc.hint)


def _torch() -> Check:
    try:
        import torch
    except ImportError as exc:
        return Check(name="torch", ok=False, detail=str(exc), hint="install torch 2.6 or newer here")
    kind = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    detail = f"{torch.__version__} for {kind}, Python {sys.version_info.major}.{sys.version_info.minor}"
    return Check(name="torch", ok=True, detail=detail)


def _compiler() -> Check:
    found = build.find_compiler()
    if found is None:
        if build.ensure_built().is_prebuilt:
            return Check(name="compiler", ok=True, detail="none here, and none needed")
        hint = f"{build.COMPILER_HINT}; not needed where the tap was built ahead"
        return Check(name="compiler", ok=False, detail="none of $CXX, g++, c++, clang++ is here", hint=hint)
    return Check(name="compiler", ok=True, detail=found)


def _headers() -> Check:
    return Check(name="torch headers", ok=True, detail=str(build.torch_include_dir()))


def _tap() -> Check:
    built = build.ensure_built()
    if built.is_prebuilt:
        how = "came with rankmem, made for this very torch and Python"
    else:
        how = f"built in {built.compiled_s:.1f} s" if built.compiled_s else "in the cache"
    devices = "cpu and cuda" if built.has_cuda else "cpu"
    return Check(name="tap", ok=True, detail=f"{how}, for {devices}: {built.path}")


def _self_test() -> list[Check]:
    """Record a few tensors in another process and read them back."""
    with tempfile.TemporaryDirectory(prefix="rankmem-doctor-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "rankmem_agent.tap.self_test", folder, str(SELF_TEST_BLOCKS)],
                capture_output=True, text=True, timeout=SELF_TEST_TIMEOUT_S, check=False,
                env={**os.environ, "RANKMEM_DISABLE": "1"},
            )  # fmt: skip
            found = json.loads(done.stdout)
        except (OSError, subprocess.TimeoutExpired, ValueError) as exc:
            return [Check(name="self test", ok=False, detail=f"it did not answer: {exc}", hint=_REPORT)]
    return [*_judged(found)]


_REPORT: Final = "run it with -v and report the output: this is a defect of rankmem"


def _judged(found: dict[str, int]) -> Iterable[Check]:
    recorded = f"{found['allocs']} of {SELF_TEST_BLOCKS} blocks got and {found['frees']} given back"
    exact = found["allocs"] == found["frees"] == SELF_TEST_BLOCKS
    cost = f"{found['event_ns']} ns an event" if found["event_ns"] else "an event too cheap to measure now"
    detail = f"recorded {recorded}, {cost}, {found['dropped']} records lost"
    yield Check(name="self test", ok=exact and not found["dropped"], detail=detail, hint=_REPORT)
    yield _cpu_memory(CpuSees(found["cpu_sees"]))
    named = found["python_found"] and found["stacks"]
    again = "without the GIL" if found["frames_known"] else "with the GIL: this Python's frames are not known"
    seen = f"{found['stacks']} seen, known again {again}"
    detail = seen if named else "CPython's functions are not visible in this process"
    yield Check(name="python stacks", ok=bool(named), detail=detail, hint="use CPython 3.11 to 3.14")
    by_frames = "read from Python frames, without a hook in any"
    by_hooks = (
        "through global forward hooks: this Python's frames are not known, a module's call costs 5 us more"
    )
    yield Check(name="modules", ok=True, detail=by_frames if found["modules_followed"] else by_hooks)


def _cpu_memory(sees: CpuSees) -> Check:
    """Whether all of torch's CPU memory is seen, so that recordings are exact."""
    parts = {
        CpuSees.REGISTERED: "tensors",
        CpuSees.DEFAULT: "storages made directly (UntypedStorage, deep copies)",
        CpuSees.MAPPED: "mapped files and shared memory",
    }
    seen = [name for part, name in parts.items() if part in sees]
    unseen = [name for part, name in parts.items() if part not in sees]
    detail = f"seen: {', '.join(seen) or 'nothing'}"
    if unseen:
        detail += f"; not seen: {', '.join(unseen)}"
    hint = "what is not seen is missing from every figure of the device cpu; another torch, or report this"
    return Check(name="cpu memory", ok=not unseen, detail=detail, hint=hint)


def _cuda() -> list[Check]:
    """CUDA's own checks, where that part is there."""
    if importlib.util.find_spec(_CUDA_CHECKS) is None:
        return []
    checks: list[Check] = importlib.import_module(_CUDA_CHECKS).examine()
    return checks


def _spool_folder() -> Check:
    named = os.environ.get("RANKMEM_SPOOL_DIR")
    root = Path(named) if named else SHARED_MEMORY
    while not root.exists():
        root = root.parent
    free = free_bytes(root)
    detail = f"{root} has {free / 2**30:.1f} GiB free"
    if free < ROOM_BYTES and not named:
        detail += f"; {tempfile.gettempdir()} is used"
        free = free_bytes(Path(tempfile.gettempdir()))
    hint = "name a local folder with room in RANKMEM_SPOOL_DIR"
    if not os.access(root, os.W_OK):
        raise RankmemError(Code.DENIED, f"{root} is not writable", hint)
    return Check(name="spool folder", ok=free >= ROOM_BYTES, detail=detail, hint=hint)
