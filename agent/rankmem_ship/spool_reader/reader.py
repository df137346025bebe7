"""A spool, read while it is written: committed records in order, and the holes between them.

Stage: spool, reading side. In: the folder of one rank process (see rankmem_agent.spool.layout). Out:
:class:`Chunk` (contiguous committed records, a read-only view of the mapping) and :class:`Gap` (numbers
that will never hold a record). Runs in the shipper process, on its loop's thread; never in the trainer.
It must never hand out a record that is not committed, never touch a page behind a file's end (SIGBUS),
and call a number lost only when no writer can still fill it.

What makes a hole, and when it is known:

* a *lost* segment: a number in it was taken while its file was not ready. Known once every number of it
  is taken, or the writer is gone. Reason ``spool_full``.
* a *torn* record: taken, never committed, and the writer is gone. Reason ``torn``, or ``corrupt`` if its
  mark is neither zero nor right.
* a committed record that no writer wrote (see ``spool_reader.plausible``). Reason ``corrupt``.
* a segment file that is cut short or whose header is wrong, and what ``control`` counts beyond any log.
  Reason ``corrupt``, once the writer is gone.
* a segment that was acknowledged and deleted, but is asked for again. Reason ``other_database``.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rankmem_agent.spool.exits import Exit, exit_of_zombie
from rankmem_agent.spool.layout import (
    META_NAME,
    RECORDS_PER_SEGMENT,
    ExitKind,
    Kind,
    State,
    order_check,
    segment_name,
)
from rankmem_agent.spool.life import is_held
from rankmem_agent.spool.meta import read_meta
from rankmem_agent.spool.process_stat import process_is_alive
from rankmem_protos.bounds import SEQUENCE_MAX
from rankmem_ship.spool_reader.plausible import UPTIME_NS_MAX, implausible
from rankmem_ship.spool_reader.segments import Array, marks_of, num_committed, open_control, open_segment
from rankmem_ship.spool_reader.string_table import StringTable

ALIVE_CHECK_S: Final = 0.25
"""Whether a writer lives is asked at most this often."""
EXIT_WAIT_S: Final = 30.0
"""From END to the exit code, while the process lives: the interpreter's end lies between, seconds on a busy
machine. One that takes longer is recorded without."""
HOLES_MAX: Final = 65_536
"""Missing segments of a dead writer that are recorded one by one. With more, ``control`` is damaged as well,
and those up to the next file are one hole: 2^32 rows of gap would take for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Committed records ``sequence_first`` and on, without a hole."""

    sequence_first: int
    records: Array
    """RECORD_DTYPE; a read-only view of the mapped segment."""

    @property
    def sequence_last(self) -> int:
        """Number of the last record."""
        return self.sequence_first + len(self.records) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Numbers that will never hold a record, both ends included."""

    sequence_first: int
    sequence_last: int
    why: str
    """spool_full, torn, corrupt or other_database; see the table gap."""


class SpoolReader:
    """The spool in ``path``: :meth:`read` gives what is committed from :attr:`cursor` on.

    Args:
        path: folder of one spool.

    Raises:
        RankmemError: see :func:`read_meta`; INVALID also if ``control`` is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta = read_meta(path)
        self.strings = StringTable(path / "strings")
        self.cursor = 0
        self._control_map, self._control = open_control(path / "control")
        self._segment_number = -1
        self._segment: Array | None = None
        self._alive = True
        self._alive_checked_s = -1.0
        self._ended_s = 0.0
        self._left: Exit | None = None

    # -- what the trainer recorded of itself ---------------------------------------------------------

    def control_value(self, name: str) -> int:
        """A field of ``control``, as it is now."""
        return int(self._control[name][0])

    @property
    def last_beat_ns(self) -> int:
        """When the trainer was last seen at work, CLOCK_MONOTONIC; 0 where ``control`` is damaged there."""
        beat_ns = self.control_value("heartbeat_ns")
        return beat_ns if beat_ns <= UPTIME_NS_MAX else 0

    @property
    def next_seq(self) -> int:
        """The number that the next writer will take: all below are taken."""
        taken = self.control_value("next_seq")
        # Beyond any log ``control`` is damaged, and the segments say where this one ends.
        return (
            taken if taken <= SEQUENCE_MAX else (max(self._segments(), default=-1) + 1) * RECORDS_PER_SEGMENT
        )

    @property
    def ended(self) -> bool:
        """The trainer has written that nothing follows."""
        return self.control_value("state") == State.ENDED

    def writer_is_gone(self) -> bool:
        """Whether the trainer's process is dead, wherever it ran; once true it stays true."""
        now = time.monotonic()
        if self._alive and now - self._alive_checked_s >= ALIVE_CHECK_S:
            process = self.meta.pid, self.meta.process_start_ticks
            self._alive = bool(is_held(self.path)) or (
                process_is_alive(*process) and not self._was_replaced()
            )
            if not self._alive:
                self._left = exit_of_zombie(*process)
            self._alive_checked_s = now
        return not self._alive

    def _was_replaced(self) -> bool:
        """The process lives, but as another program (exec) that has begun a spool of its own."""
        meta = self.meta
        later = f"{meta.attempt}-{meta.rank}-{meta.pid}-{meta.start + 1}"
        return (self.path.parent / later / META_NAME).exists()

    def is_finished(self) -> bool:
        """Whether nothing more will come: everything is read, and the writer has ended or is gone."""
        over = self._has_written_all() or self.writer_is_gone()
        return over and self.cursor >= self.next_seq

    def exited(self) -> Exit | None:
        """How the process ended: as it or its launcher recorded it, else by its remains; None: not
        known."""
        kind, code = self.control_value("exit_kind"), self.control_value("exit_code")
        if kind in (ExitKind.EXIT, ExitKind.AT_ONCE, ExitKind.SIGNAL):
            return Exit(kind=ExitKind(kind), code=code)
        return self._left

    def _has_written_all(self) -> bool:
        """It wrote END, and how it exits where that is to follow: a moment later, or not at all."""
        if not self.ended:
            return False
        if not self.control_value("exit_follows") or self.control_value("exit_kind"):
            return True
        now = time.monotonic()
        self._ended_s = self._ended_s or now
        return now - self._ended_s >= EXIT_WAIT_S

    def acknowledge(self, sequence_next: int) -> None:
        """Record for the trainer that records below ``sequence_next`` are durable, and that the shipper
        lives."""
        if self._control.flags.writeable:
            self._control["acked_seq"] = sequence_next
            self._control["shipper_pid"] = os.getpid()
            self._control["shipper_heartbeat_ns"] = time.monotonic_ns()

    # -- the log ---------------------------------------------------------------------------------

    @property
    def takes_orders(self) -> bool:
        """Whether what writes it reads orders."""
        return self.control_value("order_reader") == 1

    def give_order(self, number: int, detail: int, step_first: int, step_last: int) -> bool:
        """Write an order for the tap; False while it has not read the one before, or cannot get any.

        Args:
            number: higher than any before.
            detail: ``layout.Detail``.
            step_first, step_last: the steps, both included; UNKNOWN as the last one: for good.
        """
        control = self._control
        if not control.flags.writeable or not self.takes_orders:
            return False
        if self.control_value("order_number") != self.control_value("order_taken"):
            return False
        control["order_detail"], control["order_step_first"] = detail, step_first
        control["order_step_last"] = step_last
        control["order_check"] = order_check(number, detail, step_first, step_last)
        control["order_number"] = number
        return True

    def read(self, max_records: int) -> Chunk | Gap | None:
        """What comes next, at most ``max_records`` (and never past a segment's end); None: nothing yet.

        Moves the cursor past what it returns. The strings of the returned records are readable after it.
        """
        # The order matters: "gone" before "taken" before "committed". Seen gone, nothing can be taken
        # later; a number seen taken was taken from a segment that was ready before or never will be.
        gone = self.writer_is_gone()
        taken = self.next_seq
        if self.cursor >= taken:
            return None
        number, index = divmod(self.cursor, RECORDS_PER_SEGMENT)
        segment = self._map_segment(number)
        if segment is None:
            if taken < (number + 1) * RECORDS_PER_SEGMENT and not gone:
                return None  # wait till the whole hole is known: its rows must not depend on when we looked
            segment = self._adopt_unready(number)
        if segment is None:
            return self._missing_segment(number, taken, gone)
        stop = min(taken - number * RECORDS_PER_SEGMENT, index + max_records, RECORDS_PER_SEGMENT)
        committed = num_committed(segment, number, index, min(stop, len(segment)))
        if committed:
            return self._committed(segment[index : index + committed])
        return self._torn(segment, number, index, stop) if gone else None

    def _committed(self, records: Array) -> Chunk | Gap:
        """The records up to the first that cannot be, or the hole that those are which stand first."""
        records = records[: _up_to_detail(records)]
        wrong = implausible(records)
        count = int(wrong.argmax()) if wrong.any() else len(records)
        if not count:
            length = len(records) if wrong.all() else int(wrong.argmin())
            return self._gap(self.cursor + length - 1, "corrupt")
        chunk = Chunk(sequence_first=self.cursor, records=records[:count])
        self.cursor += count
        self.strings.poll()
        return chunk

    def delete_segments_below(self, sequence: int) -> int:
        """Delete the segments that hold only records below ``sequence``; returns how many."""
        deleted = 0
        for number in sorted(self._segments()):
            if (number + 1) * RECORDS_PER_SEGMENT <= min(sequence, self.cursor):
                if number == self._segment_number:
                    self._segment, self._segment_number = None, -1
                (self.path / segment_name(number)).unlink(missing_ok=True)
                deleted += 1
        return deleted

    def size_bytes(self) -> int:
        """Bytes of the spool on its file system, by its files."""
        return sum(entry.stat().st_size for entry in os.scandir(self.path) if entry.is_file())

    def close(self) -> None:
        """Let go of the files. Chunks handed out keep their mapping alive."""
        self.strings.close()
        self._segment = None

    def _map_segment(self, number: int) -> Array | None:
        """The records of a ready segment as far as its file goes; None if it is not there or not ready."""
        if number != self._segment_number:
            self._segment = open_segment(self.path / segment_name(number), number, ready_only=True)
            self._segment_number = number if self._segment is not None else -1
        return self._segment

    def _missing_segment(self, number: int, taken: int, gone: bool) -> Gap | None:
        last = min((number + 1) * RECORDS_PER_SEGMENT, taken) - 1
        if (number + 1) * RECORDS_PER_SEGMENT <= self.control_value("acked_seq"):
            return self._gap(last, "other_database")
        if gone and taken // RECORDS_PER_SEGMENT - number > HOLES_MAX:
            found = min((other for other in self._segments() if other > number), default=number)
            return self._gap(found * RECORDS_PER_SEGMENT - 1 if found > number else taken - 1, "corrupt")
        if (self.path / segment_name(number)).exists() and not gone:
            return None  # the native thread is about to take back a segment that was declared lost
        # A writer counts what it could not write; without a count the file was taken from us.
        return self._gap(last, "spool_full" if self.control_value("dropped") else "corrupt")

    def _segments(self) -> list[int]:
        """Numbers of the segments' files."""
        names = [path.name.removeprefix("segment-") for path in self.path.glob("segment-*")]
        return [int(name) for name in names if name.isdecimal()]

    def _adopt_unready(self, number: int) -> Array | None:
        """A segment that writers used, though its header was never marked ready; None if this is not one.

        The tap's native thread publishes a segment to the writers an instant before it marks the file; it
        may be killed, or kept from its processor, in between. A record in it shows that it is in use.
        """
        segment = open_segment(self.path / segment_name(number), number, ready_only=False)
        if segment is None or not (segment["mark"] == marks_of(number, 0, len(segment))).any():
            return None
        self._segment, self._segment_number = segment, number
        return segment

    def _torn(self, segment: Array, number: int, index: int, stop: int) -> Gap:
        """The hole at the cursor, up to the next committed record or ``stop``; the writer is gone."""
        if index >= len(segment):
            return self._gap(number * RECORDS_PER_SEGMENT + stop - 1, "corrupt")
        upto = min(stop, len(segment))
        marks = segment["mark"][index:upto]
        wrong = marks != marks_of(number, index, upto)
        length = len(marks) if wrong.all() else int(wrong.argmin())
        why = "corrupt" if marks[:length].any() else "torn"
        return self._gap(self.cursor + length - 1, why)

    def _gap(self, sequence_last: int, why: str) -> Gap:
        gap = Gap(sequence_first=self.cursor, sequence_last=sequence_last, why=why)
        self.cursor = sequence_last + 1
        return gap


def _up_to_detail(records: Array) -> int:
    """How many records lie before the first DETAIL behind another record: a chunk begins with it.

    What is known about events changes there, and pairing goes by whole chunks.
    """
    is_detail = records["kind"] == Kind.DETAIL
    if not is_detail.any():
        return len(records)
    begins = np.flatnonzero(is_detail[1:] & ~is_detail[:-1]) + 1
    return int(begins[0]) if len(begins) else len(records)
