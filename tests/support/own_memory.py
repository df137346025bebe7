"""How much memory this process, or another, ever had."""

from __future__ import annotations

from pathlib import Path

_HIGHEST = "VmHWM:"


def highest_bytes(pid: int | str = "self") -> int:
    """The most that a process itself was resident with, in bytes (Linux); 0 for one that has just ended.

    Not ``ru_maxrss``: that of a child begins with what its parent held when it forked.

    Raises:
        OSError: there is no such process.
    """
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    found = next((line for line in lines if line.startswith(_HIGHEST)), f"{_HIGHEST} 0 kB")
    return int(found.removeprefix(_HIGHEST).split()[0]) << 10
