"""The Python spool writer writes the format of rankmem_agent.spool.layout, byte for byte.

The check reads the files with ``struct`` and the layout alone, not with the project's reader.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

import pytest

from rankmem_agent.spool import layout
from rankmem_agent.spool.layout import Action, DeviceType, Kind
from rankmem_agent.spool.python_writer import DROPPED, RECORD_STRUCT, PythonSpoolWriter
from spool_bytes import NAMES, control_of, entries_of, records_of

BUDGET_BYTES = 4 * layout.SEGMENT_BYTES


def test_the_record_struct_has_the_layout_of_the_format() -> None:
    assert RECORD_STRUCT.size == layout.RECORD_BYTES
    row = RECORD_STRUCT.pack(*range(1, len(NAMES) + 1))
    for number, field in enumerate(layout.RECORD_FIELDS, start=1):
        width = layout.TYPE_BYTES[field.ctype]
        assert int.from_bytes(row[field.offset : field.offset + width], "little") == number


def test_a_spool_begins_with_a_clock_record_and_ends_with_end(tmp_path: Path) -> None:
    writer = PythonSpoolWriter(tmp_path / "spool", BUDGET_BYTES)
    seq = writer.record(
        Kind.EVENT,
        action=Action.ALLOC,
        device_type=DeviceType.CUDA,
        device_index=3,
        address=0x7F00,
        size_bytes=2**40,
        thread=7,
        stack_id=1,
    )
    writer.close()
    records = records_of(tmp_path / "spool")
    assert [records[n]["kind"] for n in sorted(records)] == [Kind.CLOCK, Kind.EVENT, Kind.END]
    event = records[seq]
    assert (event["a"], event["b"], event["device_index"], event["thread"]) == (0x7F00, 2**40, 3, 7)
    control = control_of(tmp_path / "spool")
    assert (control["next_seq"], control["state"], control["dropped"]) == (3, layout.State.ENDED, 0)
    assert control["pid"] == os.getpid()


def test_a_full_budget_counts_and_drops_and_goes_on_when_the_reader_deletes(tmp_path: Path) -> None:
    writer = PythonSpoolWriter(tmp_path / "spool", layout.SEGMENT_BYTES)
    rest = layout.RECORDS_PER_SEGMENT - writer.next_seq
    blank = bytes(layout.RECORD_BYTES)
    assert writer.record_many(blank * rest) == rest
    assert writer.record(Kind.EVENT) == DROPPED
    assert writer.record_many(blank * (layout.RECORDS_PER_SEGMENT - 1)) == 0
    assert writer.dropped == layout.RECORDS_PER_SEGMENT
    (tmp_path / "spool" / layout.segment_name(0)).unlink()
    assert writer.record(Kind.EVENT, address=5) == 2 * layout.RECORDS_PER_SEGMENT
    writer.close()
    assert control_of(tmp_path / "spool")["dropped"] == layout.RECORDS_PER_SEGMENT
    assert records_of(tmp_path / "spool")[2 * layout.RECORDS_PER_SEGMENT]["a"] == 5


def test_ready_made_records_cross_a_segment_with_the_marks_of_their_numbers(tmp_path: Path) -> None:
    writer = PythonSpoolWriter(tmp_path / "spool", BUDGET_BYTES)
    count = layout.RECORDS_PER_SEGMENT + 10
    raw = b"".join(RECORD_STRUCT.pack(n, n, 0, 0, 0, 0, 0, 0, Kind.EVENT, 0, 0, 0, 0) for n in range(count))
    first = writer.next_seq
    assert writer.record_many(raw) == count
    writer.abandon()
    records = records_of(tmp_path / "spool")
    assert sorted(records) == list(range(first + count))
    assert [records[first + n]["a"] for n in (0, 1, count - 1)] == [0, 1, count - 1]
    with pytest.raises(ValueError, match="whole records"):
        writer.record_many(b"x")


def test_texts_frames_and_stacks_are_written_once_each(tmp_path: Path) -> None:
    writer = PythonSpoolWriter(tmp_path / "spool", BUDGET_BYTES)
    name = writer.intern("aten::mm")
    assert writer.intern("aten::mm") == name == 1
    frame = writer.frame("train.py", "forward", 12)
    assert writer.frame("train.py", "forward", 12) == frame
    assert writer.stack([frame]) == writer.stack([frame]) == 1
    assert writer.stack([]) == 0
    writer.frame("x" * 5000, "forward", 12)
    writer.intern("{" * 100_000)
    writer.abandon()
    entries = entries_of(tmp_path / "spool")
    kinds = [(kind, number) for kind, number, _ in entries]
    assert kinds == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (1, 4), (2, 2), (1, 5)]
    assert entries[0][2] == b"aten::mm"
    assert struct.unpack("<III", entries[3][2]) == (2, 3, 12)
    assert len(entries[5][2]) == layout.STRING_BYTES_MAX
    assert len(entries[7][2]) == layout.NOTE_BYTES_MAX


def test_a_disk_that_is_full_loses_the_segment_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PythonSpoolWriter(tmp_path / "spool", BUDGET_BYTES)
    writer.record_many(bytes(layout.RECORD_BYTES) * (layout.RECORDS_PER_SEGMENT - writer.next_seq))

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert writer.record(Kind.EVENT) == DROPPED
    assert writer.dropped == 1
    assert not (tmp_path / "spool" / layout.segment_name(1)).exists()
    writer.abandon()


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    writer = PythonSpoolWriter(tmp_path / "spool", BUDGET_BYTES)
    before = writer.next_seq
    child = os.fork()
    if child == 0:
        wrote = writer.record(Kind.EVENT)
        writer.close()
        os._exit(0 if wrote == DROPPED else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert control_of(tmp_path / "spool")["next_seq"] == before
    assert control_of(tmp_path / "spool")["state"] == layout.State.RUNNING
    writer.close()


def test_a_program_that_closes_its_descriptors_keeps_the_files_that_it_opens_then(tmp_path: Path) -> None:
    writer = PythonSpoolWriter(tmp_path / "spool", BUDGET_BYTES)
    ours = [int(fd) for fd in os.listdir("/proc/self/fd") if _name(fd) == str(tmp_path / "spool/strings")]
    ours += [int(fd) for fd in os.listdir("/proc/self/fd") if _is_lock(fd, tmp_path / "spool/control")]
    assert len(ours) == 2
    own = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    for descriptor in ours:
        os.dup2(own, descriptor)
    assert writer.intern("a new name") == 0
    assert control_of(tmp_path / "spool")["strings_dropped"] == 1
    writer.close()
    for descriptor in (own, *ours):
        assert os.fstat(descriptor).st_size == 0
        os.close(descriptor)


def _name(fd: str) -> str:
    return os.readlink(f"/proc/self/fd/{fd}") if os.path.lexists(f"/proc/self/fd/{fd}") else ""


def _is_lock(fd: str, control: Path) -> bool:
    """Whether it is the one that holds the lock: read-only, unlike the mapping's."""
    is_writable = _name(fd) != "" and fcntl.fcntl(int(fd), fcntl.F_GETFL) & os.O_RDWR
    return _name(fd) == str(control) and not is_writable


def test_no_file_of_it_is_where_a_program_has_its_input(tmp_path: Path) -> None:
    kept = os.dup(0)
    os.close(0)
    try:
        writer = PythonSpoolWriter(tmp_path / "spool", BUDGET_BYTES)
        writer.record(Kind.EVENT)
        is_taken = os.path.lexists("/proc/self/fd/0")
        writer.close()
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert not is_taken


def test_a_folder_that_holds_a_spool_is_refused(tmp_path: Path) -> None:
    PythonSpoolWriter(tmp_path / "spool", BUDGET_BYTES).close()
    with pytest.raises(FileExistsError):
        PythonSpoolWriter(tmp_path / "spool", BUDGET_BYTES)
