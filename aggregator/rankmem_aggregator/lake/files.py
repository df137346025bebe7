"""The bytes of a lake: a folder, or a prefix of an object store.

Stage: below everything else of a lake. In: what a user gives as its address; out: places that Delta and
DuckDB open, and files that are there whole or not at all. Object stores are reached through deltalake's own
client: their settings are its environment variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...), never part
of an address or a table.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from rankmem_aggregator.extras import require_extra
from rankmem_aggregator.store import private_files
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX: Final = "lake:"
"""Begins the address of a lake in a folder, where a database file could stand as well."""
_OBJECT_STORES: Final = ("s3://",)

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m|\u21b3")
_TRACE: Final = re.compile(r".*backtrace|0: ", re.IGNORECASE)
"""Begins the first line of a trace, with a heading or without."""

READING: Final = {"connect_timeout": "5s", "timeout": "30s", "retry_timeout": "30s"}
"""Of the object store's client, for reading: a question fails a minute after the store has gone, at worst.
(Alone it tries for three minutes, and often, as a question reads several files.)"""

_FOLDER_HINT: Final = "see that the folder is there and that you may read it"
_STORE_HINT: Final = (
    "see that the store answers and has the bucket, and that AWS_ENDPOINT_URL, AWS_REGION and the "
    "credentials in the environment are right"
)
GIVE_A_LAKE: Final = "give the place that rankmem lake import or rankmem serve --lake wrote to"
_DAMAGED_HINT: Final = "restore its files from a copy, or import the databases into another lake"


def is_lake_address(target: str) -> bool:
    """Whether a target names a lake: ``lake:DIR`` or ``s3://BUCKET/PREFIX``."""
    return target.startswith((PREFIX, *_OBJECT_STORES))


def said_by_store(exc: BaseException) -> str:
    """What deltalake or an object store says, in a line without colours or a trace."""
    lines = [line.strip() for line in _COLOURS.sub("", str(exc)).splitlines() if line.strip()]
    said = itertools.takewhile(lambda line: not _TRACE.match(line), lines)
    return ": ".join(said) or type(exc).__name__


def lake_address(text: str) -> str:
    """The address of a lake as a target: a folder alone gets its prefix."""
    return text if is_lake_address(text) else f"{PREFIX}{text}"


def deltalake() -> Any:
    """The package deltalake, which is there where there are :class:`LakeFiles`."""
    import deltalake

    return deltalake


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A file that is there."""

    path: str
    """Below the lake."""
    size_bytes: int
    modified_s: float
    """When it was written, seconds since 1970 by the clock of the store."""


class LakeFiles:
    """A lake's place. Opens nothing until it is asked.

    Args:
        address: ``lake:DIR``, ``DIR`` or ``s3://BUCKET/PREFIX``.

    Raises:
        RankmemError: INVALID for an address that cannot be a lake's, UNSUPPORTED without the extra ``lake``.
    """

    def __init__(self, address: str) -> None:
        require_extra("lake", "a lake")
        self.is_local = not address.startswith(_OBJECT_STORES)
        if self.is_local:
            folder = address.removeprefix(PREFIX)
            if "://" in folder or not folder:
                raise RankmemError(
                    Code.INVALID, f"{address!r} is no lake's address", "give a folder, or s3://BUCKET/PREFIX"
                )
            self.root = str(Path(folder).absolute())
        else:
            self.root = address.rstrip("/")
        if "=" in self.root:
            # DuckDB takes name=value in a path for a column of its rows.
            raise RankmemError(
                Code.INVALID, f"{self.root} has an = in its path", "give the lake a place without one"
            )
        self._remote: pa.fs.FileSystem | None = None

    def place(self, path: str) -> str:
        """Where deltalake opens what is below the lake."""
        return f"{self.root}/{path}"

    def is_there(self) -> bool:
        """Whether there is anything at the place."""
        if self.is_local:
            return os.path.isdir(self.root)
        from pyarrow.fs import FileSelector

        return bool(self.filesystem().get_file_info(FileSelector("", recursive=False)))

    def filesystem(self) -> pa.fs.FileSystem:
        """The object store below the lake's prefix, for pyarrow."""
        if self._remote is None:
            from pyarrow.fs import PyFileSystem

            self._remote = PyFileSystem(self._handler(READING))
        return self._remote

    @property
    def options(self) -> dict[str, str] | None:
        """What deltalake opens a table with to read it."""
        return None if self.is_local else READING

    @contextlib.contextmanager
    def reading_log(self, table: str) -> Iterator[None]:
        """While a Delta table is opened or its log is read.

        Raises:
            RankmemError: UNAVAILABLE where the store does not answer or gives nothing, INVALID where what it
                gives is damaged.
        """
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError, pa.ArrowException) as exc:
            message = f"cannot read {self.place(table)}: {said_by_store(exc)}"
            # A log that names a file which is not there is damaged, too.
            if not isinstance(exc, OSError) or isinstance(exc, FileNotFoundError):
                raise RankmemError(Code.INVALID, message, _DAMAGED_HINT) from exc
            hint = _FOLDER_HINT if self.is_local else _STORE_HINT
            raise RankmemError(Code.UNAVAILABLE, message, hint) from exc

    def _handler(self, options: dict[str, str] | None = None) -> Any:
        deltalake()
        from deltalake.fs import DeltaStorageHandler

        return DeltaStorageHandler(self.root, options)

    def open_input(self, path: str) -> Any:
        """A file to read, seekable.

        Raises:
            OSError: it is not there, or cannot be read.
        """
        if self.is_local:
            return open(self.place(path), "rb")
        return self.filesystem().open_input_file(path)

    @contextlib.contextmanager
    def output(self, path: str) -> Iterator[BinaryIO]:
        """A new file to write: it appears, in place of one of its name, when the block ends well."""
        if not self.is_local:
            # Not through pyarrow, which would hand it buffers: it takes bytes alone (deltalake 1.6).
            stream = self._handler()._handler.open_output_stream(path, None)
            yield stream
            stream.close()  # only now it is there
            return
        place = Path(self.place(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_name(f".{place.name}.{os.getpid()}.tmp")
        try:
            with open(unfinished, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(place)
        finally:
            unfinished.unlink(missing_ok=True)

    def size_of(self, path: str) -> int | None:
        """The size of a file, bytes; None where there is no such file. A link is none: it leads elsewhere."""
        if self.is_local:
            try:
                found = os.lstat(self.place(path))
            except (FileNotFoundError, NotADirectoryError):
                return None
            return found.st_size if stat.S_ISREG(found.st_mode) else None
        from pyarrow.fs import FileType

        info = self.filesystem().get_file_info(path)
        return info.size if info.type == FileType.File else None

    def listing(self, folder: str) -> Iterator[Listed]:
        """All files below a folder of the lake, hidden ones too; none where there is no such folder."""
        if not self.is_local:
            from pyarrow.fs import FileSelector, FileType

            selector = FileSelector(folder, allow_not_found=True, recursive=True)
            for info in self.filesystem().get_file_info(selector):
                if info.type == FileType.File:
                    yield Listed(path=info.path, size_bytes=info.size, modified_s=info.mtime.timestamp())
            return
        for place, _, names in os.walk(self.place(folder)):
            for name in names:
                path = os.path.join(place, name)
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    found = os.lstat(path)
                    yield Listed(
                        path=os.path.relpath(path, self.root),
                        size_bytes=found.st_size,
                        modified_s=found.st_mtime,
                    )

    def delete(self, path: str) -> None:
        """Deletes a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            if self.is_local:
                os.unlink(self.place(path))
            else:
                self.filesystem().delete_file(path)


@contextlib.contextmanager
def writing(files: LakeFiles) -> Iterator[None]:
    """While a lake is written: new folders are their owner's alone, and what fails says which lake it was.

    Raises:
        RankmemError: EXHAUSTED in the place of an OSError.
    """
    private_files.hold(Path(files.root))
    try:
        yield
    except OSError as exc:
        raise RankmemError(
            Code.EXHAUSTED, f"cannot write {files.root}: {said_by_store(exc)}", "make room, or give access"
        ) from exc
    finally:
        private_files.release()
