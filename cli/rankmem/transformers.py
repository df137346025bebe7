"""Hugging Face Trainer: ``trainer.add_callback(MemoryCallback(trainer.log))`` logs the memory of its steps.

Stage: trainer, the Trainer's callbacks. In: its events; out: :class:`~rankmem.step_log.StepLog`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback

from rankmem.step_log import PREFIX, WAIT_S_DEFAULT, StepLog


class MemoryCallback(TrainerCallback):
    """Ends a step of the recording with each of the Trainer's global steps.

    Evaluation and prediction are ranges in the recording (``--by annotation``).

    Args:
        log: the Trainer's own ``log``: figures are in its history and go wherever it reports to. It takes the
            figures of :class:`~rankmem.step_log.StepLog` and the step that they end with, ``rankmem/step``.
        every_steps: how often, in global steps.
        wait_s: longest wait at the training's end for the figures of its last steps, in seconds.
    """

    def __init__(
        self,
        log: Callable[[dict[str, float]], None],
        *,
        every_steps: int = 10,
        wait_s: float = WAIT_S_DEFAULT,
    ) -> None:
        self._log_of_trainer = log
        self._control: Any = None
        self._steps = StepLog(self._log, every_steps=every_steps, wait_s=wait_s)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Steps are counted from here on."""
        self._steps.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends a step; where gradients add up, with the last of its batches."""
        self._control = control
        self._steps.ended(state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first one begins an evaluation: no event does."""
        self._steps.enter("evaluation")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """It is over."""
        self._steps.leave("evaluation")

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        """The same."""
        self._steps.leave("evaluation")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Logs what has come of the last steps."""
        self._control = control
        self._steps.finish()

    def _log(self, figures: Mapping[str, int], step: int) -> None:
        wanted = self._control.should_log  # log() takes it for done, also what the Trainer is still to log
        self._log_of_trainer({**figures, f"{PREFIX}step": step})
        self._control.should_log = wanted
