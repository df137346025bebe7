"""What the tests of faults share."""

from __future__ import annotations

from faults.scene import scene

__all__ = ["scene"]
