"""Files that may be gzip, whatever their names: recognised by their first bytes, read in pieces or whole.

Stage: readers; the process of ``rankmem import`` (and the trainer, for a snapshot that drains: standard
library only). In: a path; out: its bytes or characters, unpacked. BROKEN are the errors of
a damaged or cut gzip file: the reader names the file and the place.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import Final

GZIP_MAGIC: Final = b"\x1f\x8b"
BROKEN: Final = (EOFError, OSError, zlib.error)
"""Cut short; not gzip after the first bytes, or a fault of the disk; damaged."""

_PIECE_BYTES: Final = 1 << 20


def is_gzip(path: Path) -> bool:
    """Whether the file is compressed, by its first bytes."""
    with path.open("rb") as probe:
        return probe.read(2) == GZIP_MAGIC


def open_bytes(path: Path) -> io.BufferedReader:
    """The file's bytes, decompressed where it is gzip."""
    return io.BufferedReader(gzip.GzipFile(path)) if is_gzip(path) else path.open("rb")


def open_text(path: Path, *, encoding: str = "utf-8", newline: str | None = None) -> io.TextIOWrapper:
    """The file's characters, decompressed where it is gzip; invalid bytes are replaced."""
    return io.TextIOWrapper(open_bytes(path), encoding=encoding, errors="replace", newline=newline)


def read_whole(path: Path, bytes_max: int) -> bytes | None:
    """All of the file, unpacked; None above ``bytes_max``, whatever a gzip file claims to hold.

    Raises:
        EOFError, OSError, zlib.error: as BROKEN says.
    """
    if not is_gzip(path):
        return path.read_bytes() if path.stat().st_size <= bytes_max else None
    whole = io.BytesIO()  # hands out what it holds without a copy
    with open_bytes(path) as file:
        while piece := file.read(_PIECE_BYTES):
            whole.write(piece)
            if whole.tell() > bytes_max:
                return None
    return whole.getvalue()


def ends_in_line_break(path: Path) -> bool:
    """Whether the last character of a text file ends a line: one that does not is cut short, or written by
    hand. A gzip file is read through for it.

    Raises:
        EOFError, OSError, zlib.error: as BROKEN says.
    """
    if not is_gzip(path):
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 1, 0))
            return file.read(1) == b"\n"
    last = b""
    with open_bytes(path) as packed:
        while piece := packed.read(_PIECE_BYTES):
            last = piece[-1:]
    return last == b"\n"


def unpacked_head(head: bytes, bytes_max: int) -> bytes:
    """The first bytes of a file's content, from the first bytes of the file; empty if they only begin like
    gzip."""
    if not head.startswith(GZIP_MAGIC):
        return head[:bytes_max]
    try:
        return zlib.decompressobj(wbits=31).decompress(head, bytes_max)
    except zlib.error:
        return b""
