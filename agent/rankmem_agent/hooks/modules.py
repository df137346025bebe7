"""The module around each operator call, and the forward phase, from torch's global forward hooks.

Stage: trainer, every thread that calls modules. Comes in: torch's global hooks (2.6 to 2.13:
``torch.nn.modules.module.register_module_forward_pre_hook``, ``..._forward_hook(always_call=True)``). Goes
out: the module's path (see ``hooks.module_names``) to the tap, per thread; phase ``forward`` while a module
runs; a MODULE record with path and class when one runs for the first time. Hooks see no tensor and keep no
module alive.

**Cost.** For a module that has run: two look-ups by identity and two stores into the tap's memory, no foreign
call. Measured 0.55 us a module call, beside 1.15 us that torch takes to call any two global hooks.

Dynamo traces through hooks that return at once when it compiles (a foreign call in one would break
``fullgraph=True``), and warns about global hooks whenever a compiled module is called:
:func:`hide_from_dynamo` keeps that warning from the user, who registered none.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final

from rankmem_agent.hooks.guard import Guard, unseen_by_modes
from rankmem_agent.hooks.module_names import ModuleNames
from rankmem_agent.hooks.recorder import ModuleSlot, Recorder
from rankmem_agent.hooks.steps import Removable
from rankmem_agent.spool.layout import NO_PHASE, Kind, Phase

OUTSIDE: Final = 0
"""Stands for the module at the bottom of each thread's stack; no object has this identity."""


class Modules:
    """Follows each thread through the modules; made once, when the agent attaches.

    Args:
        is_compiling: True while Dynamo traces. It is called twice a module: ``is_dynamo_compiling`` is three
            times as fast as ``is_compiling``, and Dynamo knows both.
        phase_outside: the phase when the outermost module returns.
    """

    def __init__(
        self,
        recorder: Recorder,
        is_compiling: Callable[[], bool],
        guard: Guard,
        phase_outside: Callable[[], int] = lambda: Phase.OTHER,
    ) -> None:
        self._phase_outside = phase_outside
        self._recorder = recorder
        self._is_compiling = is_compiling
        self._guard = guard.of("modules", self._give_up, infers=False)
        self._when_named: list[Callable[[Any], None]] = []
        self._paths: dict[int, int] = {OUTSIDE: 0}
        """By identity of a module that has run: the string id of its path."""
        self._told: dict[str, int] = {}
        """By path: its string id, once it has a MODULE record."""
        self._frozen: set[int] = set()
        """String ids of the paths of modules whose parameters want no gradient, all of them."""
        self.names = ModuleNames(is_compiling, lambda key: self._paths.pop(key, None))
        self._off: list[bool] = []
        """Not empty: off."""
        self.before, self.after = self._hooks()

    def install(self) -> list[Removable]:
        """Registers the global hooks."""
        from torch.nn.modules import module as torch_module

        before = torch_module.register_module_forward_pre_hook(self.before)
        after = torch_module.register_module_forward_hook(self.after, always_call=True)
        put = torch_module.register_module_module_registration_hook(self._registered)
        hide_from_dynamo(torch_module, before_id=before.id, after_id=after.id)
        return [before, after, put]

    def when_named(self, tell: Callable[[Any], None]) -> None:
        """Has ``tell(root)`` called when a tree was named, in the thread that calls into it first."""
        self._when_named.append(tell)

    def stop(self) -> None:
        """Does nothing from now on; the hooks stay registered."""
        self._off.append(True)

    def _hooks(self) -> tuple[Callable[[Any, Any], None], Callable[[Any, Any, Any], None]]:
        """The two hooks, as closures: a name in a cell is read three times as fast as an attribute."""
        is_compiling, off, paths = self._is_compiling, self._off, self._paths
        first_sight, unwind, failed = self._first_sight, self._unwind, self._guard.failed
        set_phase, thread, enter_thread = self._recorder.set_phase, _Thread(), self._enter_thread
        phase_outside = self._phase_outside

        def before(module: Any, args: Any) -> None:
            """The hook before a module's forward."""
            if is_compiling():
                return
            if off:
                leave(thread)
                return
            try:
                try:
                    stack, slot = thread.place
                except AttributeError:
                    stack, slot = enter_thread(thread)
                key = id(module)
                try:
                    path = paths[key]
                except KeyError:
                    path = first_sight(module, stack[-1])
                if not stack[-1]:
                    set_phase(Phase.FORWARD)
                stack.append(key)
                slot[0] = path
            except Exception as error:  # noqa: BLE001  the trainer's guard
                failed(error)

        def after(module: Any, args: Any, output: Any) -> None:
            """The hook after it, also when it raised."""
            if is_compiling():
                return
            if off:
                leave(thread)
                return
            try:
                stack, slot = thread.place
                if stack[-1] != id(module) and not unwind(stack, id(module)):
                    return
                stack.pop()
                outer = stack[-1]
                slot[0] = paths.get(outer, 0)
                if not outer:
                    set_phase(phase_outside())
            except Exception as error:  # noqa: BLE001  the trainer's guard
                failed(error)

        def leave(thread: _Thread) -> None:
            """A thread that is in a module when the hooks go off is in no known one from the next on."""
            place = getattr(thread, "place", None)
            if place is not None and place[0][-1]:
                place[0][1:] = []
                place[1][0] = 0

        return before, after

    def _give_up(self) -> None:
        self.stop()
        self._recorder.set_module(0)
        self._recorder.set_phase(NO_PHASE)

    def _enter_thread(self, thread: _Thread) -> _Place:
        thread.place = ([OUTSIDE], self._recorder.module_slot())
        return thread.place

    def _registered(self, parent: Any, name: str, child: Any) -> None:
        if self._off:
            return
        try:
            self.names.registered(parent, name, child)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _first_sight(self, module: Any, around: int) -> int:
        """The path of a module that has not run yet, told with its class."""
        if self.names.of(module) is None:
            keys, root = self.names.learn(module, around)
            for key in keys:
                if key in self._paths:  # it ran before its whole did, under another name
                    self._paths[key] = self._tell(key, is_frozen=self._paths[key] in self._frozen)
            for tell in self._when_named if root is not None else ():
                tell(root)
        with unseen_by_modes():
            wants_gradient = [parameter.requires_grad for parameter in module.parameters()]
        is_frozen = not any(wants_gradient) if wants_gradient else self._paths.get(around) in self._frozen
        path = self._paths[id(module)] = self._tell(id(module), is_frozen=is_frozen)
        return path

    def _tell(self, key: int, *, is_frozen: bool) -> int:
        named = self.names.known(key)
        path = self._told.get(named.path)
        if path is None:
            path = self._told[named.path] = self._recorder.intern(named.path)
            class_name = self._recorder.intern(named.class_name)
            self._recorder.record(Kind.MODULE, a=path, b=int(is_frozen), e=class_name)
            if is_frozen:
                self._frozen.add(path)
        return path

    def _unwind(self, stack: list[int], key: int) -> bool:
        """Closes modules that a KeyboardInterrupt left open; False if ``key`` is not open at all."""
        if key not in stack:
            return False
        while stack[-1] != key:
            stack.pop()
        return True


_Place = tuple[list[int], ModuleSlot]


class _Thread(threading.local):
    """Where a thread is: the identities of the modules that it is in, outermost first, and its slot.

    Filled by a thread's first module: with an ``__init__``, reading an attribute would take twice as long.
    """

    place: _Place


def hide_from_dynamo(torch_module: Any, *, before_id: int, after_id: int) -> None:
    """Makes Dynamo's check for global hooks answer for the user's own hooks alone.

    A warnings filter would not do: the user's ``-W error`` or ``simplefilter`` stands before it.
    Source: ``torch.nn.modules.module._has_any_global_hook``, called in ``OptimizedModule.__call__`` only
    (2.7 to 2.13); where it is missing there is no warning.
    """
    genuine = getattr(torch_module, "_has_any_global_hook", None)
    if genuine is None:
        return

    def has_any_hook_of_the_user() -> bool:
        return bool(
            torch_module._global_forward_pre_hooks.keys() - {before_id}
            or torch_module._global_forward_hooks.keys() - {after_id}
            or torch_module._global_backward_pre_hooks
            or torch_module._global_backward_hooks
        )

    torch_module._has_any_global_hook = functools.wraps(genuine)(has_any_hook_of_the_user)
