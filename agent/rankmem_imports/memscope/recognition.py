"""How a dump of msMemScope is recognised. Light: imported before any reader."""

from __future__ import annotations

from typing import Final

from rankmem_imports.probing import Probe

NAME: Final = "memscope"
TABLES: Final = {"memscope_dump": "memscope/events", "leaks_dump": "memscope/events_leaks"}
"""Tables of a dump's database, with the statement that reads each."""
COLUMNS: Final = (
    "Event", "Event Type", "Name", "Timestamp(ns)", "Process Id", "Thread Id", "Device Id", "Ptr", "Attr",
    "Call Stack(Python)",
)  # fmt: skip
NEEDED: Final = frozenset(COLUMNS[:9])


def recognises(probe: Probe) -> bool:
    """The table of a database, or the header of a CSV file."""
    if probe.sqlite_tables:
        return not probe.sqlite_tables.isdisjoint(TABLES)
    header = probe.head.split(b"\n", 1)[0].decode("utf-8", errors="replace")
    return {name.strip() for name in header.lstrip("\ufeff").strip().split(",")} >= NEEDED
