"""Whether a pickle can be given to the C unpickler: a scan of its opcodes that builds nothing.

Stage: readers. In: the bytes of a recording. Out: yes, or "not known to be harmless". It knows fewer
opcodes than :mod:`rankmem_imports.files.plain_pickle`, those of which real snapshots consist, and says yes
only where the unpickler can do nothing but build plain containers within bounds:

- no opcode that names, calls or builds anything but lists, dicts, strings, bytes, numbers, True, False, None,
  and pairs of whole numbers. A longer or nested tuple is not let through: as a key it would be hashed through
  all its depth on C's stack;
- memo numbers below the size of the file, rounded up to 64 Ki: C reserves memory for the highest;
- lists, dicts and pairs fewer than CONTAINERS_MAX, counted as bytes that may be their opcode;
- numbers of at most 16 bytes, and texts that end within the file.

It costs half of the C unpickler's own time; reading opcodes one by one in Python takes nine times as long
as the C unpickler (2.3 MB snapshot, 850,000 opcodes: 11, 20 and 186 ms).

Source: Modules/_pickle.c (CPython 3.11 to 3.14) for what each opcode does.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from rankmem_imports.files.repeated import repeated

CONTAINERS_MAX: Final = 50_000_000
"""Dicts, lists and tuples in one file: a byte of the file may make 64 bytes of memory, so 3 GiB at most."""
INTEGER_BYTES_MAX: Final = 16
"""No address, size or time needs more; longer numbers only cost time."""

_INTEGER: Final = rb"(?:K.|M..|J.{4})"
_LONG: Final = (
    rb"\x8a(?:\x00|"
    + b"|".join(b"\\x%02x.{%d}" % (size, size) for size in range(1, INTEGER_BYTES_MAX + 1))
    + rb")"
)
_SINGLE: Final = rb"[\x94(}\])uesaN\x88\x89]"
"""MEMOIZE, MARK, EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE, SETITEMS, APPENDS, SETITEM, APPEND, NONE, NEWTRUE,
NEWFALSE."""
_TEXT_LENGTH_BYTES: Final = {
    0x8C: 1,  # SHORT_BINUNICODE
    ord("X"): 4,
    0x8D: 8,
    ord("C"): 1,  # SHORT_BINBYTES
    ord("B"): 4,
    0x8E: 8,
}
_PROTO, _FRAME, _STOP = 0x80, 0x95, ord(".")
_PROTOCOL_MAX: Final = 5
_MAKERS: Final = (b"}", b"]", b"\x86")


def is_harmless(data: bytes, containers_max: int = CONTAINERS_MAX) -> bool:
    """Whether the C unpickler may read this; False also for what is broken."""
    if sum(map(data.count, _MAKERS)) > containers_max:
        return False
    run, at, end = _run_of(min(len(data) >> 16, 0xFFFF)).match, 0, len(data)
    while at < end:
        match = run(data, at)
        assert match is not None  # an empty run is one
        at = match.end()
        if at >= end:
            return False
        opcode = data[at]
        if opcode == _STOP:
            return True
        length_bytes = _TEXT_LENGTH_BYTES.get(opcode)
        if length_bytes is not None:
            at += 1 + length_bytes
            at += int.from_bytes(data[at - length_bytes : at], "little")
        elif opcode == _PROTO and at + 1 < end and data[at + 1] <= _PROTOCOL_MAX:
            at += 2
        elif opcode == _FRAME:
            at += 9  # hints for reading ahead
        else:
            return False
    return False  # it ends early


@lru_cache(maxsize=4)
def _run_of(pages: int) -> re.Pattern[bytes]:
    """A run of opcodes without texts; ``pages``: highest memo number, in 64 Ki."""
    high, low = divmod(pages, 256)
    top = b"\\x00" if not high else b"[\\x00-\\x%02x]" % high
    page = b"[\\x00-\\x%02x]" % (low if not high else 255)
    return re.compile(
        repeated(
            rb"(?:h.)++|" + _SINGLE + rb"++|(?:j....)++|" + _INTEGER + rb"{2}\x86|" + _INTEGER
            + b"|" + _LONG + rb"|G.{8}|q.|r.." + page + top
        ),
        re.DOTALL,
    )  # fmt: skip
