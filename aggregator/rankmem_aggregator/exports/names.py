"""Names of files that are written: which must not be replaced, and names made from what a database says.

Stage: export and render. A host may be called anything; a part of a name is good for any file system.
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
"""How a DuckDB file begins, behind a checksum."""


def is_database(path: Path) -> bool:
    """Whether a DuckDB database has this name, or is behind it: no answer or export replaces one."""
    try:
        with path.open("rb") as file:
            return file.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC
    except OSError:
        return False


def part_of_name(text: str) -> str:
    """The text percent-encoded; cut where it is too long, and then told apart by a hash of all of it."""
    encoded = [quote(char, safe="", errors="replace") for char in text]
    whole = "".join(encoded)
    if len(whole) <= PART_CHARS_MAX:
        return whole
    told_apart = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    kept, room = "", PART_CHARS_MAX - _HASH_CHARS - 1
    for char in encoded:  # whole characters: engines decode the name
        if len(kept) + len(char) > room:
            break
        kept += char
    return f"{kept}-{told_apart}"
