"""Errors about a value of a recording, in words for the user: Python's own are for the programmer.

Stage: readers; the process of ``rankmem import``. In: the exception from reading a value; out: a sentence
without names of Python, which follows the file and the position in it. A reader itself raises ValueError in
words, which passes unchanged.
"""

from __future__ import annotations

import re
import struct
from decimal import InvalidOperation
from typing import Final

SHOWN_CHARS_MAX: Final = 200
"""Of a sentence: a value may be a whole text."""

_OTHER_TYPE: Final = "a value is missing, or of another type than belongs there"
_TOO_LARGE: Final = "a number is larger than 64 bits hold"
_NUMBER: Final = re.compile(
    r"(?:invalid literal for int\(\) with base 10|could not convert string to float): (?P<value>.*)",
    re.DOTALL,
)


def plain(error: Exception) -> str:
    """The error in words."""
    if isinstance(error, KeyError):
        return f"it has no {str(error.args[0] if error.args else 'value')[:80]!r}"
    if isinstance(error, OverflowError):
        return _TOO_LARGE
    if isinstance(error, InvalidOperation):
        return "a number is written as no number is"
    if isinstance(error, UnicodeError):
        return "a text is not in UTF-8"
    if isinstance(error, TypeError | AttributeError | IndexError | struct.error):
        return _OTHER_TYPE
    text = str(error)
    match = _NUMBER.fullmatch(text)
    return f"{match['value'][:80]} is not a whole number" if match else text[:SHOWN_CHARS_MAX]
