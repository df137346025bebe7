"""How much memory this process ever had."""

from __future__ import annotations

from pathlib import Path

_HIGHEST = "VmHWM:"


def highest_bytes() -> int:
    """The most that this process itself was resident with, in bytes (Linux).

    Not ``ru_maxrss``: that of a child begins with what its parent held when it forked.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = next(line for line in lines if line.startswith(_HIGHEST))
    return int(found.removeprefix(_HIGHEST).split()[0]) << 10
