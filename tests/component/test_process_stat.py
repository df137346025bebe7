"""What /proc says of a process that has ended."""

from __future__ import annotations

import os
from pathlib import Path

from rankmem_agent.spool.process_stat import process_is_alive


def test_a_zombie_counts_as_gone() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    assert not process_is_alive(pid, ticks)
    os.waitpid(pid, 0)
