"""A training's steps named by its framework, and their memory handed to what people watch, every N steps.

Stage: trainer, the user's thread that trains. In: the framework's word that a step has ended. Out: the end
of a step in the recording, and figures for a log function. The figures are the shipper's, read from a file
of some KiB beside the log (:mod:`rankmem_agent.spool.step_figures`): no query, nothing to wait for. So they
come about a second after their step, or later while the aggregator is busy, and carry its number. Where
nothing is recorded all of this does nothing. Standard library only.

The largest category of a step is not among them: what a block was for is often known only once it is freed,
two steps later. ``rankmem peak --by category`` has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from rankmem_agent.hooks import user_api
from rankmem_agent.spool import step_figures
from rankmem_agent.spool.layout import MarkerKind
from rankmem_agent.spool.step_figures import StepFigure
from rankmem_protos.errors import Code, RankmemError

PREFIX: Final = "rankmem/"
WAIT_S_DEFAULT: Final = 10.0
"""A flush takes a second; a shipper that has only begun, because the training was short, some more."""
_POLL_S: Final = 0.05

Log = Callable[[Mapping[str, int], int], None]
"""(figures, the step that they end with), as the framework numbers steps."""


class StepLog:
    """Ends the recording's steps where a framework's end, and logs their figures.

    Figures cover the steps since those logged before, on the device where memory stood highest in them:
    ``rankmem/peak_bytes`` (highest requested bytes; exact unless events were lost), ``rankmem/last_bytes``
    (held after the last of them), ``rankmem/headroom_bytes`` (least; left out where it is not known).

    Args:
        log: takes the figures of this process's rank.
        every_steps: how often, in steps.
        wait_s: longest wait of :meth:`finish` for the figures of the last steps, in seconds.

    Raises:
        RankmemError: INVALID for an every_steps below 1.
    """

    def __init__(self, log: Log, *, every_steps: int = 10, wait_s: float = WAIT_S_DEFAULT) -> None:
        if every_steps < 1:
            raise RankmemError(
                Code.INVALID, f"every_steps={every_steps} cannot be used", "a whole number of at least 1"
            )
        self._log = log
        self._every_steps = every_steps
        self._wait_s = wait_s
        self._framework_steps: dict[int, int] = {}
        """By the recording's number; those whose figures are not logged yet."""
        self._phases: dict[str, int] = {}

    def begin(self) -> None:
        """The training begins: from here on a step ends at :meth:`ended` alone."""
        user_api.leave_steps_to_calls()
        spool_dir = user_api.spool_dir()
        if spool_dir is not None:
            with suppress(OSError):  # no figures then
                step_figures.want(spool_dir)

    def ended(self, step: int) -> None:
        """A step has ended.

        Args:
            step: its number by the framework; any that ascend.
        """
        number = user_api.end_step()
        if number is None:
            return
        self._framework_steps[number] = step
        if step % self._every_steps == 0:
            self._log_known()

    def finish(self) -> None:
        """The training has ended: waits for the figures of its last steps, and logs them."""
        over_s = time.monotonic() + self._wait_s
        while self._framework_steps:
            known = {figure.step for figure in self._figures()}
            if known.issuperset(self._framework_steps) or time.monotonic() > over_s:
                break
            time.sleep(_POLL_S)
        self._log_known()

    def enter(self, phase: str) -> None:
        """What follows is a part of its own (``validation``): a range in the recording, until it is left."""
        if phase not in self._phases:
            self._phases[phase] = user_api.begin_range(phase, MarkerKind.ANNOTATE)

    def leave(self, phase: str) -> None:
        """The part is over; nothing where it was not entered."""
        marker = self._phases.pop(phase, 0)
        if marker:
            user_api.end_range(marker)

    def _figures(self) -> list[StepFigure]:
        """Of steps that are not logged yet."""
        spool_dir = user_api.spool_dir()
        found = [] if spool_dir is None else step_figures.read(spool_dir)
        return [figure for figure in found if figure.step in self._framework_steps]

    def _log_known(self) -> None:
        found = self._figures()
        if not found:
            return
        device = max(found, key=lambda figure: figure.peak_bytes).device
        of_device = [figure for figure in found if figure.device == device]
        figures = {
            "peak_bytes": max(figure.peak_bytes for figure in of_device),
            "last_bytes": of_device[-1].last_bytes,
        }
        headrooms = [each.headroom_bytes for each in of_device if each.headroom_bytes is not None]
        if headrooms:
            figures["headroom_bytes"] = min(headrooms)
        last = max(figure.step for figure in found)
        step = self._framework_steps[last]
        for number in [each for each in self._framework_steps if each <= last]:
            del self._framework_steps[number]
        self._log({PREFIX + name: value for name, value in figures.items()}, step)
