"""``-m rankmem_aggregator.lake.worker FD``: a worker process of ``processes:N``; its parent is a reader.

Stage: query. In: tasks, one after the other, on a connection that the parent made; out: their answers. It
ends when the parent does. A defect of ours ends it too: the parent then runs the part again.
"""

from __future__ import annotations

import pickle
import signal
import sys
from multiprocessing.connection import Connection

from rankmem_aggregator.lake.engines import answer_bytes


def main(fd: int) -> int:
    """Answers until the parent hangs up; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, for the parent: it ends this process
    with Connection(fd) as parent:
        while True:
            try:
                task = pickle.loads(parent.recv_bytes())
                parent.send_bytes(pickle.dumps(answer_bytes(task)))
            except (EOFError, BrokenPipeError):
                return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
