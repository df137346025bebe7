"""Reports that a process trains and is not recorded.

Stage: trainer, processes in which the agent is not on. One line on stderr, once; nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankmem_agent.hooks.guard import Guard
from rankmem_agent.preload.evidence import current_group, when_grouped, when_stepped


def report_unrecorded(rank: int, why: str, remedy: str) -> None:
    """Reports it now."""
    Guard(rank).report(f"this process trains but is not recorded: {why} (try: {remedy})")


def watch(torch: Any, trains: Callable[[], None]) -> None:
    """Calls ``trains`` when this process makes a process group or an optimizer steps, once."""
    is_reported = False

    def once() -> None:
        nonlocal is_reported
        if not is_reported:
            is_reported = True
            trains()

    if current_group() is not None:
        once()
    when_grouped(lambda group: once())
    when_stepped(torch, once)
