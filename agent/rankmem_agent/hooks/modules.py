"""The module around each operator call, and the forward phase, from torch's global forward hooks.

Stage: trainer, every thread that calls modules. Comes in: torch's global hooks (2.6 to 2.13:
``torch.nn.modules.module.register_module_forward_pre_hook``, ``..._forward_hook(always_call=True)``). Goes
out: the module's path to the tap, per thread, and phase ``forward`` while a module runs. Hooks see no
tensor and keep no module alive.

A path is the root's class and the name within it, as ``GPT.blocks.0.mlp``; the root is the outermost module
called, without the wrappers that torch puts around it (DDP, FSDP, ``torch.compile``). Names are read off the
module tree once, when a root is called first.

Dynamo traces through hooks that return at once when it compiles (a foreign call in one would break
``fullgraph=True``), and warns about global hooks whenever a compiled module is called:
:func:`hide_from_dynamo` keeps that warning from the user, who registered none.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.hooks.steps import Removable
from rankmem_agent.spool.layout import Phase

WRAPPED_NAMES: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a path that stand for a wrapper: of torch.compile, FSDP, activation checkpointing."""
WRAPPER_CLASSES: Final = frozenset({"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"})
"""Wrappers whose only child carries the model, as ``module``."""
DEPTH_MAX: Final = 256
"""Modules open on a thread; deeper ones are attributed to the 256th."""


class Modules:
    """Follows each thread through the modules; made once, when the agent attaches."""

    def __init__(self, recorder: Recorder, is_compiling: Callable[[], bool], guard: Guard) -> None:
        self._recorder = recorder
        self._is_compiling = is_compiling
        self._guard = guard
        self._paths: dict[int, tuple[weakref.ref[Any], int]] = {}
        """By the module's identity: the module, and the string id of its path."""
        self._open = _OpenModules()
        self._is_on = True

    def install(self) -> list[Removable]:
        """Registers the global hooks."""
        from torch.nn.modules import module as torch_module

        before = torch_module.register_module_forward_pre_hook(self.before)
        after = torch_module.register_module_forward_hook(self.after, always_call=True)
        hide_from_dynamo(torch_module, before_id=before.id, after_id=after.id)
        return [before, after]

    def before(self, module: Any, args: Any) -> None:
        """The hook before a module's forward."""
        if self._is_compiling() or not self._is_on:
            return
        try:
            self._enter(module)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def after(self, module: Any, args: Any, output: Any) -> None:
        """The hook after it, also when it raised."""
        if self._is_compiling() or not self._is_on:
            return
        try:
            self._leave(module)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def stop(self) -> None:
        """Does nothing from now on; the hooks stay registered."""
        self._is_on = False

    def _enter(self, module: Any) -> None:
        stack = self._open.stack
        known = self._paths.get(id(module))
        path = self._first_sight(module, stack) if known is None else known[1]
        if not stack:
            self._recorder.set_phase(Phase.FORWARD)
        if len(stack) < DEPTH_MAX:
            stack.append((id(module), path))
            self._recorder.set_module(path)

    def _leave(self, module: Any) -> None:
        stack = self._open.stack
        if not stack:
            return
        if stack[-1][0] != id(module) and not self._unwind(stack, id(module)):
            return
        stack.pop()
        self._recorder.set_module(stack[-1][1] if stack else 0)
        if not stack:
            self._recorder.set_phase(Phase.OTHER)

    def _first_sight(self, module: Any, stack: list[tuple[int, int]]) -> int:
        """Names a module that no root has named: it is a root itself, or was made on the fly below one."""
        self._name(module, type(module).__name__)
        if not stack:
            root = unwrapped(module)
            for name, child in root.named_modules():
                self._name(child, path_of(type(root).__name__, name))
        return self._paths[id(module)][1]

    def _name(self, module: Any, path: str) -> None:
        gone = functools.partial(_forget, self._paths, id(module))
        self._paths[id(module)] = (weakref.ref(module, gone), self._recorder.intern(path))

    def _unwind(self, stack: list[tuple[int, int]], key: int) -> bool:
        """Closes modules that a KeyboardInterrupt left open; False if ``key`` is not open at all."""
        if not any(key == entry for entry, _ in stack):
            return False
        while stack[-1][0] != key:
            stack.pop()
        return True


class _OpenModules(threading.local):
    """The modules that a thread is in, outermost first: identity and string id of the path."""

    def __init__(self) -> None:
        self.stack: list[tuple[int, int]] = []


def unwrapped(module: Any) -> Any:
    """The user's own model within the wrappers that torch puts around it."""
    while True:
        children = dict(module.named_children())
        if len(children) != 1:
            return module
        name, child = next(iter(children.items()))
        if name not in WRAPPED_NAMES and not (name == "module" and type(module).__name__ in WRAPPER_CLASSES):
            return module
        module = child


def path_of(root_class: str, name: str) -> str:
    """A module's path from its root's class and its name in ``named_modules``, without wrappers' parts."""
    return ".".join([root_class, *(part for part in name.split(".") if part and part not in WRAPPED_NAMES)])


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


def _forget(paths: dict[int, Any], key: int, _: object) -> None:
    paths.pop(key, None)
