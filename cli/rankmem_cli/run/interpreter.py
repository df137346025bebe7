"""Detects a Python option in a command that keeps rankmem from loading.

Stage: ``rankmem run``, before the command starts. In: the command. Out: the option. With ``-I`` and ``-E``
Python ignores PYTHONPATH, with ``-S`` it does not import sitecustomize.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?t?")
_OPTIONS_WITH_VALUE: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_MODULE: Final = "rankmem_agent"


def option_at_fault(command: Sequence[str]) -> str | None:
    """``-I``, ``-E`` or ``-S``, where the first Python in ``command`` has it and does not run
    ``-m rankmem_agent``; else None."""
    for place, word in enumerate(command):
        if _PYTHON.fullmatch(os.path.basename(word)):
            return _of_python(command[place + 1 :])
    return None


def _of_python(arguments: Sequence[str]) -> str | None:
    found: str | None = None
    words = iter(arguments)
    for word in words:
        if word in _OPTIONS_WITH_VALUE:
            next(words, None)
        elif not word.startswith("-") or word == "-" or word.startswith("--"):
            break
        else:
            flags, value = _flags(word)
            found = next((f"-{flag}" for flag in flags if flag in "IES"), found)
            if "m" in flags or "c" in flags:
                module = value or next(words, "")
                return None if "m" in flags and module == _MODULE and found != "-S" else found
    return found


def _flags(word: str) -> tuple[str, str]:
    """The letters of an option word, and the value that follows one of them in the same word."""
    for place, letter in enumerate(word[1:], 1):
        if letter in "mcWX":
            return word[1 : place + 1], word[place + 1 :]
    return word[1:], ""
