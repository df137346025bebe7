"""Spools that cannot be stored: kept on disk, out of the way, and reported as missing.

Stage: shipper process, on the loop's thread. In: an upload whose rest was refused for good, or cannot be
read, paired or encoded. Out: a row of ``gap`` over that rest, so that no answer claims to be complete, and
the spool in the folder ``set-aside`` next to the others, where no shipper looks. ``rankmem ship`` of that
folder tries again.

A mark in the spool gives the reason (see ``marks``). A spool whose rank lives stays where the rank writes,
and is moved when nothing more comes.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.collector_pb2 import Batch, TableRows
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.encoding import EncodedBatch, Leave
from rankmem_ship.marks import FOLDER_NAME, Mark, read_mark, write_mark
from rankmem_ship.pairing.columns import rows_of
from rankmem_ship.pairing.rows import Rows
from rankmem_ship.pairing.state import PairingState
from rankmem_ship.pairing.upserts import Ended, host_row, merged_notes, rank_row, session_row
from rankmem_ship.spool_upload import Attach, SpoolUpload, UploadState

WHY: Final = "set_aside"
"""In ``gap.why``."""


def failure_of(exc: Exception) -> tuple[RankmemError, bool]:
    """The error that stopped a spool, and whether it is permanent: then the spool is set aside. Faults of the
    machine, and spools of another version, stay where they are for the next shipper."""
    if isinstance(exc, MemoryError):
        raise exc  # no spool's fault
    if isinstance(exc, RankmemError):
        return exc, exc.code is Code.INVALID
    if isinstance(exc, OSError):
        return RankmemError(Code.UNAVAILABLE, str(exc)), False
    message = f"it cannot be shipped: {type(exc).__name__}: {exc}"
    return RankmemError(Code.INTERNAL, message, "report it, with the spool's folder"), True


class SetAsideUpload(SpoolUpload):
    """An upload that sends one more batch: the gap row that the rest is missing.

    Args:
        upload: the one that failed; this takes its place.
        error: why.

    Raises:
        OSError: the mark cannot be written; the spool stays as it is.
    """

    def __init__(self, upload: SpoolUpload, error: RankmemError) -> None:
        vars(self).update(vars(upload))
        self.state = UploadState.NEW
        self.error = error
        self._paired = self.queue.acked_state  # what is known of the log up to what is stored
        self._drop_batches()
        self._report_last = NUMBER_MAX  # least end of a report that was sent: below it, no report is stored
        self._is_reported = False  # while the rank lives: that all from here on is missing
        self._gap_only = False  # the other rows of the report were refused, too
        self._is_silent = False  # even the gap row was refused
        self._before = read_mark(self.folder) or Mark(code=error.code, message=error.message)
        self._mark = Mark(
            code=error.code,
            message=error.message,
            hint=error.hint,
            at_ns=time.time_ns(),
            databases=self._before.databases,
        )
        write_mark(self.folder, self._mark)

    @property
    def pending_records(self) -> int:
        """While it is open: 1 if something is still to be reported; then the records that are not stored."""
        if not self.is_over:
            return int(self._next_range() is not None)
        return max(self.reader.next_seq - 1 - self._really_stored(), 0)

    @property
    def num_unsent(self) -> int:
        """None: nothing waits for a flush."""
        return 0

    def opened(self, last_sequence: int, leave: Leave | None = None) -> Sequence[EncodedBatch]:
        """Go on behind ``last_sequence``. Raises OSError where the mark cannot be written."""
        self.state, self.stored = UploadState.READY, last_sequence
        self._mark_stored()
        self._drop_batches()
        return ()

    def acknowledged(self, last_sequence: int) -> None:
        """The aggregator knows what is missing up to ``last_sequence``."""
        if self.state is UploadState.READY:
            self.stored = max(self.stored, last_sequence)
            self._is_reported |= self.queue.acknowledged(last_sequence)

    def refused(self) -> None:
        """The report was refused, too: once more without the rank's own facts, then not at all."""
        self.state = UploadState.NEW
        self._gap_only, self._is_silent = True, self._gap_only
        self._drop_batches()

    def maintain(self, now_s: float) -> None:
        """Move the spool away once all is reported and its rank writes no more. Raises OSError."""
        if self._has_ended() and self._next_range() is None and self.queue.is_empty:
            place = self.folder
            if self.folder.parent.name != FOLDER_NAME:
                place = self.folder.parent / FOLDER_NAME / self.folder.name
                place.parent.mkdir(mode=0o700, exist_ok=True)
                os.rename(self.folder, place)
            message = f"{self.folder.name} is set aside: {self._mark.message}"
            again = f"rankmem ship {shlex.quote(str(place))} tries again"
            self.fail(RankmemError(self._mark.code, message, again))

    def _encode_next(self, attach: Attach, max_records: int, allow_short: bool) -> Sequence[EncodedBatch]:
        """The batch that reports what is missing, once."""
        span = self._next_range()
        if not self.queue.is_empty or span is None:
            return ()
        self._mark_stored()
        first, last, final = span
        self._report_last = min(self._report_last, last)
        message = Batch(
            spool_id=self.meta.spool_id,
            sequence_first=first,
            sequence_last=last,
            tables=[TableRows(table=name, arrow_ipc=encode_rows(rows)) for name, rows in self._rows(*span)],
            final=final,
        )
        return (EncodedBatch(message=message, size_bytes=message.ByteSize(), state_after=PairingState()),)

    def _drop_batches(self) -> None:
        self.queue.restart(self.stored + 1, PairingState())

    def _mark_stored(self) -> None:
        """Write what the database has really stored, before more is reported to it as missing; and pair it to
        its end, for the counts in the rank's row. Raises OSError."""
        last_sequence = self.stored
        stored = self._before.stored(self.database_id, last_sequence)
        databases = {self.database_id: stored} | self._mark.databases
        if last_sequence < self._report_last:
            databases[self.database_id] = stored  # may have grown: batches are committed after the opening
        if databases != self._mark.databases:
            self._mark = replace(self._mark, databases=databases)
            write_mark(self.folder, self._mark)
        stored = self._really_stored()
        if stored >= (0 if self._paired is None else self._paired.next_seq):
            with contextlib.suppress(Exception):  # whatever stopped the spool may stand there
                self._restart(stored)
                self._paired = self.queue.acked_state
            self.stored = last_sequence

    def _has_ended(self) -> bool:
        return self.reader.ended or self.reader.writer_is_gone()

    def _next_range(self) -> tuple[int, int, bool] | None:
        """First and last position to be reported missing, and whether the log ends there; None: none now."""
        if self._is_silent:
            return None
        first, end = self.stored + 1, self.reader.next_seq
        if self._has_ended():  # the end of a log has a number of its own
            return (first, end, True) if first <= end else None
        return (first, end - 1, False) if first < end and not self._is_reported else None

    def _really_stored(self) -> int:
        return self._mark.databases.get(self.database_id, -1)

    def _rows(self, first: int, last: int, final: bool) -> Sequence[Rows]:
        """The gap row, and the rank's own rows as far as they can be made."""
        known = self._paired or PairingState()
        state = replace(known, is_off=True, saw_end=known.saw_end or (final and self.reader.ended))
        missing = last - first + 1 - final
        gap = {
            "session_id": self.meta.session_id,
            "attempt": self.meta.attempt,
            "rank": self.meta.rank,
            "sequence_first": first,
            "sequence_last": last - 1 if final and missing else last,
            "records": missing if final else 0,
            "why": WHY,
            "noticed_ns": state.last_ns or self.meta.realtime_ns,
            "detail": self._mark.message,
            "to_end": not (final and missing) or None,
        }
        rows: list[Rows] = [("gap", rows_of("gap", [gap]))]
        if self._gap_only:
            return rows
        try:
            notes = merged_notes(state.notes, self.reader.strings)
        except Exception:  # noqa: BLE001  whatever stopped the spool may stand in them
            notes = {}
        ended_ns = max(state.last_ns, self.last_seen_ns)
        ended = Ended(at_ns=ended_ns, exited=self.reader.exited()) if final else None
        rank = rank_row(self.meta, notes, state, None, ended)
        session = session_row(self.meta, notes, ended_ns if final else None)
        named = (("rank_info", rank), ("session", session), ("host_info", host_row(self.meta, notes)))
        return [*rows, *((name, rows_of(name, [row])) for name, row in named)]
