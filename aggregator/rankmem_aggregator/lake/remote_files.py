"""An object store as DuckDB opens it, until httpfs is to be had for the DuckDB in use.

Stage: reading. In: the lake's object store and the sizes of its files; out: a read-only file system of fsspec
that a DuckDB instance takes. DuckDB asks in Python, which costs about three times the CPU of its own httpfs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem

from rankmem_aggregator.lake.files import said_by_store


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that was not what it should be, or could not be read."""

    path: str
    size: int | None
    """Its size; None: missing, or not known."""
    error: str = ""
    """What the store said; empty: the size is wrong."""


class _Reading:
    """An open file that says so where it cannot be read: DuckDB's error would not name it.

    Args:
        opened: a file of pyarrow.
        failed: told why.
    """

    def __init__(self, opened: Any, failed: Callable[[str], None]) -> None:
        self._opened, self._failed = opened, failed

    def read(self, size: int = -1) -> bytes:
        """So many bytes; fewer only at the end."""
        begin = self._opened.tell()  # behind what came too short it is where it should be
        try:
            data: bytes = self._opened.read(size)
        except OSError as exc:
            self._failed(said_by_store(exc))
            raise
        if len(data) < min(size, self._opened.size() - begin):
            self._failed(f"{len(data)} bytes came of {size}")
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)


class RemoteFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of a lake that count, and no others.

    Args:
        scheme: under which DuckDB names them.
        store: the lake's place, as pyarrow opens it.
    """

    cachable = False
    root_marker = ""

    def __init__(self, scheme: str, store: Any) -> None:
        super().__init__()
        self.protocol = scheme
        self._scheme, self._store = scheme, store
        self.sizes: Mapping[str, int] = {}
        """Of each file, by its path below the lake: nothing is asked of the store before it is read."""
        self.fault: Fault | None = None
        """The last one."""

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """A file's size."""
        name = self._name(path)
        if name not in self.sizes:
            raise FileNotFoundError(path)
        return {"name": path, "size": self.sizes[name], "type": "file"}

    def exists(self, path: str, **options: Any) -> bool:
        """Whether a file counts."""
        return self._name(path) in self.sizes

    def modified(self, path: str) -> datetime:
        """The same of all: files of a lake never change."""
        return datetime.fromtimestamp(0, UTC)

    def glob(self, path: str, **options: Any) -> list[str]:
        """The file itself: DuckDB asks for patterns, and gives names."""
        return [path] if self.exists(path) else []

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """A file to read.

        Raises:
            OSError: it cannot be read, or has another size than it should; :attr:`fault` says so.
        """
        name = self._name(path)
        if mode != "rb" or name not in self.sizes:
            raise PermissionError(f"{path} is not read here")

        def failed(error: str) -> None:
            self.fault = Fault(name, None, error)

        try:
            opened = self._store.open_input_file(name)
            size: int | None = opened.size()
        except FileNotFoundError:
            size = None
        except OSError as exc:
            failed(said_by_store(exc))
            raise
        if size != self.sizes[name]:
            self.fault = Fault(name, size)
            raise OSError(f"{name} is not what it should be")
        return _Reading(opened, failed)

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._scheme}://")
