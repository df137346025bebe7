"""Trackers: functions that log a :class:`~rankmem.step_log.StepLog` through the client that the user has.

Stage: trainer, the user's loop. In: a client that the user has made; out: a function for ``StepLog``. Imports
none of the clients::

    memory = StepLog(trackers.tensorboard(SummaryWriter("runs")), every_steps=10)
    memory.begin()
    for number, batch in enumerate(loader, 1):
        ...
        memory.ended(number)
    memory.finish()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankmem.step_log import PREFIX, Log


def tensorboard(writer: Any) -> Log:
    """To a ``torch.utils.tensorboard.SummaryWriter``, at the figures' own step."""

    def log(figures: Mapping[str, int], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, global_step=step)

    return log


def mlflow(client: Any, run_id: str | None = None) -> Log:
    """To MLflow, at the figures' own step.

    Args:
        client: the module ``mlflow``.
        run_id: None: the active run.
    """

    def log(figures: Mapping[str, int], step: int) -> None:
        client.log_metrics(dict(figures), step=step, run_id=run_id)

    return log


def wandb(run: Any, *, commit: bool = False) -> Log:
    """To a Weights & Biases run, over an axis of their own, ``rankmem/step``: its steps only ever ascend, and
    the figures are of a step before the present one.

    Args:
        commit: a row of the history for each; False: with what the script logs next, whose steps then stay as
            they are.
    """
    axis = f"{PREFIX}step"
    run.define_metric(axis)
    run.define_metric(f"{PREFIX}*", step_metric=axis)

    def log(figures: Mapping[str, int], step: int) -> None:
        run.log({**figures, axis: step}, commit=commit)

    return log
