"""Calls back once, right after the user's own import of torch.

Stage: trainer, from interpreter start to the end of ``import torch``. A finder at the head of
``sys.meta_path`` answers for the name ``torch`` alone: it asks the other finders, and makes the loader that
they found call back after it has executed the module. The module keeps its genuine spec and loader; other
threads that import torch wait for the call back as for torch itself, since both happen under its import lock;
and the finder is gone afterwards. It must never make an import fail that works without it. Imports ``sys``
only.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's own is not worth its import here
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_NAME = "torch"


def after_import(callback: Callable[[], None]) -> None:
    """Calls ``callback`` when torch has been imported; at once if it already is.

    Thread: the one that imports torch. In a forked child of a process without torch it is the child's own.
    """
    if _NAME in sys.modules:
        callback()
        return
    sys.meta_path.insert(0, _TorchFinder(callback))


def cancel() -> None:
    """Calls nothing back that is waiting still."""
    for finder in [each for each in sys.meta_path if isinstance(each, _TorchFinder)]:
        finder.remove()


class _TorchFinder:
    """A meta path finder for torch; everything else is the others'."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give for torch, with a loader that calls back; else None."""
        if name != _NAME or self._callback is None:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                self._listen(spec.loader)
                return spec
        return None

    def remove(self) -> None:
        """Takes the finder off the path; idempotent."""
        self._callback = None
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _listen(self, loader: Any) -> None:
        """Shadows ``loader.exec_module`` on this one instance; a loader that allows none is left alone."""
        genuine = getattr(loader, "exec_module", None)
        if genuine is None:
            return

        def exec_module(module: ModuleType) -> None:
            if module.__name__ == _NAME:
                vars(loader).pop("exec_module", None)  # while torch runs, its loader is as found
            try:
                genuine(module)
            except BaseException as error:  # a torch that cannot be loaded: our frame leaves the traceback
                if error.__traceback__ is not None:
                    error.__traceback__ = error.__traceback__.tb_next
                raise
            if module.__name__ == _NAME:
                self._imported()

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return

    def _imported(self) -> None:
        callback = self._callback
        self.remove()
        if callback is not None:
            callback()
