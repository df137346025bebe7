"""Demangles C++ names with the C++ runtime that numpy and pyarrow need anyway.

Stage: readers; the process of ``rankmem import``. In: a mangled name; out: the name in full, or the name
unchanged if the runtime is absent or does not know it. Source: the Itanium C++ ABI, ``__cxa_demangle``.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Final

MANGLED_CHARS_MAX: Final = 16 << 10
"""Longer names stay as they are. Kernels of torch have up to 3,000; the runtime's reader is recursive."""

_RUNTIMES: Final = ("libstdc++.so.6", "libc++.1.dylib")


@functools.lru_cache(maxsize=4096)
def demangled(name: str) -> str:
    """The name in full; unchanged if it is not mangled, too long or unknown."""
    runtime = _runtime()
    if runtime is None or not name.startswith("_Z") or len(name) > MANGLED_CHARS_MAX:
        return name
    status = ctypes.c_int(-1)
    text = runtime.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    try:
        return (ctypes.string_at(text) if status.value == 0 else name.encode()).decode(errors="replace")
    finally:
        runtime.free(text)


@functools.cache
def _runtime() -> ctypes.CDLL | None:
    for name in _RUNTIMES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.__cxa_demangle.restype = ctypes.c_void_p
        library.__cxa_demangle.argtypes = (
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_int),
        )
        library.free.argtypes = (ctypes.c_void_p,)
        return library
    return None
