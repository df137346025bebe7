"""Switches the agent on in a rank's process, and off again at its end.

Stage: trainer; called once, right after the user's own import of torch, in the thread that imported it. Comes
in: the claim and the environment. Goes out: a spool with ``meta.json``, the tap recording into it, hooks,
and the host's shipper, elected. Nothing escapes: what fails is said in one line and the training goes on. It
imports torch (which is loaded) and the standard library, starts no Python thread and never touches CUDA
before the user does.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, Protocol

from rankmem_agent import facts
from rankmem_agent.config import AgentConfig
from rankmem_agent.hooks import module_frames, told
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.modules import Modules
from rankmem_agent.hooks.nvtx import NvtxRanges
from rankmem_agent.hooks.parallel import Parallel
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.hooks.sharding import Sharding
from rankmem_agent.hooks.step_hooks import StepHooks
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.tags import Tags
from rankmem_agent.hooks.tracing import Tracing, tracing_of
from rankmem_agent.hooks.weights import Weights
from rankmem_agent.preload import drain, recording
from rankmem_agent.preload.claim import Claim
from rankmem_agent.ship import election
from rankmem_agent.ship.reelection import Reelection
from rankmem_agent.spool import folder, launches, layout

_ATTACH_NS_OFFSET: Final = next(f.offset for f in layout.CONTROL_FIELDS if f.name == "attach_ns")


class Stoppable(Protocol):
    """A set of hooks."""

    def stop(self) -> None:
        """Does nothing from now on."""


class Agent:
    """What runs in a rank's process while it is recorded."""

    def __init__(self, claim: Claim, guard: Guard, config: AgentConfig) -> None:
        import torch

        self._torch: Any = torch
        self._claim = claim
        self._guard = guard
        self._config = config
        self._pid = os.getpid()
        self._session = facts.session_id(os.environ, claim, config.session_id)
        self._session_dir = folder.choose_root(config, claim.local_world_size) / self._session
        self._recording = recording.choose(torch, config, guard)
        self._spool_dir: Path | None = None
        self._hooks: list[Stoppable] = []

    def start(self, began_ns: int) -> None:
        """Opens the spool, records into it and has it shipped.

        Args:
            began_ns: CLOCK_MONOTONIC when the attachment began, for its own cost.
        """
        claim = self._claim
        folder.make_private(self._session_dir.parent)
        folder.make_private(self._session_dir)
        claim.attempt = launches.attempt_of(self._session_dir, facts.launch(claim), claim.attempt)
        spool_dir, start = folder.create_spool(self._session_dir, attempt=claim.attempt, rank=claim.rank)
        self._spool_dir = spool_dir
        self._guard.when_off(self.stop)
        os.register_at_fork(after_in_child=self.stop)
        try:
            recorder = self._recording.open(spool_dir)
            folder.write_meta(spool_dir, self._meta(facts.spool_id(self._session, claim, start)))
        except BaseException:
            self._recording.close()
            shutil.rmtree(spool_dir, ignore_errors=True)
            raise
        self._install_hooks(recorder)
        atexit.register(self.finish)
        self._elect()
        _write_attach_ns(spool_dir, time.monotonic_ns() - began_ns)

    def stop(self) -> None:
        """Records nothing more: after a failure, and in a forked child (the tap stops by itself there)."""
        told.disconnect()
        for hooks in self._hooks:
            hooks.stop()
        self._recording.forget()
        self._recording.close()

    def finish(self) -> None:
        """At the interpreter's exit: the last figures, END, and the wait for the last acknowledgement."""
        if os.getpid() != self._pid or self._spool_dir is None:
            return
        try:
            self._recording.finish()
            self.stop()
            drain.wait(self._session_dir, self._spool_dir, timeout_s=self._config.drain_s)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _meta(self, spool: str) -> dict[str, object]:
        return {
            "version": layout.FORMAT_VERSION,
            "spool_id": spool,
            "aggregator": self._config.aggregator,
            "credentials": self._config.credentials.facts(),
            "project_root": facts.project_root(),
            "privacy": self._config.privacy.facts(),
            "session": facts.session_facts(
                self._config, self._session, self._claim, str(self._torch.__version__)
            ),
            "rank": facts.rank_facts(self._session, self._claim, spool) | self._recording.detail(),
            "host": facts.host_facts(),
            "clock": {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns()},
        }

    def _install_hooks(self, recorder: Recorder) -> None:
        tracing = tracing_of(self._torch)
        steps = Steps(recorder, Reelection(self._session_dir).look)
        parallel = Parallel(recorder, tracing.is_traced, self._guard, self._config.parallel)
        tags = Tags(recorder, tracing.hides_tensors, self._guard)
        self._hooks += [steps, parallel, tags]
        tags.install()
        parallel.install(_device_mesh_class())
        NvtxRanges(self._guard).install(self._torch.cuda.nvtx)
        weights = self._install_module_hooks(recorder, steps, tags, tracing) if self._config.modules else None
        if self._config.detail == "operators":
            module_frames.follow_unnamed(recorder.module_reader())
        hidden = tracing.hides_tensors
        step_hooks = StepHooks(recorder, hidden, self._guard, steps, tags, weights, parallel)
        self._hooks.append(step_hooks)
        step_hooks.install()
        at_step = weights.at_step if weights is not None else None
        told.connect(recorder, steps, tracing.is_traced, parallel, at_step)

    def _install_module_hooks(
        self, recorder: Recorder, steps: Steps, tags: Tags, tracing: Tracing
    ) -> Weights:
        reader = None if self._config.module_hooks else recorder.module_reader()
        modules = Modules(
            recorder, tracing.by_dynamo, self._guard, lambda: steps.phase_outside, reader, tracing
        )
        hidden = tracing.hides_tensors
        weights = Weights(recorder, modules.names, lambda: steps.number, hidden, self._guard)
        modules.when_named(weights.tree_named)
        modules.when_unread(weights.want_look)
        weights.before_look(modules.read_unread)
        modules.when_named(tags.tree)
        sharding = Sharding(recorder, hidden, self._guard)
        modules.when_named(sharding.look)
        self._hooks += [modules, weights, sharding]
        modules.install()
        weights.install()
        return weights

    def _elect(self) -> None:
        """Starts the shipper. Without one the spool stays on disk, to be delivered by ``rankmem ship``."""
        try:
            election.elect(self._session_dir)
        except (OSError, subprocess.SubprocessError) as error:
            self._guard.say(f"no shipper was started: {error} (try: rankmem ship {self._session_dir})")


_agent: Agent | None = None
"""One a process: the tap can be opened once and never be taken out."""


def attach(claim: Claim) -> None:
    """Records this process as the rank of ``claim`` from here to its end. Raises nothing.

    Thread: the one that imported torch. A second call does nothing.
    """
    global _agent
    began_ns = time.monotonic_ns()
    guard = Guard(claim.rank)
    if _agent is not None or os.environ.get("RANKMEM_DISABLE") == "1":
        return
    _keep_out_of_the_users_log()
    try:
        _agent = Agent(claim, guard, AgentConfig.from_environment())
        _agent.start(began_ns)
    except Exception as error:  # noqa: BLE001  the trainer's guard
        guard.failed(error)


def _keep_out_of_the_users_log() -> None:
    """What our modules log stays inside: the guard's one line is all that a rank says."""
    ours = logging.getLogger("rankmem_agent")
    ours.addHandler(logging.NullHandler())
    ours.propagate = False


def _device_mesh_class() -> type[Any] | None:
    """torch's DeviceMesh; None where torch was built without torch.distributed."""
    device_mesh = sys.modules.get("torch.distributed.device_mesh")
    found: type[Any] | None = getattr(device_mesh, "DeviceMesh", None)
    return found


def _write_attach_ns(spool_dir: Path, attach_ns: int) -> None:
    """Writes the agent's own cost into the control page, where nobody else writes it."""
    control = os.open(spool_dir / "control", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(control, attach_ns.to_bytes(8, "little"), _ATTACH_NS_OFFSET)
    finally:
        os.close(control)
