"""Training steps and the optimizer phase.

Stage: trainer, the thread that calls ``optimizer.step()``. Comes in: what ``hooks.step_hooks`` sees of
optimizers. Goes out: phase and step, STEP records, by the tap or its native calls. It touches no tensor and
keeps no optimizer alive.

**What a step is.** With one optimizer: each ``step()``, recorded when it returns. With several: a round in
which every optimizer in use has stepped at least once, recorded when the last of them returns. So a GAN that
steps its discriminator five times for each step of the generator counts one step a round, ended by the
generator. Which optimizers are in use is learned in the first round: there, each ``step()`` of those known
so far ends a step, and a new one ends the round without a row of its own. An optimizer is no longer waited
for when others have stepped REPEATS_MAX times again without it. One that steps inside another's ``step()``
is part of it, however often: DeepSpeed's ZeRO has one step for each group of parameters, in stage 3 for each
part of these (``hooks.deepspeed``). A step that the user ends (``rankmem_agent.step()``) stops all that.

**Closures.** ``optimizer.step(closure)`` runs forward and backward within the step (LBFGS; Lightning gives
one to every optimizer). The phase is then IN_CLOSURE, which the tap resolves call by call.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.spool.layout import IN_CLOSURE, NO_PHASE, Kind, Phase

if TYPE_CHECKING:
    from rankmem_agent.hooks.plans import Plan

REPEATS_MAX: Final = 8
"""More than the usual ratio of critic to generator steps (5), few enough to notice that a run changed its
optimizer."""
ENDED_BY_USER: Final = "user"
ENDED_BY_CALL: Final = "model call"
"""In place of an optimizer's class: in a process without one, a step is a call of the model."""


@dataclass(slots=True, eq=False)
class Optimizer:
    """One that has stepped, and what is known of it between its steps."""

    reference: weakref.ref[Any]
    name: int
    """String id of its class's name."""
    is_in_use: bool = False
    has_stepped: bool = False
    """In this round."""
    plan: Plan | None = None
    """Of its parameters."""


class _Inside(threading.local):
    """Identities of the optimizers whose ``step()`` a thread is in, outermost first; negative of what is none
    of torch's."""

    def __init__(self) -> None:
        self.stack: list[int] = []
        self.inner: Optimizer | None = None
        """That has stepped within the outermost one, which is none of torch's."""


class Steps:
    """Counts steps; made once, when the agent attaches. Callers are guarded.

    Args:
        ended: called after a step's end, on its thread; at least once in each second that has some.
    """

    def __init__(self, recorder: Recorder, ended: Callable[[], None] = lambda: None) -> None:
        self._recorder: Recorder | None = recorder
        self._number_by_calls: Callable[[], int] | None = None
        self.ended = ended
        self._in_use: list[Optimizer] = []
        self._repeats = 0
        """Steps in this round of optimizers that had stepped in it before."""
        self._only: Optimizer | None = None
        """The one in use, if there is but one."""
        self._user_ends = False
        self._when_user_ends: Callable[[], None] = lambda: None
        self.inside = _Inside()
        self.phase_outside: int = Phase.OTHER
        """The phase when the outermost module returns."""
        self.number = 0
        """The number of the step that is going on."""

    def count_calls(self, number: Callable[[], int]) -> None:
        """The tap, too, ends steps as calls of the model return; ``number`` is that of its present one."""
        self._number_by_calls = number

    def when_user_ends(self, callback: Callable[[], None]) -> None:
        """Has ``callback()`` called as the user ends a first step. It must not raise."""
        self._when_user_ends = callback

    @property
    def others_end(self) -> bool:
        """Whether optimizers or the user end the steps: no call of the model does then."""
        return bool(self._in_use) or self._user_ends

    def catch_up(self) -> int:
        """The number of the step that goes on, those ended by calls of the model counted."""
        if self._number_by_calls is not None and not self.others_end:
            self.number = self._number_by_calls()
        return self.number

    def begin(self, key: int, *, has_closure: bool) -> int:
        """An optimizer's ``step()`` begins; the phase from now on.

        Args:
            key: its identity.
        """
        inside = self.inside.stack
        if key in inside:  # its last step() raised: the hook after it was never called
            del inside[inside.index(key) :]
        if not inside:
            self.phase_outside = Phase.OTHER
        inside.append(key)
        if has_closure:
            self.phase_outside = IN_CLOSURE
        return IN_CLOSURE if self.phase_outside == IN_CLOSURE else Phase.OPTIMIZER

    def end(self, key: int) -> bool:
        """It has ended; true unless it stepped inside another one's ``step()``."""
        inside = self.inside.stack
        if key in inside:
            del inside[inside.index(key) :]
        if inside:
            return False
        self.phase_outside = Phase.OTHER
        return True

    def begin_outer(self, key: int) -> None:
        """A wrapper that is none of torch's optimizers begins its ``step()``, in which it calls theirs.

        Args:
            key: its identity.
        """
        self.inside.stack.append(-key)
        self.inside.inner = None

    def inner_ended(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped inside another one's ``step()``."""
        if self.inside.stack[:1] and self.inside.stack[0] < 0:
            self.inside.inner = optimizer

    def leave_outer(self, key: int) -> None:
        """A step that :meth:`begin_outer` began has ended, or raised."""
        inside = self.inside.stack
        if -key in inside:
            del inside[inside.index(-key) :]
        if not inside and self.inside.inner is not None:
            self.phase_outside = Phase.OTHER
            if self._recorder is not None:
                self._recorder.set_phase(Phase.OTHER)

    def outer_ended(self) -> None:
        """It has ended without raising: with it the training step, if an optimizer stepped in it."""
        inner, self.inside.inner = self.inside.inner, None
        if inner is not None and not self.inside.stack and self.ends(inner):
            self.record(inner.name)
            self.ended()

    def ends(self, optimizer: Optimizer) -> bool:
        """Whether a training step ends with this one's: all in use have stepped since the last end."""
        if optimizer is self._only:
            return True
        if self._user_ends:
            return False
        is_new = not optimizer.is_in_use
        if is_new:
            self.catch_up()
            optimizer.is_in_use = True
            self._in_use = [*self._in_use, optimizer]
        if is_new and len(self._in_use) > 1:
            self._only = None
            self._begin_round()  # the rows before show what the first round did
            return False
        self._repeats += optimizer.has_stepped
        optimizer.has_stepped = True
        if self._repeats > REPEATS_MAX:
            self._wait_for([each for each in self._in_use if each.has_stepped])
        if not all(each.has_stepped for each in self._in_use):
            return False
        self._begin_round()
        if len(self._in_use) == 1:
            self._only = optimizer
        return True

    def gone(self, optimizer: Optimizer) -> None:
        """It exists no more: it is not waited for."""
        self._wait_for([each for each in self._in_use if each is not optimizer])

    def leave_to_user(self) -> None:
        """From here on the user alone ends steps."""
        self.catch_up()
        if not self._user_ends:
            self._when_user_ends()
        self._user_ends, self._only = True, None

    def ended_by_user(self) -> None:
        """The user has ended a step."""
        self.leave_to_user()
        if self._recorder is not None:
            self.record(self._recorder.intern(ENDED_BY_USER))
            self.ended()

    def record(self, name: int, *, by_call: bool = False) -> None:
        """A step has ended: its record, and the next one's number.

        Args:
            name: string id of who ended it.
            by_call: a call of the model did.
        """
        if self._recorder is None:
            return
        self._recorder.record(Kind.STEP, step=self.number, optimizer=name)
        self.number += 1
        # Hooks see calls whatever the tap observes.
        self._recorder.set_step(self.number, by_call=by_call and self._number_by_calls is not None)

    def stop(self) -> None:
        """Records nothing from now on."""
        self._recorder = None

    def switch_off(self) -> None:
        """After a failure of the hooks: what follows may or may not be an optimizer's work."""
        recorder = self._recorder
        self.stop()
        self.phase_outside = NO_PHASE
        if recorder is not None:
            recorder.set_phase(NO_PHASE)

    def _wait_for(self, optimizers: list[Optimizer]) -> None:
        for each in self._in_use:
            each.is_in_use = False
        for each in optimizers:
            each.is_in_use = True
        self._in_use, self._only = optimizers, None

    def _begin_round(self) -> None:
        self._repeats = 0
        for each in self._in_use:
            each.has_stepped = False


def has_closure(args: Any, kwargs: Any) -> bool:
    """Whether ``step`` was given one; ``args`` begin with the optimizer itself."""
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None
