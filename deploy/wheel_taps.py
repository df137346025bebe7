"""Names a wheel for the system that the taps in it were built for; without any it stays one for all systems.

Run by hatchling as it builds a wheel (``pyproject.toml``).
"""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PREBUILT = "agent/rankmem_agent/tap/taps"


class WheelTaps(BuildHookInterface):  # type: ignore[type-arg]
    """Looks at the taps that ``make taps`` made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Sets the wheel's tag: the newest of glibc's symbols in a tap is what it needs."""
        taps = sorted(Path(self.root, PREBUILT).glob("tap-*.so"))
        if version != "standard" or not taps:
            return
        minors = [int(minor) for tap in taps for minor in re.findall(rb"GLIBC_2\.(\d+)", tap.read_bytes())]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{max(minors)}_{platform.machine()}"
