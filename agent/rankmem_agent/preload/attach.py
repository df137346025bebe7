"""Switches the agent on in a rank's process, and off again at its end.

Stage: trainer; called once, right after the user's own import of torch, in the thread that imported it. Comes
in: the claim and the environment. Goes out: a spool with ``meta.json``, the tap recording into it, hooks,
and the host's shipper, elected. Nothing escapes: what fails is said in one line and the training goes on. It
imports torch (which is loaded) and the standard library, starts no Python thread and never touches CUDA
before the user does.
"""

from __future__ import annotations

import atexit
import contextlib
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
from rankmem_agent.hooks import missing, told
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.modules import Modules
from rankmem_agent.hooks.nvtx import NvtxRanges
from rankmem_agent.hooks.parallel import Parallel
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.hooks.sharding import Sharding
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.tags import Tags
from rankmem_agent.hooks.weights import Weights
from rankmem_agent.preload import drain, exits, not_recorded, recording
from rankmem_agent.preload.claim import Claim
from rankmem_agent.ship import election
from rankmem_agent.ship.reelection import Reelection
from rankmem_agent.spool import folder, launches, layout
from rankmem_agent.spool.exits import announce

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
        self._recorder: Recorder | None = None
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
        self._guard.when_off(self._switch_off)
        os.register_at_fork(after_in_child=self.stop)
        try:
            recorder = self._recording.open(spool_dir)
            folder.write_meta(spool_dir, self._meta(facts.spool_id(self._session, claim, start)))
        except BaseException:
            self._recording.close()
            shutil.rmtree(spool_dir, ignore_errors=True)
            raise
        atexit.register(self.finish)
        self._tell_what_goes_off(recorder)
        self._install_all_hooks(recorder)
        exits.watch_for_exit_at_once(spool_dir)
        self._elect()
        _write_attach_ns(spool_dir, time.monotonic_ns() - began_ns)

    @property
    def is_open(self) -> bool:
        """There is a spool that says what becomes of this rank."""
        return self._recorder is not None

    def stop(self) -> None:
        """Records nothing more: after a failure, and in a forked child (the tap stops by itself there)."""
        self._hush()
        self._recording.forget()
        self._recording.close()

    def _switch_off(self, happened: str) -> None:
        """After a failure that leaves nothing to record: the spool stays open and tells the process's end."""
        self._hush()
        self._recording.forget()
        self._recording.switch_off(missing.fit_to_leave(happened, self._config.privacy))

    def _hush(self) -> None:
        told.disconnect()
        for hooks in self._hooks:
            hooks.stop()

    def finish(self) -> None:
        """At the interpreter's exit: the last figures, END, and the wait for the last acknowledgement."""
        if os.getpid() != self._pid or self._spool_dir is None:
            return
        try:
            self._recording.finish()
            self._tell_the_exit()
            self.stop()
            drain.wait(self._session_dir, self._spool_dir, timeout_s=self._config.drain_s)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _meta(self, spool: str) -> dict[str, object]:
        return facts.meta(self._config, self._session, self._claim, str(self._torch.__version__), spool)

    def _tell_the_exit(self) -> None:
        """What ended the process; its exit code follows END, unless it waits for END to be stored."""
        if self._recorder is not None:
            exits.tell_exception(self._recorder)
        if self._config.drain_s == 0 and self._recording.knows_exit and self._spool_dir is not None:
            announce(self._spool_dir)

    def _tell_what_goes_off(self, recorder: Recorder) -> None:
        """A set of hooks that fails is named in the log; the others, and the events, go on."""
        self._recorder = recorder
        privacy = self._config.privacy
        self._guard.when_part_off(
            lambda part, happened: missing.tell_part(recorder, part, missing.fit_to_leave(happened, privacy))
        )

    def _install_all_hooks(self, recorder: Recorder) -> None:
        """Where torch has changed too much for them, the events are recorded without."""
        guard = self._guard.of("steps, modules and categories", self._hush, infers=False)
        try:
            self._install_hooks(recorder)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            guard.failed(error)

    def _install_hooks(self, recorder: Recorder) -> None:
        is_compiling = self._torch.compiler.is_compiling
        steps = Steps(recorder, is_compiling, self._guard, Reelection(self._session_dir).look)
        parallel = Parallel(recorder, is_compiling, self._guard, self._config.parallel)
        tags = Tags(recorder, is_compiling, self._guard)
        self._hooks += [steps, parallel, tags]
        steps.install()
        tags.install()
        parallel.install(_device_mesh_class())
        NvtxRanges(self._guard).install(self._torch.cuda.nvtx)
        weights = self._install_module_hooks(recorder, steps, tags) if self._config.modules else None
        at_step = weights.at_step if weights is not None else None
        told.connect(recorder, steps, is_compiling, parallel, at_step)

    def _install_module_hooks(self, recorder: Recorder, steps: Steps, tags: Tags) -> Weights:
        # Dynamo alone must not see what hooks do; other tracers run it. Asked three times as fast.
        is_compiling = self._torch.compiler.is_dynamo_compiling
        modules = Modules(recorder, is_compiling, self._guard, lambda: steps.phase_outside)
        weights = Weights(recorder, modules.names, lambda: steps.number, is_compiling, self._guard)
        modules.when_named(weights.tree_named)
        modules.when_named(tags.tree)
        sharding = Sharding(recorder, is_compiling, self._guard)
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
        if _agent is None or not _agent.is_open:
            _tell_that_nothing_is_recorded(claim, error)


def _tell_that_nothing_is_recorded(claim: Claim, error: Exception) -> None:
    """Once more without the tap: that there is this rank, and why nothing is known of it."""
    with contextlib.suppress(Exception):  # the guard has said what happened; this may fail of the same
        not_recorded.tell(claim, error)


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
