"""A lane: the way of one spool through the shipper, from its folder to the last acknowledgement.

Stage: shipper process, on the loop's thread. In: a spool folder, and what the aggregator says of it. Out:
batches in sequence order; segments, and in the end the folder, deleted. It keeps what is not acknowledged
and must never delete what no checkpoint replaces.

A lane is NEW until its OpenSpool went out, then OPENING until the aggregator said how far it has the spool,
then READY. From there the log goes on behind the last stored record; where the aggregator has less than
our checkpoint (another database), the missing stretch is one gap row and all that lives is told anew.
DONE: all is acknowledged and the folder is gone. FAILED: it cannot be shipped, and stays on disk (one that
never can is set aside first: see ``set_aside``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_agent.spool.layout import RECORDS_PER_SEGMENT, segment_name
from rankmem_protos.collector_pb2 import OpenSpool
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.checkpoint import load_checkpoint, reserve, save_checkpoint
from rankmem_ship.envelope import Envelope, Stretch, pack
from rankmem_ship.log_slices import Stretches
from rankmem_ship.pace import Pace
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.pairing.rows import Rows
from rankmem_ship.pairing.state import PairingState
from rankmem_ship.pairing.upserts import ClockEstimate
from rankmem_ship.send_buffer import Outgoing
from rankmem_ship.spool_reader.reader import Gap, SpoolReader

logger = logging.getLogger(__name__)

REPLAY_RECORDS: Final = 65_536
"""Records at once when the way from the checkpoint is gone again."""
CHECKPOINT_INTERVAL_S: Final = 2.0
"""A restarted shipper replays at most this much, or a segment."""
TIME_NS_MAX: Final = 2**62
"""Of the time at which a rank began: the year 2116. What is past it is no time."""
GONE_PREFIX: Final = ".gone-"
"""A folder with this prefix is finished and only waits for its deletion."""


class LaneState(enum.Enum):
    """Where a lane stands."""

    NEW = enum.auto()
    OPENING = enum.auto()
    READY = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Riders:
    """What rides along with a batch without being a function of the log."""

    clock: ClockEstimate | None = None
    rows: Callable[[], Sequence[Rows]] = tuple
    due: bool = False
    """With this batch; otherwise only if it is the last."""


class Lane:
    """One spool.

    Args:
        folder: the spool's folder.

    Raises:
        RankmemError: the spool cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reader = SpoolReader(folder)
        self.meta = self.reader.meta
        self.state = LaneState.NEW
        self.stored = -1
        """Last sequence that the aggregator has."""
        self.sent_bytes = 0
        self.database_id = ""
        """The database that it was last opened in."""
        self.opened_at = 0
        """Number of the last batch before it was opened: what is refused up to there was sent earlier."""
        self.error: RankmemError | None = None
        self._pairing = Pairing(self.meta, self.reader.strings)
        self._pace = Pace()
        self._stretches = Stretches(self.reader, pace=self._pace)
        self._unacked: deque[Envelope] = deque()
        self._outgoing = Outgoing()
        self._acked_state: PairingState | None = None
        self._saved_seq = -1
        self._saved_s = time.monotonic()
        self._final_packed = False
        self._is_cut_off = False  # the last connection broke before anything of what it was sent was stored
        if not self.reader.writer_is_gone():
            reserve(self.folder)  # while there is room: a rank may fill its disk before the first checkpoint

    @property
    def base_ns(self) -> int:
        """Host time minus CLOCK_MONOTONIC in this spool."""
        base_ns = self._pairing.state.clock_base_ns
        return self.meta.realtime_ns - self.meta.monotonic_ns if base_ns is None else base_ns

    @property
    def num_unacked(self) -> int:
        """Batches on the wire."""
        return len(self._unacked)

    @property
    def unacked_bytes(self) -> int:
        """Bytes of these."""
        return sum(envelope.size_bytes for envelope in self._unacked)

    @property
    def pending_records(self) -> int:
        """Records taken by the writer and not acknowledged."""
        return max(self.reader.next_seq - 1 - self.stored, 0)

    @property
    def num_unsent(self) -> int:
        """Records taken by the writer and not on the wire."""
        sent = self._unacked[-1].message.sequence_last if self._unacked else self.stored
        return max(self.reader.next_seq - 1 - sent, 0)

    @property
    def is_over(self) -> bool:
        """Nothing more is to be done with it."""
        return self.state in (LaneState.DONE, LaneState.FAILED)

    def opening(self) -> OpenSpool:
        """What opens the spool; from now on nothing is sent until the aggregator says how far it is."""
        self.state = LaneState.OPENING
        return OpenSpool(
            spool_id=self.meta.spool_id,
            session_id=self.meta.session_id,
            attempt=self.meta.attempt,
            rank=self.meta.rank,
            secret=self.meta.secret,
            start=self.meta.start_key,
            launch=self.meta.launch,
            started_ns=self.meta.realtime_ns if 0 < self.meta.realtime_ns < TIME_NS_MAX else 0,
        )

    def disconnected(self) -> None:
        """The stream is gone; what was sent may or may not be stored."""
        if not self.is_over:
            self.state = LaneState.NEW

    def broke(self) -> None:
        """The stream broke: as :meth:`disconnected`; and if it brought nothing, less is sent at once."""
        if self.state is LaneState.READY and self._unacked and not self._pace.brought_any:
            self._is_cut_off = True
        self.disconnected()

    def opened(self, last_sequence: int) -> list[Envelope]:
        """Go on behind ``last_sequence``; returns the kept batches to be sent again.

        Raises:
            RankmemError: the checkpoint is damaged, or the spool holds less than the aggregator has.
        """
        self.state = LaneState.READY
        is_cut_off, self._is_cut_off = self._is_cut_off and last_sequence <= self.stored, False
        if is_cut_off and self._pace.broke():
            self._begin_anew(last_sequence)  # what is packed is too large for this path
            again = []
        else:
            again = self._go_on(last_sequence)
        self._pace.opened()
        return again

    def _go_on(self, last_sequence: int) -> list[Envelope]:
        kept = [e for e in (*self._unacked, *self._outgoing) if e.message.sequence_last > last_sequence]
        position = kept[0].message.sequence_first if kept else self._stretches.sequence_next
        if self._acked_state is not None and position == last_sequence + 1:
            self._note_stored(last_sequence)
            again = [e for e in self._unacked if e.message.sequence_last > last_sequence]
            self._outgoing.keep_behind(last_sequence)
            self._unacked = deque(again)
            return again
        self._begin_anew(last_sequence)
        return []

    def beat(self) -> None:
        """What is packed and what is read goes out now."""
        self._outgoing.beat()

    def next_batch(self, riders: Riders) -> Envelope | None:
        """The next batch that is due, with room in this lane's window; None: nothing yet."""
        if self.state is not LaneState.READY or len(self._unacked) >= self._pace.batches_max:
            return None
        while self._outgoing.wants_more and not self._final_packed:
            at_beat = self._outgoing.may_cut(len(self._unacked))
            stretch = self._stretches.next(at_beat=at_beat)
            if stretch is not None:
                self._pack(stretch, riders)
                riders = dataclasses.replace(riders, due=False)
                continue
            if at_beat:
                self._outgoing.all_is_cut()
            break
        envelope = self._outgoing.take()
        if envelope is not None:
            self._unacked.append(envelope)
            self.sent_bytes += envelope.size_bytes
        return envelope

    def acknowledged(self, last_sequence: int) -> None:
        """The aggregator has everything up to ``last_sequence``."""
        if self.state is LaneState.READY:
            self._note_stored(last_sequence)

    def keep_house(self, now_s: float) -> None:
        """Write the checkpoint, delete what it replaces, and the folder when all is done.

        Raises:
            OSError: the checkpoint cannot be written; nothing was deleted then.
        """
        state = self._acked_state
        if self.state is not LaneState.READY or state is None:
            return
        if self._final_packed and not self._unacked and not self._outgoing:
            self._remove()
            return
        segments = state.next_seq // RECORDS_PER_SEGMENT - max(self._saved_seq, 0) // RECORDS_PER_SEGMENT
        due = segments > 0 or now_s - self._saved_s >= CHECKPOINT_INTERVAL_S
        if due and state.next_seq > max(self._saved_seq, 0):
            save_checkpoint(self.folder, state)
            self._saved_seq, self._saved_s = state.next_seq, now_s
            self.reader.delete_segments_below(state.next_seq)

    def fail(self, error: RankmemError) -> None:
        """Give this spool up; it stays on disk."""
        self.state, self.error = LaneState.FAILED, error

    def close(self) -> None:
        """Let go of the files; what is not acknowledged stays on disk."""
        self.reader.close()

    def _pack(self, stretch: Stretch, riders: Riders) -> None:
        rows: Callable[[], Sequence[Rows]] = tuple
        if stretch.final or riders.due:
            stretch, rows = dataclasses.replace(stretch, clock=riders.clock), riders.rows
        if stretch.final:
            ended_ns = self.reader.control_value("heartbeat_ns") + self.base_ns
            stretch = dataclasses.replace(
                stretch, ended_ns=ended_ns, exited=self.reader.exited(), wrote_end=self.reader.ended
            )
        envelopes = pack(self._pairing, self.meta.spool_id, stretch, rows)
        self._outgoing.put(envelopes, is_short=not stretch.full)
        self._final_packed = stretch.final

    # -- acknowledgements ------------------------------------------------------------------------

    def _note_stored(self, last_sequence: int) -> None:
        self.stored = max(self.stored, last_sequence)
        before = len(self._unacked)
        while self._unacked and self._unacked[0].message.sequence_last <= last_sequence:
            self._acked_state = self._unacked.popleft().state_after
        self._pace.stored(before - len(self._unacked))
        self.reader.acknowledge(self.stored + 1)

    def _begin_anew(self, last_sequence: int) -> None:
        """Back to the checkpoint, and from there to behind what the aggregator has."""
        self._unacked.clear()
        self._outgoing.clear()
        self._final_packed = False
        state = self._checkpoint_state()
        self._pairing = Pairing(self.meta, self.reader.strings, state)
        self.reader.cursor = state.next_seq
        self.stored = last_sequence
        self._saved_seq = state.next_seq
        missing: tuple[Gap, ...] = ()
        if state.next_seq <= last_sequence:
            self._replay(last_sequence)
        elif state.next_seq > last_sequence + 1:
            missing = (self._tell_anew(last_sequence + 1, state.next_seq - 1),)
            self._saved_s = -CHECKPOINT_INTERVAL_S  # the next one is due at once: this one knows no gap
        self._stretches = Stretches(self.reader, last_sequence + 1, missing, self._pace)
        self._acked_state = self._pairing.state
        self.reader.acknowledge(self.stored + 1)

    def _checkpoint_state(self) -> PairingState:
        """The checkpoint's state; the beginning's where there is none, or where it is damaged or of another
        version and the whole log is still there to be gone through again."""
        try:
            return load_checkpoint(self.folder) or PairingState()
        except RankmemError as exc:
            if not (self.folder / segment_name(0)).exists():
                raise
            logger.warning("%s: read again from its beginning: %s", self.folder.name, exc)
            return PairingState()

    def _replay(self, last_sequence: int) -> None:
        """Take in what is stored already and throw its rows away."""
        end = last_sequence + 1
        if end > self.reader.next_seq and self.reader.writer_is_gone() | self.reader.ended:
            end = self.reader.next_seq  # the end of the log has a number of its own, and it is stored
            self._final_packed = True
        while self.reader.cursor < end:
            part = self.reader.read(min(REPLAY_RECORDS, end - self.reader.cursor))
            if part is None:
                raise RankmemError(
                    Code.CONFLICT,
                    f"{self.folder} ends at record {self.reader.cursor}, the aggregator has {last_sequence}",
                    "keep the folder: it is not the one that was shipped before",
                )
            self._pairing.feed(part)
            self._pairing.cut()

    def _tell_anew(self, sequence_first: int, sequence_last: int) -> Gap:
        """Another database: it lacks what was acknowledged by the one before and is deleted here."""
        logger.warning(
            "%s: this database lacks records %d to %d", self.folder.name, sequence_first, sequence_last
        )
        self._pairing.forget_sent(sequence_last - sequence_first + 1)
        return Gap(sequence_first=sequence_first, sequence_last=sequence_last, why="other_database")

    def _remove(self) -> None:
        """Delete the folder; renamed first, so that a half-deleted one is never taken for a spool."""
        self.state = LaneState.DONE
        self.reader.close()
        gone = self.folder.with_name(GONE_PREFIX + self.folder.name)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.folder, gone)
        remove_gone(gone)


def remove_gone(folder: Path) -> None:
    """Delete a finished spool's folder, its meta.json first: without it nobody counts it as a spool."""
    (folder / "meta.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
