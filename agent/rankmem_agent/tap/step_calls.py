"""The tap's two calls around ``optimizer.step()``, and the plans they walk (``steps.cpp``).

Stage: tap. In: calls from :mod:`rankmem_agent.hooks.step_hooks`, in the trainer, any thread. Out: records in
the spool. ctypes keeps the GIL during all of these calls: they read Python's lists and tensors, are short and
wait for nothing. The caller keeps a plan's arrays and the plan itself alive meanwhile.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

_PARAMS: Final = sys.intern("params")
"""The key in an optimizer's groups. The tap keeps its address: a module's constant lives as long."""

_U32, _U64, _POINTER, _OBJECT = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.py_object
_SIGNATURES: Final[dict[str, tuple[type | None, tuple[type, ...]]]] = {
    "rkm_steps_prepare": (ctypes.c_int, (_POINTER, _POINTER)),
    "rkm_plan_make": (_POINTER, (_U32, _POINTER, _POINTER, _POINTER, _POINTER)),
    "rkm_plan_free": (None, (_POINTER,)),
    "rkm_plan_state": (ctypes.c_int, (_POINTER, _OBJECT)),
    "rkm_step_begin": (_U32, (_POINTER, _OBJECT, ctypes.c_uint8)),
    "rkm_step_end": (_U32, (_POINTER, _OBJECT, ctypes.c_int, _U64, _U32)),
}


class StepCalls:
    """Implements ``hooks.recorder.StepCalls``: the library's functions themselves, for the cost of a call."""

    def __init__(self, path: Path) -> None:
        library = ctypes.PyDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library
        self.begin: Callable[[int, Any, int], int] = library.rkm_step_begin
        self.end: Callable[[int, Any, bool, int, int], int] = library.rkm_step_end
        self.free_plan: Callable[[int], None] = library.rkm_plan_free
        self.has_new_state: Callable[[int, Any], int] = library.rkm_plan_state

    def prepare(self, torch: Any) -> bool:
        """Finds what is needed of CPython; False where it is not there, or there is no GIL to rely on."""
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            return False
        return int(self._library.rkm_steps_prepare(id(_PARAMS), id(torch.Tensor))) == 0

    def make_plan(self, parameters: Sequence[Any], names: array[int], odd: array[int]) -> int:
        """The plan's address; 0 where tensors are not laid out as expected."""
        objects = array("Q", map(id, parameters))
        try:
            tensors = array("Q", [parameter._cdata for parameter in parameters])
        except (AttributeError, TypeError, RuntimeError):  # no tensor of torch's
            return 0
        arrays = (each.buffer_info()[0] for each in (objects, tensors, names, odd))
        return self._library.rkm_plan_make(len(parameters), *arrays) or 0
