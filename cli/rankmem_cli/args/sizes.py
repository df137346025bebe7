"""Parses a SIZE as users write it.

Stage: arguments. In: the text after ``--at-least``. Out: a number of bytes. The only place where a size is
parsed. Runs in the command line's process.
"""

from __future__ import annotations

import re
from typing import Final

from rankmem_protos.errors import Code, RankmemError

_SIZE: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]i?B?|B)?", re.ASCII | re.IGNORECASE)
_POWERS: Final = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """The bytes that ``text`` names: ``104857600``, ``1.5 GiB``, ``100MiB`` (``100M`` means the same).

    Raises:
        RankmemError: INVALID if it is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise RankmemError(Code.INVALID, f"{text!r} is not a size", "bytes, or 512KiB, 100MiB, 1.5GiB")
    whole, _, fraction = match["number"].partition(".")
    scale: int = 1024 ** _POWERS[(match["unit"] or "")[:1].lower()]
    return int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)
