"""The decoded size that an Arrow IPC stream declares, read from its headers before anything is decoded.

Stage: wire, the receiving end. In: the bytes of a stream; out: bytes that decoding will allocate. A
compressed buffer begins with its decoded length, which Arrow allocates before it looks further, so 100 bytes
may ask for terabytes. Only the few fields with sizes are read here, from the flatbuffers; all else is
Arrow's to check. Layout: arrow/format/Message.fbs and Schema.fbs, version 5 (Arrow 1.0 on).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_CONTINUATION: Final = 0xFFFF_FFFF
"""Before each message; without it the stream is older than Arrow 0.15."""
_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3
MESSAGES_MAX: Final = 10_000
"""Of one stream: a dictionary for each column and some record batches."""

BUFFERS_MAX: Final = 100_000
"""Of one stream, those of all its messages: many messages may point at one long list of them, and 4 MiB would
be read as billions."""


class MalformedError(Exception):
    """The bytes are no Arrow IPC stream."""


def decoded_bytes(data: bytes) -> int:
    """Bytes of all buffers of a stream, decoded, as its headers declare them.

    Raises:
        MalformedError: a header has no size, or an impossible one.
    """
    buffers_left = BUFFERS_MAX
    total = 0
    try:
        for header, kind, body in _messages(data):
            size_bytes, num_buffers = _batch_bytes(data, header, kind, body, buffers_left)
            buffers_left -= num_buffers
            total += size_bytes
        return total
    except (struct.error, IndexError) as exc:
        raise MalformedError(f"a header is cut off: {exc}") from exc


def _messages(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Of each message the place of its header table, its kind, and where its body begins."""
    place = 0
    for _ in range(MESSAGES_MAX):
        if place >= len(data):
            return
        marker, length = struct.unpack_from("<Ii", data, place)
        if marker != _CONTINUATION or length < 0:
            raise MalformedError("a message does not begin with its marker and length")
        if length == 0:
            return
        message = _root(data, place + 8)
        kind_at, header_at = _field(data, message, 1), _field(data, message, 2)
        body_length = _int64(data, message, 3)
        body = place + 8 + length
        if kind_at and header_at:
            yield _target(data, header_at), data[kind_at], body
        if body_length < 0:
            raise MalformedError(f"a body of {body_length} bytes")
        place = body + body_length
    raise MalformedError(f"more than {MESSAGES_MAX} messages")


def _batch_bytes(data: bytes, header: int, kind: int, body: int, buffers_max: int) -> tuple[int, int]:
    """Decoded bytes of a message, and how many buffers it has."""
    if kind == _DICTIONARY_BATCH:
        inner = _field(data, header, 1)
        return _record_batch_bytes(data, _target(data, inner), body, buffers_max) if inner else (0, 0)
    return _record_batch_bytes(data, header, body, buffers_max) if kind == _RECORD_BATCH else (0, 0)


def _record_batch_bytes(data: bytes, batch: int, body: int, buffers_max: int) -> tuple[int, int]:
    is_compressed = bool(_field(data, batch, 3))
    total = num_buffers = 0
    for offset, length in _buffers(data, batch, buffers_max):
        num_buffers += 1
        if offset < 0 or length < 0 or body + offset + length > len(data):
            raise MalformedError(f"a buffer of {length} bytes at {offset} lies outside of its message")
        if is_compressed and length:
            (declared,) = struct.unpack_from("<q", data, body + offset)
            if declared < -1:
                raise MalformedError(f"a buffer declares {declared} bytes")
            total += length if declared == -1 else declared
        else:
            total += length
    return total, num_buffers


def _buffers(data: bytes, batch: int, buffers_max: int) -> Iterator[tuple[int, int]]:
    at = _field(data, batch, 2)
    if not at:
        return
    vector = _target(data, at)
    (count,) = struct.unpack_from("<I", data, vector)
    if count > buffers_max:
        raise MalformedError(f"more than {BUFFERS_MAX} buffers")
    yield from struct.iter_unpack("<qq", data[vector + 4 : vector + 4 + 16 * count])


def _root(data: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", data, place)[0])


def _target(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """The position of a field of a flatbuffer's table; 0 where it has none."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if vtable < 0:
        raise MalformedError("a table without its layout")
    (size,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + entry)
    return table + offset if offset else 0


def _int64(data: bytes, table: int, number: int) -> int:
    at = _field(data, table, number)
    return int(struct.unpack_from("<q", data, at)[0]) if at else 0
