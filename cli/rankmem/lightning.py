"""Lightning: ``Trainer(callbacks=[MemoryCallback()])`` names its steps and parts, and logs their memory.

Stage: trainer, Lightning's hooks. In: hooks of the loops; out: :class:`~rankmem.step_log.StepLog`.
Whichever of the packages ``lightning`` and ``pytorch_lightning`` the script has imported is used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from rankmem.step_log import WAIT_S_DEFAULT, Log, StepLog

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

PARTS: Final = ("sanity_check", "validation", "test", "predict")


class MemoryCallback(Callback):
    """Ends a step of the recording with each batch in which optimizers stepped, whatever their number.

    Validation, tests, prediction and the sanity check are ranges in the recording (``--by annotation``).

    Args:
        every_steps: how often figures are logged, in the trainer's global steps; those of
            :class:`~rankmem.step_log.StepLog`, of the rank that the loggers log for (rank 0).
        log: takes them instead of the trainer's loggers: (figures, step).
        wait_s: longest wait at the training's end for the figures of its last steps, in seconds.
    """

    def __init__(
        self, *, every_steps: int = 10, log: Log | None = None, wait_s: float = WAIT_S_DEFAULT
    ) -> None:
        self._given = log
        self._trainer: Any = None
        self._global_step = 0
        self._steps = StepLog(self._log, every_steps=every_steps, wait_s=wait_s)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Steps are counted from here on."""
        self._trainer, self._global_step = trainer, trainer.global_step
        self._steps.begin()

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Ends a step, unless this batch's gradients only add up."""
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self._steps.ended(self._global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Logs what has come of the last steps."""
        self._steps.finish()

    def _log(self, figures: Mapping[str, int], step: int) -> None:
        if self._given is not None:
            self._given(figures, step)
            return
        for logger in self._trainer.loggers:
            logger.log_metrics(dict(figures), step=step)


def _entering(part: str) -> Any:
    def hook(self: Any, trainer: Any, pl_module: Any) -> None:
        self._steps.enter(part)

    return hook


def _leaving(part: str) -> Any:
    def hook(self: Any, trainer: Any, pl_module: Any) -> None:
        self._steps.leave(part)

    return hook


for _part in PARTS:
    setattr(MemoryCallback, f"on_{_part}_start", _entering(_part))
    setattr(MemoryCallback, f"on_{_part}_end", _leaving(_part))
