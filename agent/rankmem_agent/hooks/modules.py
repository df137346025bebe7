"""The module around each operator call, and the forward phase: read by the tap, or from torch's hooks.

Stage: trainer, every thread that calls modules. Goes out: paths (see ``hooks.module_names``) to the tap, and
a MODULE record with path and class when a module runs for the first time. No tensor is seen, no module kept
alive. Which of two ways it is, :meth:`Modules.install` decides for the process:

- *From frames*: the tap finds the module of each call itself (``hooks.module_frames``), and asks
  :meth:`Modules.name` for the path of one that it has not met. Nothing of ours runs in a module's call.
- *Hooks*, where frames cannot be read: torch's global ones (2.6 to 2.13:
  ``torch.nn.modules.module.register_module_forward_pre_hook``, ``..._forward_hook(always_call=True)``) give
  the tap the path, per thread, and phase ``forward`` while a module runs. For a module that has run: two
  look-ups by identity and two stores into the tap's memory, no foreign call: 0.55 us a module call, beside
  1.15 us that torch takes to call any two global hooks, and 3 to 4 us more on its slow path.

Dynamo traces through hooks, which return at once when it compiles (a foreign call in one would break
``fullgraph=True``), and warns about global hooks whenever a compiled module is called:
:func:`hide_from_dynamo` keeps that warning from the user, who registered none.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rankmem_agent.hooks import tags
from rankmem_agent.hooks.guard import Guard, unseen_by_modes
from rankmem_agent.hooks.module_frames import ModuleReader, follow, watch
from rankmem_agent.hooks.module_names import ModuleNames, parameters, tree
from rankmem_agent.hooks.recorder import ModuleSlot, Recorder, Removable
from rankmem_agent.hooks.tracing import Tracing, tracing_of
from rankmem_agent.hooks.wrapping import wrapped
from rankmem_agent.spool.layout import NO_PHASE, Kind, Phase

if TYPE_CHECKING:
    from rankmem_agent.hooks.model_calls import ModelCalls

OUTSIDE: Final = 0
"""Stands for the module at the bottom of each thread's stack; no object has this identity."""


class Modules:
    """Follows each thread through the modules; made once, when the agent attaches.

    Args:
        is_compiling: True while Dynamo traces. It is called twice a module: ``is_dynamo_compiling`` is three
            times as fast as ``is_compiling``, and Dynamo knows both.
        phase_outside: the phase when the outermost module returns.
        reader: reads modules from frames; None: hooks.
        tracing: what is asked at the first sight of a module, whose tensors are read then.
    """

    def __init__(
        self,
        recorder: Recorder,
        is_compiling: Callable[[], bool],
        guard: Guard,
        phase_outside: Callable[[], int] = lambda: Phase.OTHER,
        reader: ModuleReader | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        import torch  # loaded, since there are modules

        self._reader = reader
        self._phase_outside = phase_outside
        self._tracing = tracing if tracing is not None else tracing_of(torch)
        self._recorder = recorder
        self._is_compiling = is_compiling
        self._guard = guard.of("modules", self._switch_off, infers=False)
        self._when_named: list[Callable[[Any], None]] = []
        self._paths: dict[int, int] = {OUTSIDE: 0}
        """By identity of a module that has run: the string id of its path."""
        self._recorded: dict[str, int] = {}
        """By path: its string id, once it has a MODULE record."""
        self._frozen: set[int] = set()
        """String ids of the paths of modules whose parameters want no gradient, all of them."""
        self._unread: list[weakref.ref[Any]] = []
        """Roots of trees that were named while tensors could not be asked."""
        self._has_unread: Callable[[], None] = lambda: None
        self.names = ModuleNames(is_compiling, self._forget)
        self._off: list[bool] = []
        """Not empty: off."""
        self._calls: list[ModelCalls] = []
        """Who is told of outermost calls, where hooks see them; one at most."""
        self.before, self.after = self._hooks()

    def install(self) -> list[Removable]:
        """Has modules read from frames, or registers the global hooks."""
        from torch.nn.modules import module as torch_module

        put = torch_module.register_module_module_registration_hook(self._registered)
        if self._reader is not None and follow(self._reader, self.name):
            return [put]
        self._reader = None
        return [*self.install_hooks(), put]

    def install_hooks(self) -> list[Removable]:
        """Registers the hooks of modules' calls."""
        from torch.nn.modules import module as torch_module

        before = torch_module.register_module_forward_pre_hook(self.before)
        after = torch_module.register_module_forward_hook(self.after, always_call=True)
        hide_from_dynamo(torch_module, before_id=before.id, after_id=after.id)
        hide_from_export(sys.modules.get("torch.export"), torch_module, ids=(before.id, after.id))
        return [before, after]

    def watch_calls(self, calls: ModelCalls, ended_by: int) -> None:
        """Has each outermost call of a module told to ``calls``. After :meth:`install`.

        Args:
            ended_by: string id of what ends the steps that calls end.
        """
        if self._reader is None:
            self._calls.append(calls)
        else:
            watch(self._reader, calls, ended_by)

    def path_id(self, module: Any) -> int:
        """The string id of a module's path, which it gets if it has none; 0: it has no name."""
        if id(module) not in self._paths:
            self.name(module)
        return self._paths.get(id(module), 0)

    @property
    def reader(self) -> ModuleReader | None:
        """What reads modules from frames; None: hooks do."""
        return self._reader

    def when_named(self, callback: Callable[[Any], None]) -> None:
        """Has ``callback(root)`` called when a tree was named, in the thread that calls into it first."""
        self._when_named.append(callback)

    def when_unread(self, callback: Callable[[], None]) -> None:
        """Has ``callback()`` called where :meth:`read_unread` has to be called again later."""
        self._has_unread = callback

    @property
    def has_run(self) -> bool:
        """Whether a module has run."""
        return bool(self._recorded)

    def stop(self) -> None:
        """Does nothing from now on; the hooks stay registered."""
        self._off.append(True)
        if self._reader is not None:
            self._reader.stop_modules()

    def name(self, module: Any, around: Any = None) -> None:
        """The tap, which follows frames, met a module without a name in the call of ``around``.

        While something is traced there is no answer, and the tap asks again.
        """
        if self._is_compiling() or self._off:
            return
        try:
            path = self._paths.get(id(module))
            if path is None:
                self._first_sight(module, OUTSIDE if around is None else id(around))
            else:
                self._put(id(module), path)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _hooks(self) -> tuple[Callable[[Any, Any], None], Callable[[Any, Any, Any], None]]:
        """The two hooks, as closures: a name in a cell is read three times as fast as an attribute."""
        is_compiling, off, paths = self._is_compiling, self._off, self._paths
        first_sight, unwind, failed = self._first_sight, self._unwind, self._guard.failed
        set_phase, thread, enter_thread = self._recorder.set_phase, _Thread(), self._enter_thread
        phase_outside, calls = self._phase_outside, self._calls

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
                    for each in calls:
                        thread.answer = each.entered(module, args, None)
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
                    for each in calls:
                        each.left(thread.answer)
            except Exception as error:  # noqa: BLE001  the trainer's guard
                failed(error)

        def leave(thread: _Thread) -> None:
            """A thread that is in a module when the hooks go off is in no known one from the next on."""
            place = getattr(thread, "place", None)
            if place is not None and place[0][-1]:
                place[0][1:] = []
                place[1][0] = 0

        return before, after

    def _switch_off(self) -> None:
        self.stop()
        self._recorder.set_module(0)
        self._recorder.set_phase(NO_PHASE)

    def _enter_thread(self, thread: _Thread) -> _Place:
        thread.place, thread.answer = ([OUTSIDE], self._recorder.module_slot()), 0
        return thread.place

    def _registered(self, parent: Any, name: str, child: Any) -> None:
        if self._off or self._is_compiling():
            return
        try:
            self.names.registered(parent, name, child)
            if self._reader is not None and self.names.of(child) is not None:
                for _, module in tree(child):  # it has run: what it is put into gives it another name
                    if id(module) in self._paths:
                        self._put(id(module), self._paths[id(module)])
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _first_sight(self, module: Any, around: int) -> int:
        """The path of a module that has not run yet, recorded with its class; 0 while it is only traced.

        While tensors cannot be asked its tree stays unread.
        """
        if self._tracing.is_traced():
            return 0
        if self.names.of(module) is None:
            self._learn(module, around)
        path = self._recorded.get(self.names.known(id(module)).path)
        if path is None:
            with unseen_by_modes():
                wants_gradient = [tags.wants_gradient(each) for _, each in parameters(module)]
            is_frozen = not any(wants_gradient) if wants_gradient else self._paths.get(around) in self._frozen
            path = self._record(id(module), is_frozen=is_frozen)
        self.read_unread()
        if self._unread and self._reader is None:
            return path  # the hook comes here again at the next call; frames are asked once
        return self._put(id(module), path)

    def _learn(self, module: Any, around: int) -> None:
        keys, root = self.names.learn(module, around)
        for key in keys:
            if key in self._paths:  # it ran before its whole did, under another name
                self._put(key, self._record(key, is_frozen=self._paths[key] in self._frozen))
        if root is not None:
            self._unread.append(weakref.ref(root))

    def read_unread(self) -> None:
        """Has the trees read that were named while their tensors could not be asked, if they can be now."""
        if not self._unread:
            return
        if self._tracing.hides_tensors():
            self._has_unread()
            return
        unread, self._unread = self._unread, []
        for root in (reference() for reference in unread):
            for callback in self._when_named if root is not None else ():
                callback(root)

    def _put(self, key: int, path: int) -> int:
        self._paths[key] = path
        if self._reader is not None:
            self._reader.name_module(key, path, not self.names.is_final(key))
        return path

    def _forget(self, key: int) -> None:
        self._paths.pop(key, None)
        if self._reader is not None:
            self._reader.forget_module(key)

    def _record(self, key: int, *, is_frozen: bool) -> int:
        named = self.names.known(key)
        path = self._recorded.get(named.path)
        if path is None:
            path = self._recorded[named.path] = self._recorder.intern(named.path)
            class_name = self._recorder.intern(named.class_name)
            self._recorder.record(Kind.MODULE, path=path, is_frozen=int(is_frozen), class_name=class_name)
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
    answer: int
    """To the outermost call that it is in; see ``hooks.model_calls``."""


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


def hide_from_export(export: Any, torch_module: Any, *, ids: tuple[int, ...]) -> None:
    """Takes our hooks away for as long as ``torch.export.export`` runs.

    With any global hook its strict mode refuses each model: "Attempted to inline function marked as
    skipped".
    Source: ``torch._dynamo.convert_frame.get_traced_fn`` (2.9 to 2.13), which counts the hooks.
    """
    genuine = getattr(export, "export", None)
    if genuine is None:
        return
    tables = [
        torch_module._global_forward_pre_hooks,
        torch_module._global_forward_hooks,
        torch_module._global_forward_hooks_always_called,
    ]
    taken: list[tuple[Any, int, Any]] = []
    running: list[object] = []

    def take(_: object) -> None:
        running.append(None)
        taken.extend((table, each, table.pop(each)) for table in tables for each in ids if each in table)

    def give_back(_: object) -> None:
        running.pop()
        while taken and not running:  # the last one of those that run at once
            table, each, hook = taken.pop()
            table[each] = hook
            table.move_to_end(each, last=False)  # before the user's own, as they were

    export.export = wrapped(genuine, before=take, lastly=give_back)
