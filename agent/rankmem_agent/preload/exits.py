"""How this process ends, as far as Python sees it: an uncaught exception, and ``os._exit``.

Stage: trainer. Comes in: what the interpreter keeps of the last exception that it reported, and the user's
call of ``os._exit``. Goes out: a NOTE at the interpreter's exit, two numbers in the control page. The status
of an ordinary exit is known later than any Python runs: the tap's handler writes it. Standard library only.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankmem_agent.spool.exits import Exit, write_exit
from rankmem_agent.spool.layout import ExitKind, Kind
from rankmem_agent.spool.records import RecordWriter


def record_exception(recorder: RecordWriter) -> None:
    """Notes the type of the exception that the interpreter reported last; at its exit.

    It may be an old one that an interactive session reported and went on from: only the exit code shows
    whether it ended the process, see ``rankmem_agent.spool.exits.end_of``. ``SystemExit`` is never reported.
    """
    kind = getattr(sys, "last_type", None)
    if not isinstance(kind, type):
        return
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    note = {"rank": {"exception": f"{module}{kind.__qualname__}"}}
    recorder.record(Kind.NOTE, facts=recorder.intern(json.dumps(note)))


def watch_for_exit_at_once(spool_dir: Callable[[], Path]) -> None:
    """Has ``os._exit`` leave its status in the control page of this process's spool.

    A forked child passes through unreported: multiprocessing ends its workers so.

    Args:
        spool_dir: asked when it happens.
    """
    genuine, pid = os._exit, os.getpid()

    @functools.wraps(genuine)
    def _exit(*args: Any, **kwargs: Any) -> Any:
        try:
            if os.getpid() == pid:
                status = args[0] if args else kwargs["status"]
                write_exit(spool_dir(), Exit(kind=ExitKind.AT_ONCE, code=int(status) & 0xFF))
        except Exception:  # noqa: BLE001  the trainer's guard: whatever it was, genuine reports it
            pass
        return genuine(*args, **kwargs)

    _exit.__module__ = "os"  # where it is found again by what pickles it
    os._exit = _exit
