"""The engine ``ray://HOST:PORT``: a Ray cluster runs the tasks.

Stage: query, in the reader's process. Ray's own tasks do it, not actors: its worker processes stay warm
between them as long as the connection is open, a CPU is taken only while a task runs, and Ray itself runs a
task again, on another machine if need be, whose worker died.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.lake.engine import (
    RETRIES,
    Cluster,
    first_line,
    interrupted,
    portable_answer,
    rows_of,
)
from rankmem_aggregator.lake.kernel import Task
from rankmem_aggregator.lake.worker import MEMORY_SHARE, packed
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.without_pandas import admit_pandas

START: Final = "start one: ray start --head (its client server listens on port 10001)"
_lock: Final = threading.Lock()
_readers: Final[list[str]] = []
"""The addresses of the engines that are open: a process has one connection to Ray."""


class OnRay(Cluster):
    """A Ray cluster.

    Args:
        address: ``ray://HOST:PORT`` of its client server; from one of its machines ``HOST:PORT`` of its head.
        host: of the address.
        port: of the address.

    Raises:
        RankmemError: UNAVAILABLE, UNSUPPORTED, see ``open_engine``.
    """

    def __init__(self, address: str, host: str, port: int) -> None:
        super().__init__(("Ray", "Ray cluster"), ("ray", "ray"), (host, port), START)
        self._address = address
        self._memory_bytes = 0
        self._running: dict[Any, Task] = {}
        self._stopped = threading.Event()

    def _connect(self) -> None:
        """Connects this process, unless it is: through another reader, or by the program that we are in.

        The client is the package; a worker is a CPU that the cluster has now.
        """
        admit_pandas()
        import ray

        with _lock:
            if _readers and self._address not in _readers:
                raise RankmemError(
                    Code.CONFLICT,
                    f"this process is connected to the Ray cluster at {_readers[0]}, and can be to one",
                    f"close what uses it before {self._address} is opened",
                )
            if not ray.is_initialized():
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # what it warns of, it raises as well
                        ray.init(self._address, log_to_driver=False, logging_level="ERROR")
                except Exception as exc:
                    ray.shutdown()
                    raise self._refusal(exc) from exc
                _readers.append(self._address)
            elif _readers:
                _readers.append(self._address)
            self._client = ray
        with self._connected():
            found = ray.nodes()
        nodes = [node["Resources"] for node in found if node["Alive"] and "CPU" in node["Resources"]]
        self._workers = sum(int(node["CPU"]) for node in nodes)
        if not self._workers:
            self.close()
            raise RankmemError(
                Code.UNAVAILABLE,
                f"the Ray cluster at {self._address} has no CPU for tasks",
                "add a machine: ray start --address=HEAD:6379",
            )
        self._memory_bytes = int(min(MEMORY_SHARE * node.get("memory", 0) / node["CPU"] for node in nodes))
        self._answer = ray.remote(num_cpus=1, max_retries=RETRIES)(portable_answer())

    def _refusal(self, exc: Exception) -> RankmemError:
        if "ersion mismatch" in str(exc):
            found = " ".join(str(exc).split())
            return RankmemError(
                Code.UNSUPPORTED,
                f"the Ray cluster at {self._address} is of another version: {found}",
                "install here what runs there",
            )
        return RankmemError(
            Code.UNAVAILABLE,
            f"{self._address} does not answer as a Ray cluster: {first_line(exc)}",
            "it may expect its token: RAY_AUTH_MODE=token, RAY_AUTH_TOKEN_PATH=FILE; ray:// is for the port "
            "of its client server, 10001, HOST:PORT for the head's, 6379, from one of its machines",
        )

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, pa.Table]]:
        """See :class:`Engine`."""
        self._stopped.clear()
        waiting, workers = iter(tasks), self.workers
        try:
            while True:
                while len(self._running) < workers and (task := next(waiting, None)) is not None:
                    order = packed(replace(task, memory_bytes=self._memory_bytes))
                    with self._connected():
                        self._running[self._answer.remote(order)] = task
                if not self._running:
                    return
                with self._connected():
                    done = self._client.wait(list(self._running))[0]
                for ref in done:
                    task = self._running.pop(ref)
                    yield task, rows_of(task, self._sent(task, ref))
        finally:
            self._cancel()
            self._running.clear()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Within it the cluster is asked: what fails there is the connection."""
        try:
            yield
        except Exception as exc:
            raise self._lost(exc) from exc

    def _sent(self, task: Task, ref: Any) -> tuple[Any, ...]:
        """What a worker sent."""
        from ray.exceptions import RayError, RpcError

        try:
            sent: tuple[Any, ...] = self._client.get(ref)
        except Exception as exc:
            if self._stopped.is_set():
                raise interrupted() from None
            if not isinstance(exc, RayError) or isinstance(exc, RpcError):
                raise self._lost(exc) from exc
            raise RankmemError(
                Code.UNAVAILABLE,
                f"{task.part}: Ray gave it up after {RETRIES + 1} tries: {first_line(exc)}",
                "more memory for the workers, or another engine; Ray's logs on their machines have the rest",
            ) from exc
        return sent

    def _lost(self, exc: Exception) -> RankmemError:
        """The error of a question whose cluster went away; the next question connects again."""
        self.close()
        try:
            self._check_reachable()
        except RankmemError as away:
            return away
        return RankmemError(
            Code.UNAVAILABLE,
            f"the connection to {self._address} broke: {first_line(exc)}",
            f"ask again, or {START}",
        )

    def _cancel(self) -> None:
        with contextlib.suppress(Exception):  # what is gone runs nothing
            for ref in list(self._running):
                self._client.cancel(ref, force=True)

    def stop(self) -> None:
        """See :class:`Engine`."""
        self._stopped.set()
        self._cancel()

    def close(self) -> None:
        """See :class:`Engine`."""
        with _lock:
            if self._client is not None and self._address in _readers:
                _readers.remove(self._address)
                if not _readers:
                    self._client.shutdown()
            self._client = None
