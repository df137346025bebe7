"""Pinned host memory as the tap samples it, from a host allocator for CUDA that says what the test wants."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from rankmem_agent.spool.layout import UNKNOWN, DeviceType, Kind
from tap_process import record_process

TORCH = Path(torch.__file__).parent
HEADER = TORCH / "include" / "ATen" / "core" / "CachingHostAllocator.h"
HAS_REGISTRY = HEADER.is_file() and "getHostAllocator" in HEADER.read_text()
COUNTS_IN_USE = "void maybe_cache_block(" in HEADER.read_text() if HEADER.is_file() else False
"""Whether this torch takes blocks that waited for a stream off the bytes in use; see tap_pinned.cpp."""
IN_USE = 1 << 30
pytestmark = pytest.mark.skipif(
    not HAS_REGISTRY or shutil.which("g++") is None,
    reason="needs g++ and torch's registry of host allocators",
)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake as a library."""
    library = tmp_path_factory.mktemp("host_allocator") / "fake.so"
    source = Path(__file__).parent / "host_allocator" / "fake.cpp"
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", f"-isystem{TORCH / 'include'}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    libraries = [str(TORCH / "lib" / name) for name in ("libc10.so", "libtorch_cpu.so")]
    command = ["g++", *flags, abi, str(source), "-o", str(library), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return library


def test_what_the_host_allocator_holds_is_sampled_once_it_holds_something(fake: Path, tmp_path: Path) -> None:
    script = f"""
import ctypes
print(tap.sample_pinned())                        # nobody is registered for CUDA
fake = ctypes.CDLL({str(fake)!r})
fake.fake_install()
print(tap.sample_pinned())                        # there is one, and it holds nothing
fake.fake_say(ctypes.c_int64(3 << 30), ctypes.c_int64(1 << 30))
print(tap.sample_pinned())
fake.fake_fail(1)
print(tap.sample_pinned())                        # it raises
fake.fake_fail(0)
fake.fake_say(ctypes.c_int64(0), ctypes.c_int64(0))   # empty_cache()
print(tap.sample_pinned())
tap.close()
print(tap.sample_pinned())                        # no spool
"""
    recording = record_process(script, tmp_path)
    assert recording.stdout.split() == ["False", "True", "True", "False", "True", "False"], recording.stderr
    samples = recording.of(Kind.SAMPLE)
    pinned = samples[samples["device_type"] == DeviceType.PINNED]
    assert [tuple(int(sample[field]) for field in "abcd") for sample in pinned] == [
        (3 << 30, IN_USE if COUNTS_IN_USE else UNKNOWN, UNKNOWN, UNKNOWN),
        (0, 0 if COUNTS_IN_USE else UNKNOWN, UNKNOWN, UNKNOWN),
    ]


def test_a_child_never_inherits_the_host_allocator_locked_by_a_sample(fake: Path, tmp_path: Path) -> None:
    script = f"""
import ctypes, time
fake = ctypes.CDLL({str(fake)!r})
fake.fake_install()
fake.fake_look_for(8)
over = threading.Event()
def sample():
    while not over.is_set():
        tap.sample_pinned()
        time.sleep(0.002)
sampling = threading.Thread(target=sample)
sampling.start()
free = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(fake.fake_is_free())
    free.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
sampling.join()
tap.close()
print(free)
"""
    recording = record_process(script, tmp_path)
    assert recording.stdout.strip() == str([1] * 20), recording.stderr
