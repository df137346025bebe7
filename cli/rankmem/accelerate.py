"""Accelerate: a loop's own steps, named and logged through ``accelerator.log``.

Stage: trainer, the user's loop: Accelerate has no callbacks. In: a call at each step's end; out:
:class:`~rankmem.step_log.StepLog`. Imports nothing of Accelerate's.
"""

from __future__ import annotations

from typing import Any

from rankmem.step_log import WAIT_S_DEFAULT, StepLog


class MemoryLog:
    """Ends a step of the recording where the loop says so, and logs to the accelerator's trackers::

        memory = MemoryLog(accelerator)
        for batch in loader:
            with accelerator.accumulate(model):
                ...
            memory.step()
        memory.finish()

    Args:
        accelerator: the script's ``Accelerator``.
        every_steps: how often figures are logged, in steps; those of :class:`~rankmem.step_log.StepLog`,
            of the main process, whose trackers log.
        wait_s: longest wait of :meth:`finish` for the figures of the last steps, in seconds.
    """

    def __init__(self, accelerator: Any, *, every_steps: int = 10, wait_s: float = WAIT_S_DEFAULT) -> None:
        self._accelerator = accelerator
        self._steps = StepLog(
            lambda figures, step: accelerator.log(dict(figures), step=step),
            every_steps=every_steps,
            wait_s=wait_s,
        )
        self._number = 0
        self._steps.begin()

    def step(self) -> None:
        """A step has ended; nothing where gradients only added up."""
        if self._accelerator.sync_gradients:
            self._number += 1
            self._steps.ended(self._number)

    def finish(self) -> None:
        """The training has ended; before ``accelerator.end_training()``, which closes the trackers."""
        self._steps.finish()
