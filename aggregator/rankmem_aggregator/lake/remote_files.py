"""An object store as DuckDB opens it, until httpfs is to be had for the DuckDB in use.

Stage: reading. In: the lake's object store and the sizes of its files; out: a read-only file system of fsspec
that a DuckDB instance takes. DuckDB asks in Python, which costs about three times the CPU of its own httpfs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem

from rankmem_aggregator.lake.files import said_by_store
from rankmem_aggregator.query.file_faults import FileFault, unread_file, wrong_file


class _Reading:
    """An open file that says so where it cannot be read: DuckDB's error would not name it.

    Several of DuckDB's threads read one file, each by a seek and then a read, so each has a position, and the
    file of the store, of its own: with one position for all, rows were read from where another thread was.

    Args:
        open_file: opens the file of pyarrow.
        place: its address.
    """

    def __init__(self, open_file: Callable[[], Any], place: str) -> None:
        self._open_file, self._place = open_file, place
        self._opened = {threading.get_ident(): open_file()}

    def read(self, size: int = -1) -> bytes:
        """So many bytes; fewer only at the end.

        Raises:
            FileFault: the store does not give them.
        """
        own = self._own()
        begin = own.tell()  # behind what came too short it is where it should be
        try:
            data: bytes = own.read(size)
        except OSError as exc:
            raise FileFault(unread_file(self._place, said_by_store(exc))) from exc
        if len(data) < min(size, own.size() - begin):
            raise FileFault(unread_file(self._place, f"{len(data)} bytes came of {size}"))
        return data

    def close(self) -> None:
        """Closes it, for all threads."""
        for opened in list(self._opened.values()):
            opened.close()

    def _own(self) -> Any:
        thread = threading.get_ident()
        if thread not in self._opened:
            self._opened[thread] = self._open_file()
        return self._opened[thread]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)


class RemoteFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of a lake that count, and no others.

    Args:
        scheme: under which DuckDB names them.
        root: the lake's address.
        store: the lake's place, as pyarrow opens it.
    """

    cachable = False
    root_marker = ""

    def __init__(self, scheme: str, root: str, store: Any) -> None:
        super().__init__()
        self.protocol = scheme
        self._scheme, self._root, self._store = scheme, root, store
        self.sizes: Mapping[str, int] = {}
        """Of each file, by its path below the lake: nothing is asked of the store before it is read."""

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
            FileFault: it cannot be read, or has another size than it should.
        """
        name = self._name(path)
        if mode != "rb" or name not in self.sizes:
            raise PermissionError(f"{path} is not read here")
        expected, place = self.sizes[name], f"{self._root}/{name}"
        return _Reading(lambda: self._opened(name, place, expected), place)

    def _opened(self, name: str, place: str, expected: int) -> Any:
        try:
            opened = self._store.open_input_file(name)
            size: int | None = opened.size()
        except FileNotFoundError:
            size = None
        except OSError as exc:
            raise FileFault(unread_file(place, said_by_store(exc))) from exc
        if size != expected:
            raise FileFault(wrong_file(place, size, expected))
        return opened

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._scheme}://")
