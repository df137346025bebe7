"""``rankmem serve``'s life: start an aggregator's process, say where it is, keep it alive, drain it.

Stage: the parent of the aggregator's process, main thread. The first signal drains (what was taken is
stored and acknowledged), the second ends both processes at once. Loads neither DuckDB nor gRPC.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import TYPE_CHECKING, Final

from rankmem_cli.show.render import note
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.config import AggregatorConfig
    from rankmem_aggregator.supervision.supervisor import Supervisor

SIGNALS_SEEN_S: Final = 1.0
"""A signal that another thread takes waits for the main one to look up; without a limit it never does."""


def serve_until_signalled(config: AggregatorConfig) -> None:
    """Runs an aggregator in a process of its own until SIGTERM or SIGINT; starts it again when it dies.

    Raises:
        RankmemError: it cannot open, or not all that was received could be stored.
    """
    from rankmem_aggregator import logs
    from rankmem_aggregator.supervision.supervisor import Supervisor

    logs.configure(config.log_format)
    # Whoever started us may ignore it; of children that end the kernel would keep nothing then.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    supervisor = Supervisor(config)
    supervisor.start()
    _stop_on_signals(supervisor)
    _say(
        f"rankmem: listening on {supervisor.address}, writing {config.database_path}; Ctrl-C drains and ends"
    )
    if supervisor.metrics_address:
        _say(f"rankmem: metrics at http://{supervisor.metrics_address}/metrics")
    while not supervisor.wait(SIGNALS_SEEN_S):
        pass
    if not supervisor.close():
        raise RankmemError(
            Code.UNAVAILABLE,
            "not all that was received could be stored in time",
            "the shippers still have it and send it again when an aggregator is back",
        )


def _stop_on_signals(supervisor: Supervisor) -> None:
    """The first SIGTERM or SIGINT drains, the second ends it; what is acknowledged is stored."""
    stopping = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping:
            supervisor.kill()
            os._exit(128 + number)
        stopping = True
        supervisor.stop()
        _say("rankmem: draining; once more to stop at once")

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def _say(text: str) -> None:
    """A note, if somebody reads it: behind ``2>&1 | tee``, Ctrl-C ends that first."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # the last: within another note
        note(text)
