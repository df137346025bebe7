"""What the scan lets through to the C unpickler is harmless, and read as the reader in Python reads it."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_imports.files.pickle_vetting import is_harmless
from rankmem_imports.files.plain_pickle import loads_plain
from rankmem_protos.errors import RankmemError
from repetitions import examples

SNAPSHOT: dict[str, Any] = {
    "segments": [{"address": 7 << 40, "segment_pool_id": (0, 0), "is_expandable": False, "blocks": []}],
    "device_traces": [[{"action": "alloc", "addr": 2**47 + n, "size": 512 * n} for n in range(300)]],
    "ratio": 0.5,
    "none": None,
}
SAFE = {
    "PROTO", "FRAME", "STOP", "MEMOIZE", "MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "SETITEMS",
    "APPENDS", "SETITEM", "APPEND", "NONE", "NEWTRUE", "NEWFALSE", "BINGET", "LONG_BINGET", "BINPUT",
    "LONG_BINPUT", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "TUPLE2", "SHORT_BINUNICODE",
    "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
}  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_is_let_through_in_every_protocol_torch_writes(protocol: int) -> None:
    data = pickle.dumps(SNAPSHOT, protocol=protocol)
    assert is_harmless(data)
    assert loads_plain(data) == SNAPSHOT


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(print),
        b"\x80\x02]r\xfe\xff\xff\xff.",  # a memo of four billion
        b"\x80\x04)" + b"\x85" * 100_000 + b".",  # a tuple 100,000 deep: fatal as a key
        b"\x80\x04" + b"K\x01" * 3 + b"\x86\x86.",  # a pair of a pair
        pickle.dumps({frozenset({1})}),
        pickle.dumps(10**60),
        b"\x80\x04X\xff\xff\xff\x7fabc.",  # a text longer than the file
        b"\x80\x09N.",
        b"\x80\x04",
        b"",
    ],
)
def test_what_is_more_than_plain_or_out_of_bounds_is_not(data: bytes) -> None:
    assert not is_harmless(data)


def test_more_containers_than_allowed_are_not_let_through() -> None:
    data = pickle.dumps([[], [], []])
    assert is_harmless(data, 4)
    assert not is_harmless(data, 3)


def opcodes_of(data: bytes) -> set[str]:
    """The names of the opcodes up to STOP, by the standard library's own table."""
    import pickletools

    return {opcode.name for opcode, _, _ in pickletools.genops(data)}


@examples(3)
@given(data=st.binary(max_size=200))
def test_any_bytes_that_are_let_through_hold_harmless_opcodes_alone(data: bytes) -> None:
    data = b"\x80\x04" + data + b"."
    if is_harmless(data):
        # genops stops at a text that is no text, where the unpickler stops too
        with suppress(ValueError, UnicodeDecodeError):
            assert opcodes_of(data) <= SAFE


def outcome(read: Callable[[bytes], Any], data: bytes) -> Any:
    """What is read, or that it is refused."""
    try:
        return read(data)
    except (
        RankmemError,
        pickle.UnpicklingError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ):
        return "refused"


def test_snapshots_with_a_byte_changed_are_read_as_the_reader_in_python_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(5)
    whole = pickle.dumps(SNAPSHOT, protocol=4)
    let_through = 0
    for _ in range(400):
        data = bytearray(whole)
        data[chance.randrange(len(data))] = chance.randrange(256)
        fast = outcome(loads_plain, bytes(data))
        let_through += is_harmless(bytes(data))
        with monkeypatch.context() as patch:
            patch.setattr("rankmem_imports.files.plain_pickle.is_harmless", lambda *_: False)
            slow = outcome(loads_plain, bytes(data))
        # Only keys that are pairs of numbers, and items put into a list by place, are read by one alone.
        assert repr(fast) == repr(slow) or slow == "refused"
    assert let_through > 100
