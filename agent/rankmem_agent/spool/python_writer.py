"""The spool, written from Python: the same format as the native tap's, for where there is none.

Stage: trainer, or a test or benchmark. Comes in: records (kind and fields of
:mod:`rankmem_agent.spool.layout`) and texts to intern. Goes out: ``control``, ``strings`` and segments in
a spool folder, read by the shipper like any other. ``meta.json`` is not written here (the facts are).
Runs in the thread that calls; one lock, held for a record at a time, while signals are put off: a handler may
come back here, and would wait for its own thread. A forked child writes nothing.
It must never block on the reader and never raise for a full disk: what finds no room is counted in
``control.dropped``. Standard library only. A record costs microseconds, not the tap's nanoseconds.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
import weakref
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from rankmem_agent.signals import alone
from rankmem_agent.spool import layout, life
from rankmem_agent.spool.descriptors import OwnFile, above_the_standard_ones, open_above
from rankmem_agent.spool.layout import Entry, Kind, State
from rankmem_agent.spool.records import RECORD_STRUCT as RECORD_STRUCT
from rankmem_agent.spool.records import packed, struct_of

DROPPED: Final = -1
"""Returned by :meth:`PythonSpoolWriter.record` for a record that found no room."""

_Key = TypeVar("_Key", str, tuple[int, int, int], tuple[int, ...])
_U32_MAX: Final = 2**32 - 1
_CLOCK_INTERVAL_NS: Final = 1_000_000_000
"""As the native thread does: a clock step is noticed within a second."""


_SEGMENT_HEADER: Final = struct_of(layout.SEGMENT_HEADER_FIELDS)
_STRING_ENTRY: Final = struct_of(layout.STRING_ENTRY_FIELDS)
_READY_OFFSET: Final = next(f.offset for f in layout.SEGMENT_HEADER_FIELDS if f.name == "ready")
_CONTROL_OFFSET: Final = {f.name: f.offset for f in layout.CONTROL_FIELDS}


class PythonSpoolWriter:
    """Writes one spool folder.

    Args:
        path: the folder; made if absent, refused if it already holds a spool.
        budget_bytes: segments on disk at most, in bytes; above it records are counted and dropped
            until the reader has deleted what it acknowledged.

    Raises:
        FileExistsError: the folder already holds a spool.
        OSError: the folder, ``control`` or ``strings`` cannot be made.
    """

    def __init__(self, path: Path, budget_bytes: int) -> None:
        self._path = path
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._next_seq = 0
        self._dropped = 0
        self._segment: mmap.mmap | None = None
        self._segments_made: list[int] = []
        self._strings: dict[str, int] = {}
        self._frames: dict[tuple[int, int, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._strings_dropped = 0
        self._last_clock_ns = 0
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._strings_file = OwnFile(_create(path / "strings"))
        header = struct.pack("<8sII", layout.STRINGS_MAGIC, layout.FORMAT_VERSION, 0)
        self._strings_end = os.pwrite(self._strings_file.descriptor, header, 0)
        self._control = _mapped(path / "control", layout.CONTROL_BYTES)
        struct.pack_into("<8sII", self._control, 0, layout.CONTROL_MAGIC, layout.FORMAT_VERSION, os.getpid())
        self._life = self._hold_life()
        _silence_in_forked_children(self)
        self.clock()
        self._set_control("state", State.RUNNING)

    @property
    def next_seq(self) -> int:
        """The number that the next record will get."""
        return self._next_seq

    @property
    def dropped(self) -> int:
        """Records that found no room so far."""
        return self._dropped

    def record(self, kind: Kind, /, **fields: int) -> int:
        """Append one record; its number, or :data:`DROPPED`. Never raises for want of room.

        Args:
            fields: as in :class:`~rankmem_agent.spool.records.RecordWriter`; ``time_ns`` is CLOCK_MONOTONIC,
                now by default.
        """
        now_ns = time.monotonic_ns()
        with alone(self._lock):
            if self._closed:
                return DROPPED
            if now_ns - self._last_clock_ns >= _CLOCK_INTERVAL_NS and kind != Kind.CLOCK:
                self._append_clock(now_ns)
            return self._append(packed(kind, **({"time_ns": now_ns} | fields)))

    def record_many(self, records: bytes | bytearray | memoryview) -> int:
        """Append ready-made records (a multiple of 64 bytes, marks zero); how many found room.

        For benchmarks and bulk fallback: one copy and one strided store of the marks a segment.

        Raises:
            ValueError: the length is not a multiple of the record's.
        """
        view = memoryview(records).cast("B")
        if len(view) % layout.RECORD_BYTES:
            raise ValueError(f"{len(view)} bytes are not whole records of {layout.RECORD_BYTES}")
        written, begin = 0, 0
        with alone(self._lock):
            while begin < len(view) and not self._closed:
                room = layout.RECORDS_PER_SEGMENT - self._next_seq % layout.RECORDS_PER_SEGMENT
                count = min(room, (len(view) - begin) // layout.RECORD_BYTES)
                written += self._append_run(view[begin : begin + count * layout.RECORD_BYTES], count)
                begin += count * layout.RECORD_BYTES
        return written

    def clock(self) -> None:
        """Write a CLOCK record and the heartbeat now (done about once a second by :meth:`record`)."""
        with alone(self._lock):
            if not self._closed:
                self._append_clock(time.monotonic_ns())

    def intern(self, text: str) -> int:
        """The id of a name, or of a DEVICE's or NOTE's JSON, cut at NOTE_BYTES_MAX; 0 if not written."""
        known = self._strings.get(text)
        if known is not None:
            return known
        with alone(self._lock):
            return self._string(text, layout.NOTE_BYTES_MAX)

    def frame(self, file_path: str, function: str, line_number: int) -> int:
        """The id of a frame; 0 if it could not be written. Signals are put off, as in a drain."""
        with self._lock:
            key = (self._string(file_path), self._string(function), max(0, min(line_number, _U32_MAX)))
            return self._interned(self._frames, key, Entry.FRAME, struct.pack("<III", *key))

    def stack(self, frames: Sequence[int]) -> int:
        """The id of a stack of frame ids, nearest to the operator first; 0 for an empty one."""
        key = tuple(frames[: layout.STACK_FRAMES_MAX])
        if not key:
            return 0
        with self._lock:
            stack_id = self._interned(self._stacks, key, Entry.STACK, struct.pack(f"<{len(key)}I", *key))
            self._set_control("stacks", len(self._stacks))
            return stack_id

    def move(self, path: Path) -> None:
        """Move the spool to ``path``, an empty folder or none.

        Raises:
            OSError: it cannot be moved.
        """
        with alone(self._lock):
            os.rename(self._path, path)
            self._path = path

    def close(self) -> None:
        """Write END, mark the spool ended, let go of the files. Idempotent."""
        with alone(self._lock):
            if self._closed:
                return
            self._append(packed(Kind.END, time_ns=time.monotonic_ns(), num_dropped=self._dropped))
            self._set_control("state", State.ENDED)
            self._let_go()

    def abandon(self) -> None:
        """Let go of the files without an END, as a killed process does; forked children do so. Idempotent."""
        if not self._closed:
            self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        if self._segment is not None:
            self._segment.close()
        self._control.close()
        self._strings_file.close()
        if self._life is not None:
            self._life.close()

    def _hold_life(self) -> OwnFile | None:
        """Locks the control page until the log or this process ends; what does."""
        held = life.hold(self._path / "control")
        if held is None:
            return None
        descriptor, device, inode = held
        self._set_control("lock_device", device)
        self._set_control("lock_inode", inode)
        return OwnFile(descriptor)

    def _append(self, record: bytes) -> int:
        """Write one record at the next number; the caller holds the lock."""
        seq = self._next_seq
        index = seq % layout.RECORDS_PER_SEGMENT
        if index == 0:
            self._segment = self._new_segment(seq // layout.RECORDS_PER_SEGMENT)
        self._take(1)
        if self._segment is None:
            return DROPPED
        offset = layout.SEGMENT_HEADER_BYTES + index * layout.RECORD_BYTES
        # The mark goes in with a store of its own, after the fields: the reader may look at any moment.
        end = offset + layout.RECORD_BYTES
        self._segment[offset:end] = record
        struct.pack_into("<I", self._segment, end - 4, layout.mark_of(seq))
        return seq

    def _append_run(self, view: memoryview, count: int) -> int:
        """Write a run of records that stays within one segment; how many found room."""
        seq = self._next_seq
        index = seq % layout.RECORDS_PER_SEGMENT
        if index == 0:
            self._segment = self._new_segment(seq // layout.RECORDS_PER_SEGMENT)
        self._take(count)
        if self._segment is None:
            return 0
        begin = layout.SEGMENT_HEADER_BYTES + index * layout.RECORD_BYTES
        end = begin + len(view)
        self._segment[begin:end] = view
        with memoryview(self._segment) as whole, whole[begin:end] as run, run.cast("I") as words:
            marks = array("I", map(layout.mark_of, range(seq, seq + count)))
            words[layout.RECORD_BYTES // 4 - 1 :: layout.RECORD_BYTES // 4] = memoryview(marks)
        return count

    def _append_clock(self, now_ns: int) -> None:
        self._last_clock_ns = now_ns
        self._set_control("heartbeat_ns", now_ns)
        self._append(packed(Kind.CLOCK, time_ns=now_ns, realtime_ns=time.time_ns()))

    def _take(self, count: int) -> None:
        """Take ``count`` numbers; those of a lost segment are counted as dropped."""
        self._next_seq += count
        self._set_control("next_seq", self._next_seq)
        if self._segment is None:
            self._dropped += count
            self._set_control("dropped", self._dropped)

    def _new_segment(self, segment_number: int) -> mmap.mmap | None:
        """Reserve and map a segment; None, and the segment is lost, where budget or disk refuse."""
        if self._segment is not None:
            self._segment.close()
        made = [n for n in self._segments_made if (self._path / layout.segment_name(n)).exists()]
        self._segments_made = made
        if (len(made) + 1) * layout.SEGMENT_BYTES > self._budget_bytes:
            return None
        try:
            segment = _mapped(self._path / layout.segment_name(segment_number), layout.SEGMENT_BYTES)
        except OSError:
            return None
        made.append(segment_number)
        first = segment_number * layout.RECORDS_PER_SEGMENT
        values = (layout.SEGMENT_MAGIC, layout.FORMAT_VERSION, layout.RECORD_BYTES, segment_number, first, 0)
        _SEGMENT_HEADER.pack_into(segment, 0, *values)
        struct.pack_into("<I", segment, _READY_OFFSET, 1)
        return segment

    def _string(self, text: str, bytes_max: int = layout.STRING_BYTES_MAX) -> int:
        cut = text.encode("utf-8", "replace")[:bytes_max]
        return self._interned(self._strings, text, Entry.STRING, cut)

    def _interned(self, ids: dict[_Key, int], key: _Key, entry_type: Entry, payload: bytes) -> int:
        """The id of ``key``, written to the strings file the first time it is seen."""
        known = ids.get(key)
        if known is not None or self._closed:
            return known or 0
        new_id = len(ids) + 1
        header = _STRING_ENTRY.pack(entry_type, new_id, len(payload), zlib.crc32(payload))
        entry = header + payload + bytes(-len(payload) % 8)
        if not self._strings_file.write_at(entry, self._strings_end):
            # What was written of it is overwritten by the next entry.
            self._strings_dropped += 1
            self._set_control("strings_dropped", self._strings_dropped)
            return 0
        self._strings_end += len(entry)
        ids[key] = new_id
        return new_id

    def _set_control(self, name: str, value: int) -> None:
        code = "<I" if name == "state" else "<Q"
        struct.pack_into(code, self._control, _CONTROL_OFFSET[name], value)


def _create(path: Path) -> int:
    return open_above(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def _mapped(path: Path, size_bytes: int) -> mmap.mmap:
    """A new file, its blocks reserved (a store into a sparse page of a full tmpfs is a SIGBUS) and mapped."""
    fd = _create(path)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
        with above_the_standard_ones():
            return mmap.mmap(fd, size_bytes)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _silence_in_forked_children(writer: PythonSpoolWriter) -> None:
    """A forked child shares the mapping: it must let go of it, not write into its parent's log."""
    reference = weakref.ref(writer)

    def let_go() -> None:
        inherited = reference()
        if inherited is not None:
            inherited.abandon()

    os.register_at_fork(after_in_child=let_go)
