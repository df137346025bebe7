"""Spools that cannot be stored: kept on disk, out of the way, and told to be missing.

Stage: shipper process, on the loop's thread. In: a lane whose rest was refused for ever, or cannot be read,
paired or encoded. Out: a row of ``gap`` over that rest, so that no answer says complete, and the spool in the
folder ``set-aside`` next to the others, where no shipper looks. ``rankmem ship`` of that folder tries again.

A mark in the spool says why (see ``marks``). A spool whose rank lives stays where the rank writes, and is
moved when nothing more comes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.collector_pb2 import Batch, TableRows
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.envelope import Envelope
from rankmem_ship.marks import FOLDER_NAME, Mark, read_mark, write_mark
from rankmem_ship.pairing.columns import rows_of
from rankmem_ship.pairing.rows import Rows
from rankmem_ship.pairing.state import PairingState
from rankmem_ship.pairing.upserts import Ended, host_row, merged_notes, rank_row, session_row
from rankmem_ship.spool_upload import Lane, LaneState, Riders

WHY: Final = "set_aside"
"""In ``gap.why``."""


def failure_of(exc: Exception) -> tuple[RankmemError, bool]:
    """What stopped a spool, and whether it would again: then it is set aside. What is the machine's fault, or
    another version's to read, stays where it is for the next shipper."""
    if isinstance(exc, MemoryError):
        raise exc  # no spool's fault
    if isinstance(exc, RankmemError):
        return exc, exc.code is Code.INVALID
    if isinstance(exc, OSError):
        return RankmemError(Code.UNAVAILABLE, str(exc)), False
    what = f"it cannot be shipped: {type(exc).__name__}: {exc}"
    return RankmemError(Code.INTERNAL, what, "report it, with the spool's folder"), True


class AsideLane(Lane):
    """A lane in which nothing is sent any more but that the rest is missing.

    Args:
        lane: the one that failed; this takes its place.
        error: why.

    Raises:
        OSError: the mark cannot be written; the spool stays as it is.
    """

    def __init__(self, lane: Lane, error: RankmemError) -> None:
        vars(self).update(vars(lane))
        self.state = LaneState.NEW
        self.error = error
        self._unacked = deque()
        self._outgoing.clear()
        self._is_told = False  # while the rank lives: that all from here on is missing
        self._is_bare = False  # with the gap row alone, for other rows were refused too
        self._is_mute = False  # even that was refused
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
        """While it is open whether something is still to be said; then what is not stored."""
        if not self.is_over:
            return int(self._next_range() is not None)
        return max(self.reader.next_seq - 1 - self._stored_for_real(), 0)

    @property
    def num_unsent(self) -> int:
        """None: nothing waits for a beat."""
        return 0

    def opened(self, last_sequence: int) -> list[Envelope]:
        """The aggregator says how far it has the spool. Raises OSError where the mark cannot be written."""
        stored = self._before.stored(self.database_id, last_sequence)
        databases = {self.database_id: stored} | self._mark.databases
        if databases != self._mark.databases:
            self._mark = replace(self._mark, databases=databases)
            write_mark(self.folder, self._mark)
        self._read_what_is_stored()
        self.state, self.stored = LaneState.READY, last_sequence
        self._unacked.clear()
        return []

    def next_batch(self, riders: Riders) -> Envelope | None:
        """The batch that says what is missing, once."""
        span = self._next_range()
        if self.state is not LaneState.READY or self._unacked or span is None:
            return None
        first, last, final = span
        message = Batch(
            spool_id=self.meta.spool_id,
            sequence_first=first,
            sequence_last=last,
            tables=[TableRows(table=name, arrow_ipc=encode_rows(rows)) for name, rows in self._rows(*span)],
            final=final,
        )
        envelope = Envelope(message=message, size_bytes=message.ByteSize(), state_after=PairingState())
        self._unacked.append(envelope)
        return envelope

    def acknowledged(self, last_sequence: int) -> None:
        """The aggregator knows what is missing up to there."""
        if self.state is LaneState.READY:
            self.stored = max(self.stored, last_sequence)
            while self._unacked and self._unacked[0].message.sequence_last <= last_sequence:
                self._unacked.popleft()
                self._is_told = True

    def refused(self) -> None:
        """What says so is refused, too: once more without the rank's own facts, then not at all."""
        self.state = LaneState.NEW
        self._is_bare, self._is_mute = True, self._is_bare
        self._unacked.clear()

    def keep_house(self, now_s: float) -> None:
        """Moves the spool away once all is said and its rank writes no more. Raises OSError."""
        if self._has_ended() and self._next_range() is None and not self._unacked:
            place = self.folder
            if self.folder.parent.name != FOLDER_NAME:
                place = self.folder.parent / FOLDER_NAME / self.folder.name
                place.parent.mkdir(mode=0o700, exist_ok=True)
                os.rename(self.folder, place)
            said = f"{self.folder.name} is set aside: {self._mark.message}"
            self.fail(RankmemError(self._mark.code, said, f"rankmem ship {place} tries again"))

    def _read_what_is_stored(self) -> None:
        """After a restart: once more up to what the database has, so that the rank's row says it right."""
        stored = self._stored_for_real()
        if self._acked_state is None and stored >= 0:
            with contextlib.suppress(Exception):  # whatever stopped the spool may stand there
                self._begin_anew(stored)

    def _has_ended(self) -> bool:
        return self.reader.ended or self.reader.writer_is_gone()

    def _next_range(self) -> tuple[int, int, bool] | None:
        """First and last position to be told as missing, and whether the log ends there; None: none now."""
        if self._is_mute:
            return None
        first, end = self.stored + 1, self.reader.next_seq
        if self._has_ended():  # the end of a log has a number of its own
            return (first, end, True) if first <= end else None
        return (first, end - 1, False) if first < end and not self._is_told else None

    def _stored_for_real(self) -> int:
        return self._mark.databases.get(self.database_id, -1)

    def _rows(self, first: int, last: int, final: bool) -> Sequence[Rows]:
        """The gap row, and the rank's own as far as they can be made."""
        known = self._acked_state or PairingState()
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
        if self._is_bare:
            return rows
        try:
            notes = merged_notes(state.notes, self.reader.strings)
        except Exception:  # noqa: BLE001  whatever stopped the spool may stand in them
            notes = {}
        ended_ns = self.reader.control_value("heartbeat_ns") + self.base_ns
        ended = Ended(at_ns=ended_ns, exited=self.reader.exited()) if final else None
        rank = rank_row(self.meta, notes, state, None, ended)
        session = session_row(self.meta, notes, ended_ns if final else None)
        named = (("rank_info", rank), ("session", session), ("host_info", host_row(self.meta, notes)))
        return [*rows, *((name, rows_of(name, [row])) for name, row in named)]
