"""Text that is safe in the cells of a CSV file.

Stage: render and export. In: text or Arrow rows; out: the same, with text that a spreadsheet would run as a
formula led by an apostrophe. Names of operators, modules and files come from outside.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

_SIGNS: Final = "=+@-\uff1d\uff0b\uff0d\uff20"
"""How a cell begins that a spreadsheet runs; the second four are the same in full width, as East Asian
editions take them."""
_FORMULA: Final = rf"^((?:[\pZ\pC]*[{re.escape(_SIGNS)}])|[\t\r])"
"""Blanks before the sign do not count: a spreadsheet that trims what it reads runs it all the same."""


def no_formula(text: str) -> str:
    """The text with an apostrophe in front where a spreadsheet would take it for a formula."""
    if text.startswith(("\t", "\r")):
        return f"'{text}"
    for char in text:
        if char in _SIGNS:
            return f"'{text}"
        if unicodedata.category(char)[0] not in "ZC":
            break
    return text


def guarded(rows: pa.Table) -> pa.Table:
    """The rows in one chunk; no text in them is a formula.

    In one chunk, since pyarrow (26.0) writes uninitialised memory for a table whose first chunk is empty.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for position, field in enumerate(rows.schema):
        if pa.types.is_string(field.type):
            safe = pc.replace_substring_regex(rows[field.name], _FORMULA, r"'\1")
            rows = rows.set_column(position, field, safe)
    return rows.combine_chunks()
