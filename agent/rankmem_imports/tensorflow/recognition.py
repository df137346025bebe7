"""How the StepStats and RunMetadata of TensorFlow are recognised. Light: imported before any reader."""

from __future__ import annotations

import re
from typing import Final

from rankmem_imports.probing import Probe

NAME: Final = "tensorflow"
TEXT_FORM: Final = re.compile(rb"(?:\s|#[^\n]*\n)*(step_stats|dev_stats)\s*:?\s*\{")
_DEVICE: Final = re.compile(rb"/[a-z_]+:")


def recognises(probe: Probe) -> bool:
    """The messages at its beginning, down to a device's name; or the field's name in text."""
    return TEXT_FORM.match(probe.head) is not None or depth_of(probe.head) is not None


def depth_of(head: bytes) -> int | None:
    """How many messages begin before a device's name: 3 in RunMetadata, 2 in StepStats; None in neither."""
    at = 0
    for depth in range(1, 4):
        if head[at : at + 1] != b"\x0a":
            return None
        try:
            _, at = varint(head[: at + 12], at + 1)
        except ValueError:
            return None
        if depth >= 2 and _DEVICE.match(head, at):
            return depth
    return None


def varint(message: memoryview | bytes, at: int) -> tuple[int, int]:
    """The number of protobuf that begins at ``at``, and where it ends; ValueError if it breaks off."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a number breaks off")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than ten bytes")
