"""CUDA: attached when the user's program has initialised it, never before.

Stage: trainer, the thread that initialises CUDA. Comes in: torch's own call after initialisation
(``torch.cuda._lazy_call``, 2.6 to 2.14). Goes out: the tap's trace trackers on every device, or, where no
tap with CUDA could be built, and for other accelerators, PyTorch's memory history drained into the spool. A
job that uses an accelerator is recorded there: from the first allocation on a device on plain CPU tensors are
not, unless ``RANKMEM_DEVICES`` names ``cpu``. Initialisation does not mean use: from 2.14 on torch's own
optimizers initialise CUDA in a training on the CPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rankmem_agent.config import AgentConfig
from rankmem_agent.hooks import missing
from rankmem_agent.hooks.guard import Guard, described, happened
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.privacy import Privacy
from rankmem_agent.signals import signals_put_off
from rankmem_agent.spool.layout import DeviceType
from rankmem_agent.tap.accelerators import CUDA, Accelerator
from rankmem_agent.tap.library import CpuSees, Tap, What

NO_EVENTS: Final = "this CUDA allocator reports no events: only samples are recorded"
_UNSEEN: Final = {
    CpuSees.DEFAULT: "storages made directly (deep copies)",
    CpuSees.MAPPED: "mapped files and shared memory",
}


def cpu_facts(sees: CpuSees, until: str = "") -> dict[str, str]:
    """The facts in ``device_info`` on the host's memory.

    Args:
        sees: what the tap sees of it; what it does not see is named.
        until: what ended the recording, as "until CUDA was used".
    """
    unseen = " and ".join(name for what, name in _UNSEEN.items() if what not in sees)
    parts = ["tap", f"without {unseen}" if unseen else "", until]
    return {"name": "cpu", "allocator": "cpu", "source": ", ".join(part for part in parts if part)}


class CudaAttachment:
    """Follows the CUDA allocator through the tap, once there is one.

    Args:
        keep_cpu: go on recording CPU events beside CUDA's, if they are recorded.
    """

    def __init__(self, tap: Tap, guard: Guard, privacy: Privacy, *, keep_cpu: bool) -> None:
        self._tap = tap
        self._guard = guard
        self._privacy = privacy
        self._keep_cpu = keep_cpu
        self._pid = os.getpid()
        self._may_attach = True

    def attach(self) -> None:
        """Called by torch after initialisation; in a forked child that does so for itself, nothing."""
        if not self._may_attach or os.getpid() != self._pid:
            return
        self._may_attach = False
        with signals_put_off():
            self._attach()

    def _attach(self) -> None:
        try:
            self._tap.enable(What.CUDA_EVENTS)
            if not self._keep_cpu:
                facts = json.dumps(cpu_facts(self._tap.cpu_sees(), "until CUDA was used"))
                self._tap.leave_cpu_for_cuda(self._tap.intern(facts))
            if not self._tap.attach_cuda():
                self._guard.report(f"{NO_EVENTS} (try: rankmem doctor)")
                missing.record_device_off(self._tap, DeviceType.CUDA, NO_EVENTS)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            missing.record_device_off(
                self._tap, DeviceType.CUDA, missing.fit_to_leave(happened(error), self._privacy)
            )
            self._guard.report(f"CUDA is not recorded: {described(error)}")

    def stop(self) -> None:
        """Attaches no more."""
        self._may_attach = False


class SnapshotAttachment:
    """The recording where there is no tap: see :mod:`rankmem_agent.tap.snapshot_drain` for what it loses.

    Args:
        accelerator: what is recorded.
    """

    knows_exit = False
    has_heartbeat = False

    def __init__(
        self, torch: Any, config: AgentConfig, guard: Guard, accelerator: Accelerator = CUDA
    ) -> None:
        self._torch = torch
        self._accelerator = accelerator
        self._config = config
        self._guard = guard
        self._pid = os.getpid()
        self._drain: Any = None

    def open(self, spool_dir: Path) -> Recorder:
        """Creates the spool; the history is switched on after the device's initialisation."""
        from rankmem_agent.spool.python_writer import PythonSpoolWriter
        from rankmem_agent.tap.snapshot_drain import SnapshotDrain, by_history
        from rankmem_agent.tap.snapshot_ring import TorchHistory

        history = TorchHistory(self._torch, self._accelerator)
        writer = PythonSpoolWriter(spool_dir, self._config.spool_bytes)
        self._drain = SnapshotDrain(history, writer, self._guard.report, self._accelerator)
        self._accelerator.part(self._torch)._lazy_call(self._attach)
        recorder: Recorder = self._drain
        if self._config.devices is not None and "cpu" in self._config.devices:  # named, and there is no tap
            missing.record_device_off(recorder, DeviceType.CPU, by_history(self._accelerator))
        return recorder

    def detail(self) -> dict[str, object]:
        """Nothing: it records the same at each level; the device's source is "snapshot"."""
        return {}

    def look_for_steady_steps(self) -> None:
        """There are none: nothing of the program is observed."""
        if self._config.audits_every or self._config.steady_obstacle:
            self._guard.report(
                "RANKMEM_STEADY has no effect: no operator is observed without the tap (try: rankmem doctor)"
            )

    def publish(self, spool_dir: Path) -> None:
        """Moves the spool; its budget is whole from the beginning."""
        self._drain.move(spool_dir)

    def when_busy(self, callback: Callable[[], None], after_s: float) -> None:
        """Has ``callback`` called from a module's call or a step: there is no thread of ours."""
        self._drain.when_busy(callback, after_s)

    def has_recorded(self) -> bool:
        """Whether a device was used."""
        return bool(self._drain.has_recorded)

    def has_recorded_much(self) -> bool:
        """As the history counts it."""
        return bool(self._drain.is_busy)

    def finish(self) -> None:
        """Nothing: closing drains."""

    def close(self) -> None:
        """Drains what happened since the last step, and writes END."""
        if self._drain is not None and os.getpid() == self._pid:
            self._drain.close()

    def switch_off(self, detail: str) -> None:
        """Drains no more, and notes it."""
        if self._drain is not None:
            self._drain.switch_off(detail)

    def forget(self) -> None:
        """The writer has let go by itself in a forked child."""

    def _attach(self) -> None:
        if os.getpid() != self._pid:
            return
        with signals_put_off():
            try:
                self._drain.attach()
            except Exception as error:  # noqa: BLE001  the trainer's guard
                self._guard.failed(error)
