"""The engine ``processes:N``: worker processes on this machine.

Stage: query, in the reader's process; each worker is ``worker.py`` in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe, wait

import pyarrow as pa

from rankmem_aggregator import machine
from rankmem_aggregator.lake.engine import RETRIES, interrupted, rows_of
from rankmem_aggregator.lake.kernel import Task
from rankmem_aggregator.lake.worker import MEMORY_SHARE
from rankmem_protos.errors import Code, RankmemError


class _Worker:
    """A process that answers one task after the other.

    Args:
        scratch: a folder for what it spills: it may be killed.
    """

    def __init__(self, scratch: str) -> None:
        ours, theirs = Pipe()
        self.connection = ours
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rankmem_aggregator.lake.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "TMPDIR": scratch,
                },
            )
        self.task: Task | None = None
        self.attempt = 0

    def give(self, task: Task, attempt: int) -> None:
        self.task, self.attempt = task, attempt
        with contextlib.suppress(OSError):  # it died meanwhile: seen as it is waited for
            self.connection.send_bytes(pickle.dumps(task))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


class Processes:
    """Worker processes on this machine, which stay warm between questions.

    Args:
        workers: how many; each has its share of the machine's cores and memory.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._threads = max(1, (os.cpu_count() or 1) // workers)
        self._memory_bytes = int(machine.memory_bytes() * MEMORY_SHARE / workers)
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, _Worker] = {}
        self._stopped = threading.Event()
        self._scratch = ""
        self._tidy: Callable[[], object] = lambda: None

    @property
    def pids(self) -> list[int]:
        """The processes there are."""
        return [worker.process.pid for worker in (*self._idle, *self._busy.values())]

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, pa.Table]]:
        """See :class:`Engine`."""
        self._stopped.clear()
        waiting, again = iter(tasks), list[tuple[Task, int]]()
        try:
            while True:
                while len(self._busy) < self.workers:
                    task, attempt = again.pop() if again else (next(waiting, None), 0)
                    if task is None:
                        break
                    self._start(task, attempt)
                if not self._busy:
                    return
                for connection in wait(list(self._busy)):
                    worker = self._busy[connection]  # type: ignore[index]
                    task, attempt = worker.task, worker.attempt
                    assert task is not None
                    answer = self._answer(worker, task)
                    if answer is not None:
                        yield task, answer
                    elif attempt < RETRIES:
                        again.append((task, attempt + 1))
                    else:
                        raise RankmemError(
                            Code.UNAVAILABLE,
                            f"{task.part}: its worker process died {attempt + 1} times, last with exit code "
                            f"{worker.process.returncode}",
                            "more memory, or fewer of --engine processes:N",
                        )
        finally:
            for worker in self._busy.values():  # of a question that failed, or is not read on
                worker.end()
            self._busy.clear()

    def _start(self, task: Task, attempt: int) -> None:
        if not self._scratch:
            self._scratch = tempfile.mkdtemp(prefix="rankmem-workers-")
            self._tidy = weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        worker = self._idle.pop() if self._idle else _Worker(self._scratch)
        self._busy[worker.connection] = worker
        worker.give(replace(task, threads=self._threads, memory_bytes=self._memory_bytes), attempt)
        worker.task = task

    def _answer(self, worker: _Worker, task: Task) -> pa.Table | None:
        """What a worker sent; None: it died."""
        try:
            sent = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            del self._busy[worker.connection]
            worker.end()
            if self._stopped.is_set():
                raise interrupted() from None
            return None
        del self._busy[worker.connection]
        self._idle.append(worker)
        return rows_of(task, sent)

    def stop(self) -> None:
        """See :class:`Engine`."""
        self._stopped.set()
        for worker in list(self._busy.values()):
            worker.process.kill()

    def close(self) -> None:
        """See :class:`Engine`."""
        for worker in (*self._idle, *self._busy.values()):
            worker.end()
        self._idle.clear()
        self._busy.clear()
        self._tidy()
        self._scratch = ""
