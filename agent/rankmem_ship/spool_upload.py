"""The upload of one spool, from its folder to the last acknowledgement.

Stage: shipper process, on the loop's thread. In: a spool folder, and how far the aggregator has it. Out:
batches in sequence order; segments, and in the end the folder, deleted. It keeps what is not acknowledged
and must never delete what no checkpoint replaces. Its queue in the send buffer decides what is sent when.

An upload is NEW until its OpenSpool was sent, then OPENING until the aggregator answered how far it has the
spool, then READY. From there the log goes on behind the last stored record; where the aggregator has less
than our checkpoint (another database), the missing range is one gap row and all that lives is sent again.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_agent.spool.layout import RECORDS_PER_SEGMENT, segment_name
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.collector_pb2 import OpenSpool
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import BUCKET_RECORDS, SUMMARY_BUCKET_RECORDS
from rankmem_ship.checkpoint import load_checkpoint, reserve, save_checkpoint
from rankmem_ship.encoding import EncodedBatch, Leave, encode
from rankmem_ship.log_slices import LogSlices
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.pairing.rows import Rows
from rankmem_ship.pairing.state import PairingState
from rankmem_ship.pairing.upserts import ClockEstimate
from rankmem_ship.send_buffer import SendBuffer
from rankmem_ship.spool_reader.reader import Gap, SpoolReader
from rankmem_ship.step_rows import StepRows

logger = logging.getLogger(__name__)

REPLAY_RECORDS: Final = 65_536
"""Records read at once when the log is gone through again from the checkpoint."""
CHECKPOINT_INTERVAL_S: Final = 2.0
"""A restarted shipper replays at most this much, or a segment."""
GONE_PREFIX: Final = ".gone-"
"""A folder with this prefix is finished and only waits for its deletion."""


class UploadState(enum.Enum):
    """Where an upload stands."""

    NEW = enum.auto()
    OPENING = enum.auto()
    READY = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachments:
    """Measurements sent with a batch that are not a function of the log."""

    clock: ClockEstimate | None = None
    rows: Callable[[], Sequence[Rows]] = tuple
    due: bool = False
    """With this batch; otherwise only if it is the last."""


Attach = Callable[[], Attachments]
"""Measures what is attached to the batch that is encoded now."""


class SpoolUpload:
    """One spool.

    Args:
        folder: the spool's folder.
        buffer: the host's send buffer.

    Raises:
        RankmemError: the spool cannot be read.
    """

    def __init__(self, folder: Path, buffer: SendBuffer) -> None:
        self.folder = folder
        self.reader = SpoolReader(folder)
        self.meta = self.reader.meta
        self.state = UploadState.NEW
        self.queue = buffer.open_queue()
        self.stored = -1
        """Last sequence that the aggregator has."""
        self.sent_bytes = 0
        self.database_id = ""
        """The database that it was last opened in."""
        self.opened_at = 0
        """Number of the last batch before it was opened: what is refused up to there was sent earlier."""
        self.error: RankmemError | None = None
        self._leave: Leave | None = None
        self._pairing = Pairing(self.meta, self.reader.strings)
        self._slices = LogSlices(self.reader)
        self._step_rows = StepRows(folder)
        self._saved_seq = -1
        self._saved_s = time.monotonic()
        self._final_encoded = False
        if not self.reader.writer_is_gone():
            reserve(self.folder)  # while there is room: a rank may fill its disk before the first checkpoint

    @property
    def last_seen_ns(self) -> int:
        """Host time of the trainer's last heartbeat; of its start where no heartbeat can be read."""
        return max(self.reader.last_beat_ns + self.base_ns, self.meta.realtime_ns)

    @property
    def base_ns(self) -> int:
        """Host time minus CLOCK_MONOTONIC in this spool."""
        base_ns = self._pairing.state.clock_base_ns
        return self.meta.realtime_ns - self.meta.monotonic_ns if base_ns is None else base_ns

    @property
    def pending_records(self) -> int:
        """Records taken by the writer and not acknowledged."""
        return max(self.reader.next_seq - 1 - self.stored, 0)

    @property
    def num_unsent(self) -> int:
        """Records taken by the writer and not sent."""
        return max(self.reader.next_seq - 1 - max(self.stored, self.queue.sequence_sent), 0)

    @property
    def expects_reply(self) -> bool:
        """Whether the aggregator has to answer something."""
        return self.state is UploadState.OPENING or self.queue.num_in_flight > 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be done with it."""
        return self.state in (UploadState.DONE, UploadState.FAILED)

    def opening(self) -> OpenSpool:
        """The request that opens the spool; nothing more is sent until :meth:`opened`."""
        self.state = UploadState.OPENING
        return self.opening_request()

    def opening_request(self) -> OpenSpool:
        """The same; changes nothing."""
        return OpenSpool(
            spool_id=self.meta.spool_id,
            session_id=self.meta.session_id,
            attempt=self.meta.attempt,
            rank=self.meta.rank,
            secret=self.meta.secret,
            start=self.meta.start_key,
            launch=self.meta.launch,
            started_ns=self.meta.realtime_ns if 0 < self.meta.realtime_ns < NUMBER_MAX else 0,
            age_ns=self._age_ns(),
        )

    def _age_ns(self) -> int:
        """How long ago the rank began, by the monotonic clock, or the wall clock after a boot: the longer."""
        by_boot = time.monotonic_ns() - self.meta.monotonic_ns
        return max(0, min(max(by_boot, time.time_ns() - self.meta.realtime_ns), NUMBER_MAX))

    def disconnected(self) -> None:
        """The spool is no longer open at the aggregator; what was sent may or may not be stored."""
        if not self.is_over:
            self.state = UploadState.NEW

    def connection_broke(self) -> None:
        """As :meth:`disconnected`; and if the connection stored nothing, less is sent at once."""
        if self.state is UploadState.READY:
            self.queue.connection_broke()
        self.disconnected()

    def opened(self, last_sequence: int, leave: Leave | None = None) -> Sequence[EncodedBatch]:
        """Go on behind ``last_sequence``, which the aggregator has; returns the batches to be sent again.

        Args:
            last_sequence: as its state says.
            leave: leaves rows of events here, for an aggregator that takes them later; None: all are sent.

        Raises:
            RankmemError: the checkpoint is damaged, or the spool holds less than the aggregator has.
        """
        self.state = UploadState.READY
        again = self.queue.reopened(last_sequence)
        if (leave is None) is not (self._leave is None):
            again = None  # what is encoded was for another aggregator
        self._leave = leave
        if again is None:
            self._restart(last_sequence)
            return ()
        self._note_stored(last_sequence)
        return again

    def next_batch(self, attach: Attach) -> EncodedBatch | None:
        """The next batch that may be sent now; None: nothing yet."""
        if self.state is not UploadState.READY:
            return None
        batch = self.queue.next(
            lambda max_records, allow_short: self._encode_next(attach, max_records, allow_short)
        )
        if batch is not None:
            self.sent_bytes += batch.size_bytes
        return batch

    def received(self, last_sequence: int) -> None:
        """The aggregator holds everything up to ``last_sequence``, and will store it."""
        if self.state is UploadState.READY:
            self.queue.received(last_sequence)

    def acknowledged(self, last_sequence: int) -> None:
        """The aggregator has everything up to ``last_sequence``."""
        if self.state is UploadState.READY:
            self._note_stored(last_sequence)

    def maintain(self, now_s: float) -> None:
        """Write the checkpoint, delete what it replaces, and the folder when all is done.

        Raises:
            OSError: the checkpoint cannot be written; nothing was deleted then.
        """
        state = self.queue.acked_state
        if self.state is not UploadState.READY or state is None:
            return
        if self._final_encoded and self.queue.is_empty:
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
        self.state, self.error = UploadState.FAILED, error
        self.queue.close()

    def close(self) -> None:
        """Let go of the files; what is not acknowledged stays on disk."""
        self.reader.close()

    def _encode_next(self, attach: Attach, max_records: int, allow_short: bool) -> Sequence[EncodedBatch]:
        """The next slice of the log as batches; empty if there is none yet."""
        log_slice = None if self._final_encoded else self._slices.next(max_records, allow_short=allow_short)
        if log_slice is None:
            return ()
        attachments = attach()
        rows: Callable[[], Sequence[Rows]] = tuple
        if log_slice.final or attachments.due:
            log_slice, rows = dataclasses.replace(log_slice, clock=attachments.clock), attachments.rows
        if log_slice.final:
            log_slice = dataclasses.replace(
                log_slice,
                ended_ns=self.last_seen_ns,
                exited=self.reader.exited(),
                wrote_end=self.reader.ended,
            )
        self._final_encoded = log_slice.final
        return encode(self._pairing, self.meta.spool_id, log_slice, rows, self._leave, self._show_steps)

    def _show_steps(self, rows: Sequence[Rows]) -> None:
        """To the trainer; without them it has none, and its events are delivered all the same."""
        with contextlib.suppress(OSError):
            self._step_rows.note(rows)

    def _note_stored(self, last_sequence: int) -> None:
        self.stored = max(self.stored, last_sequence)
        self.queue.acknowledged(last_sequence)
        self.reader.acknowledge(self.stored + 1)

    # -- from the checkpoint ---------------------------------------------------------------------

    def _restart(self, last_sequence: int) -> None:
        """Back to the checkpoint, and from there to behind what the aggregator has."""
        self._final_encoded = False
        state = self._checkpoint_state()
        self._pairing = Pairing(
            self.meta,
            self.reader.strings,
            state,
            bucket_records=BUCKET_RECORDS if self._leave is None else SUMMARY_BUCKET_RECORDS,
        )
        self.reader.cursor = state.next_seq
        self.stored = last_sequence
        self._saved_seq = state.next_seq
        missing: tuple[Gap, ...] = ()
        if state.next_seq <= last_sequence:
            self._replay(last_sequence)
        elif state.next_seq > last_sequence + 1:
            missing = (self._resend_living(last_sequence + 1, state.next_seq - 1),)
            self._saved_s = -CHECKPOINT_INTERVAL_S  # the next one is due at once: this one knows no gap
        self._slices = LogSlices(self.reader, last_sequence + 1, missing)
        self.queue.restart(last_sequence + 1, self._pairing.state)
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
        """Pair what is stored already and throw its rows away."""
        end = last_sequence + 1
        if end > self.reader.next_seq and self.reader.writer_is_gone() | self.reader.ended:
            end = self.reader.next_seq  # the end of the log has a number of its own, and it is stored
            self._final_encoded = True
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

    def _resend_living(self, sequence_first: int, sequence_last: int) -> Gap:
        """Another database lacks what the one before acknowledged and what is deleted here: the gap."""
        logger.warning(
            "%s: this database lacks records %d to %d", self.folder.name, sequence_first, sequence_last
        )
        self._pairing.forget_sent(sequence_last - sequence_first + 1)
        return Gap(sequence_first=sequence_first, sequence_last=sequence_last, why="other_database")

    def _remove(self) -> None:
        """Delete the folder; renamed first, so that a half-deleted one is never taken for a spool."""
        self.state = UploadState.DONE
        self.queue.close()
        self.reader.close()
        gone = self.folder.with_name(GONE_PREFIX + self.folder.name)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.folder, gone)
        remove_gone(gone)


def remove_gone(folder: Path) -> None:
    """Delete a finished spool's folder, its meta.json first: without it, it is no spool."""
    (folder / "meta.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
