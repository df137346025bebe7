"""Runs scripts in forks of a process that has torch.

To import torch, and Dynamo with the first optimizer, takes three seconds of processor time; most
trainings of the tests take less. As a module: :func:`run_forked`. As a script: the process that is forked.
It reads a line of JSON for each script, answers with the exit code, and ends with its input. A fork has
one thread, a ``__main__`` and a ``sys.path`` of its own, and ends as any interpreter does. For scripts
that do not look at how a process begins.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

TIMEOUT_S = 280


def run_forked(path: Path, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script as ``python PATH ARGUMENTS`` would, without its warnings.

    Args:
        folder: where what it says is kept.
    """
    out, err = folder / "stdout", folder / "stderr"
    forks = _forks()
    assert forks.stdin is not None
    assert forks.stdout is not None
    told = {"argv": [str(path), *arguments], "out": str(out), "err": str(err)}
    forks.stdin.write(json.dumps(told) + "\n")
    forks.stdin.flush()
    answer = forks.stdout.readline()
    assert answer, "the process that is forked has ended; it says why on stderr"
    return subprocess.CompletedProcess([str(path)], int(answer), out.read_text(), err.read_text())


@cache
def _forks() -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OPENBLAS_NUM_THREADS": "1"}  # numpy's
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    forks = subprocess.Popen([sys.executable, __file__], env=environment, **piped)
    atexit.register(_end, forks)
    return forks


def _end(forks: subprocess.Popen[str]) -> None:
    with contextlib.suppress(BrokenPipeError), forks:  # closes its input
        pass


def _serve() -> dict[str, object] | None:
    """Forks for each line; returns what to run in a fork, None at the end."""
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            told: dict[str, object] = json.loads(line)
            return told
        print(_exit_code(pid), flush=True)
    return None


def _exit_code(pid: int) -> int:
    ended = os.pidfd_open(pid)
    if not select.select([ended], [], [], TIMEOUT_S)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(told: dict[str, object]) -> ModuleType:
    """Makes this fork the process of a script."""
    for descriptor, path in ((0, os.devnull), (1, told["out"]), (2, told["err"])):
        file = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv = list(told["argv"])  # type: ignore[call-overload]
    sys.path[0] = os.path.dirname(sys.argv[0])
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = sys.argv[0]
    return main


if __name__ == "__main__":
    import torch._dynamo
    import torch.profiler  # noqa: F401

    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("torch has started threads, which a fork would not have")
    if (asked := _serve()) is not None:
        script = _become(asked)
        exec(compile(Path(sys.argv[0]).read_text(), sys.argv[0], "exec"), vars(script))
