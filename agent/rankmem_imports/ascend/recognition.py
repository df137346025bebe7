"""How a profiler folder of an Ascend device is recognised. Light: imported before any reader."""

from __future__ import annotations

import csv
from collections.abc import Set
from typing import Final

from rankmem_imports.probing import Probe

NAME: Final = "mindstudio"
MEMORY_TABLES: Final = frozenset({"MEMORY_RECORD", "OP_MEMORY", "NPU_MEM", "NPU_MODULE_MEM", "NPU_OP_MEM"})
_OTHER_TABLES: Final = frozenset({"RANK_DEVICE_MAP", "NPU_INFO", "SESSION_TIME_INFO", "ENUM_MODULE"})


def recognises(probe: Probe) -> bool:
    """The tables of a database, or the header of a CSV file."""
    if probe.sqlite_tables:
        return has_our_tables(probe.sqlite_tables)
    line = probe.head.split(b"\n", 1)[0]
    return table_of_header(line.decode("utf-8-sig", errors="replace")) is not None


def has_our_tables(tables: Set[str]) -> bool:
    """Whether a database with these tables is MindStudio's."""
    return "STRING_IDS" in tables and not (MEMORY_TABLES | _OTHER_TABLES).isdisjoint(tables)


def table_of_header(line: str) -> str | None:
    """Which of the four files begins with this line: record, operator, module, static; else None."""
    names = frozenset(name.strip() for name in names_in(line.lstrip("\ufeff")))
    if {"Component", "Timestamp(us)"} <= names:
        if names & {"Total Allocated(MB)", "Total Allocated(KB)"}:
            return "record"
        return "module" if names & {"Total Reserved(MB)", "Total Reserved(KB)"} else None
    if {"Name", "Size(KB)", "Allocation Time(us)"} <= names:
        return "operator"
    if {"Op Name", "Graph ID", "Node Index Start", "Node Index End", "Size(KB)"} <= names:
        return "static"
    return None


def names_in(line: str) -> list[str]:
    """The cells of a header, quoted or not."""
    try:
        return next(csv.reader([line.rstrip("\r\n")]), [])
    except csv.Error:  # a line that is no CSV file's
        return []
