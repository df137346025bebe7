"""Which types of device are the host's own memory, and in what order devices are shown.

Stage: the contract between all that show devices. Imports nothing.
"""

from __future__ import annotations

from typing import Final

HOST_MEMORY: Final = ("cpu", "pinned")
"""Shown after the others: a training rarely runs out of it."""


def by_weight(device_type: str, peak_bytes: int | None) -> tuple[bool, int, str]:
    """The key of a sort: accelerators before host memory, the fuller first."""
    return device_type in HOST_MEMORY, -(peak_bytes or 0), device_type
