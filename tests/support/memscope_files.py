"""Dumps of msMemScope that tests make up, as CSV and as SQLite."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path
from typing import Any

HEADER = (
    "ID", "Event", "Event Type", "Name", "Timestamp(ns)", "Process Id", "Thread Id", "Device Id", "Ptr",
    "Attr", "Call Stack(Python)", "Call Stack(C)",
)  # fmt: skip
BASE_US = 1_746_006_014_162_153
STACK = "/work/model.py(7): forward\n/work/train.py(40): <module>\n"
Row = tuple[Any, ...]


class Dump:
    """Rows of one process, a microsecond apart."""

    def __init__(self, process: int = 100, device: str = "0") -> None:
        self.rows: list[Row] = []
        self.process, self.device = process, device
        self.used = 0

    def add(
        self, event: str, kind: str, *, name: str = "N/A", address: int | str = "N/A", attributes: str = "",
        thread: int = 5, device: str | None = None, stack: str = "",
    ) -> None:  # fmt: skip
        time = BASE_US + len(self.rows)
        where = self.device if device is None else device
        self.rows.append(
            (
                len(self.rows),
                event,
                kind,
                name,
                time,
                self.process,
                thread,
                where,
                address,
                attributes,
                stack,
                "",
            )
        )

    def driver(self, address: int, size: int, *, module: int = 33, **more: Any) -> None:
        """For the process itself, unless said."""
        self.add(
            "MALLOC",
            "HAL",
            address=address,
            attributes=f"{{addr:{address},size:{size},owner:,MID:{module}}}",
            **more,
        )

    def driver_free(self, address: int) -> None:
        attributes = f"{{addr:{address},size:0,owner:,MID:-1}}"
        self.add("FREE", "HAL", address=address, attributes=attributes, device="N/A")

    def pool(self, address: int, size: int, *, kind: str = "PTA", total: int = 4096, **more: Any) -> None:
        """A negative size frees."""
        self.used += size
        attributes = f"{{addr:{address},size:{size},owner:,total:{total},used:{self.used}}}"
        event = "MALLOC" if size > 0 else "FREE"
        self.add(event, kind, address=address, attributes=attributes, **more)


def a_dump(process: int = 100, device: str = "0") -> Dump:
    dump = Dump(process, device)
    dump.add("SYSTEM", "ACL_INIT", device="N/A")
    dump.driver(1 << 20, 4096)
    dump.driver(9 << 20, 512, device="host")
    dump.add("OP_LAUNCH", "ATEN_START", name="aten::mm")
    dump.add("OP_LAUNCH", "ATEN_START", name="aten::empty")
    dump.pool(1 << 20, 1024, stack=STACK)
    dump.add("OP_LAUNCH", "ATEN_END", name="aten::empty")
    dump.add("OP_LAUNCH", "ATEN_END", name="aten::mm")
    dump.add("KERNEL_LAUNCH", "KERNEL_LAUNCH")
    dump.add("MSTX", "Range_start", name='"step start"')
    dump.pool((1 << 20) + 1024, 512)
    dump.pool(1 << 20, -1024)
    dump.add("MSTX", "Range_end")
    dump.add("MSTX", "Mark", name="here")
    dump.driver_free(9 << 20)
    return dump


def as_csv(path: Path, *dumps: Dump) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for rows in zip(*(dump.rows for dump in dumps), strict=True):
            writer.writerows(rows)
    return path


def as_database(path: Path, dump: Dump, table: str = "memscope_dump") -> Path:
    columns = ", ".join(f'"{name}"' for name in HEADER)
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE {table} ({columns})")
        for row in dump.rows:
            *begin, time, process, thread, device, address, attributes, stack, end = row[1:]
            pairs = dict(part.split(":") for part in attributes.strip("{}").split(",") if part)
            told = json.dumps(pairs) if pairs else ""
            where = f"0x{address:018x}" if isinstance(address, int) else address
            values = (row[0], *begin, time * 1000, process, thread, device, where, told, stack, end)
            database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
    database.close()
    return path
