"""A rank whose agent could not start: its spool records that it is there, that it is not recorded, and why.

Stage: trainer, in place of the agent. Comes in: the detected rank and what went wrong. Goes out: a spool
written from Python, with ``meta.json`` and an OFF record, ended at the interpreter's exit: so the answers
name the rank instead of omitting it. A process that another one started may be anything, and is named once
it trains. It must not fail visibly a second time: where even this cannot be written, the rank is missing, and
the number of ranks that the launcher announced shows it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from rankmem_agent import facts
from rankmem_agent.config import SPOOL_BYTES_MIN, AgentConfig
from rankmem_agent.hooks import missing
from rankmem_agent.hooks.guard import happened
from rankmem_agent.preload import drain, electing, exits
from rankmem_agent.preload.candidate import place_in
from rankmem_agent.preload.evidence import current_group
from rankmem_agent.preload.interrupts import when_the_program_ends
from rankmem_agent.preload.rank_detection import DetectedRank
from rankmem_agent.preload.unrecorded import watch
from rankmem_agent.signals import signals_put_off
from rankmem_agent.spool import folder, launches
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_protos.errors import RankmemError

_CANNOT: Final = (OSError, RankmemError)


def record(detected: DetectedRank, error: Exception, *, is_worker: bool = False) -> Path | None:
    """Writes the spool of a rank that is not recorded; its folder, or None where there is none (yet).

    Args:
        detected: the rank.
        error: why its agent could not start.
        is_worker: see :class:`rankmem_agent.preload.candidate.Candidate`.
    """
    if detected.is_child or is_worker:
        watch(sys.modules["torch"], lambda: _record_quietly(detected, error))
        return None
    return _record(detected, error, trains=False)


def _record_quietly(detected: DetectedRank, error: Exception) -> None:
    # The guard has reported it; this may fail of the same.
    with signals_put_off(), contextlib.suppress(Exception):
        _record(detected, error, trains=True)


def _record(detected: DetectedRank, error: Exception, *, trains: bool) -> Path | None:
    config = AgentConfig.of_what_is_usable(os.environ)
    session = facts.session_id(os.environ, detected, config.session_id)
    for root in _roots(config, detected):
        with contextlib.suppress(*_CANNOT):
            return _NotRecorded(root / session, session, detected, config).record(error, trains=trains)
    return None


class _NotRecorded:
    def __init__(self, session_dir: Path, session: str, detected: DetectedRank, config: AgentConfig) -> None:
        self._session_dir = session_dir
        self._session = session
        self._detected = detected
        self._config = config
        self._pid = os.getpid()
        self._is_over = False

    def record(self, error: Exception, *, trains: bool) -> Path | None:
        """Writes the spool, which ends with the interpreter; None where another process is this rank."""
        session_dir, process = self._session_dir, launches.process(self._pid)
        folder.make_private(session_dir.parent)
        folder.make_private(session_dir)
        place = place_in(self._detected, current_group())
        attempt = place.take(session_dir, process, trains=trains)
        if attempt is None:
            return None
        self._spool_dir, start = folder.create_spool(session_dir, attempt=attempt, rank=place.rank)
        try:
            self._write(error, lambda meta: place.facts(meta, attempt, process, start))
        except BaseException:
            shutil.rmtree(self._spool_dir, ignore_errors=True)  # it is empty, and no one would remove it
            raise
        when_the_program_ends(self._finish)
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # then rankmem ship delivers it
            electing.elect(session_dir)
        return self._spool_dir

    def _write(self, error: Exception, placed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._writer = PythonSpoolWriter(self._spool_dir, SPOOL_BYTES_MIN)
        try:
            detail = missing.fit_to_leave(happened(error), self._config.privacy)
            missing.record_all_off(self._writer, missing.NOT_STARTED, detail)
            torch_version = str(getattr(sys.modules.get("torch"), "__version__", ""))
            meta = facts.meta(self._config, self._session, self._detected, torch_version)
            folder.write_meta(self._spool_dir, placed(meta))
        except BaseException:
            self._writer.abandon()
            raise

    def _finish(self) -> None:
        if os.getpid() != self._pid or self._is_over:
            return
        with contextlib.suppress(Exception):
            with signals_put_off():
                self._is_over = True
                exits.record_exception(self._writer)
                self._writer.close()
            drain.wait(self._session_dir, self._spool_dir, timeout_s=self._config.drain_s)


def _roots(config: AgentConfig, detected: DetectedRank) -> Iterator[Path]:
    """Where its spool would be, and where spools are by default."""
    with contextlib.suppress(*_CANNOT):
        yield folder.choose_root(config, detected.local_world_size)
    yield from folder.default_roots(config)
