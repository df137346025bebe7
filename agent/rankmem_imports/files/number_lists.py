"""JSON that is nothing but nested lists of whole numbers, read piece by piece as arrays.

Stage: readers; the process of ``rankmem import``. In: a file, plain or gzip; out: rows of a fixed width,
some tens of thousands at a time, however long the file is. Numbers of up to 19 digits, behind which ``.0``
may stand; anything else is refused with its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from rankmem_imports.files.compressed import BROKEN, open_bytes
from rankmem_imports.files.repeated import repeated
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.pairing.state import Array

CHUNK_BYTES: Final = 1 << 20
"""Read at a time: some 40,000 rows of 4 numbers."""
LIST_BYTES_MAX: Final = 1 << 10
"""Of one row: nine numbers of 19 digits take 200."""

_SPACES: Final = re.compile(rb"[ \t\r\n]*")
_DROPPED: Final = b"[] \t\r\n"
_NUMBER: Final = rb"\s*+-?\d{1,19}(?:\.0)?+\s*+"
_NUMBERS: Final = re.compile(repeated(_NUMBER + rb"(?:,(?!\s*+\])|(?=\]))"))
"""Numbers of a list, up to its end or as far as they are whole."""


class NumberLists:
    """The text of a file, taken from its beginning; a context manager that closes it.

    Raises:
        RankmemError: NOT_FOUND if it cannot be opened; later INVALID with the place where it is not as asked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = open_bytes(path)
        except OSError as exc:
            raise RankmemError(Code.NOT_FOUND, f"cannot read {path}: {exc.strerror}") from exc
        self._text = b""
        self._before = 0
        """Bytes before _text."""
        self._ended = False

    def __enter__(self) -> NumberLists:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, mark: bytes) -> None:
        """Passes over spaces and one character, which has to be this."""
        if not self.is_next(mark):
            raise self._broken(f"{mark.decode()!r} is expected")
        self._drop(1)

    def is_next(self, mark: bytes) -> bool:
        """Whether this character comes next, after spaces."""
        while True:
            match = _SPACES.match(self._text)
            self._drop(match.end() if match is not None else 0)
            if self._text or not self._more():
                return self._text[:1] == mark

    def numbers(self) -> Iterator[Array]:
        """The numbers of one list, int64; what opens it is taken already, what closes it is left."""
        while not self.is_next(b"]"):
            match = _NUMBERS.match(self._text)
            end = match.end() if match is not None else 0
            if end:
                yield _parsed(self._text[:end])
                self._drop(end)
            else:
                self._read_on()

    def rows(self, width: int) -> Iterator[Array]:
        """Lists of ``width`` numbers each, as (n, width) int64; up to what closes the list around them."""
        row = rb"\[" + _NUMBER + (b"," + _NUMBER) * (width - 1) + rb"\]\s*+"
        pattern = re.compile(repeated(row + rb"(?:,(?!\s*+\])\s*+|(?=\]))"))
        while not self.is_next(b"]"):
            match = pattern.match(self._text)
            end = match.end() if match is not None else 0
            if end:
                yield _parsed(self._text[:end]).reshape(-1, width)
                self._drop(end)
            else:
                self._read_on()

    def end(self) -> None:
        """Nothing but spaces may follow."""
        if not self.is_next(b""):
            raise self._broken("something follows its end")

    def _read_on(self) -> None:
        """More text, where what there is does not make a whole."""
        if len(self._text) > LIST_BYTES_MAX:
            raise self._broken("whole numbers are expected")
        if not self._more():
            raise self._broken("it breaks off, or has something else than whole numbers")

    def _more(self) -> bool:
        if self._ended:
            return False
        try:
            chunk = self._file.read(CHUNK_BYTES)
        except BROKEN as exc:
            raise self._broken(f"its gzip stream is broken ({exc})") from exc
        self._ended = not chunk
        self._text += chunk
        return bool(chunk)

    def _drop(self, count: int) -> None:
        if count:
            self._text = self._text[count:]
            self._before += count

    def _broken(self, why: str) -> RankmemError:
        near = self._text[:40].decode("utf-8", "replace")
        return RankmemError(
            Code.INVALID,
            f"{self._path}: {why} at byte {self._before}" + (f", at {near!r}" if near else ""),
            "export the recording again",
        )


def _parsed(text: bytes) -> Array:
    """The numbers of a text that was matched."""
    plain = text.translate(None, _DROPPED).rstrip(b",")
    if b"." in plain:
        plain = plain.replace(b".0", b"")
    numbers: Array = np.fromstring(plain, np.int64, sep=",")
    return numbers
