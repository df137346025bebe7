"""How a process that served ends, although a client's statement may run on.

Stage: wiring, last. DuckDB looks for an interrupt between two vectors of rows; a statement whose vector takes
minutes keeps its thread meanwhile, and Python waits for every thread before it ends. What was acknowledged is
on disk when an aggregator has been closed, so nothing is lost with such a thread. Loads nothing of ours.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import Final

CALLS: Final = "rankmem-rpc"
"""What the names of threads that answer calls begin with."""
LAST_WAIT_S: Final = 2.0
"""For calls that were cut to unwind: those without a statement take milliseconds."""


def leave(code: int) -> int:
    """The exit code, for whoever ends the process with it; ends it at once where a call runs on.

    Main thread, after every aggregator of this process is closed.
    """
    deadline = time.monotonic() + LAST_WAIT_S
    calls = [thread for thread in threading.enumerate() if thread.name.startswith(CALLS)]
    for call in calls:
        call.join(max(0.0, deadline - time.monotonic()))
    if any(call.is_alive() for call in calls):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
