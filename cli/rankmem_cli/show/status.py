"""The lines above the table of ``rankmem status``: the aggregator, and the shipper on this host.

Stage: render. In come an aggregator's figures and a shipper's status file; out go lines of text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankmem_cli.show.units import age_text, bytes_text, count_text, safe_text
from rankmem_ship.marks import FOLDER_NAME, MARK_NAME, read_mark
from rankmem_ship.status import STATUS_NAME

if TYPE_CHECKING:
    from rankmem_aggregator.query.aggregator_state import AggregatorState

STATUS_BYTES_MAX: Final = 64 << 10
"""Maximum size of a shipper's status file, which has a few hundred."""


def aggregator_lines(state: AggregatorState | None) -> list[str]:
    """The aggregator's state in two lines, or one line if no aggregator holds the file."""
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
        state = _read(folder / STATUS_NAME)
        if state is not None:
            error = f": {state['error']}" if state.get("error") else ""
            pending = count_text(int(state.get("pending_records") or 0))
            whose = f"shipper on this host (pid {state.get('pid')})"
            return [safe_text(f"{whose} {state.get('state')}, {pending} records pending{error}")]
    return []


def set_aside_lines(session_dirs: Iterable[Path]) -> list[str]:
    """The spools of a session on this host that could not be stored and are kept."""
    lines = []
    for folder in session_dirs:
        for pattern in (f"{FOLDER_NAME}/*/{MARK_NAME}", f"*/{MARK_NAME}"):
            for path in sorted(folder.glob(pattern)):
                mark = read_mark(path.parent)
                if mark is not None:
                    where = f"kept in {path.parent}, rankmem ship retries it"
                    lines.append(safe_text(f"spool {path.parent.name} is set aside: {mark.message}; {where}"))
    return lines


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(STATUS_BYTES_MAX))
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) and isinstance(said.get("pending_records"), int) else None
