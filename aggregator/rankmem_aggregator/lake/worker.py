"""What a worker of an engine does; as ``-m rankmem_aggregator.lake.worker FD`` one of ``processes:N``.

Stage: query. In: tasks, one after the other; out: their answers, as bytes. The process ends when its parent,
a reader, does. A defect of ours ends it too: the parent then runs the part again. Workers of a cluster come
here by :func:`answer_packed`, which first compares what is installed there with what the reader has.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import socket
import sys
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from multiprocessing.connection import Connection
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator import machine
from rankmem_aggregator.lake.kernel import Task, keep_instances
from rankmem_aggregator.sql import query_names, query_text, view_names, view_text
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.without_pandas import leave_pandas_out

MEMORY_SHARE: Final = 0.8
"""Of a machine's memory, for all workers together: DuckDB's own share for one."""
_ANSWERING: Final = ("rankmem", "duckdb")
"""Packages that make an answer: of one version, or answers might differ."""


def answer_bytes(task: Task) -> tuple[Any, ...]:
    """What a worker sends for a task: ``answer`` and Arrow, or ``failed``, code, message, hint."""
    try:
        rows = task.run()
    except RankmemError as exc:
        return "failed", exc.code.value, exc.message, exc.hint
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return "answer", sink.getvalue().to_pybytes()


def packed(task: Task) -> bytes:
    """A task for :func:`answer_packed` on another machine."""
    return pickle.dumps((installed(), pickle.dumps(task)))


def answer_packed(order: bytes) -> tuple[Any, ...]:
    """What a worker on another machine sends, see :func:`answer_bytes`: failures say on which.

    Args:
        order: of :func:`packed`. Without a limit of its own a task gets one core's share of the memory.
    """
    here = socket.gethostname()
    theirs, body = pickle.loads(order)
    if theirs != installed():
        message = f"the worker on {here} has {_text(installed())}, this process {_text(theirs)}"
        wanted = " ".join(f"'{name}=={theirs[name]}'" for name in _ANSWERING)
        return "failed", Code.UNSUPPORTED.value, message, f"install the same: pip install {wanted}"
    task: Task = pickle.loads(body)
    if not task.memory_bytes:
        share = machine.memory_bytes() * MEMORY_SHARE / len(os.sched_getaffinity(0))
        task = replace(task, memory_bytes=int(share))
    kind, *told = answer_bytes(task)
    if kind == "failed":
        told[1] = f"on {here}: {told[1]}"
    return kind, *told


@cache
def installed() -> dict[str, str]:
    """The versions of what makes an answer here; of the SQL a digest: two trees may have one version."""
    texts = [view_text(name) for name in view_names()] + [query_text(name) for name in query_names()]
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()[:8]
    return {name: version(name) for name in _ANSWERING} | {"SQL": digest}


def _text(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def main(fd: int) -> int:
    """Answers until the parent hangs up; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, for the parent: it ends this process
    leave_pandas_out()
    keep_instances()
    with Connection(fd) as parent:
        while True:
            try:
                task = pickle.loads(parent.recv_bytes())
                parent.send_bytes(pickle.dumps(answer_bytes(task)))
            except (EOFError, BrokenPipeError):
                return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
