"""What rankmem itself cost a rank: the row of self_cost.

Stage: shipper process. In: the spool's control counters and the shipper's own resource usage. Out: one
row, now and then and at the rank's end. A measurement, not a function of the log.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rankmem_agent.pairing.columns import rows_of
from rankmem_agent.pairing.rows import Rows
from rankmem_agent.spool.reader import SpoolReader


def self_cost_row(reader: SpoolReader, host_time_ns: int, sent_bytes: int) -> Rows:
    """The row of this rank as of now.

    Args:
        host_time_ns: now, in the rank's host time.
        sent_bytes: sent for this rank so far.
    """
    row = {
        "session_id": reader.meta.session_id,
        "attempt": reader.meta.attempt,
        "rank": reader.meta.rank,
        "time_ns": host_time_ns,
        "records": reader.next_seq,
        "stacks": reader.control_value("stacks"),
        "attach_ns": reader.control_value("attach_ns") or None,
        "spool_bytes": reader.size_bytes(),
        "shipper_cpu_ns": time.process_time_ns(),
        "shipper_rss_bytes": _rss_bytes(),
        "sent_bytes": sent_bytes,
    }
    return "self_cost", rows_of("self_cost", [row])


def _rss_bytes() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
