"""Measurements attached to batches: the host's clock against the aggregator's, and rankmem's own cost.

Stage: shipper process, on the loop's thread. In: exchanges with the aggregator, the spools' control counters
and the shipper's own resource usage. Out: rows of clock_offset and self_cost, and the clock columns of
rank_info, at intervals and with a rank's last batch. They are not functions of the log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rankmem_ship.clock import ClockOffset
from rankmem_ship.pairing.columns import rows_of
from rankmem_ship.pairing.rows import Rows
from rankmem_ship.pairing.upserts import ClockEstimate
from rankmem_ship.spool_upload import Attachments, SpoolUpload

ATTACH_INTERVAL_S: Final = 10.0
"""Clock and own cost of a rank are sent this often."""


class Measurements:
    """Decides what is attached to which batch."""

    def __init__(self) -> None:
        self.clock = ClockOffset()
        self._sent_s: dict[Path, float] = {}
        self._offset_sent_s = -ATTACH_INTERVAL_S

    def attachments(self, upload: SpoolUpload, now_s: float) -> Attachments:
        """The attachments of the upload's next batch, if it is time or the batch is the last."""
        now_ns = time.monotonic_ns()
        clock = self.clock.estimate(upload.base_ns, now_ns)
        # Nothing before the first exchange, which takes a moment; then all is sent together.
        due = (
            clock is not None
            and now_s - self._sent_s.get(upload.folder, -ATTACH_INTERVAL_S) >= ATTACH_INTERVAL_S
        )

        def rows() -> Sequence[Rows]:
            self._sent_s[upload.folder] = now_s
            time_ns = now_ns + upload.base_ns
            own_cost = self_cost_row(upload, time_ns)
            if clock is None or now_s - self._offset_sent_s < ATTACH_INTERVAL_S:
                return [own_cost]
            self._offset_sent_s = now_s
            return [own_cost, clock_offset_row(upload, time_ns, clock)]

        return Attachments(clock=clock, rows=rows, due=due)


def clock_offset_row(upload: SpoolUpload, host_time_ns: int, clock: ClockEstimate) -> Rows:
    """The host's row of clock_offset, in the upload's host time."""
    row = {
        "host_uid": str(upload.meta.host.get("host_uid") or "unknown"),
        "time_ns": host_time_ns,
        "offset_ns": clock.offset_ns,
        "error_ns": clock.error_ns,
    }
    return "clock_offset", rows_of("clock_offset", [row])


def self_cost_row(upload: SpoolUpload, host_time_ns: int) -> Rows:
    """The rank's row of self_cost as of now, which is ``host_time_ns`` in the rank's host time."""
    reader = upload.reader
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
        "sent_bytes": upload.sent_bytes,
        "strings_dropped": reader.control_value("strings_dropped"),
    }
    return "self_cost", rows_of("self_cost", [row])


def _rss_bytes() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
