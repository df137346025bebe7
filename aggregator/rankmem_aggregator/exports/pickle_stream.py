"""Writes a pickle of plain containers as a stream: lists and dictionaries are never whole in memory.

Stage: export. In: calls that open, fill and close containers; out: bytes of pickle protocol 4 without frames.
Only opcodes that PyTorch's web viewer reads (MemoryViz.js has an unpickler of its own). A string is written
once and then referred to, as are the values that the caller remembers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

Plain = int | float | str | bool | None

_BATCH: Final = 1_000
"""Items appended at once, as by Python's own pickler: the viewer takes each batch as arguments of a call."""
_STRINGS_MAX: Final = 1 << 20
"""Different strings remembered; further ones are written each time. Some 100 MiB where they are long."""


class PickleStream:
    """Writes one value. Not for several threads.

    Args:
        file: takes the bytes, buffered.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._write = file.write
        self._num_memos = 0
        self._strings: dict[str, bytes] = {}
        self._write(b"\x80\x04")

    def end(self) -> None:
        """Ends the pickle after its value."""
        self._write(b".")

    def value(self, value: Plain) -> None:
        """Writes a number, a string, a truth value or None."""
        self._write(self._encoded(value))

    def pair(self, first: int, second: int) -> None:
        """Writes a tuple of two."""
        self._write(_integer(first) + _integer(second) + b"\x86")

    @contextmanager
    def facts(self, facts: Mapping[str, Plain]) -> Iterator[None]:
        """Writes a dictionary that begins with these; keys and values in turn may follow."""
        parts = [b"}("]
        for name, value in facts.items():
            parts += (self._encoded(name), self._encoded(value))
        self._write(b"".join(parts))
        yield
        self._write(b"u")

    def nested(self, value: Any) -> None:
        """Writes a small value that is whole in memory: nested dictionaries and lists of plain values."""
        if isinstance(value, dict):
            with self.dictionary():
                for name, inner in value.items():
                    self.value(name)
                    self.nested(inner)
        elif isinstance(value, list):
            with self.items() as items:
                for inner in value:
                    with items.item():
                        self.nested(inner)
        else:
            self.value(value)

    @contextmanager
    def dictionary(self) -> Iterator[None]:
        """Writes a dictionary: within it keys and values in turn."""
        self._write(b"}(")
        yield
        self._write(b"u")

    @contextmanager
    def items(self) -> Iterator[ListStream]:
        """Writes a list, item by item."""
        self._write(b"]")
        stream = ListStream(self._write)
        yield stream
        stream.close()

    def remember(self) -> bytes:
        """Remembers the value just written; returns the reference for :meth:`again`."""
        self._write(b"\x94")
        return self._reference()

    def again(self, remembered: bytes) -> None:
        """Writes the remembered value once more."""
        self._write(remembered)

    def _encoded(self, value: Plain) -> bytes:
        """The value's bytes, which must be written next, in the order of the calls."""
        if type(value) is int:
            return _integer(value)
        if isinstance(value, str):
            return self._strings.get(value) or self._new_string(value)
        if value is None:
            return b"N"
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        return b"G" + struct.pack(">d", value)

    def _new_string(self, text: str) -> bytes:
        encoded = text.encode("utf-8", "surrogatepass")
        if len(encoded) < 256:
            encoded = b"\x8c" + bytes([len(encoded)]) + encoded
        else:
            encoded = b"X" + struct.pack("<I", len(encoded)) + encoded
        if len(self._strings) >= _STRINGS_MAX:
            return encoded
        self._strings[text] = self._reference()
        return encoded + b"\x94"

    def _reference(self) -> bytes:
        number = self._num_memos
        self._num_memos += 1
        return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)


class ListStream:
    """The items of an open list."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._open = 0

    @contextmanager
    def item(self) -> Iterator[None]:
        """A context around each item."""
        if self._open == 0:
            self._write(b"(")
        yield
        self._open += 1
        if self._open == _BATCH:
            self.close()

    def close(self) -> None:
        """Appends the pending items."""
        if self._open:
            self._write(b"e")
            self._open = 0


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 65536:
        return b"M" + struct.pack("<H", value)
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    encoded = value.to_bytes((value.bit_length() >> 3) + 1, "little", signed=True)
    return b"\x8a" + bytes([len(encoded)]) + encoded
