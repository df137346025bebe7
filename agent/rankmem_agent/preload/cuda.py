"""CUDA: attached when the user's program has initialised it, never before.

Stage: trainer, the thread that initialises CUDA. Comes in: torch's own call after initialisation
(``torch.cuda._lazy_call``, 2.6 to 2.13). Goes out: the tap's trace trackers on every device, or, where the
tap was built without CUDA, the fallback that drains snapshots. A job that uses an accelerator is recorded
there: from then on plain CPU tensors are not, unless ``RANKMEM_DEVICES`` names ``cpu``.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from rankmem_agent.hooks.guard import Guard
from rankmem_agent.spool.layout import DeviceType, Kind
from rankmem_agent.tap.build import Build
from rankmem_agent.tap.library import Tap, What

_CPU_LEFT_JSON: Final = json.dumps({"name": "cpu", "allocator": "cpu", "source": "tap, until CUDA was used"})


class CudaAttachment:
    """Follows the CUDA allocator once there is one.

    Args:
        keep_cpu: record CPU events beside CUDA's, if they are recorded.
    """

    def __init__(self, tap: Tap, build: Build, guard: Guard, *, keep_cpu: bool) -> None:
        self._tap = tap
        self._build = build
        self._guard = guard
        self._keep_cpu = keep_cpu
        self._pid = os.getpid()
        self._is_on = True
        self._is_attached = False

    def when_initialised(self, torch: Any) -> None:
        """Attaches after CUDA's initialisation; at once if that has happened; never without CUDA."""
        if torch.version.cuda is not None:
            torch.cuda._lazy_call(self.attach)

    def attach(self) -> None:
        """Called by torch; a forked child that initialises CUDA for itself stays silent."""
        if not self._is_on or self._is_attached or os.getpid() != self._pid:
            return
        self._is_attached = True
        try:
            self._tap.enable(What.CUDA_EVENTS)
            self._tap.attach_cuda()
            if not self._keep_cpu:
                self._leave_cpu()
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def finish(self) -> None:
        """Writes the allocator's last figures and its peaks, for the check of the replay."""

    def stop(self) -> None:
        """Attaches no more."""
        self._is_on = False

    def _leave_cpu(self) -> None:
        self._tap.enable(What.CPU_EVENTS, False)
        self._tap.record(Kind.DEVICE, device_type=DeviceType.CPU, e=self._tap.intern(_CPU_LEFT_JSON))
