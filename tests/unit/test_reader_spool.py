"""The spool reader on real files: what is committed, what is a hole, and when it is known."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from rankmem_agent.spool.layout import (
    FORMAT_VERSION,
    RECORDS_PER_SEGMENT,
    SEGMENT_BYTES,
    Action,
    Kind,
    mark_of,
    segment_name,
)
from rankmem_agent.spool.meta import read_meta
from rankmem_agent.spool.process_stat import process_is_alive
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_protos.bounds import SEQUENCE_MAX
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.send_buffer import SendBuffer
from rankmem_ship.spool_reader.reader import Chunk, Gap, SpoolReader
from rankmem_ship.spool_reader.segments import CONTROL_DTYPE, RECORD_DTYPE, marks_of
from rankmem_ship.spool_upload import SpoolUpload
from spool_synthetic import SyntheticSpool, clock_record, make_records, reader_of


def everything(reader: SpoolReader, max_records: int = 1 << 20) -> list[Chunk | Gap]:
    parts = []
    while (part := reader.read(max_records)) is not None:
        parts.append(part)
    return parts


def events(count: int) -> np.ndarray:
    return make_records(count, kind=Kind.EVENT, a=np.arange(1, count + 1), b=1)


def gaps(parts: list[Chunk | Gap]) -> list[tuple[int, int, str]]:
    return [(p.sequence_first, p.sequence_last, p.why) for p in parts if isinstance(p, Gap)]


def committed(parts: list[Chunk | Gap]) -> int:
    return sum(len(p.records) for p in parts if isinstance(p, Chunk))


def test_records_of_the_python_writer_come_back_with_their_strings(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "facts", alive=True)
    writer = PythonSpoolWriter(tmp_path / "s", 64 << 20)
    (tmp_path / "s" / "meta.json").write_text((spool.path / "meta.json").read_text())
    operator = writer.intern("aten::mm")
    stack = writer.stack([writer.frame("/project/a.py", "forward", 12)])
    writer.record(
        Kind.EVENT, action=Action.ALLOC, address=0x1000, size_bytes=64, call_id=3, thread=2, stack_id=operator
    )
    writer.close()
    reader = reader_of(tmp_path / "s")
    (chunk,) = everything(reader)
    assert isinstance(chunk, Chunk)
    assert list(chunk.records["kind"]) == [Kind.CLOCK, Kind.EVENT, Kind.END]
    event = chunk.records[1]
    assert (event["a"], event["b"], event["call_id"], event["thread"]) == (0x1000, 64, 3, 2)
    assert reader.strings.text(operator) == "aten::mm"
    assert reader.strings.stack(stack) == [("/project/a.py", "forward", 12)]
    assert reader.is_finished()


def test_reading_goes_over_segments_and_stops_where_the_writer_is(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s", alive=True)
    spool.append(events(RECORDS_PER_SEGMENT + 10))
    reader = reader_of(spool.path)
    parts = everything(reader, 50_000)
    assert [p.sequence_first for p in parts] == [0, 50_000, RECORDS_PER_SEGMENT]
    addresses = np.concatenate([p.records["a"] for p in parts if isinstance(p, Chunk)])
    assert (addresses == np.arange(1, RECORDS_PER_SEGMENT + 11)).all()
    assert not reader.is_finished()
    spool.append(events(5))
    assert committed(everything(reader)) == 5


def test_a_record_without_its_mark_is_never_delivered_while_its_writer_lives(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s", alive=True)
    spool.append(events(10), torn=[4])
    reader = reader_of(spool.path)
    parts = everything(reader)
    assert committed(parts) == 4
    assert reader.read(100) is None
    assert not reader.is_finished()


def test_torn_records_of_a_dead_writer_are_a_gap_and_those_behind_them_are_delivered(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s")
    spool.append(events(10), torn=[4, 5, 9])
    reader = reader_of(spool.path)
    parts = everything(reader)
    assert gaps(parts) == [(4, 5, "torn"), (9, 9, "torn")]
    assert committed(parts) == 7
    assert reader.is_finished()


def test_a_wrong_mark_of_a_dead_writer_is_called_corrupt(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s")
    spool.append(events(4))
    with (spool.path / segment_name(0)).open("r+b") as file:
        file.seek(4096 + 2 * 64 + 60)
        file.write(b"\x77\x77\x77\x77")
    assert gaps(everything(reader_of(spool.path))) == [(2, 2, "corrupt")]


def test_a_lost_segment_is_one_gap_once_all_its_numbers_are_taken(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s", alive=True)
    spool.append(events(RECORDS_PER_SEGMENT))
    reader = reader_of(spool.path)
    assert gaps(everything(reader)) == []
    spool.lose_segment()
    spool.append(events(3))
    parts = everything(reader)
    assert gaps(parts) == [(RECORDS_PER_SEGMENT, 2 * RECORDS_PER_SEGMENT - 1, "spool_full")]
    assert committed(parts) == 3


def test_a_lost_segment_in_use_is_no_gap_yet_and_ends_where_the_writer_died(tmp_path: Path) -> None:
    for alive in (True, False):
        spool = SyntheticSpool(path=tmp_path / f"s{alive}", alive=alive)
        spool.append(events(RECORDS_PER_SEGMENT))
        spool.dropped, spool.next_seq = 7, spool.next_seq + 7
        spool.append(events(0))
        parts = everything(reader_of(spool.path))
        lost = [(RECORDS_PER_SEGMENT, RECORDS_PER_SEGMENT + 6, "spool_full")]
        assert gaps(parts) == ([] if alive else lost)


def test_a_segment_used_before_it_was_marked_ready_is_read_all_the_same(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s")
    spool.append(events(5))
    with (spool.path / segment_name(0)).open("r+b") as file:
        file.seek(32)
        file.write(bytes(4))
    assert committed(everything(reader_of(spool.path))) == 5


def test_a_segment_file_cut_short_gives_what_it_has_and_a_gap(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s")
    spool.append(events(1000))
    os.truncate(spool.path / segment_name(0), 4096 + 100 * 64 + 7)
    parts = everything(reader_of(spool.path))
    assert committed(parts) == 100
    assert gaps(parts) == [(100, 999, "corrupt")]


def test_a_file_that_vanished_is_corrupt_and_one_we_deleted_is_not(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s")
    spool.append(events(RECORDS_PER_SEGMENT + 1))
    (spool.path / segment_name(0)).unlink()
    assert gaps(everything(reader_of(spool.path))) == [(0, RECORDS_PER_SEGMENT - 1, "corrupt")]
    reader = reader_of(spool.path)
    reader.acknowledge(RECORDS_PER_SEGMENT)
    assert gaps(everything(reader)) == [(0, RECORDS_PER_SEGMENT - 1, "other_database")]


@pytest.mark.parametrize("taken", [2**47, 2**63 + 5])
def test_a_counter_beyond_any_log_ends_it_at_once_behind_a_dead_writer(tmp_path: Path, taken: int) -> None:
    spool = SyntheticSpool(path=tmp_path / "s", alive=False)
    spool.append(events(100))
    spool.next_seq = taken
    spool.append(events(0))  # tells control
    parts = everything(reader_of(spool.path))
    assert committed(parts) == 100
    torn, *beyond = gaps(parts)
    assert torn == (100, RECORDS_PER_SEGMENT - 1, "torn")
    assert beyond == ([] if taken > SEQUENCE_MAX else [(RECORDS_PER_SEGMENT, taken - 1, "corrupt")])


@pytest.mark.parametrize("beat_ns", [2**60 + 1, 2**64 - 1])
def test_a_damaged_heartbeat_says_nothing_of_the_end(tmp_path: Path, beat_ns: int) -> None:
    spool = SyntheticSpool(path=tmp_path / "s", alive=False)
    spool.append(events(1))
    control = np.memmap(spool.path / "control", CONTROL_DTYPE, "r+", shape=1)
    control["heartbeat_ns"] = 5
    control.flush()
    assert reader_of(spool.path).last_beat_ns == 5
    control["heartbeat_ns"] = beat_ns
    control.flush()
    assert reader_of(spool.path).last_beat_ns == 0
    upload = SpoolUpload(spool.path, SendBuffer())
    assert upload.last_seen_ns == upload.meta.realtime_ns, "its start is the last that is known"
    upload.close()


def test_between_two_segments_far_apart_lies_one_hole_behind_a_dead_writer(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s", alive=False)
    spool.append(events(RECORDS_PER_SEGMENT))
    spool.next_seq = 2**40
    spool.append(events(10))
    parts = everything(reader_of(spool.path))
    assert committed(parts) == RECORDS_PER_SEGMENT + 10
    assert gaps(parts) == [(RECORDS_PER_SEGMENT, 2**40 - 1, "corrupt")]


def test_segments_are_deleted_only_below_the_cursor(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s")
    spool.append(events(2 * RECORDS_PER_SEGMENT + 5))
    reader = reader_of(spool.path)
    reader.read(10)
    assert reader.delete_segments_below(3 * RECORDS_PER_SEGMENT) == 0
    everything(reader)
    assert reader.delete_segments_below(2 * RECORDS_PER_SEGMENT - 1) == 1
    assert reader.delete_segments_below(2 * RECORDS_PER_SEGMENT + 5) == 1
    assert (spool.path / segment_name(2)).stat().st_size == SEGMENT_BYTES


def test_a_string_cut_short_or_with_a_wrong_crc_waits_for_the_rest(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s")
    first, second = spool.string("aten::add"), spool.string("aten::mul")
    path = spool.path / "strings"
    whole = path.read_bytes()
    path.write_bytes(whole[:-12] + b"x" * 12)
    reader = reader_of(spool.path)
    reader.strings.poll()
    assert (reader.strings.text(first), reader.strings.text(second)) == ("aten::add", None)
    path.write_bytes(whole)
    reader.strings.poll()
    assert reader.strings.text(second) == "aten::mul"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"version": FORMAT_VERSION + 1}, Code.UNSUPPORTED),
        ({"format": "other"}, Code.INVALID),
        ({"spool_id": "no-numbers"}, Code.INVALID),
        ({"clock": None}, Code.INVALID),
    ],
)
def test_a_meta_that_cannot_be_used_is_refused_by_its_name(
    tmp_path: Path, change: dict[str, object], code: Code
) -> None:
    spool = SyntheticSpool(path=tmp_path / "s")
    path = spool.path / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RankmemError, match=str(path)) as raised:
        read_meta(spool.path)
    assert raised.value.code is code


def test_a_damaged_control_file_and_newer_files_are_refused(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "s")
    spool.append(events(1))
    with (spool.path / segment_name(0)).open("r+b") as file:
        file.seek(8)
        file.write(b"\x09")
    with pytest.raises(RankmemError, match="segment-00000000 has format version 9"):
        reader_of(spool.path).read(1)
    (spool.path / "control").write_bytes(b"short")
    with pytest.raises(RankmemError, match="control"):
        reader_of(spool.path)


def test_marks_are_those_of_the_layout_also_where_they_wrap() -> None:
    for number in (0, 3, 2**31 // RECORDS_PER_SEGMENT - 1, 2**31 // RECORDS_PER_SEGMENT):
        first = number * RECORDS_PER_SEGMENT
        marks = marks_of(number, 1, 70)
        assert list(marks) == [mark_of(first + i) for i in range(1, 70)]
    assert marks_of(2**31 // RECORDS_PER_SEGMENT - 1, 0, RECORDS_PER_SEGMENT)[-1] == mark_of(2**31 - 1)


def test_this_process_is_alive_and_one_of_another_start_is_not() -> None:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert process_is_alive(os.getpid(), ticks)
    assert not process_is_alive(os.getpid(), ticks + 1)
    assert not process_is_alive(2**22 + 1, ticks)


def test_a_spool_whose_process_went_on_as_another_program_is_finished(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / f"0-0-{os.getpid()}", alive=True)
    spool.append(np.concatenate([clock_record(spool), events(2)]))
    reader = reader_of(spool.path)
    everything(reader)
    assert not reader.is_finished()
    later = tmp_path / f"0-0-{os.getpid()}-1"
    later.mkdir()
    (later / "meta.json").write_text("{}")
    reader = reader_of(spool.path)
    everything(reader)
    assert reader.is_finished()


def test_the_dtype_is_one_record(tmp_path: Path) -> None:
    assert RECORD_DTYPE.itemsize == 64
