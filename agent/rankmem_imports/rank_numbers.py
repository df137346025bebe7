"""Ranks and world sizes in recordings: numbers, or numbers as text.

Stage: readers; the process of ``rankmem import``. In: a value from a file. Out: the number, or an error
that names the file and the value: a rank that cannot be is refused, since taking the recording for another
rank's would be a guess.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rankmem_protos.bounds import RANKS_MAX
from rankmem_protos.errors import Code, RankmemError

RANK_MAX: Final = RANKS_MAX - 1
"""Ranks count from 0."""
_SHOWN_CHARS: Final = 40


def rank_number(path: Path, value: object) -> int:
    """The rank in a file.

    Raises:
        RankmemError: INVALID if it is not a rank.
    """
    number = _whole(value)
    if number is None or not 0 <= number <= RANK_MAX:
        raise RankmemError(
            Code.INVALID,
            f"{path} has rank {_shown(value)}: a rank is a number from 0 to {RANK_MAX}",
            "correct the number in the file, or record it again",
        )
    return number


def world_size_number(path: Path, value: object) -> int:
    """The world size in a file.

    Raises:
        RankmemError: INVALID if it is not a world size.
    """
    number = _whole(value)
    if number is None or not 1 <= number <= RANK_MAX + 1:
        raise RankmemError(
            Code.INVALID,
            f"{path} has world size {_shown(value)}: that is a number from 1 to {RANK_MAX + 1}",
            "correct the number in the file, or record it again",
        )
    return number


def _whole(value: object) -> int | None:
    """A whole number, also as text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < _SHOWN_CHARS):
            return None
        return int(value)
    return value if isinstance(value, int) else None


def _shown(value: object) -> str:
    text = (
        repr(value)
        if not isinstance(value, int) or abs(value) < 10**_SHOWN_CHARS
        else "a number too large to be one"
    )
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
