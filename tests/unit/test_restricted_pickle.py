"""The restricted unpickler reads what pickle writes of plain data, and refuses the rest."""

from __future__ import annotations

import datetime
import gzip
import os
import pickle
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_imports.files import plain_pickle as restricted_pickle
from rankmem_imports.files.plain_pickle import load_plain, loads_plain
from rankmem_protos.errors import Code, RankmemError
from repetitions import examples

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(max_size=300),
)
KEYS = st.one_of(st.text(max_size=20), st.integers(-(2**40), 2**64))
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(KEYS, inner, max_size=5),
    ),
    max_leaves=30,
)


@examples(2)
@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_data_comes_out_as_pickle_itself_reads_it(value: Any, protocol: int) -> None:
    try:
        data = pickle.dumps(value, protocol)
    except UnicodeEncodeError:
        return
    if b"_codecs" in data or b"__builtin__" in data:  # protocol 2 has no bytes: it calls an encoder
        with pytest.raises(RankmemError, match="GLOBAL"):
            loads_plain(data)
        return
    assert loads_plain(data) == pickle.loads(data)


def test_shared_objects_stay_shared() -> None:
    frame = {"line": 3}
    read = loads_plain(pickle.dumps([frame, frame, [frame]]))
    assert read[0] is read[1] is read[2][0]


class _Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("GLOBAL", b"cos\nsystem\n(S'touch ran'\ntR."),
        ("STACK_GLOBAL", pickle.dumps(_Runs(), 4)),
        ("GLOBAL", pickle.dumps(_Runs(), 2)),
        ("INST", b"(ios\nsystem\n."),
        ("STRING", b"(S'touch ran'\nos\nsystem\n."),
        ("PERSID", b"Pid\n."),
        ("EXT1", b"\x80\x02\x82\x01."),
        ("REDUCE", b"\x80\x02K\x01)R."),
        ("BUILD", b"\x80\x02]}b."),
        ("NEWOBJ", b"\x80\x02K\x01)\x81."),
        ("STACK_GLOBAL", pickle.dumps(datetime.date(2026, 1, 1), 4)),
        ("EMPTY_SET", pickle.dumps({1}, 4)),
    ],
)
def test_a_pickle_that_wants_more_than_plain_data_is_refused_by_opcode(
    name: str, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RankmemError, match=f"opcode {name} is refused") as raised:
        loads_plain(data)
    assert raised.value.code is Code.INVALID
    assert "_dump_snapshot" in raised.value.hint
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        b"\x80\x09N.",
        b".",
        b"\x80\x04e.",
        b"\x80\x04h\x05.",
        b"\x80\x04X\xff\xff\xff\xffabc.",
        b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b"x.",
        b"\x80\x04\x8b" + struct.pack("<i", -5) + b".",
        b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b"1.",
        b"\x80\x04(K\x01K\x01a.",
        b"\x80\x04}(K\x01u.",
        b"\x80\x04}(K\x01K\x02K\x03u.",
        b"\x80\x04K\x01\x87.",
        b"\x80\x04X\x01\x00\x00\x00\xff.",
        b"\x80\x04}(]K\x01u.",
        b"\x80\x04}((K\x01tK\x01u.",
        b"\xff\xfe garbage",
    ],
)
def test_broken_pickles_get_a_clear_error_with_the_position(data: bytes) -> None:
    with pytest.raises(RankmemError, match="at byte") as raised:
        loads_plain(data, source="memory.pickle")
    assert raised.value.message.startswith("memory.pickle: ")


def is_data(value: object) -> bool:
    """Whether a value is made of numbers, texts, bytes and containers of them alone."""
    if isinstance(value, dict):
        return all(is_data(key) and is_data(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_data, value))
    return type(value) in (type(None), bool, int, float, str, bytes, bytearray)


@examples(3)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_data_or_a_rankmem_error(data: bytes) -> None:
    with suppress(RankmemError):
        assert is_data(loads_plain(b"\x80\x04" + data))


def test_a_memo_number_of_four_billion_costs_nothing() -> None:
    assert loads_plain(b"\x80\x02]r\xfe\xff\xff\xff.") == []


def test_a_pickle_in_gzip_is_read_and_no_bomb_is(tmp_path: Path) -> None:
    path = tmp_path / "small.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps({"a": [1, 2]})))
    assert load_plain(path) == {"a": [1, 2]}
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(RankmemError, match="breaks off"):
        load_plain(path)
    path.write_bytes(gzip.compress(pickle.dumps(bytes(100_000))))
    with pytest.raises(RankmemError, match="more than 50000 bytes"):
        load_plain(path, size_bytes_max=50_000)


def test_sizes_and_containers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.pickle"
    path.write_bytes(pickle.dumps([[], [], []]))
    with pytest.raises(RankmemError, match="more than 5 bytes") as raised:
        load_plain(path, size_bytes_max=5)
    assert raised.value.code is Code.EXHAUSTED
    monkeypatch.setattr(restricted_pickle, "CONTAINERS_MAX", 3)
    with pytest.raises(RankmemError, match="more than 3 containers"):
        load_plain(path)
    with pytest.raises(RankmemError) as missing:
        load_plain(tmp_path / "absent")
    assert missing.value.code is Code.NOT_FOUND
