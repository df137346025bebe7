"""An aggregator's process as its parent sees it: started, ready, asked to stop, ended.

Stage: wiring, in the parent (``supervisor``); the messages are described in ``parent_pipe``. Loads neither
DuckDB nor gRPC. Made by any thread; stopped and killed from any thread, also within a signal handler.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.supervision.crashed_statements import CrashedStatements
from rankmem_aggregator.supervision.parent_pipe import NO_MEMORY, STOP, WorkerOptions, error_of_event
from rankmem_protos.errors import Code, RankmemError

START_TIMEOUT_S: Final = 600.0
"""To open a database whose log is replayed: a minute for a GiB on a slow disk."""
_ALLOCATORS: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Arrow's own reserves 1 GiB at its first use, of which it touched 6 MiB: that counts against the bound."""


class WorkerProcess:
    """A process that was started; its maker closes it.

    Args:
        config: of the aggregator.
        crashed: statements that are refused or suspected.
        running_fd: of the memory shared with it (``running_statements``).
        is_embedded, niceness: as the supervisor's.
    """

    def __init__(
        self,
        config: AggregatorConfig,
        crashed: CrashedStatements,
        *,
        running_fd: int,
        is_embedded: bool,
        niceness: int,
    ) -> None:
        self._events_fd, write_fd = os.pipe()
        self._events = b""
        self._cleared: list[str] = []
        self._started_s = time.monotonic()
        try:
            # A session of its own: keys of the terminal are for this process, which passes their meaning on.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rankmem_aggregator.supervision.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=_ALLOCATORS | os.environ,
                pass_fds=(write_fd, running_fd),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            os.close(self._events_fd)
            raise
        finally:
            os.close(write_fd)
        options = WorkerOptions(
            config=config,
            events_fd=write_fd,
            running_fd=running_fd,
            is_embedded=is_embedded,
            niceness=niceness,
            refused=crashed.refused,
            suspects=tuple(crashed.suspects),
        )
        self._write(options.line())

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def lived_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started_s

    def await_ready(self) -> tuple[str, str]:
        """Its address and that of its metrics, once it takes batches.

        Raises:
            RankmemError: why the aggregator could not be opened.
        """
        deadline_s = time.monotonic() + START_TIMEOUT_S
        # It answers before it reports so: statements may have completed meanwhile.
        while (event := self._next_event(deadline_s - time.monotonic())) and "cleared" in event:
            self._cleared.append(event["cleared"])
        if event is None:
            self._process.kill()
            raise RankmemError(
                Code.UNAVAILABLE,
                f"the aggregator's process did not start: {how_it_ended(self._process.wait())}",
                "see its messages before this",
            )
        if "error" in event:
            raise error_of_event(event["error"])
        return event["ready"], event["metrics"]

    def cleared(self) -> Iterator[str]:
        """Suspects that completed, as it reported; called once it has ended."""
        yield from self._cleared
        while (event := self._next_event(0.0)) is not None:
            if "cleared" in event:
                yield event["cleared"]

    def ask_to_stop(self) -> None:
        """Asks it to drain and end."""
        self._write(STOP)

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()

    def wait(self) -> int:
        """Waits for its end; returns its exit code, negative for a signal."""
        return self._process.wait()

    def close(self) -> None:
        """Ends the process if it is running, and closes its pipes. Idempotent."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._events_fd >= 0:
            os.close(self._events_fd)
            self._events_fd = -1

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, which its wait reports
            while data:
                data = data[os.write(self._process.stdin.fileno(), data) :]

    def _next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event; None at the end of the process or of the time."""
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


def how_it_ended(code: int) -> str:
    """How a process ended, by its exit code."""
    if code == NO_MEMORY:
        return "out of memory"
    try:
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
