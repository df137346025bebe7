"""Modules without a hook in any of them: the tap reads which one a call runs in from the Python frames.

Stage: trainer, while the agent attaches, and then the thread that meets a module without a name. Any global
forward hook sends every call of a module down torch's slow path: 1.5 us become 7.5 us (measured). Each call
of a module runs the code of ``torch.nn.Module._wrapped_call_impl`` (2.1 to 2.13), so the nearest frame of
it on the stack shows the module (``tap/modules.cpp``).

**Verified, not assumed.** :func:`follow` calls two modules, one within the other, and asks the tap which
it finds there. Where it finds anything else (a Python whose frames are not known, another ``__call__``), the
hooks of ``hooks.modules`` do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rankmem_agent.hooks.guard import unseen_by_listeners, unseen_by_modes


class ModuleReader(Protocol):
    """The part of the tap that reads modules from frames. None of it raises or blocks."""

    def follow_modules(
        self, call_code: object, ask: Callable[..., None] | None, modules: Sequence[int]
    ) -> bool:
        """Reads modules from now on, if this thread's nearest ones are these, by identity, nearest first.

        Args:
            call_code: the code object that every call of a module runs.
            ask: called with a module without a name, and the one around it if any; it answers through
                :meth:`name_module`, or is asked again. None: no module gets a name.
        """

    def stop_modules(self) -> None:
        """Reads none from now on."""

    def name_module(self, identity: int, string_id: int, may_change: bool) -> None:
        """The module with this identity has this path, until a module is named that it may be a part of."""

    def forget_module(self, identity: int) -> None:
        """The module with this identity is gone."""

    def watch_calls(self, ask: Callable[[Any, Any, Any, int], int], name: int) -> None:
        """Has ``ask`` (module, args, kwargs, calls answered without it) called in each outermost call of a
        module; see :mod:`~rankmem_agent.hooks.model_calls`.

        Args:
            name: string id of what ends the steps that its answers ask for.
        """

    def answer_same_calls(
        self, tensor: Any, containers: tuple[type, ...], limits: tuple[int, int, int]
    ) -> bool:
        """From now on answers calls itself that are given the same as one before; False: it cannot.

        Args:
            tensor: any one of ``torch.Tensor`` itself.
            containers: the types whose subclasses ``ask`` looks into.
            limits: calls of the model that are recorded in a step; calls that are looked at in one; how deep
                containers are looked into.
        """

    def others_end(self) -> None:
        """From now on optimizers or the user end the steps: no call does."""

    def note_inputs(self, module: int, size_bytes: int, num_left_out: int, facts: int) -> None:
        """What ``ask`` has recorded of a call of the model; within it."""

    def forget_same_calls(self, identity: int = 0) -> None:
        """The module with this identity is gone; 0: answers nothing that ``ask`` has not been asked again."""

    def step_number(self) -> int:
        """The number of the step that goes on, which ends of calls have moved."""


class Calls(Protocol):
    """Who is asked about outermost calls: :class:`~rankmem_agent.hooks.model_calls.ModelCalls`."""

    containers: tuple[type, ...]
    limits: tuple[int, int, int]

    def entered(self, module: Any, args: Any, kwargs: Any, num_answered: int = 0) -> int:
        """One has begun; the answer."""

    def answered_by(self, reader: ModuleReader) -> bool:
        """``reader`` answers those that are given the same as one before; False where it cannot."""


def follow_unnamed(reader: ModuleReader | None) -> bool:
    """Has only that a module runs read from frames, for the forward phase: none gets a name."""
    return reader is not None and follow(reader, None)


def follow(reader: ModuleReader, ask: Callable[..., None] | None) -> bool:
    """Has modules read from frames; False if that cannot be done here.

    Args:
        ask: as :meth:`ModuleReader.follow_modules`.
    """
    from torch import nn  # loaded, since there are modules

    call_code = getattr(getattr(nn.Module, "_wrapped_call_impl", None), "__code__", None)
    if call_code is None:
        return False
    unseen = unseen_by_dynamo(ask) if ask is not None else None

    class Probe(nn.Module):
        """Asks the tap from within two calls of modules."""

        def forward(self, inner: Any, around: list[int]) -> bool:
            modules = [id(self), *around]
            if inner is not None:
                return bool(inner(None, modules))
            return reader.follow_modules(call_code, unseen, modules)

    return bool(Probe()(Probe(), []))


def watch(reader: ModuleReader, calls: Calls, name: int) -> bool:
    """Has ``calls`` told of each outermost call of a module; False where its arguments cannot be found.

    After :func:`follow`.

    Args:
        name: as :meth:`ModuleReader.watch_calls`.
    """
    import torch

    code = torch.nn.Module._wrapped_call_impl.__code__
    if code.co_varnames[:3] != ("self", "args", "kwargs") or code.co_cellvars or code.co_argcount != 1:
        return False
    with unseen_by_modes(), unseen_by_listeners():
        tensor = torch.empty(0, device="cpu")
    if calls.answered_by(reader):
        reader.answer_same_calls(tensor, calls.containers, calls.limits)
    reader.watch_calls(unseen_by_dynamo(calls.entered), name)
    return True


def unseen_by_dynamo(ask: Callable[..., Any]) -> Callable[..., Any]:
    """``ask``, which Dynamo neither compiles nor looks into where it is called from a compiled function.

    Source: ``torch._C._dynamo.eval_frame`` (2.6 to 2.13), what ``torch._dynamo.disable`` uses, without that
    import of a second. Where it is missing, Dynamo sees it as it saw the hooks.
    """
    import torch

    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    set_eval_frame = getattr(frames, "set_eval_frame", None)
    if set_eval_frame is None:
        return ask

    def unseen(*modules: Any) -> Any:
        callback = set_eval_frame(None)
        try:
            return ask(*modules)
        finally:
            set_eval_frame(callback)

    _skip(frames, unseen.__code__)
    return unseen


def _skip(frames: Any, code: object) -> None:
    """Has Dynamo leave a code object alone."""
    if hasattr(frames, "skip_code"):  # 2.6
        frames.skip_code(code)
    elif hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
