"""``rankmem serve``'s life: open, say where, serve until a signal, drain.

Stage: the aggregator's process, main thread. The first signal drains (what was taken is stored and
acknowledged), the second ends the process at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankmem_cli.render import note
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.config import AggregatorConfig


def serve_until_signalled(config: AggregatorConfig) -> None:
    """Runs an aggregator in this process until SIGTERM or SIGINT.

    Raises:
        RankmemError: it cannot open, a thread of it died, or not all that was received could be stored.
    """
    from rankmem_aggregator import logs, server
    from rankmem_aggregator.__main__ import stop_on_signals

    logs.configure(config.log_format)
    aggregator = server.open(config)
    stop_on_signals(aggregator)
    note(
        f"rankmem: listening on {aggregator.address}, writing {config.database_path}; Ctrl-C drains and ends"
    )
    if aggregator.metrics_address:
        note(f"rankmem: metrics at http://{aggregator.metrics_address}/metrics")
    drained = False
    try:
        aggregator.serve()
        note("rankmem: draining; once more to stop at once")
    finally:
        drained = aggregator.close()
    if not drained:
        raise RankmemError(
            Code.UNAVAILABLE,
            "not all that was received could be stored in time",
            "the shippers still have it and send it again when an aggregator is back",
        )
