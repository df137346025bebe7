"""Keeps an aggregator alive: starts its process, and restarts it when it dies.

Stage: wiring, in ``rankmem serve`` and wherever an aggregator is embedded (``rankmem run``). In: a
configuration; out: an address at which an aggregator answers, the same after each start. Loads neither DuckDB
nor gRPC. A client's statement can crash the aggregator's process alone: the kernel bounds its memory
(``memory_bound``), and the statement that crashed it is refused from then on (``crashed_statements``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Self

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.host_port import split_address
from rankmem_aggregator.sandbox import running_statements
from rankmem_aggregator.supervision.crashed_statements import CrashedStatements
from rankmem_aggregator.supervision.parent_pipe import DRAINED, NO_MEMORY, NOT_DRAINED
from rankmem_aggregator.supervision.worker_process import WorkerProcess, how_it_ended
from rankmem_protos.errors import RankmemError

logger = logging.getLogger(__name__)

RESTART_FIRST_S: Final = 0.1
RESTART_MAX_S: Final = 5.0
"""Between two starts of one that dies at once: shippers and readers find it within this."""
STEADY_S: Final = 60.0
"""One that lived so long is restarted at once."""
CLOSE_TIMEOUT_S: Final = 30.0
"""For the last commit and the checkpoint, which rewrites what the log holds."""
KILL_GRACE_S: Final = 5.0
"""Beyond it, for the process to end by itself."""
WARN_EVERY_S: Final = 60.0
_ENDED_BY: Final = {-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT}
"""Exit codes of one that was stopped by a signal of its own."""


class Supervisor:
    """An aggregator's process, kept alive from :meth:`start` to :meth:`close`.

    Args:
        config: of the aggregator; port 0 becomes a free one, the same for all its starts.
        is_embedded: it runs beside a training: it ignores signals, and is killed first where memory runs out.
        niceness: added to that of this process.
        report: called with a message when it died and when it is back. The supervisor's thread.
    """

    def __init__(
        self,
        config: AggregatorConfig,
        *,
        is_embedded: bool = False,
        niceness: int = 0,
        report: Callable[[str], None] = logger.warning,
    ) -> None:
        self.address = ""
        """HOST:PORT, once started."""
        self.metrics_address = ""
        """HOST:PORT of the metrics; empty: none are served."""
        self.num_restarts = 0
        self._port, listen = _reserved(config.listen)
        self._config = replace(config, listen=listen)
        self._is_embedded = is_embedded
        self._niceness = niceness
        self._report = report
        self._crashed = CrashedStatements()
        self._running_fd = running_statements.shared_memory(config.queries_max)
        self._process: WorkerProcess | None = None
        self._pause_s = RESTART_FIRST_S
        self._warned_s = float("-inf")
        self._is_stopping = threading.Event()
        self._code: int | None = None
        self._thread = threading.Thread(target=self._keep, name="rankmem-supervisor", daemon=True)

    @property
    def pid(self) -> int:
        """Of the aggregator's current process."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts it; it takes batches when this returns.

        Raises:
            RankmemError: why the aggregator could not be opened.
        """
        try:
            self._start_process()
        except BaseException:
            self._release()
            raise
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Waits at most so long; returns whether it has ended for good."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Lets it drain and end. Returns at once; any thread, also a signal handler."""
        self._is_stopping.set()
        if self._process is not None:
            self._process.ask_to_stop()

    def kill(self) -> None:
        """Ends its process at once. Any thread, also a signal handler."""
        self._is_stopping.set()
        if self._process is not None:
            self._process.kill()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Drains it and waits for its end; idempotent. True if everything that it received is stored."""
        self.stop()
        if not self.wait(timeout_s + KILL_GRACE_S):
            self.kill()
            self._thread.join()
        return self._code == DRAINED

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def _start_process(self) -> None:
        process = self._process = WorkerProcess(
            self._config,
            self._crashed,
            running_fd=self._running_fd,
            is_embedded=self._is_embedded,
            niceness=self._niceness,
        )
        try:
            if self._is_stopping.is_set():  # asked between two processes
                process.ask_to_stop()
            self.address, self.metrics_address = process.await_ready()
        except BaseException:
            process.close()
            raise
        metrics = self.metrics_address or self._config.metrics
        self._config = replace(self._config, listen=self.address, metrics=metrics)

    def _release(self) -> None:
        os.close(self._running_fd)
        if self._port is not None:
            self._port.close()

    # -- the supervisor's thread -------------------------------------------------------------------

    def _keep(self) -> None:
        try:
            while True:
                assert self._process is not None
                code = self._process.wait()
                for name in self._process.cleared():
                    self._crashed.cleared(name)
                self._process.close()
                if self._is_stopping.is_set() or code in (DRAINED, NOT_DRAINED) or code in _ENDED_BY:
                    self._code = code
                    return
                self._died(code)
                if not self._start_again(self._process.lived_s):
                    return
        finally:
            self._release()

    def _died(self, code: int) -> None:
        ran, refused = self._record_crash(code)
        running = f", {ran} statements ran" if ran else ""
        blocked = f", {refused} of them refused from now on" if refused else ""
        self._notify(f"the aggregator ended ({how_it_ended(code)}){running}{blocked}; it is restarted")

    def _record_crash(self, code: int) -> tuple[int, int]:
        """How many statements were running as it ended, and how many are refused because of it."""
        names = running_statements.take(self._running_fd)
        if code >= 0 and code != NO_MEMORY:
            return len(names), 0
        stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return len(names), self._crashed.died(names, f"{how_it_ended(code)}, {stamp}")

    def _start_again(self, lived_s: float) -> bool:
        """Starts it until it is up; False if it is to stop."""
        if lived_s > STEADY_S:
            self._pause_s = RESTART_FIRST_S
        assert self._process is not None
        while not self._is_stopping.wait(self._pause_s):
            self._pause_s = min(2 * self._pause_s, RESTART_MAX_S)
            try:
                self._start_process()
            except (RankmemError, OSError) as exc:
                self._record_crash(self._process.wait())  # it answers before it reports that it is ready
                if time.monotonic() - self._warned_s > WARN_EVERY_S:
                    self._warned_s = time.monotonic()
                    self._notify(f"the aggregator cannot be restarted yet, trying again: {exc}")
                continue
            self.num_restarts += 1
            self._notify(f"the aggregator is back at {self.address}")
            return True
        return False

    def _notify(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it, or the file is closed
            self._report(text)


def _reserved(listen: str) -> tuple[socket.socket | None, str]:
    """A free port for an address with port 0, and a socket that reserves it between two starts: it is bound
    and does not listen. Linux lets a listening one be bound beside it, and gives the port to no other
    process."""
    host, port = split_address(listen)
    if port:
        return None, listen
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kept = socket.socket(family, socket.SOCK_STREAM)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((host, 0))
    except OSError:
        kept.close()
        return None, listen  # the aggregator reports what is wrong with it
    return kept, f"{listen.rpartition(':')[0]}:{kept.getsockname()[1]}"
