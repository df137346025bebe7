"""Whether this process is a rank: brings what is seen of it before the candidate, on whatever thread.

Stage: trainer, from the agent's start to the interpreter's exit. Comes in: process groups, training steps, a
call of the tap's, a fork. Goes out: calls of :class:`~rankmem_agent.preload.candidate.Candidate`, a NOTE
where a rank learns more of itself, one line in a forked child that trains. Nothing of ours is raised.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import Any

from rankmem_agent.hooks import missing
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.preload.candidate import Candidate, Evidence
from rankmem_agent.preload.evidence import Group, current_group, when_grouped, when_stepped
from rankmem_agent.preload.recording import Recording
from rankmem_agent.preload.unrecorded import report_unrecorded
from rankmem_agent.signals import signals_put_off
from rankmem_agent.spool.layout import Kind


class Deciding:
    """Collects the evidence of a process and acts on it."""

    def __init__(self, candidate: Candidate, guard: Guard, recorder: Recorder, torch: Any) -> None:
        self._candidate: Candidate | None = candidate
        self._guard = guard
        self._recorder = recorder
        self._torch = torch
        self._pid = os.getpid()
        self._has_stepped = False
        self._is_deciding = threading.Lock()
        self._has_missed = False
        """Evidence came while a decision was under way."""
        self.is_over = False
        """At the interpreter's exit."""

    def look_for_evidence(self, recording: Recording, *, is_given: bool) -> None:
        """From here on, whatever shows that this process is a rank is noticed.

        Args:
            is_given: it is a rank, whatever it does.
        """
        if is_given:
            self._shows(Evidence.GIVEN)
        when_grouped(lambda group: self._shows(Evidence.GROUP, group))
        group = current_group()
        if group is not None:  # it was made before the work of this process began
            self._shows(Evidence.GROUP, group)
        candidate = self._candidate
        if candidate is not None and not candidate.is_published:
            recording.when_busy(lambda: self._shows(Evidence.BUSY), candidate.busy_after_s)

    def stepped(self) -> None:
        """At each step's end."""
        if not self._has_stepped:
            self._shows(Evidence.STEP)

    def end(self) -> None:
        """At the interpreter's exit; nothing is evidence after it."""
        self._shows(Evidence.EXIT)
        self.is_over = True

    def forked(self) -> None:
        """In a forked child: it reports that it is not recorded if it trains."""
        if not self.is_over:
            with contextlib.suppress(Exception):  # it would be printed, in a child that may never train
                when_stepped(self._torch, lambda: self._shows(Evidence.STEP))

    def _shows(self, evidence: Evidence, group: Group | None = None) -> None:
        """Passes evidence on. Where another thread is at it, or this one between two of its instructions, the
        next evidence does."""
        candidate = self._candidate
        if candidate is None or self.is_over:
            return
        with signals_put_off():
            try:
                self._take(candidate, evidence, group)
            except Exception as error:  # noqa: BLE001  the trainer's guard
                self._guard.failed(error)

    def _take(self, candidate: Candidate, evidence: Evidence, group: Group | None) -> None:
        if os.getpid() != self._pid:
            self._candidate = None
            rank = candidate.give_way(current_group())
            report_unrecorded(rank, "it was forked after torch was imported", "the start method spawn")
        elif self._is_deciding.acquire(blocking=False):
            try:
                self._decide(candidate, evidence, group or current_group())
            finally:
                self._is_deciding.release()
            if self._has_missed:
                self._has_missed = False
                if current_group() is not None:
                    self._shows(Evidence.GROUP)
        else:
            self._has_missed = True

    def _decide(self, candidate: Candidate, evidence: Evidence, group: Group | None) -> None:
        self._has_stepped |= evidence is Evidence.STEP
        before, changed = candidate.contradiction, candidate.gives(evidence, group)
        if candidate.contradiction != before:
            missing.record_names_off(
                self._recorder, "rank numbers of its process group", candidate.contradiction
            )
        if changed:
            note = json.dumps({"rank": changed, "session": changed})
            self._recorder.record(Kind.NOTE, facts=self._recorder.intern(note))
