"""Calls by which the program tells the device's allocator what to do, as markers: replays rest on them.

Stage: trainer, the user's threads. Comes in: calls of ``torch.cuda.empty_cache`` and
``torch.cuda.set_per_process_memory_fraction`` (2.6 to 2.13), which are replaced by ones that call the genuine
one and hand on what it returns or raises. Goes out: MARKER records of kind ``allocator`` around them:
segments that are given back within were the program's wish, others the allocator's own. It costs two records
a call, and a training without such calls nothing.
"""

from __future__ import annotations

import functools
import threading
from types import ModuleType
from typing import Final

from rankmem_agent.hooks import user_api
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.wrapping import Call, wrapped
from rankmem_agent.spool.layout import MarkerKind

EMPTY_CACHE: Final = "torch.cuda.empty_cache"
SET_FRACTION: Final = "torch.cuda.set_per_process_memory_fraction"


class AllocatorCalls:
    """Marks the calls; made once, when the agent attaches."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard.of("calls of the allocator", lambda: None)  # the next one may be recorded
        self._open = threading.local()

    def install(self, *modules: ModuleType) -> None:
        """Replaces the two functions wherever a module has them: ``torch.cuda`` and ``torch.cuda.memory``."""
        for name in (EMPTY_CACHE, SET_FRACTION):
            own = name.rpartition(".")[2]
            for module in modules:
                genuine = getattr(module, own, None)
                if genuine is not None:
                    around = wrapped(genuine, before=functools.partial(self._begin, name), lastly=self._end)
                    setattr(module, own, around)

    def _begin(self, name: str, call: Call) -> None:
        self._open.marker = 0
        try:
            fraction = call.args[0] if call.args else call.kwargs.get("fraction")
            text = name if fraction is None else f"{name} {fraction}"
            self._open.marker = user_api.begin_range(text, MarkerKind.ALLOCATOR)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _end(self, _: Call) -> None:
        try:
            if getattr(self._open, "marker", 0):
                user_api.end_range(self._open.marker)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)
