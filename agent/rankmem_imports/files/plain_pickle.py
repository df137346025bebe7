"""Reads a pickle that holds plain containers, strings and numbers, and refuses every other.

Stage: readers. In: the bytes of a recording. Out: dicts, lists, tuples, strings, bytes, ints, floats,
booleans and None. Runs wherever a recording is imported, never in the trainer. It must never call, import
or build anything that the file names. So this is a reader of the few opcodes that plain data needs (a
table; what is not in it is refused by name), with bounds on the size of the file, of its numbers, its memo
and its containers. The C unpickler can be made to reserve 64 GiB by one five-byte memo opcode, whatever
``find_class`` says; so it reads only what a scan of all opcodes has found harmless
(:mod:`rankmem_imports.files.pickle_vetting`), six times as fast as this reader does.

Source: ``pickletools`` (CPython), protocols 2 to 5; torch dumps snapshots with the default protocol, 4 or 5.
"""

from __future__ import annotations

import contextlib
import gc
import io
import pickle
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rankmem_imports.files.compressed import BROKEN, is_gzip, read_whole
from rankmem_imports.files.pickle_vetting import CONTAINERS_MAX, INTEGER_BYTES_MAX, is_harmless
from rankmem_protos.errors import Code, RankmemError

PICKLE_BYTES_MAX: Final = 4 * 2**30
"""Larger files are refused: the largest snapshots seen in public are some hundred MiB."""
Plain = Any
"""None, bool, int, float, str, bytes, list, tuple, or a dict keyed by str, int, float or bytes."""

_HINT: Final = "give a snapshot written by torch.cuda.memory._dump_snapshot()"
_KEY_TYPES: Final = (str, int, float, bytes)  # a tuple as key would be hashed through all its depth
_PROTOCOL_MAX: Final = 5
_OPCODE_NAMES: Final = {ord(op.code): op.name for op in pickletools.opcodes}
_FIXED: Final = {"B": 1, "<H": 2, "<i": 4, "<I": 4, "<Q": 8, ">d": 8}


def load_plain(path: Path, *, size_bytes_max: int = PICKLE_BYTES_MAX) -> Plain:
    """The plain data in the pickle at ``path``.

    Raises:
        RankmemError: NOT_FOUND without such a file; EXHAUSTED above ``size_bytes_max``; INVALID for anything
            that is not a whole pickle of plain data, with the opcode and its position.
    """
    try:
        is_packed = is_gzip(path)
    except OSError as exc:
        raise RankmemError(Code.NOT_FOUND, f"cannot read {path}: {exc.strerror}") from exc
    try:
        data = read_whole(path, size_bytes_max)
    except BROKEN as exc:
        what = "its gzip stream is broken or breaks off" if is_packed else "it cannot be read"
        raise RankmemError(Code.INVALID, f"{path}: {what} ({exc})", _HINT) from exc
    if data is None:
        raise RankmemError(Code.EXHAUSTED, f"{path} holds more than {size_bytes_max} bytes")
    return loads_plain(data, source=str(path))


def loads_plain(data: bytes, *, source: str = "the pickle") -> Plain:
    """The plain data in ``data``; ``source`` names it in errors. Raises as :func:`load_plain`."""
    if is_harmless(data, CONTAINERS_MAX):
        with contextlib.suppress(*_FAULTS):  # the slow reader says where it is broken
            return _load_vetted(data)
    reader = _Reader(data)
    try:
        return reader.run()
    except _Refused as exc:
        raise RankmemError(Code.INVALID, f"{source}: {exc} at byte {reader.at}", _HINT) from exc
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, TypeError) as exc:
        # A pickle that pops what it never pushed, or ends early, shows in one of these.
        message = f"{source}: not a whole pickle of plain data (broken at byte {reader.at})"
        raise RankmemError(Code.INVALID, message, _HINT) from exc


_FAULTS: Final = (
    pickle.UnpicklingError, EOFError, KeyError, IndexError, TypeError, ValueError, AttributeError,
)  # fmt: skip
"""Raised by the C unpickler for a pickle that pops what it never pushed, or puts items into none."""


class _PlainUnpickler(pickle.Unpickler):
    """A second lock: what was vetted names nothing."""

    def find_class(self, module: str, name: str) -> Plain:
        raise pickle.UnpicklingError(f"{module}.{name} is refused")


def _load_vetted(data: bytes) -> Plain:
    """The data of a pickle that was found harmless.

    Without the collector, which would walk all that is built again and again: nothing of it is garbage.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    finally:
        if collects:
            gc.enable()


class _Refused(Exception):
    """The file asks for something other than plain data."""


class _Reader:
    """One run over the bytes: a stack, marks on it, a memo."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Plain] = []
        self.marks: list[int] = []
        self.memo: dict[int, Plain] = {}
        self.containers = 0

    def run(self) -> Plain:
        """Read opcodes up to STOP; what is on the stack then."""
        data, stack, memo = self.data, self.stack, self.memo
        actions = _ACTIONS
        while True:
            opcode = data[self.at]
            self.at += 1
            if opcode == 0x68:  # BINGET: four of five opcodes of a snapshot are references to frames
                stack.append(memo[data[self.at]])
                self.at += 1
            elif opcode == 0x6A:  # LONG_BINGET
                stack.append(memo[int.from_bytes(data[self.at : self.at + 4], "little")])
                self.at += 4
            elif opcode == 0x2E:  # STOP
                return stack.pop()
            else:
                action = actions.get(opcode)
                if action is None:
                    name = _OPCODE_NAMES.get(opcode, f"0x{opcode:02x}")
                    raise _Refused(
                        f"opcode {name} is refused: only plain containers, strings and numbers are read"
                    )
                action(self)

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes; refuses to read past the end."""
        begin, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise _Refused("it ends early")
        return self.data[begin : self.at]

    def number(self, form: str) -> Plain:
        return struct.unpack(form, self.take(_FIXED[form]))[0]

    def contain(self, container: Plain) -> None:
        self.containers += 1
        if self.containers > CONTAINERS_MAX:
            raise _Refused(f"more than {CONTAINERS_MAX} containers")
        self.stack.append(container)

    def since_mark(self) -> list[Plain]:
        begin = self.marks.pop()
        items = self.stack[begin:]
        del self.stack[begin:]
        return items

    def under(self, kind: type) -> Plain:
        """The container on top, which must be of this kind."""
        top = self.stack[-1]
        if type(top) is not kind:
            raise _Refused(f"items for a {kind.__name__} meet a {type(top).__name__}")
        return top


def _protocol(reader: _Reader) -> None:
    version = reader.number("B")
    if version > _PROTOCOL_MAX:
        raise _Refused(f"pickle protocol {version} is not known")


def _constant(value: Plain) -> Callable[[_Reader], None]:
    return lambda reader: reader.stack.append(value)


def _plain_number(form: str) -> Callable[[_Reader], None]:
    return lambda reader: reader.stack.append(reader.number(form))


def _long(form: str) -> Callable[[_Reader], None]:
    def action(reader: _Reader) -> None:
        count = reader.number(form)
        if not 0 <= count <= INTEGER_BYTES_MAX:
            raise _Refused(f"a number of {count} bytes")
        reader.stack.append(int.from_bytes(reader.take(count), "little", signed=True))

    return action


def _text(form: str) -> Callable[[_Reader], None]:
    # surrogatepass, as pickle does: a path with undecodable bytes is data, not an error
    return lambda reader: reader.stack.append(
        reader.take(reader.number(form)).decode("utf-8", "surrogatepass")
    )


def _raw(form: str) -> Callable[[_Reader], None]:
    return lambda reader: reader.stack.append(reader.take(reader.number(form)))


def _tuple_of(count: int) -> Callable[[_Reader], None]:
    def action(reader: _Reader) -> None:
        items = tuple(reader.stack[len(reader.stack) - count :])
        if len(items) < count:
            raise _Refused("a tuple of more than there is")
        del reader.stack[len(reader.stack) - count :]
        reader.contain(items)

    return action


def _put(form: str) -> Callable[[_Reader], None]:
    def action(reader: _Reader) -> None:
        reader.memo[reader.number(form)] = reader.stack[-1]

    return action


def _memoize(reader: _Reader) -> None:
    reader.memo[len(reader.memo)] = reader.stack[-1]


def _append(reader: _Reader) -> None:
    item = reader.stack.pop()
    reader.under(list).append(item)


def _appends(reader: _Reader) -> None:
    items = reader.since_mark()
    reader.under(list).extend(items)


def _set_items(reader: _Reader, items: list[Plain]) -> None:
    keys, values = items[0::2], items[1::2]
    if len(keys) != len(values):
        raise _Refused("a key without a value")
    for key in keys:
        if key is not None and not isinstance(key, _KEY_TYPES):
            raise _Refused(f"a {type(key).__name__} as a key")
    reader.under(dict).update(zip(keys, values, strict=True))


def _set_item(reader: _Reader) -> None:
    value = reader.stack.pop()
    _set_items(reader, [reader.stack.pop(), value])


def _skip_frame(reader: _Reader) -> None:
    reader.take(8)  # frames are hints for reading ahead; every read is checked by itself


_ACTIONS: Final[dict[int, Callable[[_Reader], None]]] = {
    0x80: _protocol,
    0x95: _skip_frame,
    ord("("): lambda reader: reader.marks.append(len(reader.stack)),
    ord("0"): lambda reader: reader.stack.pop(),
    ord("N"): _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("J"): _plain_number("<i"),
    ord("K"): _plain_number("B"),
    ord("M"): _plain_number("<H"),
    ord("G"): _plain_number(">d"),
    0x8A: _long("B"),
    0x8B: _long("<i"),
    0x8C: _text("B"),
    ord("X"): _text("<I"),
    0x8D: _text("<Q"),
    ord("C"): _raw("B"),
    ord("B"): _raw("<I"),
    0x8E: _raw("<Q"),
    ord("}"): lambda reader: reader.contain({}),
    ord("]"): lambda reader: reader.contain([]),
    ord(")"): lambda reader: reader.contain(()),
    ord("t"): lambda reader: reader.contain(tuple(reader.since_mark())),
    ord("l"): lambda reader: reader.contain(reader.since_mark()),
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): lambda reader: _set_items(reader, reader.since_mark()),
    ord("q"): _put("B"),
    ord("r"): _put("<I"),
    0x94: _memoize,
}
