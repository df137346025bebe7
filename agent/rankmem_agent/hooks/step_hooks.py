"""torch's hooks around ``optimizer.step()``: one before and one after, for all parts.

Stage: trainer, the thread that calls ``optimizer.step()``. Comes in: torch's global step hooks (2.6 to 2.13:
``torch.optim.optimizer.register_optimizer_step_pre_hook`` and ``..._post_hook``, for every ``Optimizer``).
Goes out: calls of :mod:`~rankmem_agent.hooks.steps`, ``plans``, ``tags``, ``weights`` and ``parallel``, in
this order. It touches no optimizer, keeps none alive, and does nothing while torch traces.

A step in which nothing is new costs one native call before and one after; the rest of Python is asked only
when they find something, or when a part waits for the next step. Each line of these two functions is run
cold, after a backward: a call more is a microsecond.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

from rankmem_agent.hooks.guard import Guard, unseen_by_modes
from rankmem_agent.hooks.parallel import Parallel
from rankmem_agent.hooks.plans import Plan, Plans
from rankmem_agent.hooks.recorder import (
    FOUND_LOOK,
    FOUND_ODD,
    FOUND_OTHER,
    FOUND_SECOND,
    FOUND_STATE,
    Recorder,
    Removable,
)
from rankmem_agent.hooks.steps import Optimizer, Steps, has_closure
from rankmem_agent.hooks.tags import Tags, first_address
from rankmem_agent.hooks.weights import Weights
from rankmem_agent.spool.layout import Phase

_OTHER: Final = int(Phase.OTHER)
_OPTIMIZER: Final = int(Phase.OPTIMIZER)
_TORCH_STEP: Final = "Optimizer.profile_hook_step.<locals>.wrapper"
"""The function of torch's around every ``step()`` (2.6 to 2.13)."""


class StepHooks:
    """Calls the parts; made once, when the agent attaches.

    Args:
        is_compiling: whether torch is tracing, or hides tensors.
        weights, parallel: None where they are not recorded.
        by_dynamo: whether Dynamo is tracing: all that is asked after a step that was seen to begin.
    """

    def __init__(
        self,
        recorder: Recorder,
        is_compiling: Callable[[], bool],
        guard: Guard,
        steps: Steps,
        tags: Tags,
        weights: Weights | None = None,
        parallel: Parallel | None = None,
        by_dynamo: Callable[[], bool] | None = None,
    ) -> None:
        self._recorder = recorder
        self._is_compiling = is_compiling
        self._by_dynamo = by_dynamo or is_compiling
        self._guard = guard.of("steps and gradients", self._switch_off, infers=False)
        self._steps = steps
        self._inside = steps.inside
        self._tags = tags
        self._weights = weights
        self._parallel = parallel
        self._calls = recorder.step_calls()
        if self._calls is not None:
            self._begin, self._end = self._calls.begin, self._calls.end
        self._plans = Plans(recorder, self._calls, tags.names)
        self._known: dict[int, Optimizer] = {}
        """By identity, until the optimizer is gone."""
        self._is_wanted = False
        """A part waits for the next step."""
        self._is_on = True
        self._when_off: Callable[[], None] | None = None

    def when_off(self, stepped: Callable[[], None]) -> None:
        """Has ``stepped`` called after a step while nothing else is done here. It must not raise."""
        self._when_off = stepped

    def install(self) -> list[Removable]:
        """Registers the two hooks."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._tags.when_waiting(self._want)
        if self._weights is not None:
            self._weights.when_stale(self._want)
        return [register_optimizer_step_pre_hook(self.before), register_optimizer_step_post_hook(self.after)]

    def stop(self) -> None:
        """Does nothing from now on; the hooks stay registered, torch calls them for nothing."""
        self._is_on = False

    def _switch_off(self) -> None:
        self.stop()
        self._steps.switch_off()

    def before(self, optimizer: Any, args: Any, kwargs: Any, /) -> None:
        """The hook before ``optimizer.step()``."""
        if self._is_compiling() or not self._is_on:
            return
        try:
            key = id(optimizer)
            inside = self._inside.stack
            known = self._known.get(key)
            plan = None if known is None else known.plan
            if plan is None or not plan.handle or inside or kwargs or len(args) > 1 or self._is_wanted:
                self._before_slowly(optimizer, args, kwargs)
                return
            inside.append(key)
            found = self._begin(plan.handle, optimizer.param_groups, _OPTIMIZER)
            if found:
                self._before_found(known, optimizer, plan, found)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def after(self, optimizer: Any, args: Any, kwargs: Any, /) -> None:
        """The hook after it."""
        if self._by_dynamo():
            return
        if not self._is_on:
            if self._when_off is not None:
                self._when_off()
            return
        try:
            key = id(optimizer)
            inside = self._inside.stack
            known = self._known.get(key)
            plan = None if known is None else known.plan
            if known is None or plan is None or not plan.handle or len(inside) != 1 or inside[0] != key:
                self._after_slowly(optimizer)
                return
            del inside[0]
            steps = self._steps
            steps.phase_outside = _OTHER
            ends = steps.ends(known)
            found = self._end(plan.handle, optimizer.state, ends, steps.number, known.name)
            if ends:
                steps.number += 1
            if found:
                self._after_found(optimizer, found)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _before_slowly(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        known = self._known.get(id(optimizer)) or self._first_seen(optimizer)
        inside = self._inside.stack
        if inside:
            _keep_stepping(inside, id(optimizer))
        phase = self._steps.begin(id(optimizer), has_closure=has_closure(args, kwargs))
        self._recorder.set_phase(phase)
        self._walk(known, optimizer, phase)

    def _before_found(self, known: Optimizer | None, optimizer: Any, plan: Plan, found: int) -> None:
        if found & FOUND_OTHER and known is not None:
            self._walk(known, optimizer, _OPTIMIZER)
            return
        with unseen_by_modes():
            if found & FOUND_ODD:
                found |= self._plans.walk_odd(plan, optimizer)
        if found & FOUND_LOOK:
            self._look(found)

    def _walk(self, known: Optimizer, optimizer: Any, phase: int) -> None:
        with unseen_by_modes():
            known.plan, found = self._plans.walk(known.plan, optimizer, phase)
            self._tags.judge_buffers()
        self._look(found)

    def _look(self, found: int) -> None:
        if self._parallel is not None:
            self._parallel.at_step()
        if self._weights is not None:
            self._weights.at_step(is_due=bool(found & FOUND_LOOK))
        self._is_wanted = (
            self._tags.is_waiting
            or (self._weights is not None and self._weights.is_stale)
            or (self._parallel is not None and self._parallel.is_looking)
        )

    def _after_slowly(self, optimizer: Any) -> None:
        if self._is_compiling():
            return
        known = self._known.get(id(optimizer)) or self._first_seen(optimizer)
        if self._steps.end(id(optimizer)):
            self._recorder.set_phase(Phase.OTHER)
            if self._steps.ends(known):
                self._steps.record(known.name)
                self._steps.ended()
        else:
            self._steps.inner_ended(known)
        if known.plan is not None and self._has_new_state(known.plan, optimizer):
            with unseen_by_modes():
                self._tags.state(optimizer)

    def _after_found(self, optimizer: Any, found: int) -> None:
        if found & FOUND_SECOND:
            self._steps.ended()
        if found & FOUND_STATE:
            with unseen_by_modes():
                self._tags.state(optimizer)

    def _has_new_state(self, plan: Plan, optimizer: Any) -> bool:
        state = optimizer.state
        if not state:
            return False
        if plan.handle and self._calls is not None:
            return bool(self._calls.has_new_state(plan.handle, state))
        with unseen_by_modes():
            now = (id(state), len(state), first_address(state))
        is_new, plan.state = now != plan.state, now
        return is_new

    def _first_seen(self, optimizer: Any) -> Optimizer:
        key = id(optimizer)

        def gone(_: object) -> None:
            known = self._known.pop(key, None)
            if known is not None:
                self._steps.gone(known)

        name = self._recorder.intern(type(optimizer).__name__)
        known = self._known[key] = Optimizer(weakref.ref(optimizer, gone), name)
        return known

    def _want(self) -> None:
        self._is_wanted = True


def _keep_stepping(inside: list[int], key: int) -> None:
    """Takes optimizers off whose ``step()`` this thread is no longer in: torch calls no hook where it raised.

    Args:
        inside: identities of optimizers, outermost first.
        key: the one whose step has just begun; without it on the stack, steps cannot be recognised there.
    """
    stepping = set()
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_qualname == _TORCH_STEP:
            stepping.add(id(frame.f_locals.get("self")))
    if key in stepping:
        inside[:] = [each for each in inside if each < 0 or each in stepping]
