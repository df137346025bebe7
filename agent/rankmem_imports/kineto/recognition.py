"""How a trace of torch.profiler (Kineto) is recognised. Light: imported before any reader."""

from __future__ import annotations

import codecs
from typing import Final

from rankmem_imports.probing import Probe

NAME: Final = "kineto"
_FIELD_MARKS: Final = (
    b'"traceEvents"',
    b'"baseTimeNanoseconds"',
    b'"deviceProperties"',
    b'"distributedInfo"',
)
_EVENT_MARKS: Final = (b'"[memory]"', b'"External id"', b'"Ev Idx"')
"""Of a list of events that Kineto wrote: other profilers write lists, too."""


def recognises(probe: Probe) -> bool:
    """A JSON object or list with the fields or the events of a trace."""
    head = probe.head.removeprefix(codecs.BOM_UTF8).lstrip()
    if head.startswith(b"{"):
        return any(mark in head for mark in _FIELD_MARKS)
    return head.startswith(b"[") and any(mark in head for mark in _EVENT_MARKS)
