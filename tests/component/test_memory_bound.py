"""The bound on a process's memory: held by the kernel, and not met by threads that wait."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

import pytest

from rankmem_aggregator.supervision.parent_pipe import NO_MEMORY

BOUNDED = """
import resource, threading
from rankmem_aggregator.supervision.memory_bound import MemoryBound
bound = MemoryBound(256 << 20)
first = resource.getrlimit(resource.RLIMIT_DATA)[0]
{then}
"""
TAKES = "bytearray(4 << 30)"
THREADS = """
over = threading.Event()
for number in range(100):
    threading.Thread(target=over.wait).start()
    bound.follow_threads()
stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
print((resource.getrlimit(resource.RLIMIT_DATA)[0] - first) // stack)
over.set()
"""


def run(then: str, *, stack_bytes: int = 8 << 20) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BOUNDED.format(then=then)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (stack_bytes, resource.RLIM_INFINITY)),
    )


def test_what_goes_beyond_fails_in_the_process() -> None:
    done = run(TAKES)
    if done.returncode != -signal.SIGABRT:  # a thread of gRPC's may need memory at that very moment
        assert done.returncode == 1
        assert done.stderr.rstrip().endswith("MemoryError")


def test_stacks_of_threads_come_on_top() -> None:
    done = run(THREADS)
    assert (done.returncode, done.stdout) == (0, "100\n"), done.stderr


MEASURED = """
import re
from pathlib import Path
def data_bytes():
    return int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
before = data_bytes()
over = threading.Event()
for number in range(100):
    threading.Thread(target=over.wait).start()
    bound.follow_threads()
stacks = resource.getrlimit(resource.RLIMIT_DATA)[0] - first
print(0.9 < stacks / (data_bytes() - before) < 1.1)
over.set()
"""


@pytest.mark.parametrize("stack_bytes", [resource.RLIM_INFINITY, 2 << 20, 8 << 20, 32 << 20])
def test_stacks_count_as_large_as_they_are_whatever_the_shell_allows(stack_bytes: int) -> None:
    """Batch systems start their jobs with ``ulimit -s unlimited``: stacks are then the C library's 2 MiB."""
    done = run(MEASURED, stack_bytes=stack_bytes)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


NO_ROOM = """
import mmap
held = []
while True:
    try:
        held.append(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except (OSError, MemoryError):
        break
relieved = []
print(bound.look(lambda: relieved.append(1)), len(relieved))
del held[:80]
print(bound.look(lambda: relieved.append(1)), len(relieved), flush=True)
while len(held) < 10000:
    try:
        held.append(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except (OSError, MemoryError):
        break
for look in range(10):
    print(bound.look(lambda: None), flush=True)
"""


def test_without_room_statements_are_stopped_and_the_process_ends_if_none_comes() -> None:
    done = run(NO_ROOM)
    assert done.returncode == NO_MEMORY, done.stderr
    assert done.stdout.split() == ["False", "1", "True", "1", "False", "False"]
    assert "no memory is left below the bound" in done.stderr


def test_a_limit_that_is_there_already_is_not_raised() -> None:
    done = run(
        "resource.setrlimit(resource.RLIMIT_DATA, (300 << 20, resource.RLIM_INFINITY))\n"
        "MemoryBound(1 << 40)\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20)"
    )
    assert done.stdout == "300\n", done.stderr


@pytest.mark.parametrize(
    "module", ["rankmem_aggregator.supervision.memory_bound", "rankmem_aggregator.supervision.supervisor"]
)
def test_a_parent_loads_nothing_heavy(module: str) -> None:
    script = (
        f"import sys, {module}; print(sorted({{'duckdb', 'grpc', 'pyarrow', 'numpy'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
