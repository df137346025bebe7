"""Switches the agent on in a rank's process, and off again at its end.

Stage: trainer; called once, right after the user's own import of torch, in the thread that imported it. Comes
in: the detected rank and the environment. Goes out: a spool with ``meta.json``, the tap recording into it,
hooks, and the host's shipper, elected. Nothing escapes: a failure is reported in one line and the training
goes on. It imports torch (which is loaded) and the standard library, starts no Python thread and never
touches CUDA before the user does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, Protocol

from rankmem_agent import facts
from rankmem_agent.config import AgentConfig
from rankmem_agent.hooks import missing, module_frames, user_api
from rankmem_agent.hooks.allocator_calls import AllocatorCalls
from rankmem_agent.hooks.communicators import Communicators
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.model_calls import ModelCalls, OptimizersMade
from rankmem_agent.hooks.modules import Modules
from rankmem_agent.hooks.nvtx import NvtxRanges
from rankmem_agent.hooks.parallel import Parallel
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.hooks.sharding import Sharding
from rankmem_agent.hooks.step_hooks import StepHooks
from rankmem_agent.hooks.steps import ENDED_BY_CALL, Steps
from rankmem_agent.hooks.tags import Tags
from rankmem_agent.hooks.tracing import Tracing, tracing_of
from rankmem_agent.hooks.weights import Weights
from rankmem_agent.preload import drain, electing, exits, recording
from rankmem_agent.preload.candidate import NOT_RECORDED, Candidate, is_numbered_late
from rankmem_agent.preload.deciding import Deciding
from rankmem_agent.preload.evidence import when_stepped
from rankmem_agent.preload.failed_start import record_failed_start
from rankmem_agent.preload.interrupts import when_the_program_ends
from rankmem_agent.preload.rank_detection import DetectedRank
from rankmem_agent.preload.unrecorded import watch
from rankmem_agent.signals import raise_of_handler, signals_put_off
from rankmem_agent.spool import folder, launches, layout
from rankmem_agent.spool.exits import announce
from rankmem_agent.spool.reelection import Reelection

_ATTACH_NS_OFFSET: Final = next(f.offset for f in layout.CONTROL_FIELDS if f.name == "attach_ns")


class Stoppable(Protocol):
    """A set of hooks."""

    def stop(self) -> None:
        """Does nothing from now on."""


class Agent:
    """The agent in a process while it is recorded.

    Args:
        is_worker: see :class:`Candidate`.
    """

    def __init__(self, detected: DetectedRank, guard: Guard, config: AgentConfig, *, is_worker: bool) -> None:
        import torch

        self._torch: Any = torch
        self._detected = detected
        self._guard = guard
        self._config = config
        self._is_worker = is_worker
        self._pid = os.getpid()
        self._session = facts.session_id(os.environ, detected, config.session_id)
        self._session_dir = folder.choose_root(config, detected.local_world_size) / self._session
        elsewhere = folder.passed_over(config, detected.local_world_size)
        if elsewhere is not None and not detected.local_rank:  # once a host
            guard.report(elsewhere)
        self._recording = recording.choose(torch, config, guard)
        self._candidate: Candidate | None = None
        self._deciding: Deciding | None = None
        self._recorder: Recorder | None = None
        self._hooks: list[Stoppable] = []
        self._model_calls: ModelCalls | None = None

    def start(self, began_ns: int) -> None:
        """Opens a log, records into it, and has it shipped once this process is a rank.

        Args:
            began_ns: CLOCK_MONOTONIC when the attachment began, for its own cost.
        """
        candidate = self._candidate = Candidate(
            self._detected,
            self._guard,
            self._recording,
            self._session_dir,
            is_worker=self._is_worker,
            published=self._elect,
            refused=self.stop,
        )
        self._guard.when_off(self._switch_off)
        os.register_at_fork(after_in_child=self._forked)
        try:
            recorder = self._recording.open(candidate.spool_dir)
            candidate.describe(self._meta())
        except BaseException:
            self._recording.close()
            candidate.discard()
            raise
        deciding = self._deciding = Deciding(candidate, self._guard, recorder, self._torch)
        when_the_program_ends(self.finish, is_worker=self._is_worker)
        self._record_what_goes_off(recorder)
        self._install_all_hooks(recorder, deciding)
        exits.watch_for_exit_at_once(lambda: candidate.spool_dir)
        deciding.look_for_evidence(self._recording, is_given=self._detected.is_given)
        _write_attach_ns(candidate.spool_dir, time.monotonic_ns() - began_ns)

    @property
    def is_open(self) -> bool:
        """There is a spool that records what becomes of this rank."""
        return self._recorder is not None

    def stop(self) -> None:
        """Records nothing more: after a failure, and in a forked child (the tap stops by itself there)."""
        self._stop_hooks()
        self._recording.forget()
        self._recording.close()

    def _switch_off(self, happened: str) -> None:
        """After a failure that leaves nothing to record: the spool stays open for the process's end."""
        self._stop_hooks()
        self._recording.forget()
        self._recording.switch_off(missing.fit_to_leave(happened, self._config.privacy))

    def _stop_hooks(self) -> None:
        user_api.disconnect()
        for hooks in self._hooks:
            hooks.stop()

    @property
    def session_dir(self) -> Path:
        """The session's folder on this host."""
        return self._session_dir

    def finish(self) -> None:
        """At the interpreter's exit, or where the user ends the recording: the last figures, END, and
        the wait for the last acknowledgement."""
        candidate, deciding = self._candidate, self._deciding
        if os.getpid() != self._pid or candidate is None or deciding is None or deciding.is_over:
            return
        with signals_put_off():
            try:
                with contextlib.ExitStack() as always:
                    always.callback(candidate.discard)
                    always.callback(self.stop)
                    always.callback(self._recording.finish)
                    if self._model_calls is not None:
                        self._model_calls.finish()
                    deciding.end()
                    self._record_exit(candidate)
            except Exception as error:  # noqa: BLE001  the trainer's guard
                self._guard.failed(error)
        if candidate.is_published:
            try:
                drain.wait(self._session_dir, candidate.spool_dir, timeout_s=self._config.drain_s)
            except Exception as error:  # noqa: BLE001  the trainer's guard
                raise_of_handler(error)
                self._guard.failed(error)

    def _forked(self) -> None:
        """In a forked child: off, for good; it reports it if it trains."""
        self.stop()
        if self._deciding is not None:
            self._deciding.forked()

    def _meta(self) -> dict[str, Any]:
        meta = facts.meta(self._config, self._session, self._detected, str(self._torch.__version__))
        meta["rank"] |= self._recording.detail()
        return meta

    def _record_exit(self, candidate: Candidate) -> None:
        """Records what ended the process; its exit code follows END, unless it waits for END to be stored."""
        if self._recorder is not None:
            exits.record_exception(self._recorder)
        if self._config.drain_s == 0 and self._recording.knows_exit and candidate.is_published:
            announce(candidate.spool_dir)

    def _record_what_goes_off(self, recorder: Recorder) -> None:
        """A set of hooks that fails is named in the log; the others, and the events, go on."""
        self._recorder = recorder
        privacy = self._config.privacy
        self._guard.when_part_off(
            lambda part, happened: missing.record_part_off(
                recorder, part, missing.fit_to_leave(happened, privacy)
            )
        )

    def _install_all_hooks(self, recorder: Recorder, deciding: Deciding) -> None:
        """Where torch has changed too much for them, the events are recorded without."""
        guard = self._guard.of("steps, modules and categories", self._stop_hooks, infers=False)
        try:
            self._install_hooks(recorder, deciding)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            guard.go_off(error)
            when_stepped(self._torch, deciding.stepped)  # whether it trains has to be seen all the same

    def _install_hooks(self, recorder: Recorder, deciding: Deciding) -> None:
        tracing = tracing_of(self._torch)
        look = Reelection(self._session_dir, elect_shipper=electing.elect).look

        communicators = Communicators(recorder, tracing.is_traced, self._guard)
        communicators.install(self._torch)

        def stepped() -> None:
            deciding.stepped()
            look()
            communicators.look()

        steps = Steps(recorder, stepped)
        parallel = Parallel(recorder, tracing.is_traced, self._guard, self._config.parallel)
        tags = Tags(recorder, tracing.hides_tensors, self._guard)
        self._hooks += [steps, parallel, tags, communicators]
        tags.install()
        parallel.install(_device_mesh_class())
        NvtxRanges(self._guard).install(self._torch.cuda.nvtx)
        AllocatorCalls(self._guard).install(self._torch.cuda, self._torch.cuda.memory)
        weights = self._install_module_hooks(recorder, steps, tags, tracing) if self._config.modules else None
        if self._config.detail == "operators":
            module_frames.follow_unnamed(recorder.module_reader())
        hidden = tracing.hides_tensors
        parts = (steps, tags, weights, parallel)
        step_hooks = StepHooks(recorder, hidden, self._guard, *parts, by_dynamo=tracing.by_dynamo)
        self._hooks.append(step_hooks)
        step_hooks.when_off(deciding.stepped)
        step_hooks.install()
        at_step = weights.at_step if weights is not None else None
        candidate = self._candidate
        spool_dir = None if candidate is None else lambda: candidate.spool_dir
        user_api.connect(recorder, steps, tracing.is_traced, parallel, at_step, spool_dir)
        self._recording.look_for_steady_steps()

    def _install_module_hooks(
        self, recorder: Recorder, steps: Steps, tags: Tags, tracing: Tracing
    ) -> Weights:
        reader = None if self._config.module_hooks else recorder.module_reader()
        modules = Modules(
            recorder, tracing.by_dynamo, self._guard, lambda: steps.phase_outside, reader, tracing
        )
        hidden = tracing.hides_tensors
        weights = Weights(recorder, modules.names, steps.catch_up, hidden, self._guard)
        modules.when_named(weights.tree_named)
        modules.when_unread(weights.want_look)
        weights.before_look(modules.read_unread)
        modules.when_named(tags.tree)
        sharding = Sharding(recorder, hidden, self._guard, steps)
        modules.when_named(sharding.look)
        calls = self._model_calls = ModelCalls(
            recorder, tracing, self._guard, steps, modules.path_id, OptimizersMade()
        )
        self._hooks += [modules, weights, sharding, calls]
        modules.install()
        modules.watch_calls(calls, recorder.intern(ENDED_BY_CALL))
        if modules.reader is not None:
            steps.count_calls(modules.reader.step_number)
        weights.install()
        if self._candidate is not None:
            self._candidate.ran_a_model = lambda: modules.has_run
        return weights

    def _elect(self) -> None:
        """Starts the shipper. Without one the spool stays on disk, to be delivered by ``rankmem ship``."""
        try:
            electing.elect(self._session_dir)
        except (OSError, subprocess.SubprocessError) as error:
            self._guard.report(f"no shipper was started: {error} (try: rankmem ship {self._session_dir})")


_agent: Agent | None = None
"""One a process: the tap can be opened once and never be taken out."""


def attach(detected: DetectedRank, *, is_worker: bool = False) -> None:
    """Records this process as the candidate for ``detected`` from here to its end. Raises nothing.

    Thread: the one that imported torch, its signals put off. A second call does nothing.
    """
    global _agent
    began_ns = time.monotonic_ns()
    guard = Guard(detected.rank)
    if _agent is not None or os.environ.get("RANKMEM_DISABLE") == "1":
        return
    _keep_out_of_the_users_log()
    try:
        if detected.discrepancy and not detected.is_child:
            guard.report(detected.discrepancy)
        config = AgentConfig.from_environment()
        if _is_beside_its_rank(detected, config) and not is_worker:
            watch(sys.modules["torch"], lambda: guard.report(NOT_RECORDED))
            return
        _agent = Agent(detected, guard, config, is_worker=is_worker)
        _agent.start(began_ns)
    except Exception as error:  # noqa: BLE001  the trainer's guard
        guard.failed(error)
        if _agent is None or not _agent.is_open:
            record_failed_start(detected, error, is_worker=is_worker)


def has_recorded() -> bool:
    """Whether this process is or was recorded."""
    return _agent is not None and _agent.is_open


def end() -> Path:
    """Ends the recording of this process before the process ends; the session's folder.

    Waits for the last acknowledgement, as a process's end does.
    """
    assert _agent is not None  # has_recorded()
    _agent.finish()
    return _agent.session_dir


def _is_beside_its_rank(detected: DetectedRank, config: AgentConfig) -> bool:
    """Whether this is a subprocess of a rank that trains already: its evaluation, most likely. One that a
    process group is to number (``LOCAL_RANK``, ``WORLD_SIZE``) may yet be another rank."""
    if not detected.is_child or is_numbered_late():
        return False
    session = facts.session_id(os.environ, detected, config.session_id)
    session_dir = folder.choose_root(config, detected.local_world_size) / session
    return launches.is_held(session_dir, facts.launch(detected), detected.rank)


def _keep_out_of_the_users_log() -> None:
    """Keeps our modules' logs inside: the guard's one line is all that a rank prints."""
    ours = logging.getLogger("rankmem_agent")
    ours.addHandler(logging.NullHandler())
    ours.propagate = False


def _device_mesh_class() -> type[Any] | None:
    """torch's DeviceMesh; None where torch was built without torch.distributed."""
    device_mesh = sys.modules.get("torch.distributed.device_mesh")
    found: type[Any] | None = getattr(device_mesh, "DeviceMesh", None)
    return found


def _write_attach_ns(spool_dir: Path, attach_ns: int) -> None:
    """Writes the agent's own cost into the control page, where nothing else writes it."""
    control = os.open(spool_dir / "control", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(control, attach_ns.to_bytes(8, "little"), _ATTACH_NS_OFFSET)
    finally:
        os.close(control)
