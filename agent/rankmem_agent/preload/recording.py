"""The recording of this process: by the native tap, or by PyTorch's memory history where there is none.

Stage: trainer, while the agent attaches. Comes in: torch, the configuration, whatever a compiler and headers
allow here. Goes out: one :class:`Recording` over an open spool. On CPU there is no second way: without a
compiler the agent reports it and stays off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from rankmem_agent.config import AgentConfig
from rankmem_agent.hooks import missing
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.preload.cuda import CudaAttachment, SnapshotAttachment, cpu_facts
from rankmem_agent.signals import raise_of_handler
from rankmem_agent.spool.layout import DeviceType, Kind
from rankmem_agent.tap.accelerators import CUDA, WITHOUT_TAP, Accelerator
from rankmem_agent.tap.build import ensure_built
from rankmem_agent.tap.library import Stat, Tap, What
from rankmem_agent.tap.prebuilt import Build
from rankmem_protos.errors import RankmemError

BUSY_RECORDS: Final = 1_000
"""A process that has recorded less does nothing with tensors to speak of."""
AUDITS_APART_S: Final = 1.0
"""With RANKMEM_STEADY=auto; a number is taken at its word."""


class Recording(Protocol):
    """Records one process into one spool."""

    knows_exit: bool
    """Whether the process's exit code follows END in the control page."""
    has_heartbeat: bool
    """Whether the control page shows until when the process lived, to some 10 ms."""

    def open(self, spool_dir: Path) -> Recorder:
        """Creates the spool's files and begins; what the hooks record goes to what it returns. The spool has
        a small budget until it is published."""

    def look_for_steady_steps(self) -> None:
        """Has calls unobserved in steps that are known, where the configuration wants that and it can be done
        here; once modules are read from frames."""

    def publish(self, spool_dir: Path) -> None:
        """Moves the spool to ``spool_dir``, an empty folder, and grants the whole budget."""

    def when_busy(self, callback: Callable[[], None], after_s: float) -> None:
        """Has ``callback`` called once where much is recorded and nothing published after so many seconds."""

    def has_recorded(self) -> bool:
        """Whether there is memory of tensors in it."""

    def has_recorded_much(self) -> bool:
        """Whether there is so much that tensors are what the process is for."""

    def detail(self) -> dict[str, object]:
        """The columns of ``rank_info`` on how much it records."""

    def finish(self) -> None:
        """At the interpreter's exit, before close: Python is not touched after it."""

    def close(self) -> None:
        """Writes END. Idempotent."""

    def switch_off(self, detail: str) -> None:
        """Records no event from here on, and notes it; close() still writes the process's END."""

    def forget(self) -> None:
        """In a forked child: attaches to nothing more."""


def choose(torch: Any, config: AgentConfig, guard: Guard) -> Recording:
    """The best recording that this machine allows.

    Raises:
        RankmemError: UNSUPPORTED where there is none.
    """
    for accelerator in WITHOUT_TAP:
        is_there = _is_wanted(accelerator, torch, config) and accelerator.has_device()
        if is_there and accelerator.has_history(torch):
            return SnapshotAttachment(torch, config, guard, accelerator)
    has_cuda = _is_wanted(CUDA, torch, config)
    try:
        build = _built(config, guard)
    except RankmemError:
        if not has_cuda:
            raise
        return SnapshotAttachment(torch, config, guard)
    if has_cuda and not build.has_cuda and CUDA.has_device():
        return SnapshotAttachment(torch, config, guard)
    return NativeRecording(torch, config, guard, build)


def _is_wanted(accelerator: Accelerator, torch: Any, config: AgentConfig) -> bool:
    """Whether this torch can use it, and it is to be recorded."""
    return accelerator.is_built(torch) and (config.devices is None or accelerator.name in config.devices)


def _built(config: AgentConfig, guard: Guard) -> Build:
    """The tap, with what steady steps need where they are wanted and it can be built."""
    if config.audits_every:
        try:
            return ensure_built(with_evidence=True)
        except RankmemError as error:
            guard.report(f"RANKMEM_STEADY has no effect: {error.message}")
    return ensure_built()


class NativeRecording:
    """The tap: operators, CPU at once, CUDA when it is initialised."""

    knows_exit = True
    has_heartbeat = True

    def __init__(self, torch: Any, config: AgentConfig, guard: Guard, build: Build) -> None:
        self._torch = torch
        self._config = config
        self._guard = guard
        self._tap = Tap(build.path)
        keep_cpu = config.devices is not None  # named in so many words
        self._cuda = (
            CudaAttachment(self._tap, guard, config.privacy, keep_cpu=keep_cpu) if build.has_cuda else None
        )
        self._watched: set[Accelerator] = set()
        self._pid = os.getpid()

    def open(self, spool_dir: Path) -> Recorder:
        """Creates the spool's files and begins."""
        tap, wanted = self._tap, self._config.devices
        tap.open(spool_dir, self._config.spool_bytes, is_provisional=True)
        what = What.STACKS if self._config.stacks else What(0)
        if wanted is None or "cpu" in wanted:
            tap.attach_cpu()
            what |= What.CPU_EVENTS
            facts = cpu_facts(tap.cpu_sees())
            tap.record(Kind.DEVICE, device_type=DeviceType.CPU, facts=tap.intern(json.dumps(facts)))
        if self._config.detail != "events":
            tap.attach_calls()
            what |= What.CALLS
        if self._config.detail == "auto":
            what |= What.HEIGHTS
        tap.enable(what)
        if self._config.stacks and not tap.stat(Stat.PYTHON_FOUND):
            missing.record_names_off(
                tap, "stacks", "this Python does not export the functions that walk them"
            )
        if self._cuda is not None and (wanted is None or "cuda" in wanted):
            self._torch.cuda._lazy_call(self._cuda.attach)
        self._watch_others()
        return tap

    def _watch_others(self) -> None:
        """Notes the first use of an accelerator that is not recorded here; torch_npu may be imported late."""
        for accelerator in WITHOUT_TAP:
            if accelerator not in self._watched and _is_wanted(accelerator, self._torch, self._config):
                self._watched.add(accelerator)
                note = partial(self._note_device_off, accelerator)
                getattr(accelerator.part(self._torch), "_lazy_call", lambda call: call())(note)

    def _note_device_off(self, accelerator: Accelerator) -> None:
        """Called by torch after initialisation, or where it cannot say when that is, at once."""
        if os.getpid() != self._pid:
            return
        try:
            if accelerator.has_history(self._torch):
                why = f"{accelerator.label} was not there yet as recording began"
            else:
                why = f"this torch keeps no history of {accelerator.label}'s allocator"
            self._guard.report(f"memory of {accelerator.label} devices is not recorded: {why}")
            missing.record_device_off(self._tap, accelerator.device_type, why)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)
            raise_of_handler(error)

    def detail(self) -> dict[str, object]:
        """As the configuration has it; full where it is auto and the tap has to record all."""
        detail = self._config.detail
        if detail == "auto" and not self._tap.stat(Stat.CHOOSES_DETAIL):
            detail = "full"
        return {"detail": detail, "not_recorded": ",".join(self._config.not_recorded())}

    def look_for_steady_steps(self) -> None:
        """As the protocol says; RANKMEM_STEADY=auto leaves CUDA out."""
        if self._config.steady_obstacle:
            self._guard.report(f"RANKMEM_STEADY has no effect: {self._config.steady_obstacle}")
        every, is_asked = self._config.audits_every, self._config.is_steady_asked
        if not every:
            return
        devices = self._config.devices
        if self._cuda is not None and (devices is None or "cuda" in devices) and not is_asked:
            self._guard.report("RANKMEM_STEADY=auto has no effect with CUDA; RANKMEM_STEADY=50 has")
            return
        self._tap.enable(What.EVIDENCE)
        if not self._tap.choose_steady(every, apart_s=0.0 if is_asked else AUDITS_APART_S):
            self._guard.report(
                "RANKMEM_STEADY has no effect: this Python's frames cannot be read; all is observed"
            )

    def publish(self, spool_dir: Path) -> None:
        """Moves the spool and grants the whole budget."""
        self._watch_others()
        self._tap.publish(spool_dir)

    def when_busy(self, callback: Callable[[], None], after_s: float) -> None:
        """Has ``callback`` called by the main thread."""
        self._tap.when_busy(callback, after_s=after_s, records=BUSY_RECORDS)

    def has_recorded(self) -> bool:
        """Whether a device's memory was used."""
        return self._tap.stat(Stat.HAS_BLOCKS) != 0

    def has_recorded_much(self) -> bool:
        """As :meth:`when_busy` counts it."""
        return self.has_recorded() and self._tap.stat(Stat.NEXT_SEQ) >= BUSY_RECORDS

    def finish(self) -> None:
        """Stops gathering stacks."""
        self._tap.stop_stacks()

    def switch_off(self, detail: str) -> None:
        """Switches every source off; samples of the process's memory go on."""
        self._tap.enable(What.CPU_EVENTS | What.CUDA_EVENTS | What.CALLS | What.STACKS, False)
        missing.record_all_off(self._tap, missing.AGENT_OFF, detail)

    def close(self) -> None:
        """Writes the allocators' last figures and END; a forked child has no spool to end."""
        if os.getpid() == self._pid:
            self._watch_others()
            self._tap.close()

    def forget(self) -> None:
        """The tap itself has stopped in a forked child."""
        if self._cuda is not None:
            self._cuda.stop()
