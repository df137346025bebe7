"""Keeps an aggregator alive: starts its process, and starts it again when it dies.

Stage: wiring, in ``rankmem serve`` and in whatever has an aggregator of its own (``rankmem run``). In: a
configuration; out: an address at which an aggregator answers, the same after each start. Loads neither
DuckDB nor gRPC. What a client's statement can break is the process of the aggregator alone: its memory has
a bound that the kernel holds (``memory_bound``), and the statement that it died of is refused from then on
(``blame``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from rankmem_aggregator import under_way
from rankmem_aggregator.blame import Blame
from rankmem_aggregator.config import AggregatorConfig, split_address
from rankmem_aggregator.orders import DRAINED, NO_MEMORY, NOT_DRAINED, STOP, Order, error_of_event
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 600.0
"""To open a database whose log is replayed: a minute for a GiB on a slow disk."""
RESTART_FIRST_S: Final = 0.1
RESTART_MAX_S: Final = 5.0
"""Between two starts of one that dies at once: shippers and readers find it within this."""
STEADY_S: Final = 60.0
"""One that lived so long is started again at once."""
CLOSE_TIMEOUT_S: Final = 30.0
"""For the last commit and the checkpoint, which rewrites what the log holds."""
KILL_GRACE_S: Final = 5.0
"""Beyond it, for the process to end by itself."""
WARN_EVERY_S: Final = 60.0
_ALLOCATORS: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Arrow's own reserves 1 GiB at its first use, of which it touched 6 MiB: that counts against the bound."""
_ENDED_BY: Final = {-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT}
"""Exit codes of one that was told to stop by a signal of its own."""


class Supervisor:
    """An aggregator's process, kept alive from :meth:`start` to :meth:`close`.

    Args:
        config: of the aggregator; port 0 becomes a free one, the same for all its starts. is_embedded: it
        runs beside a training: signals are not for it, and it goes first where memory runs out. niceness:
        what its process adds to this one's. say: told when it died and when it is there again. The
        supervisor's thread.
    """

    def __init__(
        self,
        config: AggregatorConfig,
        *,
        is_embedded: bool = False,
        niceness: int = 0,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        self.address = ""
        """HOST:PORT, once started."""
        self.metrics_address = ""
        """HOST:PORT of the metrics; empty where none were asked for."""
        self.num_restarts = 0
        self._port, listen = _reserved(config.listen)
        self._config = replace(config, listen=listen)
        self._is_embedded = is_embedded
        self._niceness = niceness
        self._say = say
        self._blame = Blame()
        self._under_way_fd = under_way.shared_memory(config.queries_max)
        self._process: subprocess.Popen[bytes] | None = None
        self._events_fd = -1
        self._events = b""
        self._started_s = 0.0
        self._pause_s = RESTART_FIRST_S
        self._warned_s = float("-inf")
        self._is_stopping = threading.Event()
        self._code: int | None = None
        self._thread = threading.Thread(target=self._keep, name="rankmem-supervisor", daemon=True)

    @property
    def pid(self) -> int:
        """Of the aggregator's process as it is now."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts it; it takes batches when this returns.

        Raises:
            RankmemError: what the aggregator could not be opened for.
        """
        try:
            self._spawn()
            self._await_ready()
        except BaseException:
            self._end_process()
            self._release()
            raise
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Waits at most so long; whether it has ended for good."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Lets it drain and end. Returns at once; any thread, also a signal handler."""
        self._is_stopping.set()
        self._ask_to_stop()

    def kill(self) -> None:
        """Ends its process at once. Any thread, also a signal handler."""
        self._is_stopping.set()
        if self._process is not None:
            self._process.kill()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Drains it and waits for its end; idempotent. True if all that it received is stored."""
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

    # -- the process -----------------------------------------------------------------------------

    def _spawn(self) -> None:
        self._events_fd, told_fd = os.pipe()
        self._events = b""
        order = Order(
            config=self._config,
            events_fd=told_fd,
            under_way_fd=self._under_way_fd,
            is_embedded=self._is_embedded,
            niceness=self._niceness,
            refused=self._blame.refused,
            suspects=tuple(self._blame.suspects),
        )
        try:
            # A session of its own: keys of the terminal are for this process, which passes on what they mean.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rankmem_aggregator.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=_ALLOCATORS | os.environ,
                pass_fds=(told_fd, self._under_way_fd),
                start_new_session=True,
                bufsize=0,
            )
        finally:
            os.close(told_fd)
        self._started_s = time.monotonic()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and is found so
            _write_all(self._process.stdin.fileno(), order.line())
        if self._is_stopping.is_set():
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended
                os.write(process.stdin.fileno(), STOP)

    def _await_ready(self) -> None:
        event = self._next_event(START_TIMEOUT_S)
        if event is None:
            assert self._process is not None
            self._process.kill()
            code = self._process.wait()
            raise RankmemError(
                Code.UNAVAILABLE,
                f"the aggregator's process did not start: {_how(code)}",
                "see what it wrote before this; rankmem serve -v shows where",
            )
        if "error" in event:
            raise error_of_event(event["error"])
        self.address, self.metrics_address = event["ready"], event["metrics"]
        metrics = self.metrics_address or self._config.metrics
        self._config = replace(self._config, listen=self.address, metrics=metrics)

    def _next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """The next; None at the end of the process or of the time."""
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._events:
            ready, _, _ = select.select([self._events_fd], [], [], max(0.0, deadline_s - time.monotonic()))
            data = os.read(self._events_fd, 1 << 16) if ready else b""
            if not data:
                return None
            self._events += data
        line, _, self._events = self._events.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _end_process(self) -> None:
        """Kills what may be left of it, and closes what led to it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
        if self._events_fd >= 0:
            os.close(self._events_fd)
            self._events_fd = -1

    def _release(self) -> None:
        os.close(self._under_way_fd)
        if self._port is not None:
            self._port.close()

    # -- its life: the supervisor's thread ---------------------------------------------------------

    def _keep(self) -> None:
        try:
            while True:
                assert self._process is not None
                code = self._process.wait()
                self._hear()
                self._end_process()
                if self._is_stopping.is_set() or code in (DRAINED, NOT_DRAINED) or code in _ENDED_BY:
                    self._code = code
                    return
                self._died(code)
                if not self._start_again():
                    return
        finally:
            self._end_process()
            self._release()

    def _hear(self) -> None:
        """What it said before it died."""
        while (event := self._next_event(0.0)) is not None:
            if "cleared" in event:
                self._blame.cleared(event["cleared"])

    def _died(self, code: int) -> None:
        names = under_way.take(self._under_way_fd)
        how = _how(code)
        refused = 0
        if code < 0 or code == NO_MEMORY:
            stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            refused = self._blame.died(names, f"{how}, {stamp}")
        beside = f", {len(names)} statements ran" if names else ""
        told = f", {refused} of them refused from now on" if refused else ""
        self._say(f"the aggregator ended ({how}){beside}{told}; it is started again")

    def _start_again(self) -> bool:
        """Starts it until it is there; False if it is to stop."""
        if time.monotonic() - self._started_s > STEADY_S:
            self._pause_s = RESTART_FIRST_S
        while not self._is_stopping.wait(self._pause_s):
            self._pause_s = min(2 * self._pause_s, RESTART_MAX_S)
            try:
                self._spawn()
                self._await_ready()
            except (RankmemError, OSError) as exc:
                self._end_process()
                if time.monotonic() - self._warned_s > WARN_EVERY_S:
                    self._warned_s = time.monotonic()
                    self._say(f"the aggregator cannot be started yet, it is tried again: {exc}")
                continue
            self.num_restarts += 1
            self._say(f"the aggregator is back at {self.address}")
            return True
        return False


def _how(code: int) -> str:
    """How a process ended, by its exit code."""
    if code == NO_MEMORY:
        return "out of memory"
    try:
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _reserved(listen: str) -> tuple[socket.socket | None, str]:
    """A free port for an address with port 0, and what keeps it ours between two starts: a socket that is
    bound and does not listen. Linux lets another that listens be bound beside it, and gives the port to
    nobody else."""
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
        return None, listen  # the aggregator says what is wrong with it
    return kept, f"{listen.rpartition(':')[0]}:{kept.getsockname()[1]}"


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
