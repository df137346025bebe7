"""``-m rankmem_aggregator.page.child``: the page's process beside an aggregator; its parent is ``keeper``.

Stage: page. Options come as a line of JSON on stdin, which ends with the parent: so does this process. It
answers one line: ``{"link": …}`` once it listens, or ``{"error": …}``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from typing import Final

from rankmem_aggregator import logs
from rankmem_aggregator.page.keeper import ChildOptions
from rankmem_aggregator.page.refusal import told
from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_aggregator.server.process_exit import leave
from rankmem_protos.errors import RankmemError
from rankmem_protos.without_pandas import leave_pandas_out

FAILED: Final = 1
STDIN: Final = 0


def main() -> int:
    """Serves until it is told to end; returns the exit code."""
    leave_pandas_out()
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(STDIN, 1 << 16)
        if not more:
            return FAILED
        line += more
    options = ChildOptions.parse(line)
    threading.Thread(target=_end_with_parent, name="rankmem-parent-pipe", daemon=True).start()
    logs.configure("json" if options.log_format == "json" else "text")

    from rankmem_aggregator.page.serving import PageServer

    try:
        server = PageServer(
            options.config,
            lambda: _opened(options),
            bound=socket.socket(fileno=options.listen_fd),
            key=options.key,
        )
    except RankmemError as exc:
        _say(options.events_fd, {"error": told(exc)})
        return FAILED
    _say(options.events_fd, {"link": server.link()})
    server.run()
    return 0


def _opened(options: ChildOptions) -> RemoteQueries:
    queries = RemoteQueries(options.aggregator, options.credentials)
    queries.given_options = GivenOptions(source=(("--aggregator", options.aggregator),))
    return queries


def _say(events_fd: int, event: dict[str, object]) -> None:
    os.write(events_fd, json.dumps(event).encode() + b"\n")
    os.close(events_fd)


def _end_with_parent() -> None:
    while os.read(STDIN, 1 << 10):
        pass
    os._exit(FAILED)  # it holds nothing that could be lost


if __name__ == "__main__":
    sys.exit(leave(main()))
