"""Text that is safe in the cells of a CSV file.

Stage: render and export. In: Arrow rows; out: the same, with text that a spreadsheet would run as a formula
led by an apostrophe. Names of operators, modules and files come from outside.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_FORMULA: Final = r"^([=+\-@\t\r])"
"""How a cell begins that a spreadsheet runs."""


def guarded(rows: pa.Table) -> pa.Table:
    """The rows; no text in them is a formula."""
    for position, field in enumerate(rows.schema):
        if pa.types.is_string(field.type):
            safe = pc.replace_substring_regex(rows[field.name], _FORMULA, r"'\1")
            rows = rows.set_column(position, field, safe)
    return rows
