"""/proc/PID/stat, read in one place.

Stage: agent and shipper, wherever a process is named or asked about. In: a process id of this PID namespace.
Out: fields. Standard library only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

STATE: Final = 0
START_TICKS: Final = 19
"""When it started, in clock ticks since boot."""
WAIT_STATUS: Final = 49
"""How it ended, as ``waitpid`` gives it; of a zombie, and not shown to every user."""
ENDED: Final = "ZXx"
"""States of a process that runs no more; one that has not been waited for still has its number."""


def stat_of(pid: int) -> list[str]:
    """The fields after the name, which may hold spaces and parentheses; empty without such a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return []
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > START_TICKS else []


def process_start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is no such process."""
    fields = stat_of(pid)
    return int(fields[START_TICKS]) if fields else 0


def process_is_alive(pid: int, start_ticks: int) -> bool:
    """Whether this very process runs in this PID namespace; a zombie does not: it will never write again."""
    fields = stat_of(pid)
    return bool(fields) and fields[STATE] not in ENDED and int(fields[START_TICKS]) == start_ticks
