"""A process that is recorded between two calls of the user's, not from its start to its end.

Stage: trainer, main thread; ``rankmem.record()`` in a notebook or a script that nothing was preloaded into.
Comes in: the variables of a launch, for this process alone. Goes out: the agent, attached now or with the
import of torch, and taken off again at the second call. What the process had allocated before is not seen on
CPU, and is ``preexisting`` on CUDA. Standard library only, until torch is there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rankmem_agent.preload import rank_detection, start
from rankmem_protos.errors import Code, RankmemError


class RecordedPart:
    """The recording of this process from :meth:`begin` to :meth:`end`; one in a process's life.

    Args:
        variables: those that ``rankmem run`` sets (:mod:`rankmem_agent.preload.launch`), set here while it
            is recorded, or taken away (None); what the shipper needs of them it inherits.
    """

    def __init__(self, variables: Mapping[str, str | None]) -> None:
        self._variables = variables
        self._before: dict[str, str | None] = {}

    def begin(self) -> None:
        """Records from here on, or from the user's import of torch on.

        Raises:
            RankmemError: CONFLICT where this process is or was recorded, UNSUPPORTED where it cannot be.
        """
        _check_unrecorded()
        mine = rank_detection.detect_rank({}, [sys.executable])
        assert mine is not None  # no launcher runs here
        mine.is_given = True
        marks = (rank_detection.MARK, rank_detection.LAUNCH)
        self._before = {name: os.environ.get(name) for name in (*self._variables, *marks)}
        _set(self._variables)
        start.attach_after_torch(mine)
        if "torch" in sys.modules and not is_recorded():
            self._restore()
            raise RankmemError(
                Code.UNSUPPORTED,
                "this process cannot be recorded; the line of rankmem's above says why",
                "rankmem doctor shows what this machine lacks",
            )

    def end(self) -> Path | None:
        """Ends the log, takes the agent off, and waits for the last acknowledgement (``RANKMEM_DRAIN_S``).

        Returns:
            The session's folder on this host; None where torch was not imported, so that there is nothing.
        """
        try:
            start.cancel()
            if "torch" not in sys.modules or not is_recorded():
                return None
            from rankmem_agent.preload import attach

            return attach.end()
        finally:
            self._restore()

    def _restore(self) -> None:
        _set(self._before)
        self._before = {}


def is_recorded() -> bool:
    """Whether the agent is or was attached in this process, with a spool."""
    attach = sys.modules.get("rankmem_agent.preload.attach")
    return attach is not None and bool(attach.has_recorded())


def _set(variables: Mapping[str, str | None]) -> None:
    """Sets variables of this process; takes those away that are None."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _check_unrecorded() -> None:
    marked_by, _, _ = os.environ.get(rank_detection.MARK, "").partition(" ")
    if is_recorded() or marked_by == str(os.getpid()):
        raise RankmemError(
            Code.CONFLICT,
            "this process is recorded already, or was: there is one recording in a process's life",
            "restart the kernel for another one; rankmem.annotate(NAME) names a part of this one",
        )
    if os.environ.get("RANKMEM_PRELOAD") == "1":
        raise RankmemError(
            Code.CONFLICT,
            "this process was started below rankmem run, which records it",
            "rankmem.annotate(NAME) names a part of it",
        )
