"""The rows of an msMemScope dump, CSV or SQLite, one by one.

Stage: readers; the process of ``rankmem import``. In: ``memscope_dump_T.csv`` or ``.db``; out: rows with
times in ns since 1970. Older CSV files write microseconds under a header of ns: the number's size decides.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from rankmem_imports.files.compressed import BROKEN, ends_in_line_break, open_text
from rankmem_imports.files.sqlite_recording import SqliteRecording
from rankmem_imports.memscope.recognition import COLUMNS, TABLES
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.errors import Code, RankmemError

LINE_BYTES_MAX: Final = 4 << 20
"""Of a cell: a Python stack of some thousand frames. Dumps have none longer."""
MICROSECONDS_MAX: Final = 10**17
"""A time below it is in microseconds: as ns it would lie before 1974, as microseconds up to the year 5138."""

NO_PROCESS: Final = -1
"""Of events outside of a process, such as the beginning of the trace."""

_NOTHING: Final = ("", "N/A", "None")
_QUOTED_CHARS: Final = 60
"""Of what an error quotes."""


class Row(NamedTuple):
    """An event."""

    number: int
    """Place in the file, from 1, the header left out."""
    event: str
    """MALLOC, FREE, OP_LAUNCH, MSTX, ..."""
    kind: str
    """Of a MALLOC: HAL, PTA, ...; of MSTX: Mark, Range_start, Range_end."""
    name: str
    time_ns: int
    process: int
    thread: int
    device: str
    address: int | None
    attributes: str
    stack: str


def rows_of(path: Path) -> Iterator[Row]:
    """The rows, in the order of the file.

    Raises:
        RankmemError: INVALID with file and row where it is damaged.
    """
    for number, cells in enumerate(_cells(path), 1):
        try:
            event, kind, name, time, process, thread, device, address, attributes, stack = cells
            yield Row(
                number=number,
                event=str(event),
                kind=str(kind),
                name=str(name or ""),
                time_ns=_time(time),
                process=NO_PROCESS if str(process).strip() in _NOTHING else whole(process, "Process Id"),
                thread=-1 if str(thread).strip() in _NOTHING else whole(thread, "Thread Id"),
                device=str(device or ""),
                address=None if str(address or "").strip() in _NOTHING else whole(address, "Ptr"),
                attributes=str(attributes or ""),
                stack=str(stack or ""),
            )
        except ValueError as error:
            raise RankmemError(
                Code.INVALID,
                f"{path}, row {number}: {error}",
                "the file is cut short or damaged: export or copy it again",
            ) from error


def attributes_of(text: str) -> dict[str, str]:
    """The attributes of an event: JSON, or in older files ``{name:value,…}``.

    Raises:
        ValueError: they are cut short.
    """
    plain = text.strip()
    if plain and not (plain.startswith("{") and plain.endswith("}")):
        raise ValueError(f"attributes {plain[-_QUOTED_CHARS:]!r} are cut short")
    if plain.startswith('{"'):
        try:
            attributes = json.loads(plain)
        except (ValueError, RecursionError):
            raise ValueError(f"attributes {plain[:_QUOTED_CHARS]!r} are not JSON") from None
        return {str(name): str(value) for name, value in attributes.items()}
    parts = (part.partition(":") for part in plain.strip("{}").split(","))
    return {name.strip(): value.strip() for name, _, value in parts if name}


def _cells(path: Path) -> Iterator[tuple[Any, ...]]:
    with path.open("rb") as stream:
        is_database = stream.read(6) == b"SQLite"
    if is_database:
        with SqliteRecording(path) as database:
            table = next((name for name in TABLES if name in database.columns), "memscope_dump")
            database.need(table, *COLUMNS)
            yield from database.rows(TABLES[table])
    else:
        yield from _csv_cells(path)


def _csv_cells(path: Path) -> Iterator[tuple[Any, ...]]:
    csv.field_size_limit(LINE_BYTES_MAX)
    number = 0
    try:
        if not ends_in_line_break(path):
            raise ValueError("its last row does not end in a line break")
        with open_text(path, encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, restval=None)
            for number, row in enumerate(reader, 1):  # noqa: B007
                if None in row or None in row.values():
                    raise ValueError(f"{len([v for v in row.values() if v is not None])} cells")
                yield tuple(row.get(name) for name in COLUMNS)
    except (csv.Error, ValueError, *BROKEN) as error:
        raise RankmemError(
            Code.INVALID,
            f"{path}, after row {number}: {error}",
            "the file is cut short or damaged: export or copy it again",
        ) from error


def _time(value: object) -> int:
    number = whole(value, "Timestamp(ns)")
    return number * 1000 if number < MICROSECONDS_MAX else number


def whole(value: object, name: str) -> int:
    """The whole number in a cell or an attribute.

    Raises:
        ValueError: it is not one, or absurd.
    """
    text = str(value).strip()
    try:
        number = int(text, 16) if text.startswith("0x") else int(text)
    except ValueError:
        raise ValueError(f"{name} is {text[:_QUOTED_CHARS]!r}, not a whole number") from None
    if not -NUMBER_MAX <= number <= NUMBER_MAX:
        raise ValueError(f"{name} is a number of {len(text)} digits")
    return number
