"""Starts the host's shipper from a trainer, without anything that the training could notice.

Stage: trainer, once it is a rank, at steps, and at its end. Comes in: the folder of the session on this host.
Goes out: :func:`rankmem_agent.spool.election.elect`, with the tap's way of starting a program, by which no
handler of SIGCHLD and no ``wait`` of the user's meets a child of ours; where there is no tap, with a shell's.
The compiler that builds the tap is a child like any other: once for each torch on a machine, while torch is
imported, and not at all after ``rankmem doctor``.
"""

from __future__ import annotations

from pathlib import Path

from rankmem_agent.signals import signals_put_off
from rankmem_agent.spool import election
from rankmem_agent.tap import library


def elect(session_dir: Path) -> bool:
    """As :func:`rankmem_agent.spool.election.elect`; raises the same."""
    tap = library.loaded()
    with signals_put_off():
        return election.elect(session_dir, tap.start_unseen if tap is not None else election.start_by_shell)
