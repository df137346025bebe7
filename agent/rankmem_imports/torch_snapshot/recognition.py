"""How a memory snapshot of torch is recognised. Light: imported before any reader."""

from __future__ import annotations

from typing import Final

from rankmem_imports.probing import Probe

NAME: Final = "torch-snapshot"
_MARKS: Final = (b"device_traces", b"segments")


def recognises(probe: Probe) -> bool:
    """A pickle that names a part of a snapshot near its beginning; which one depends on its writer."""
    is_pickle = probe.head[:1] == b"\x80" and probe.head[1:2] <= b"\x05"
    return is_pickle and any(mark in probe.head for mark in _MARKS)
