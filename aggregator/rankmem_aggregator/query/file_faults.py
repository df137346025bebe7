"""The error of a question that reads a lake's file which is not what was written, or cannot be read.

Stage: query, where DuckDB's errors become ours. In: the file and what is wrong with it, or the text in which
DuckDB brings it from a file system in Python; out: a :class:`RankmemError` that names the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rankmem_protos.errors import Code, RankmemError

MARK: Final = "lake-file "
"""Begins the text; then the code and the message."""
_HINTS: Final[Mapping[Code, str]] = {
    Code.INVALID: "rankmem lake check lists all such files; restore them",
    Code.UNAVAILABLE: "ask again when the store is back; rankmem lake check lists files that are torn",
}
_UNREADABLE: Final = re.compile(r"^IO Error|Failed to read file \"")
"""DuckDB's own words, of files on this machine."""
_TEXT: Final = re.compile(f"{MARK}({'|'.join(_HINTS)}) (.*)")


class FileFault(OSError):
    """Carries the error through DuckDB: of an exception in Python its own error has only the text."""

    def __init__(self, error: RankmemError) -> None:
        super().__init__(f"{MARK}{error.code} {error.message}")


def wrong_file(place: str, size: int | None, expected: int) -> RankmemError:
    """The error of a file that has another size than was written; None: it is missing."""
    what = f"has {size} bytes, not {expected}: it is torn, or another file"
    return _error(Code.INVALID, f"the lake's file {place} {'is missing' if size is None else what}")


def unread_file(place: str, why: str) -> RankmemError:
    """The error of a file that its store does not give."""
    return _error(Code.UNAVAILABLE, f"the lake's file {place} cannot be read: {why}")


def file_error(text: str) -> RankmemError | None:
    """The error that a text of DuckDB's stands for; None: another one."""
    if (found := _TEXT.search(text)) is not None:
        return _error(Code(found[1]), found[2])
    if _UNREADABLE.search(text):
        return RankmemError(Code.INVALID, text, "of a lake: rankmem lake check lists what cannot be read")
    return None


def _error(code: Code, message: str) -> RankmemError:
    return RankmemError(code, message, _HINTS[code])
