"""A rank and a world size as recordings say them: numbers, or numbers as text.

Stage: readers; the process of ``rankmem import``. In: a value out of a file. Out: the number, or an error
that names the file and the value: a rank that cannot be is refused, since taking the recording for another
rank's would be a guess.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rankmem_protos.errors import Code, RankmemError

RANK_MAX: Final = 2**20 - 1
"""As the aggregator's: ten times the largest jobs known."""
_SHOWN_CHARS: Final = 40


def rank_number(path: Path, said: object) -> int:
    """The rank that a file says.

    Raises:
        RankmemError: INVALID for what is no rank.
    """
    number = _whole(said)
    if number is None or not 0 <= number <= RANK_MAX:
        raise RankmemError(
            Code.INVALID,
            f"{path} says that it is from rank {_shown(said)}: a rank is a number from 0 to {RANK_MAX}",
            "correct the number in the file, or record it again",
        )
    return number


def world_size_number(path: Path, said: object) -> int:
    """The number of ranks that a file says its job has.

    Raises:
        RankmemError: INVALID for what is no such number.
    """
    number = _whole(said)
    if number is None or not 1 <= number <= RANK_MAX + 1:
        raise RankmemError(
            Code.INVALID,
            f"{path} says that its job has {_shown(said)} ranks: that is a number from 1 to {RANK_MAX + 1}",
            "correct the number in the file, or record it again",
        )
    return number


def _whole(said: object) -> int | None:
    """A whole number, also as text; None for anything else."""
    if isinstance(said, bool):
        return None
    if isinstance(said, str):
        digits = said.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < _SHOWN_CHARS):
            return None
        return int(said)
    return said if isinstance(said, int) else None


def _shown(said: object) -> str:
    text = (
        repr(said)
        if not isinstance(said, int) or abs(said) < 10**_SHOWN_CHARS
        else "a number too large to be one"
    )
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
