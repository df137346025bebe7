"""Structured arrays on disk, in an unnamed file: for what does not fit into memory.

Stage: readers; the process of ``rankmem import``. The file is gone with the object, also after a kill.
Pages read are given back at once, so that a pass over it, or picking rows out of it, costs a chunk of
memory.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.pairing.state import Array


class ArraySpool:
    """Rows of one dtype, written once and read in any order."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.length = 0
        self._file = tempfile.TemporaryFile(prefix="rankmem-import-", buffering=1 << 20)  # noqa: SIM115
        self._map: mmap.mmap | None = None
        weakref.finalize(self, self._file.close)

    def extend(self, chunks: Iterable[Array]) -> None:
        """Writes the rows of these arrays.

        Raises:
            RankmemError: EXHAUSTED where the disk is full.
        """
        try:
            for chunk in chunks:
                self._file.write(np.ascontiguousarray(chunk, self.dtype).view(np.uint8).data)
                self.length += len(chunk)
            self._file.flush()
        except OSError as exc:
            raise RankmemError(
                Code.EXHAUSTED,
                f"cannot keep a recording in {tempfile.gettempdir()} while it is read: {exc.strerror}",
                "set TMPDIR to a folder with as much room as the recording takes",
            ) from exc
        self._map = None

    def read(self, start: int, stop: int) -> Array:
        """A range of rows, as a copy."""
        return self._take(slice(start, stop))

    def pick(self, places: Array) -> Array:
        """These rows, as a copy."""
        return self._take(places)

    def column(self, name: str, rows_at_a_time: int) -> Array:
        """A whole column."""
        values = np.empty(self.length, self.dtype[name])
        for start in range(0, self.length, rows_at_a_time):
            values[start : start + rows_at_a_time] = self.read(start, start + rows_at_a_time)[name]
        return values

    def _take(self, places: Any) -> Array:
        if not self.length:
            return np.empty(0, self.dtype)
        if self._map is None:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        rows: Array = np.frombuffer(self._map, self.dtype)[places].copy()
        self._map.madvise(mmap.MADV_DONTNEED)
        return rows
