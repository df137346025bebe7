"""Calls of the model: what each is given, and the steps of a process that has no optimizer.

Stage: trainer, every thread that calls modules. Comes in: each outermost call of a module, from the tap once
its first operator runs (``tap/roots.cpp``) or from the hooks of ``hooks.modules``. Goes out: INPUT records,
a few a step, and the answer whether a step ends as the call returns. Nothing of the user's is
kept; it is silent while something is traced.

**The model** is the module with the most parameters of those that were called from outside of all modules:
a loss has none, an encoder that runs before the model has fewer. Called part by part, it is the largest part.
Of two of the same size it is the one that is trained, not a copy with averaged weights evaluated first.

**A step of inference** is a call of the model in a process in which no optimizer was made and the program
ends no steps itself. It ends as the call returns; where autograd records, a backward may follow, and it ends
as the next call begins, or with the process. So validation within a training ends none. A call during
another one (DataParallel's replicas, threads of a server) is part of that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from rankmem_agent.hooks.guard import Guard, unseen_by_modes
from rankmem_agent.hooks.inputs import CONTAINERS, DEPTH_MAX, Inputs, inputs_of
from rankmem_agent.hooks.module_frames import ModuleReader
from rankmem_agent.hooks.module_names import parameters
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.hooks.steps import ENDED_BY_CALL, Steps
from rankmem_agent.hooks.tracing import Tracing
from rankmem_agent.hooks.wrapping import wrapped
from rankmem_agent.spool.layout import Kind

ENDS_STEP: Final = 1
"""A bit of the answer: a step ends when this call returns."""
NOT_IN_THIS_STEP: Final = 2
"""No further call in this grad mode is of interest until a step has ended."""
SAME_AGAIN: Final = 4
"""A call that is given the same may be answered without asking here (``tap/same_calls.cpp``)."""
IS_MODEL: Final = 8
"""It is the model's."""
IS_PENDING: Final = 16
"""Of the model: the step ends as its next call begins."""
ROOM_SHIFT: Final = 8
"""From this bit on: how many more calls of the model are recorded in this step and grad mode."""
CALLS_MAX: Final = 8
"""Calls of a step in each grad mode whose inputs are recorded: microbatches of an accumulated gradient, and
validation batches apart from them."""
ASKED_MAX: Final = 64
"""Calls of a step in each grad mode that are looked at: a simulation calls a policy thousands of times."""
TEXTS_MAX: Final = 1024
"""Different inputs that are described; of a call with others the bytes alone are recorded."""
_NOT_DESCRIBED: Final = Inputs((), 0, 0)
_MADE: Final = "_patch_step_function"
"""Of ``torch.optim.Optimizer``: called as one is made."""


class Made(Protocol):
    """Whether an optimizer was made: :class:`OptimizersMade`."""

    def __call__(self) -> bool:
        """Whether one was."""

    def when_made(self, callback: Callable[[], None]) -> bool:
        """Has ``callback()`` called as the first one is, or now; False where that is not told."""


class ModelCalls:
    """Follows the calls of the model; made once, when the agent attaches.

    Args:
        path_of: the string id of a module's path.
        was_optimizer_made: whether an optimizer exists, or has existed.
    """

    containers = CONTAINERS
    limits = (CALLS_MAX, ASKED_MAX, DEPTH_MAX)

    def __init__(
        self,
        recorder: Recorder,
        tracing: Tracing,
        guard: Guard,
        steps: Steps,
        path_of: Callable[[Any], int],
        was_optimizer_made: Made,
    ) -> None:
        import torch  # loaded, since there are modules

        self._recorder = recorder
        self._tracing = tracing
        self._guard = guard.of("inputs and steps of inference", self.stop, infers=True)
        self._steps = steps
        self._path_of = path_of
        self._was_optimizer_made = was_optimizer_made
        self._tensor_type = torch.Tensor
        self._is_lazy = torch.nn.parameter.is_lazy
        self._is_grad_enabled = torch.is_grad_enabled
        self._sizes: dict[int, tuple[weakref.ref[Any], int]] = {}
        """By identity of a module: how many numbers its parameters have."""
        self._model = 0
        """The identity of the model; 0: none was called yet."""
        self._is_trained = False
        """The model is."""
        self._step = -1
        """The step that goes on."""
        self._asked, self._recorded = [0, 0], [0, 0]
        """Calls in it that were looked at, and whose inputs were recorded: without and with autograd."""
        self._is_pending = False
        """A call has returned, or will, whose step ends as the next one begins."""
        self._texts: dict[Inputs, int] = {}
        self._is_on = True
        self._note_inputs: Callable[[int, int, int, int], None] = lambda *_: None
        self._forget: Callable[[int], None] = lambda _: None

    def answered_by(self, reader: ModuleReader) -> bool:
        """``reader`` answers calls that are given the same as one before; False where it would not be told
        that others end the steps."""
        self._note_inputs, self._forget = reader.note_inputs, reader.forget_same_calls
        self._steps.when_user_ends(reader.others_end)
        return self._was_optimizer_made.when_made(reader.others_end)

    def stop(self) -> None:
        """Does nothing from now on."""
        self._is_on = False
        self._forget(0)

    def entered(self, module: Any, args: Any, kwargs: Any, num_answered: int = 0) -> int:
        """An outermost call of a module has begun; the bits of the answer. It raises nothing.

        Args:
            args, kwargs: what it is given; kwargs None where they are not known.
            num_answered: calls of the model in this step and grad mode that were recorded without asking
                here.
        """
        if not self._is_on:
            return NOT_IN_THIS_STEP
        try:
            grad = int(self._is_grad_enabled())
            if self._steps.catch_up() != self._step:
                self._begin_step()
            self._asked[grad] += num_answered
            self._recorded[grad] += num_answered
            return 0 if self._tracing.is_traced() else self._follow(module, args, kwargs, grad)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)
            return NOT_IN_THIS_STEP

    def left(self, answer: int) -> None:
        """Where hooks see the calls: the one that was answered so has returned. Its caller is guarded."""
        if answer & ENDS_STEP and self._is_on and not self._steps.others_end:
            self._steps.record(self._recorder.intern(ENDED_BY_CALL), by_call=True)

    def finish(self) -> None:
        """The process ends: so does the step of the last call, where autograd recorded."""
        try:
            if self._is_on and self._is_pending and not self._others_end():
                self._steps.catch_up()
                self.left(ENDS_STEP)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _follow(self, module: Any, args: Any, kwargs: Any, grad: int) -> int:
        self._asked[grad] += 1
        asked_enough = NOT_IN_THIS_STEP if self._asked[grad] >= ASKED_MAX else 0
        if not self._is_model(module, grad):
            return asked_enough | (SAME_AGAIN if id(module) in self._sizes else 0)
        ends = not self._others_end()
        if self._is_pending and ends:
            self.left(ENDS_STEP)
            self._begin_step()
        self._is_pending = ends and bool(grad)
        if self._recorded[grad] < CALLS_MAX and not self._tracing.hides_tensors():
            self._record(module, args, kwargs, grad)
            self._recorded[grad] += 1
        room = CALLS_MAX - self._recorded[grad]
        answer = SAME_AGAIN | IS_MODEL | room << ROOM_SHIFT
        if ends:
            return answer | (IS_PENDING if self._is_pending else ENDS_STEP)
        return answer | (asked_enough if room else NOT_IN_THIS_STEP)

    def _begin_step(self) -> None:
        self._step = self._steps.number
        self._asked, self._recorded = [0, 0], [0, 0]

    def _others_end(self) -> bool:
        return self._steps.others_end or self._was_optimizer_made()

    def _is_model(self, module: Any, grad: int) -> bool:
        key = id(module)
        known = self._sizes.get(key)
        size = known[1] if known is not None else self._measure(key, module)
        largest = self._sizes.get(self._model, (None, 0))[1]
        if not size or size < largest:
            return False
        if key != self._model or not self._is_trained:
            is_trained = bool(grad) and self._was_optimizer_made() and self._has_trained(module)
            if (size, is_trained) > (largest, self._is_trained) or key == self._model:
                self._model, self._is_trained = key, is_trained
        return key == self._model

    def _has_trained(self, module: Any) -> bool:
        requires_grad: Any = self._tensor_type.requires_grad
        with unseen_by_modes():
            return any(requires_grad.__get__(parameter) for _, parameter in parameters(module))

    def _measure(self, key: int, module: Any) -> int:
        if self._tracing.hides_tensors():
            return 0
        own = [parameter for _, parameter in parameters(module)]
        if any(self._is_lazy(parameter) for parameter in own):
            return 0  # until its first call has made them
        with unseen_by_modes():
            # As torch's own tensors say it: a class of the user's may refuse, or note that it was asked.
            size = sum(int(self._tensor_type.numel(parameter)) for parameter in own)

        def gone(_: object) -> None:
            self._sizes.pop(key, None)
            self._forget(key)
            if self._model == key:  # another one may get its address
                self._model, self._is_trained = 0, False

        self._sizes[key] = (weakref.ref(module, gone), size)
        return size

    def _record(self, module: Any, args: Any, kwargs: Any, grad: int) -> None:
        with unseen_by_modes():
            inputs = inputs_of(self._tensor_type, args, kwargs)
        if not inputs.tensors and not inputs.num_left_out:
            return
        known = inputs
        if inputs not in self._texts and len(self._texts) >= TEXTS_MAX:
            known = _NOT_DESCRIBED  # shapes that never repeat: names of operators need the room
        facts = self._texts.get(known)
        if facts is None:
            facts = self._texts[known] = self._recorder.intern(known.text())
        left_out = inputs.num_left_out + len(inputs.tensors) - len(known.tensors)
        path = self._path_of(module)
        self._recorder.record(
            Kind.INPUT,
            with_grad=grad,
            step=self._step,
            size_bytes=inputs.size_bytes,
            module=path,
            num_left_out=left_out,
            facts=facts,
        )
        self._note_inputs(path, inputs.size_bytes, left_out, facts)


class OptimizersMade:
    """Whether an optimizer of torch's or derived from it was made in this process; its answer stays True.

    It is told as one is made: looking for one takes 20 us, and programs without any call their models
    thousands of times a second. Source: ``torch.optim.Optimizer._patch_step_function`` (2.6 to 2.13), which
    each optimizer calls as it is made, and which marks the ``step`` of its class.
    """

    def __init__(self) -> None:
        import torch  # loaded, since there are modules

        base = torch.optim.Optimizer
        self._told: list[Callable[[], None]] = []
        self._is_told = hasattr(base, _MADE)
        if self._is_told:
            setattr(base, _MADE, wrapped(getattr(base, _MADE), before=lambda _: self._made()))
        self._is_made = _some_class_is_marked(base)
        self._base: type[Any] = base

    def __call__(self) -> bool:
        """Whether one was made."""
        if not self._is_told:
            self._is_made = self._is_made or _some_class_is_marked(self._base)
        return self._is_made

    def when_made(self, callback: Callable[[], None]) -> bool:
        """Has ``callback()`` called as the first one is made, or now; False where that is not told. It must
        not raise."""
        if self._is_made:
            callback()
        else:
            self._told.append(callback)
        return self._is_told

    def _made(self) -> None:
        self._is_made = True
        while self._told:
            self._told.pop()()


def _some_class_is_marked(base: type[Any]) -> bool:
    classes = [base]
    for each in classes:  # it grows meanwhile
        if getattr(each.__dict__.get("step"), "hooked", False):
            return True
        classes += [derived for derived in type.__subclasses__(each) if derived not in classes]
    return False
