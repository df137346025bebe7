"""How a memory timeline is recognised. Light: imported before any reader."""

from __future__ import annotations

import re
from typing import Final

from rankmem_imports.files.repeated import repeated
from rankmem_imports.probing import Probe

NAME: Final = "memory-timeline"
_NUMBER: Final = rb"\s*-?\d+\s*"
_RAW: Final = re.compile(
    rb"\s*\[\s*\[" + _NUMBER + rb",\s*[1-4]\s*," + _NUMBER + rb",\s*[0-7]\s*\]\s*(?:\]|,\s*\[\s*-?\d)"
)
_TOTALS: Final = re.compile(
    rb"\s*\[\s*\["
    + repeated(_NUMBER + rb",")
    + rb"[\s\d-]*+(?:$|\]\s*,\s*\[\s*(?:\[\s*0(?:\.0)?\s*,|\]\s*\]\s*$))"
)


def recognises(probe: Probe) -> bool:
    """Nested lists of numbers, in one of the two forms."""
    return is_raw(probe) or _TOTALS.match(probe.head) is not None


def is_raw(probe: Probe) -> bool:
    """Whether it is the form that lists each change."""
    return _RAW.match(probe.head) is not None
