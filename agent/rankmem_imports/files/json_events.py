"""A Chrome trace read piece by piece: its events one at a time, its other fields as they come.

Stage: readers; the process of ``rankmem import``. In: a file, plain or gzip; out: each object of
``traceEvents``, and the object's other fields in a mapping that fills while the events pass (writers put
them before or behind). Held: one chunk and one event. The standard library's scanner reads the values: of
200 MB it makes events as fast as ijson with its C library, and no slower than orjson reads them whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rankmem_imports.files.compressed import BROKEN, open_text
from rankmem_protos.errors import Code, RankmemError

CHUNK_CHARS: Final = 4 << 20
"""Read at a time."""
VALUE_CHARS_MAX: Final = 64 << 20
"""Of one event or field: the largest seen, an event with its Python stack, has 40,000 characters. A longer
one is a file that breaks off, and reading on would keep all of it in memory."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_BETWEEN: Final = re.compile(r"[ \t\r\n,]*")


class JsonEvents:
    """The trace in a file.

    Args:
        path: ends in anything; gzip is recognised by its first bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fields: dict[str, Any] = {}
        """Fields of the outermost object but ``traceEvents``; complete after the last event."""
        self._decode = json.JSONDecoder(parse_float=str, strict=False).raw_decode
        self._text = ""
        self._at = 0
        self._before = 0
        """Characters before ``_text``."""

    def events(self) -> Iterator[dict[str, Any]]:
        """The events in the file's order. Numbers with a fraction are texts: a time of 2024 in microseconds
        has more digits than a double.

        Raises:
            RankmemError: INVALID with the place where the file is no JSON or breaks off.
        """
        with open_text(self.path, encoding="utf-8-sig") as self._file:
            self._text, self._at, self._before = "", 0, 0
            yield from self._document()

    def _document(self) -> Iterator[dict[str, Any]]:
        opening = self._next_sign()
        if opening == "[":  # the older form: events alone, the closing bracket may be missing
            self._at += 1
            yield from self._array(may_break_off=True)
            return
        if opening != "{":
            raise self._broken("it is no JSON object")
        self._at += 1
        while (sign := self._next_sign()) != "}":
            if sign == ",":
                self._at += 1
                continue
            key = self._value()
            if not isinstance(key, str) or self._next_sign() != ":":
                raise self._broken("a field has no name or no value")
            self._at += 1
            if key == "traceEvents" and self._next_sign() == "[":
                self._at += 1
                yield from self._array(may_break_off=False)
            else:
                self._next_sign()
                self.fields[key] = self._value()
        self._at += 1
        if self._sign_or_end():
            raise self._broken("something follows its end")

    def _array(self, *, may_break_off: bool) -> Iterator[dict[str, Any]]:
        decode, between = self._decode, _BETWEEN.match
        while True:
            # Hot: a trace of 2 GB has 8 million events.
            start = between(self._text, self._at).end()  # type: ignore[union-attr]
            try:
                event, self._at = decode(self._text, start)
            except (json.JSONDecodeError, RecursionError):
                self._at = start
                if start == len(self._text):
                    if self._more():
                        continue
                    if may_break_off:
                        return
                    raise self._broken("it breaks off within traceEvents") from None
                if self._text[start] == "]":
                    self._at += 1
                    return
                event = self._value()
            if isinstance(event, dict):
                yield event

    def _next_sign(self) -> str:
        """The sign that comes next, not taken; white space before it is."""
        sign = self._sign_or_end()
        if not sign:
            raise self._broken("it breaks off")
        return sign

    def _sign_or_end(self) -> str:
        """The same; empty at the end of the file."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        """The value that begins here; reads on until it is whole."""
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > VALUE_CHARS_MAX:
                    raise self._broken(f"a value is longer than {VALUE_CHARS_MAX} characters") from error
                fault = f"{error.msg} at character {self._before + error.pos}"
                if error.pos < len(self._text) - _TAIL_CHARS and "Unterminated" not in error.msg:
                    raise self._broken(fault) from error
                if not self._more():
                    raise self._broken(f"it breaks off ({fault})") from error
            except RecursionError as error:
                raise self._broken("values lie too deep within one another") from error
            else:
                if end == len(self._text) and not isinstance(value, dict | list) and self._more():
                    continue  # a number may go on
                self._at = end
                return value

    def _more(self) -> bool:
        """Reads a chunk behind what is not taken yet; False at the end of the file."""
        try:
            chunk = self._file.read(CHUNK_CHARS)
        except BROKEN as error:
            raise self._broken(f"its gzip data breaks off or is damaged ({error})") from error
        self._before += self._at
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return bool(chunk)

    def _broken(self, why: str) -> RankmemError:
        return RankmemError(
            Code.INVALID,
            f"{self.path} is not a complete trace: {why}, after character {self._before + self._at}",
            "copy it again, or export it again from the profiler",
        )


_TAIL_CHARS: Final = 16
"""A value that breaks off fails this near to the end of what was read: within a word such as null."""
