"""Makes text safe for the cells of a CSV file.

Stage: render and export. In: text or Arrow rows; out: the same, with an apostrophe before text that a
spreadsheet would run as a formula. Names of operators, modules and files come from outside.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

_SIGNS: Final = "=+@-\uff1d\uff0b\uff0d\uff20"
"""How a formula begins; the second four are the same in full width, which East Asian editions accept."""


def no_formula(text: str) -> str:
    """The text, with an apostrophe in front where a spreadsheet would take it for a formula.

    Blanks before the sign do not count: some spreadsheets trim cells before they run them.
    """
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

    rows = rows.combine_chunks()
    for position, field in enumerate(rows.schema):
        if pa.types.is_string(field.type):
            texts = rows.column(position).combine_chunks().dictionary_encode()
            safe = pa.array(map(no_formula, texts.dictionary.to_pylist()), pa.string())
            rows = rows.set_column(position, field, safe.take(texts.indices))
    return rows
