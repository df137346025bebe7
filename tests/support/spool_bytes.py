"""Reads a spool's files with ``struct`` and the layout alone: the oracle's way, not the project's reader."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from rankmem_agent.spool import layout
from rankmem_agent.spool.python_writer import RECORD_STRUCT

NAMES = tuple(field.name for field in layout.RECORD_FIELDS)


def records_of(folder: Path) -> dict[int, dict[str, int]]:
    """Every committed record by number."""
    found: dict[int, dict[str, int]] = {}
    for path in sorted(folder.glob("segment-*")):
        raw = path.read_bytes()
        first = struct.unpack_from("<Q", raw, 24)[0]
        for index, row in enumerate(RECORD_STRUCT.iter_unpack(raw[layout.SEGMENT_HEADER_BYTES :])):
            if row[-1] == layout.mark_of(first + index):
                found[first + index] = dict(zip(NAMES, row, strict=True))
    return found


def control_of(folder: Path) -> dict[str, int]:
    """The numbers of the control page."""
    raw = (folder / "control").read_bytes()
    return {
        f.name: int.from_bytes(raw[f.offset : f.offset + layout.TYPE_BYTES[f.ctype]], "little")
        for f in layout.CONTROL_FIELDS
        if f.ctype != "char[8]"
    }


def entries_of(folder: Path) -> list[tuple[int, int, bytes]]:
    """Type, id and payload of every entry of the strings file, CRCs checked."""
    raw = (folder / "strings").read_bytes()
    assert raw[:12] == layout.STRINGS_MAGIC + struct.pack("<I", layout.FORMAT_VERSION)
    found, at = [], layout.STRINGS_HEADER_BYTES
    while at < len(raw):
        kind, number, length, crc = struct.unpack_from("<B3xIII", raw, at)
        payload = raw[at + 16 : at + 16 + length]
        assert zlib.crc32(payload) == crc
        found.append((kind, number, payload))
        at += 16 + length + -length % 8
    return found


def texts_of(folder: Path) -> dict[int, str]:
    """Strings by id."""
    return {n: payload.decode() for kind, n, payload in entries_of(folder) if kind == layout.Entry.STRING}
