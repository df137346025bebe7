"""Names of files that are written: which must not be replaced, and names made from a database's texts.

Stage: export and render. A host may have any name; :func:`part_of_name` suits every file system.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final
from urllib.parse import quote

PART_CHARS_MAX: Final = 160
"""A name has 255 bytes at most, with what stands around it; nearly every host's name fits."""
_HASH_CHARS: Final = 16
_MAGIC_AT, _MAGIC = 8, b"DUCK"
"""How a DuckDB file begins, after a checksum."""


def is_database(path: Path) -> bool:
    """Whether the path, followed if a link, is a DuckDB database: no answer or export replaces one."""
    try:
        with path.open("rb") as file:
            return file.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC
    except OSError:
        return False


def part_of_name(text: str) -> str:
    """The text percent-encoded; a long one is cut and ends in a hash of the whole text."""
    encoded = [quote(char, safe="", errors="replace") for char in text]
    whole = "".join(encoded)
    if len(whole) <= PART_CHARS_MAX:
        return whole
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    kept, room = "", PART_CHARS_MAX - _HASH_CHARS - 1
    for char in encoded:  # whole characters: engines decode the name
        if len(kept) + len(char) > room:
            break
        kept += char
    return f"{kept}-{digest}"
