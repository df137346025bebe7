"""Describes an error in a CSV file: Arrow's messages name columns by number, and its own types.

Stage: readers, pure functions; the process of ``rankmem import``. In: Arrow's exception, the file's header;
out: line, column and cell.

Source: messages of pyarrow 22, arrow/csv/{parser,converter,reader}.cc.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_CELL: Final = re.compile(r"^In CSV column #(\d+): (?:Row #(\d+): )?(.*)", re.DOTALL)
_QUOTED: Final = re.compile(r"'(.*?)'", re.DOTALL)
_CELLS: Final = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_QUOTED_CHARS: Final = 60


def in_words(error: Exception, header: Sequence[str], line: int) -> str:
    """The error with its place.

    Args:
        line: after which it stands, where the message does not say it.
    """
    message = str(error).strip()
    if cells := _CELLS.search(message):
        return f"{_place(cells[1], line)}: {cells[3]} cells of {cells[2]}"
    if cell := _CELL.match(message):
        number = int(cell[1])
        name = header[number].strip() if number < len(header) else f"column {number + 1}"
        quoted = _QUOTED.search(cell[3])
        what = f"is {quoted[1][:_QUOTED_CHARS]!r}, not a number" if quoted else "is no such number"
        if "Rescaling" in cell[3]:
            what = "has more than three decimals"
        return f"{_place(cell[2], line)}: {name} {what}"
    return f"after line {line}: {message[:300]}"


def _place(row: str | None, line: int) -> str:
    return f"line {row}" if row else f"after line {line}"
