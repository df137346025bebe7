"""Training steps and the optimizer phase, from torch's global optimizer hooks.

Stage: trainer, the thread that calls ``optimizer.step()``. Comes in: torch's step hooks (2.6 to 2.13:
``torch.optim.optimizer.register_optimizer_step_pre_hook`` and ``..._post_hook``, for every ``Optimizer``).
Goes out: phase and step to the tap, STEP records. It touches no tensor, keeps no optimizer alive, and
does nothing while Dynamo traces.

**What a step is.** With one optimizer: each ``step()``, recorded when it returns. With several: a round in
which every optimizer in use has stepped at least once, recorded when the last of them returns. So a GAN that
steps its discriminator five times for each step of the generator counts one step a round, ended by the
generator. Which optimizers are in use is learned in the first round: there, each ``step()`` of those known
so far ends a step, and a new one ends the round without a row of its own. An optimizer is no longer waited
for when others have stepped REPEATS_MAX times again without it. One that steps inside another's ``step()``
(ZeRO wraps one) is part of it. A step that the user tells (``rankmem_agent.step()``) ends all that.

**Closures.** ``optimizer.step(closure)`` runs forward and backward within the step (LBFGS; Lightning gives
one to every optimizer). The phase is then IN_CLOSURE, which the tap resolves call by call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import WeakSet

from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.spool.layout import IN_CLOSURE, NO_PHASE, Kind, Phase

REPEATS_MAX: Final = 8
"""More than the usual ratio of critic to generator steps (5), few enough to notice that a run changed its
optimizer."""
TOLD_BY_USER: Final = "user"


class Removable(Protocol):
    """torch's ``RemovableHandle``."""

    def remove(self) -> None:
        """Unregisters the hook."""


class Steps:
    """Counts steps; made once, when the agent attaches.

    Args:
        ended: called after each step's end, on its thread.
    """

    def __init__(
        self,
        recorder: Recorder,
        is_compiling: Callable[[], bool],
        guard: Guard,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._recorder: Recorder | None = recorder
        self._is_compiling = is_compiling
        self._guard = guard.of("steps", self._give_up, infers=False)
        self._ended = ended
        self._in_use: WeakSet[object] = WeakSet()
        self._stepped: set[int] = set()
        """Identities of the optimizers that have stepped in this round."""
        self._repeats = 0
        """Steps in this round of optimizers that had stepped in it before."""
        self._inside = threading.local()
        self._names: dict[str, int] = {}
        self._told = False
        self.phase_outside: int = Phase.OTHER
        """The phase when the outermost module returns."""
        self.number = 0
        """The number of the step that is going on."""

    def install(self) -> list[Removable]:
        """Registers the global hooks."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        return [register_optimizer_step_pre_hook(self.before), register_optimizer_step_post_hook(self.after)]

    def before(self, optimizer: object, args: Any, kwargs: Any) -> None:
        """The hook before ``optimizer.step()``."""
        if self._is_compiling() or self._recorder is None:
            return
        try:
            self._begin(self._recorder, optimizer, has_closure=_has_closure(args, kwargs))
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def after(self, optimizer: object, args: Any, kwargs: Any) -> None:
        """The hook after it."""
        if self._is_compiling() or self._recorder is None:
            return
        try:
            self._end(self._recorder, optimizer)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def told(self) -> None:
        """The user says that a step has ended."""
        self._told = True
        if self._recorder is not None:
            self._end_step(self._recorder, TOLD_BY_USER)

    def stop(self) -> None:
        """Does nothing from now on; the hooks stay registered, torch calls them for nothing."""
        self._recorder = None

    def _give_up(self) -> None:
        recorder = self._recorder
        self.stop()
        self.phase_outside = NO_PHASE  # whatever follows, nobody says whether it is an optimizer's work
        if recorder is not None:
            recorder.set_phase(NO_PHASE)

    def _begin(self, recorder: Recorder, optimizer: object, *, has_closure: bool) -> None:
        inside = self._stack()
        if id(optimizer) in inside:  # its last step() raised: the hook after it was never called
            del inside[inside.index(id(optimizer)) :]
        if not inside:
            self.phase_outside = Phase.OTHER
        inside.append(id(optimizer))
        if has_closure:
            self.phase_outside = IN_CLOSURE
        recorder.set_phase(IN_CLOSURE if self.phase_outside == IN_CLOSURE else Phase.OPTIMIZER)

    def _end(self, recorder: Recorder, optimizer: object) -> None:
        inside = self._stack()
        if id(optimizer) in inside:
            del inside[inside.index(id(optimizer)) :]
        if inside:
            return
        self.phase_outside = Phase.OTHER
        recorder.set_phase(Phase.OTHER)
        if not self._told and self._ends_step(optimizer):
            self._end_step(recorder, type(optimizer).__name__)

    def _stack(self) -> list[int]:
        """Optimizers whose ``step()`` this thread is in, outermost first."""
        stack: list[int] | None = getattr(self._inside, "stack", None)
        if stack is None:
            stack = self._inside.stack = []
        return stack

    def _ends_step(self, optimizer: object) -> bool:
        """True if every optimizer in use has stepped since the last step's end."""
        is_new = optimizer not in self._in_use
        self._in_use.add(optimizer)
        if is_new and len(self._in_use) > 1:
            self._begin_round()  # what the first round did is told by the rows before
            return False
        self._repeats += id(optimizer) in self._stepped
        self._stepped.add(id(optimizer))
        if self._repeats > REPEATS_MAX:
            self._in_use = WeakSet(each for each in self._in_use if id(each) in self._stepped)
        if any(id(each) not in self._stepped for each in self._in_use):
            return False
        self._begin_round()
        return True

    def _begin_round(self) -> None:
        self._stepped.clear()
        self._repeats = 0

    def _end_step(self, recorder: Recorder, name: str) -> None:
        if name not in self._names:
            self._names[name] = recorder.intern(name)
        recorder.record(Kind.STEP, a=self.number, e=self._names[name])
        self.number += 1
        recorder.set_step(self.number)
        self._ended()


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Whether ``step`` was given one; ``args`` begin with the optimizer itself."""
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None
