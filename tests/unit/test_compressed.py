"""Files that may be gzip, and the bounds of what they say."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from rankmem_imports.ascend.csv_files import CsvSource
from rankmem_imports.bounds import checked_bytes, checked_ns
from rankmem_imports.files.compressed import BROKEN, open_text, read_whole, unpacked_head
from rankmem_imports.memscope.rows import rows_of
from rankmem_imports.recording import RankFacts
from rankmem_protos import bounds
from rankmem_protos.errors import Code, RankmemError

RECORDS = b"Component,Timestamp(us),Total Allocated(MB),Device Type\n" + b"PTA,1.0,2.0,NPU:0\n" * 200_000
SCOPE = b"Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr\n"


def damaged(path: Path, content: bytes) -> Path:
    """The content in gzip, with bytes in the middle overwritten: no zlib can go on."""
    packed = bytearray(gzip.compress(content))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    path.write_bytes(packed)
    return path


def test_what_a_reader_lets_through_the_aggregator_takes() -> None:
    for checked, most in (
        (checked_bytes, bounds.SIZE_BYTES_MAX),
        (checked_ns, bounds.NUMBER_MAX),
    ):
        assert checked(most) == most
        assert checked(-most) == -most
        with pytest.raises(ValueError, match=str(most + 1)):
            checked(most + 1)


def test_gzip_of_several_members_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "joined"
    path.write_bytes(gzip.compress(b"first ") + gzip.compress(b"second"))
    assert read_whole(path, 12) == b"first second"
    assert read_whole(path, 11) is None
    with open_text(path) as file:
        assert file.read() == "first second"


def test_what_only_begins_like_gzip_is_nothing(tmp_path: Path) -> None:
    assert unpacked_head(b"\x1f\x8bno", 100) == b""
    path = tmp_path / "no.gz"
    path.write_bytes(b"\x1f\x8bno")
    with pytest.raises(BROKEN):
        read_whole(path, 100)


def test_a_damaged_gzip_of_tables_is_named_with_its_place(tmp_path: Path) -> None:
    path = damaged(tmp_path / "memory_record.csv.gz", RECORDS)
    with pytest.raises(RankmemError, match=r"memory_record.csv.gz, after line") as refused:
        list(CsvSource({"record": [path]}, RankFacts()).records())
    assert refused.value.code is Code.INVALID
    path = damaged(tmp_path / "dump.csv.gz", SCOPE + b"MALLOC,HAL,a,5,1,1,0,7,{}\n" * 50_000)
    with pytest.raises(RankmemError, match=r"dump.csv.gz, after row") as refused:
        list(rows_of(path))
    assert refused.value.code is Code.INVALID
