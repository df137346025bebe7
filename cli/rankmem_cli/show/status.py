"""The lines above the table of ``rankmem status``: the aggregator, and the shipper on this host.

Stage: render. In: an aggregator's figures and a shipper's status file. Out: lines of text.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankmem_cli.show.units import age_text, bytes_text, count_text, safe_text
from rankmem_ship.marks import FOLDER_NAME, MARK_NAME, read_mark
from rankmem_ship.status import STATUS_NAME

if TYPE_CHECKING:
    from rankmem_aggregator.query.aggregator_state import AggregatorState

STATUS_BYTES_MAX: Final = 64 << 10
"""Maximum size of a shipper's status file, which has a few hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipperState:
    """The contents of ``shipper.json``; empty before the shipper has written it."""

    pid: int | None = None
    state: str | None = None
    pending_records: int | None = None
    error: str = ""


def aggregator_lines(state: AggregatorState | None, target: str) -> list[str]:
    """The aggregator's state in two lines, or one line where none was asked."""
    from rankmem_aggregator.lake.files import is_lake_address

    if state is None and is_lake_address(target):
        return ["asked without an aggregator: what one has received and not yet written is not in it"]
    if state is None:
        return ["no aggregator holds this file: nothing is being added to it"]
    damaged = (
        f", {count_text(state.messages_damaged)} damaged messages resent" if state.messages_damaged else ""
    )
    serving = f"NOT SERVING: {state.not_serving_reason}" if state.not_serving_reason else "serving"
    up = age_text(max(state.now_ns - state.started_ns, 0))
    return [
        f"aggregator {serving}; up {up}, {count_text(state.ranks_alive)} ranks alive, "
        f"{count_text(state.streams)} shippers, longest lag {age_text(state.lag_ns)}, "
        f"{count_text(state.events)} events stored",
        f"queue {count_text(state.queue_batches)} batches ({bytes_text(state.queue_bytes)}), "
        f"memory {bytes_text(state.rss_bytes)}, database {bytes_text(state.database_bytes)} and log "
        f"{bytes_text(state.log_bytes)}, {bytes_text(state.disk_free_bytes)} free; "
        f"{count_text(state.batches_refused)} batches refused, "
        f"{count_text(state.commit_retries)} commits retried{damaged}",
    ]


def shipper_line(session_dirs: Iterable[Path]) -> list[str]:
    """The state of this host's shipper for a session; none if it has ended or runs as another user.

    Args:
        session_dirs: the session's folders on this host.
    """
    for folder in session_dirs:
        shipper = shipper_state(folder)
        if shipper.pending_records is not None:
            error = f": {shipper.error}" if shipper.error else ""
            pending = count_text(shipper.pending_records)
            whose = f"shipper on this host (pid {shipper.pid})"
            return [safe_text(f"{whose} {shipper.state}, {pending} records pending{error}")]
    return []


def shipper_state(session_dir: Path) -> ShipperState:
    """The state that the session's shipper last wrote."""
    try:
        with (session_dir / STATUS_NAME).open("rb") as file:
            found = json.loads(file.read(STATUS_BYTES_MAX))
    except (OSError, ValueError):  # not written yet, or removed with the folder
        return ShipperState()
    if not isinstance(found, dict):
        return ShipperState()
    pending = found.get("pending_records")
    return ShipperState(
        pid=found.get("pid"),
        state=found.get("state"),
        pending_records=pending if isinstance(pending, int) else None,
        error=str(found.get("error") or ""),
    )


def set_aside_lines(session_dirs: Iterable[Path]) -> list[str]:
    """The spools of a session on this host that could not be stored and are kept."""
    lines = []
    for folder in session_dirs:
        for pattern in (f"{FOLDER_NAME}/*/{MARK_NAME}", f"*/{MARK_NAME}"):
            for path in sorted(folder.glob(pattern)):
                mark = read_mark(path.parent)
                if mark is not None:
                    again = f"rankmem ship {shlex.quote(str(path.parent))} retries it"
                    lines.append(safe_text(f"spool {path.parent.name} is set aside: {mark.message}; {again}"))
    return lines
