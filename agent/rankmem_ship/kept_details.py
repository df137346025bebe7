"""Rows of events that stay on their host: files of ready messages, until they are wanted or their room is.

Stage: shipper process, on the loop's thread, beside encoding. In: the message with a batch's rows of events;
out: the same message when the aggregator wants it. A spool's files lie in ``edge/SPOOL`` of the session's
folder, beyond the spool itself. The oldest file goes first where all together pass a number of bytes; what it
held is gone, and is said to be. A file is only appended to: what a killed shipper left torn is found by its
checksum, and is gone, too.

Format of a file: 8 bytes of magic, then entries: first and last position (uint64), length and CRC-32 of the
message (uint32), the message. Of two entries with one range the later counts. Entries may overlap: where a
connection is lost between *received* and *stored* the log is cut again, otherwise perhaps. Which cut is
stored is known to the aggregator alone, so all are kept until it has one of them.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from rankmem_protos.collector_pb2 import Batch, OpenSpool

FOLDER_NAME: Final = "edge"
"""In a session's folder."""
OPENING_NAME: Final = "opening"
"""In a spool's folder there: the request that opens it, for when the spool itself is delivered and gone."""
ALL_NAME: Final = "all"
"""There, too: an empty file where everything is to be sent, also by a later shipper."""
FILE_BYTES: Final = 8 << 20
"""A file is closed beyond it: what is deleted at once for its room."""
_MAGIC: Final = b"RKMEDGE1"
_ENTRY: Final = struct.Struct("<QQII")
_SUFFIX: Final = ".details"


Range = tuple[int, int]
"""First and last position of a stretch."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a message lies."""

    path: Path
    offset: int
    length: int
    checksum: int


class KeptDetails:
    """What is kept of one spool.

    Args:
        folder: of its files; made with the first one.
        opening: the request that opens the spool; None: as an earlier shipper left it.
    """

    def __init__(self, folder: Path, opening: OpenSpool | None = None) -> None:
        self.folder = folder
        self.wanted: deque[Range] = deque()
        """Stretches (first and last position) to be sent, in this order."""
        self.sends_all = False
        """Whether everything is sent as soon as the connection has nothing else to do."""
        self._entries: dict[Range, _Entry] = {}
        self._refused: set[Range] = set()
        self._left: dict[Path, int] = {}  # entries of each file, in order of the files
        self._sizes: dict[Path, int] = {}
        self._current: Path | None = None  # which is written; an earlier shipper's may be torn at its end
        present = sorted(folder.glob(f"*{_SUFFIX}"))
        self._number = int(present[-1].stem) if present else 0
        for path in present:
            self._load(path)
        self._opening = opening
        if opening is None:
            self._opening = OpenSpool.FromString((folder / OPENING_NAME).read_bytes())
        if (folder / ALL_NAME).exists():
            self.want_all()

    @property
    def opening(self) -> OpenSpool:
        """The request that opens the spool."""
        assert self._opening is not None
        return self._opening

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(self._sizes.values())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept, and nothing is to be said."""
        return not self._entries and not self.wanted

    @property
    def may_be_wanted(self) -> bool:
        """Whether something is kept that the aggregator has not refused, or is to be said."""
        return bool(self.wanted) or not self._entries.keys() <= self._refused

    def add(self, message: Batch) -> None:
        """Keep a message, beside those of a log that was cut otherwise.

        Raises:
            OSError: it cannot be written, and is not kept.
        """
        data = message.SerializeToString()
        entry = _ENTRY.pack(message.sequence_first, message.sequence_last, len(data), zlib.crc32(data))
        path = self._open_file()
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab") as file:
            begin = file.seek(0, os.SEEK_END)
            try:
                file.write((b"" if begin else _MAGIC) + entry + data)
                file.flush()
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), begin)
                raise
            self._sizes[path] = file.tell()
        at = self._sizes[path] - len(data)
        stretch = message.sequence_first, message.sequence_last
        self._left[path] = self._left.get(path, 0) + 1
        self._drop(stretch)
        self._entries[stretch] = _Entry(path, at, len(data), zlib.crc32(data))
        if self.sends_all:
            self.want([stretch])

    def want(self, stretches: Iterable[Range]) -> None:
        """Send these stretches; what is not here is said to be gone."""
        known = set(self.wanted)
        self.wanted.extend(stretch for stretch in stretches if stretch not in known)

    def want_all(self) -> None:
        """Send all that is here, and all that comes."""
        self.sends_all = True
        self.want(sorted(self._entries.keys() - self._refused))

    def want_all_for_good(self) -> None:
        """The same, also after this process: what it has not sent its successor sends.

        Raises:
            OSError: it cannot be noted for the successor.
        """
        self.want_all()
        (self.folder / ALL_NAME).touch()

    def message(self, first: int, last: int) -> Batch | None:
        """The message of a stretch; None: it is gone.

        Raises:
            OSError: it cannot be read now.
        """
        entry = self._entries.get((first, last))
        if entry is None:
            return None
        try:
            with entry.path.open("rb") as file:
                file.seek(entry.offset)
                data = file.read(entry.length)
            if len(data) != entry.length or zlib.crc32(data) != entry.checksum:
                raise DecodeError("its checksum is another")
            return Batch.FromString(data)
        except (FileNotFoundError, DecodeError):
            self._drop((first, last))
            return None

    def stored(self, first: int, last: int) -> None:
        """The aggregator has the stretch, or knows that it is gone; it takes no other cut of it."""
        for other in [at for at in self._entries if at[0] <= last and at[1] >= first]:
            self._drop(other)
            if other != (first, last) and other in self.wanted:
                self.wanted.remove(other)

    def refused(self, first: int, last: int) -> None:
        """The aggregator has stored these records in other batches, or without their rows: not sent again."""
        self._refused.add((first, last))

    def _drop(self, stretch: Range) -> None:
        """Delete what is kept of a stretch, with its file if it was the last one there."""
        entry = self._entries.pop(stretch, None)
        if entry is None:
            return
        self._left[entry.path] -= 1
        if not self._left[entry.path] and entry.path != self._current:
            self._delete(entry.path)

    def oldest_file(self) -> Path | None:
        """The file that goes first for its room; None: there is none but the one being written."""
        return next((path for path in self._left if path != self._current), None)

    def drop_file(self, path: Path) -> None:
        """Delete a file for its room: what it held is gone, and is to be said so."""
        gone = [stretch for stretch, entry in self._entries.items() if entry.path == path]
        for stretch in gone:
            del self._entries[stretch]
        self._delete(path)
        self.want(stretch for stretch in gone if stretch not in self._refused)

    def remove(self) -> None:
        """Delete all of it."""
        for path in list(self._left):
            self._delete(path)
        (self.folder / ALL_NAME).unlink(missing_ok=True)
        (self.folder / OPENING_NAME).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        with contextlib.suppress(OSError):  # others are in it
            self.folder.parent.rmdir()

    def _open_file(self) -> Path:
        """The file to append to."""
        if self._current is not None and self._sizes.get(self._current, 0) < FILE_BYTES:
            return self._current
        if not (self.folder / OPENING_NAME).exists():
            self.folder.parent.mkdir(mode=0o700, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            temporary = self.folder / f"{OPENING_NAME}.new"
            with open(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(self.opening.SerializeToString())
            temporary.rename(self.folder / OPENING_NAME)
        self._number += 1
        before, self._current = self._current, self.folder / f"{self._number:09d}{_SUFFIX}"
        if before is not None and not self._left.get(before):
            self._delete(before)
        return self._current

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._left.pop(path, None)
        self._sizes.pop(path, None)

    def _load(self, path: Path) -> None:
        """Learn what a file of an earlier shipper holds; what is torn at its end is left out."""
        self._left[path], self._sizes[path] = 1, path.stat().st_size  # 1: it stays while it is read
        for stretch, entry in _entries_of(path):
            self._drop(stretch)
            self._entries[stretch] = entry
            self._left[path] += 1
        self._left[path] -= 1
        if not self._left[path]:
            self._delete(path)


def _entries_of(path: Path) -> Iterator[tuple[Range, _Entry]]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(len(_MAGIC)) != _MAGIC:
            return
        at = len(_MAGIC)
        while at + _ENTRY.size <= size:
            first, last, length, checksum = _ENTRY.unpack(file.read(_ENTRY.size))
            at += _ENTRY.size
            if at + length > size:
                return
            yield (first, last), _Entry(path, at, length, checksum)
            at = file.seek(at + length)
