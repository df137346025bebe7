"""The strings side file, read as it grows: names, frames and stacks by their ids.

Stage: spool, reading side. In: the append-only file ``strings`` of one spool. Out: text by string id,
frames by stack id. Runs in the shipper process, on its loop's thread; never in the trainer. It must
never guess: an entry that is cut short or whose CRC is wrong ends the reading until the file
has more, and the text of an id that never came is "unknown".
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

from rankmem_agent.spool.layout import (
    FORMAT_VERSION,
    STACK_FRAMES_MAX,
    STRING_BYTES_MAX,
    STRING_ENTRY_HEADER_BYTES,
    STRINGS_HEADER_BYTES,
    STRINGS_MAGIC,
    Entry,
)
from rankmem_protos.errors import Code, RankmemError

READ_BYTES: Final = 1 << 20
"""Read at once; the whole file of an ordinary training is smaller."""
PAYLOAD_BYTES_MAX: Final = 1 << 20
"""A longer entry is damage: strings end at STRING_BYTES_MAX, except the JSON of NOTE and DEVICE records."""
UNKNOWN_NAME: Final = "<unknown>"
"""Stands for a string that was never written (the side file was full)."""

_ENTRY = struct.Struct("<B3xIII")
_FRAME = struct.Struct("<III")
_HEADER = struct.Struct("<8sII")


class Frame(NamedTuple):
    """One frame of a Python stack, as the tap wrote it."""

    file: str
    function: str
    line: int


class StringTable:
    """Strings, frames and stacks of one spool by id (from 1); :meth:`poll` takes in what was appended.

    Args:
        path: the ``strings`` file; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._offset = STRINGS_HEADER_BYTES
        self._strings: dict[int, str] = {}
        self._frames: dict[int, tuple[int, int, int]] = {}
        self._stacks: dict[int, tuple[int, ...]] = {}
        self.damaged = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the file that were read so far."""
        return self._offset

    def text(self, string_id: int) -> str | None:
        """The string, or None if its id is 0 or was never written."""
        return self._strings.get(string_id)

    def name(self, string_id: int) -> str:
        """The string, or UNKNOWN_NAME where :meth:`text` has none."""
        return self._strings.get(string_id, UNKNOWN_NAME)

    def stack(self, stack_id: int) -> list[Frame]:
        """The frames of a stack, nearest to the operator first; empty if it was never written."""
        frames = (self._frames.get(frame_id) for frame_id in self._stacks.get(stack_id, ()))
        return [Frame(self.name(f[0]), self.name(f[1]), f[2]) for f in frames if f is not None]

    def poll(self) -> None:
        """Take in every whole entry appended since the last call.

        Raises:
            RankmemError: INVALID or UNSUPPORTED if the file is not a strings file of this format.
        """
        if self._fd < 0 and not self._open():
            return
        while True:
            data = os.pread(self._fd, READ_BYTES, self._offset)
            taken = self._parse(data)
            self._offset += taken
            if taken == 0 or len(data) < READ_BYTES:
                return

    def close(self) -> None:
        """Close the file; what was read stays usable."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        header = os.pread(fd, STRINGS_HEADER_BYTES, 0)
        if len(header) < STRINGS_HEADER_BYTES or header == bytes(STRINGS_HEADER_BYTES):
            os.close(fd)  # its writer has not come that far
            return False
        magic, version, _ = _HEADER.unpack(header)
        if magic != STRINGS_MAGIC or version > FORMAT_VERSION:
            os.close(fd)
            raise _unreadable(self._path, magic, version)
        self._fd = fd
        return True

    def _parse(self, data: bytes) -> int:
        """Take the whole entries at the start of ``data``; returns the bytes they take."""
        at = 0
        while at + STRING_ENTRY_HEADER_BYTES <= len(data):
            kind, entry_id, length, crc = _ENTRY.unpack_from(data, at)
            begin = at + STRING_ENTRY_HEADER_BYTES
            end = begin + (length + 7) // 8 * 8
            if length > PAYLOAD_BYTES_MAX or (kind and kind not in (1, 2, 3)):
                self.damaged = True
                break
            if kind == 0 or end > len(data):
                break  # reserved by a writer that has not written yet, or cut short
            payload = data[begin : begin + length]
            if zlib.crc32(payload) != crc:
                break  # being written, or torn: nothing behind it can be trusted
            self._keep(kind, entry_id, payload)
            at = end
        return at

    def _keep(self, kind: int, entry_id: int, payload: bytes) -> None:
        if kind == Entry.STRING:
            self._strings[entry_id] = payload.decode("utf-8", "replace")
        elif kind == Entry.FRAME and len(payload) == _FRAME.size:
            self._frames[entry_id] = _FRAME.unpack(payload)
        elif kind == Entry.STACK:
            count = min(len(payload) // 4, STACK_FRAMES_MAX)
            self._stacks[entry_id] = struct.unpack_from(f"<{count}I", payload)


def _unreadable(path: Path, magic: bytes, version: int) -> RankmemError:
    if magic != STRINGS_MAGIC:
        return RankmemError(Code.INVALID, f"{path} is not a rankmem strings file (magic {magic!r})")
    return RankmemError(
        Code.UNSUPPORTED,
        f"{path} has format version {version}; this rankmem reads up to {FORMAT_VERSION}",
        "deliver it with the version of rankmem that recorded it",
    )


def json_object(text: str | None) -> dict[str, Any]:
    """The object that a string of JSON holds; empty where it is damaged or was never written."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


assert STRING_BYTES_MAX <= PAYLOAD_BYTES_MAX
