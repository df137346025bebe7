"""NVTX ranges of the training as markers: ``torch.cuda.nvtx.range_push``, ``range_pop`` and ``range``.

Stage: trainer, the user's threads. Comes in: the calls of two functions, replaced by ones that call the
genuine one first and hand on what it returns or raises (2.6 to 2.13). Goes out: MARKER records of kind
``nvtx``. Ranges that torch's C++ pushes (``emit_nvtx``), those of the package ``nvtx``, and ``range_start`` /
``range_end``, which belong to no thread, are not seen. A range costs two records; a training without NVTX
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from rankmem_agent.hooks import user_api
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.wrapping import Call, wrapped
from rankmem_agent.spool.layout import MarkerKind

DEPTH_MAX: Final = 1024
"""Ranges open on a thread; a program that never pops is followed no further."""


class NvtxRanges:
    """Follows the ranges of each thread; made once, when the agent attaches."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard.of("NVTX ranges", lambda: None)  # the next one may be recorded
        self._open = threading.local()

    def install(self, nvtx: Any) -> None:
        """Replaces the two functions of ``torch.cuda.nvtx``."""
        nvtx.range_push = wrapped(nvtx.range_push, after=lambda call, _: self._guarded(self._pushed, call))
        nvtx.range_pop = wrapped(nvtx.range_pop, after=lambda call, _: self._guarded(self._popped, call))

    def _guarded(self, does: Callable[[Call], None], call: Call) -> None:
        try:
            does(call)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _pushed(self, call: Call) -> None:
        ranges = self._ranges()
        if len(ranges) < DEPTH_MAX:
            text = call.args[0] if call.args else call.kwargs.get("msg", "")
            ranges.append(user_api.begin_range(text, MarkerKind.NVTX))

    def _popped(self, _: Call) -> None:
        ranges = self._ranges()
        marker = ranges.pop() if ranges else 0
        if marker:
            user_api.end_range(marker)

    def _ranges(self) -> list[int]:
        """This thread's open ranges, outermost first; 0 for one that was not recorded."""
        ranges: list[int] | None = getattr(self._open, "ranges", None)
        if ranges is None:
            ranges = self._open.ranges = []
        return ranges
