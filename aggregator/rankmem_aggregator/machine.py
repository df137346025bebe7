"""The memory of this process: what it uses, and what the machine, its container or its job allow.

Linux: memory.max of the process's cgroup and of those above it (version 2),
or memory.limit_in_bytes (version 1).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROCESS: Final = Path("/proc/self/cgroup")
CGROUPS: Final = Path("/sys/fs/cgroup")
_STATM: Final = Path("/proc/self/statm")


@functools.cache
def memory_bytes() -> int:
    """The least of these limits, bytes; read once."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((machine, *limits(PROCESS, CGROUPS)))


def resident_bytes() -> int:
    """Resident memory of this process; 0 where there is no procfs."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def limits(process: Path, cgroups: Path) -> Iterator[int]:
    """The limits of the groups that a process is in, bytes.

    Args:
        process: /proc/self/cgroup, or a copy.
        cgroups: where the groups are mounted.
    """
    for path in _files(process, cgroups):
        try:
            yield int(path.read_text("ascii"))
        except (OSError, ValueError):
            continue  # "max", or a group of another controller


def _files(process: Path, cgroups: Path) -> Iterator[Path]:
    try:
        lines = process.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (cgroups / "memory", "memory.limit_in_bytes") if controllers else (cgroups, "memory.max")
        group = root / place.strip("/")
        yield from (folder / name for folder in (group, *group.parents) if folder.is_relative_to(root))
