"""`python -m rankmem_aggregator`: an aggregator without the command line's extras, and without a parent that
restarts it (``rankmem serve`` has both).

Stage: wiring. Options come from the environment (see ``config``). The first SIGTERM or SIGINT drains, the
second stops at once. Prints nothing but errors; logs go to stderr.
"""

from __future__ import annotations

import sys

from rankmem_aggregator import logs
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.server.process_exit import drain_on_signals, leave
from rankmem_aggregator.supervision.memory_bound import MemoryBound
from rankmem_protos.errors import RankmemError
from rankmem_protos.without_pandas import leave_pandas_out


def main() -> int:
    """Serves until a signal; returns the exit code."""
    leave_pandas_out()
    try:
        config = AggregatorConfig.from_environment()
        logs.configure(config.log_format)
        aggregator = server.open(config, bound=MemoryBound(config.memory_max()))
    except RankmemError as exc:
        print(f"Error: {exc.message}\nTry: {exc.hint}", file=sys.stderr)
        return 1
    drain_on_signals(aggregator.stop)
    try:
        aggregator.serve()
    except RankmemError as exc:
        print(f"Error: {exc.message}\nTry: {exc.hint}", file=sys.stderr)
        aggregator.close()
        return 1
    return 0 if aggregator.close() else 1


if __name__ == "__main__":
    sys.exit(leave(main()))
