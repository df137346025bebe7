"""The shipper: every spool of a session on this host, to the aggregator, until all is acknowledged.

Stage: shipper process; one loop on the main thread owns all uploads and the sender. In: the session's
folder. Out: acknowledged batches, deleted spools. It finds new spools while it runs (late ranks, elastic
restarts) and outlives the ranks. It must never delete what is not acknowledged, and never take the
processor from the training: it sleeps between polls, longer when nothing comes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rankmem_protos.collector_pb2 import ClockProbe, IngestReply, IngestRequest, Refusal
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.config import ShipConfig
from rankmem_ship.edge import Edge
from rankmem_ship.encoding import EncodedBatch
from rankmem_ship.marks import check_not_reported, read_mark
from rankmem_ship.measurements import Measurements
from rankmem_ship.orders import Orders
from rankmem_ship.send_buffer import SendBuffer
from rankmem_ship.sender import Sender, refusal_error
from rankmem_ship.set_aside import SetAsideUpload, failure_of
from rankmem_ship.spool_upload import SpoolUpload, UploadState
from rankmem_ship.spools import Spools
from rankmem_ship.status import WAITING, Faults, StatusFile

logger = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""Between two looks at the spools while records come."""
POLL_LEAST_S: Final = 0.005
"""A flush that is due sooner waits so long: it is not worth more."""
IDLE_POLL_S: Final = 0.2
"""The same when none came for IDLE_AFTER_S: within the second that an event may take to be seen."""
IDLE_AFTER_S: Final = 2.0
SCAN_INTERVAL_S: Final = 0.5
"""Between two looks for new spools."""
REOPEN_S: Final = 1.0
"""A refused spool is opened again after this."""
TEMPORARY: Final = (Code.CONFLICT, Code.UNAVAILABLE, Code.EXHAUSTED)
"""Refusals that opening the spool again may cure."""


class Shipper:
    """Ships the spools of one session folder.

    Args:
        session_dir: the folder.
        config: its configuration.
        only: ship these spools alone; default: all, also those that come later.
    """

    def __init__(self, session_dir: Path, config: ShipConfig, only: Iterable[Path] | None = None) -> None:
        self.uploads: dict[Path, SpoolUpload] = {}
        self.wake = threading.Event()
        self.sender: Sender | None = None
        self.num_delivered = 0
        self._config = config
        self._faults = Faults(logger)
        self._buffer = SendBuffer()
        self._spools = Spools(session_dir, self._buffer, self._faults, only)
        self._edge = Edge(session_dir, config.edge_bytes)
        self._status = StatusFile(session_dir)
        self._measured = Measurements()
        self._orders = Orders()
        self._generation = 0
        self._failures_logged = 0
        self._batch_number = 0
        self._scan_s = 0.0
        self._reopen_s: dict[Path, float] = {}
        self._busy_s = time.monotonic()
        self._waits_for = ""  # why the aggregator is busy, until its next acknowledgement

    # -- the loop's step -------------------------------------------------------------------------

    def step(self) -> None:
        """Do all that can be done now."""
        now_s = time.monotonic()
        if now_s - self._scan_s >= SCAN_INTERVAL_S:
            self.scan()
        if not self.uploads and not (self._edge.keeps_any and self.sender is not None):
            return
        if self._poll() | self._send_batches(now_s):
            self._busy_s = now_s
        self._send_probes(now_s)
        self._maintain(now_s)
        self._write_status()

    def wait(self, stop: threading.Event | None = None) -> None:
        """Sleep until a reply comes or it is time to look again."""
        if stop is not None and stop.is_set():
            return
        now_s = time.monotonic()
        poll_s = IDLE_POLL_S if now_s - self._busy_s > IDLE_AFTER_S else POLL_S
        flush_s = self._buffer.flush_due_in_s(now_s, self._num_unsent())
        self.wake.wait(min(poll_s, max(flush_s, POLL_LEAST_S)))
        self.wake.clear()

    def scan(self) -> None:
        """Take up new spools."""
        self._scan_s = time.monotonic()
        found = self._spools.new_uploads(self.uploads)
        self.uploads |= {upload.folder: upload for upload in found}
        if self.sender is None and (found or (self._edge.keeps_any and self._config.aggregator)):
            host_uid = str(found[0].meta.host.get("host_uid") or "") if found else ""
            aggregator = self._aggregator()
            self.sender = Sender(
                aggregator,
                self._credentials(aggregator),
                host_uid,
                self.wake,
                keeps_details=self._edge.is_on,
            )

    @property
    def has_new_spools(self) -> bool:
        """Whether there are spools that no scan has seen."""
        return self._spools.has_new(self.uploads)

    @property
    def pending_records(self) -> int:
        """Records on disk that are not acknowledged."""
        return sum(upload.pending_records for upload in self.uploads.values() if not upload.is_over)

    @property
    def is_idle(self) -> bool:
        """Whether all that is written is acknowledged; ranks may still write."""
        return not any(
            upload.pending_records or upload.queue.num_in_flight or upload.reader.is_finished()
            for upload in self._open_uploads()
        )

    @property
    def is_done(self) -> bool:
        """Whether every spool that was found is delivered, or cannot be."""
        return not self._open_uploads()

    @property
    def keeps_details(self) -> bool:
        """Whether rows of events are here that may still be asked for."""
        return self._edge.keeps_any and self.sender is not None

    @property
    def is_sending_details(self) -> bool:
        """Whether rows of events are wanted, or sent and not stored."""
        return self.keeps_details and self._edge.is_sending

    @property
    def may_send_details(self) -> bool:
        """Whether the aggregator may take rows of events later; it is not known before it is connected."""
        if self._edge.error is not None:
            return False
        return self.sender is None or not self.sender.connected or self.sender.takes_details

    def send_details(self) -> None:
        """Send all rows of events that are here, whether or not they are asked for."""
        self._edge.want_all()

    @property
    def ranks_are_gone(self) -> bool:
        """Whether no process that writes one of the spools is alive."""
        return all(upload.reader.writer_is_gone() for upload in self._open_uploads())

    @property
    def failures(self) -> list[RankmemError]:
        """Why spools could not be read or were refused."""
        failed = [upload.error for upload in self.uploads.values() if upload.error is not None]
        return [*self._spools.unreadable.values(), *failed]

    @property
    def error(self) -> str:
        """What prevents delivery now; empty if nothing does."""
        if self.sender is not None and self.sender.error is not None:
            return str(self.sender.error)
        if self._waits_for:
            return f"waiting for the aggregator: {self._waits_for}"
        if self._edge.error is not None:
            return f"rows of events stay here: {self._edge.error}"
        return "; ".join(str(error) for error in self.failures)

    def close(self, state: str) -> None:
        """Write the final status, end the connection and let go of the spools. Idempotent."""
        self._status.write(state, self.pending_records, self._aggregator(), self.error, now=True)
        if self.sender is not None:
            self.sender.close()
        for upload in self.uploads.values():
            upload.close()

    def _num_unsent(self) -> int:
        return sum(upload.num_unsent for upload in self._open_uploads())

    def _open_uploads(self) -> list[SpoolUpload]:
        return [upload for upload in self.uploads.values() if not upload.is_over]

    def _aggregator(self) -> str:
        if self.sender is not None:
            return self.sender.aggregator
        if self._config.aggregator:
            return self._config.aggregator
        return next(filter(None, (upload.meta.aggregator for upload in self.uploads.values())), "")

    def _credentials(self, aggregator: str) -> Credentials:
        """Those of the configuration; else, for an aggregator that a spool names, the ones named with it."""
        configured = self._config.credentials
        if self._config.aggregator or configured.are_given:
            return configured
        named = [upload.meta for upload in self.uploads.values() if upload.meta.aggregator == aggregator]
        return named[0].credentials if named else configured

    @property
    def records_set_aside(self) -> int:
        """Records of spools that cannot be shipped."""
        failed = (upload for upload in self.uploads.values() if upload.state is UploadState.FAILED)
        return sum(upload.pending_records for upload in failed)

    def _fail(self, upload: SpoolUpload, exc: Exception) -> None:
        """Stop one spool; the others go on."""
        error, is_permanent = failure_of(exc)
        if is_permanent:
            self._set_aside(upload, error)
            return
        upload.fail(error)
        self._faults.log(str(upload.folder), f"cannot ship {upload.folder}: {error}")

    def _set_aside(self, upload: SpoolUpload, error: RankmemError) -> None:
        """Send nothing more of this spool but that it is missing, and not even that if it is refused."""
        self._faults.log(str(upload.folder), f"{upload.folder} is set aside: {error}")
        self._reopen_s[upload.folder] = time.monotonic() + REOPEN_S
        if isinstance(upload, SetAsideUpload):
            upload.refused()
            return
        try:
            self.uploads[upload.folder] = SetAsideUpload(upload, error)
        except OSError as exc:
            self._faults.log(f"mark {upload.folder}", f"cannot write to {upload.folder}: {exc}")
            upload.fail(error)

    # -- sending ---------------------------------------------------------------------------------

    def _send(self, **body: object) -> None:
        if self.sender is not None:
            self.sender.send(IngestRequest(**body))  # type: ignore[arg-type]

    def _send_batches(self, now_s: float) -> bool:
        """Open spools and send what may be sent; returns whether there was a batch."""
        if self.sender is None or not self.sender.connected:
            return False
        moved = False
        self._buffer.flush_if_due(now_s, self._num_unsent())
        for upload in self._open_uploads():
            if upload.state is UploadState.NEW and now_s >= self._reopen_s.get(upload.folder, 0.0):
                upload.opened_at = self._batch_number
                self._send(open_spool=upload.opening())
            while (batch := self._next_of(upload, now_s)) is not None:
                self._send_batch(batch)
                moved = True
        return self._send_details(now_s) or moved

    def _send_details(self, now_s: float) -> bool:
        """Send rows of events that are wanted; returns whether there were any."""
        if self.sender is None or not self.sender.takes_details:
            return False
        for opening in self._edge.openings(self.uploads.values(), now_s):
            self._send(open_spool=opening)
        moved = False
        ready = (upload for upload in self._open_uploads() if upload.state is UploadState.READY)
        stored = {upload.meta.spool_id: upload.stored for upload in ready}
        while (message := self._edge.next(stored, self._batch_number + 1)) is not None:
            self._batch_number += 1
            self._send(batch=message)
            moved = True
        return moved

    def _next_of(self, upload: SpoolUpload, now_s: float) -> EncodedBatch | None:
        """The upload's next batch, its faults kept to itself: one broken spool must not stop the others."""
        try:
            return upload.next_batch(
                lambda: self._orders.attached(upload, self._measured.attachments(upload, now_s))
            )
        except Exception as exc:  # noqa: BLE001  a spool's own: what is in it may be anything
            self._fail(upload, exc)
            return None

    def _send_batch(self, batch: EncodedBatch) -> None:
        self._batch_number += 1
        batch.message.batch_number = self._batch_number
        self._send(batch=batch.message)

    def _send_probes(self, now_s: float) -> None:
        if self.sender is None or not self.sender.connected:
            return
        for _ in range(self._measured.clock.num_probes_due(now_s)):
            self._send(clock_probe=ClockProbe(sent_ns=time.monotonic_ns()))

    # -- replies ---------------------------------------------------------------------------------

    def _poll(self) -> bool:
        """Take the replies that came; returns whether there were any."""
        if self.sender is None:
            return False
        was_connected = self.sender.connected
        replies = self.sender.poll()
        if self.sender.generation != self._generation:
            self._generation = self.sender.generation
            self._measured.clock.forget()
            self._edge.disconnected()
            self._send_probes(time.monotonic())  # now, before a batch is queued ahead of them
            for upload in self._open_uploads():
                upload.disconnected()
        for reply in replies:
            self._take_reply(reply)
        if was_connected and not self.sender.connected:
            for upload in self._open_uploads():
                upload.connection_broke()
        if self.sender.error is not None and self.sender.num_failures != self._failures_logged:
            self._failures_logged = self.sender.num_failures
            self._faults.log("connection", f"not connected: {self.sender.error}")
        if not self._edge.expects_reply and not any(u.expects_reply for u in self._open_uploads()):
            self.sender.expect_no_reply()
        return bool(replies)

    def _take_reply(self, reply: IngestReply) -> None:
        body = reply.WhichOneof("body")
        if body == "ack":
            if self._edge.acknowledged(reply.ack.batch_number):
                return
            upload = self._upload(reply.ack.spool_id)
            self._waits_for = ""
            if upload is not None:
                upload.acknowledged(reply.ack.last_sequence)
        elif body == "received":
            if self._edge.received(reply.received.batch_number):
                return
            upload = self._upload(reply.received.spool_id)
            if upload is not None:
                upload.received(reply.received.last_sequence)
        elif body == "spool_state":
            self._opened(reply.spool_state.spool_id, reply.spool_state.last_sequence)
        elif body == "clock_reply":
            clock = reply.clock_reply
            self._measured.clock.add(
                sent_ns=clock.sent_ns,
                received_ns=clock.received_ns,
                replied_ns=clock.replied_ns,
                got_ns=time.monotonic_ns(),
            )
        elif body == "busy":
            self._waits_for = reply.busy.reason
            self._faults.log("busy", f"{self._aggregator()} is busy: {self._waits_for}")
        elif body == "wanted":
            self._edge.wanted(reply.wanted)
        elif body == "order":
            upload = self._upload(reply.order.spool_id)
            if upload is not None:
                self._orders.take(reply.order, upload, time.monotonic_ns() + upload.base_ns)
        elif body == "refusal":
            self._refused(reply.refusal)

    def _opened(self, spool_id: str, last_sequence: int) -> None:
        self._edge.opened(spool_id)
        upload = self._upload(spool_id)
        if upload is None or upload.state is not UploadState.OPENING or self.sender is None:
            return
        leave = self._edge.leave(upload) if self.sender.takes_details else None
        try:
            upload.database_id = self.sender.database_id
            if not isinstance(upload, SetAsideUpload):
                check_not_reported(read_mark(upload.folder), upload.database_id, last_sequence)
            for batch in upload.opened(last_sequence, leave):
                self._send_batch(batch)
        except Exception as exc:  # noqa: BLE001  a spool's own
            self._fail(upload, exc)

    def _refused(self, refusal: Refusal) -> None:
        error = refusal_error(refusal)
        upload = self._upload(refusal.spool_id) if refusal.spool_id else None
        is_temporary = error.code in TEMPORARY
        if not refusal.fatal and self._is_of_edge(refusal, upload, error, is_temporary):
            return
        is_over = any(known.meta.spool_id == refusal.spool_id for known in self.uploads.values())
        if upload is None and is_over and not refusal.fatal:
            return  # sent before its spool failed
        if upload is None or refusal.fatal:
            if self.sender is not None:
                self.sender.drop(error)
            return
        if 0 < refusal.batch_number <= upload.opened_at:
            return  # sent before the spool was opened again, which has answered it
        if is_temporary:
            if upload.state is UploadState.READY:  # otherwise it is being opened again already
                upload.disconnected()
                self._reopen_s[upload.folder] = time.monotonic() + REOPEN_S
            self._faults.log(f"refused {upload.folder}", f"{upload.folder.name} was refused: {error}")
        else:
            self._set_aside(upload, error)

    def _is_of_edge(
        self, refusal: Refusal, upload: SpoolUpload | None, error: RankmemError, is_temporary: bool
    ) -> bool:
        """Whether a refusal is of rows of events, or of a spool that is delivered but for these."""
        if upload is not None and not self._edge.is_details(refusal.batch_number):
            return False
        found = self._edge.refused(
            refusal.spool_id, refusal.batch_number, error, is_temporary=is_temporary, now_s=time.monotonic()
        )
        if found and upload is not None and upload.state is UploadState.READY:
            upload.disconnected()  # nothing more is taken of it until it is opened again
            self._reopen_s[upload.folder] = time.monotonic() + REOPEN_S
        return found

    def _upload(self, spool_id: str) -> SpoolUpload | None:
        return next((upload for upload in self._open_uploads() if upload.meta.spool_id == spool_id), None)

    # -- maintenance -----------------------------------------------------------------------------

    def _maintain(self, now_s: float) -> None:
        self._orders.give(self._open_uploads())
        for upload in self._open_uploads():
            try:
                upload.maintain(now_s)
            except OSError as exc:
                self._faults.log(f"maintain {upload.folder}", f"cannot write to {upload.folder}: {exc}")
            except Exception as exc:  # noqa: BLE001  a spool's own
                self._fail(upload, exc)
            if upload.state is UploadState.DONE:
                self.num_delivered += 1
                logger.info("delivered %s: %d records", upload.folder.name, upload.stored)
                del self.uploads[upload.folder]
        try:
            self._edge.maintain(self._open_uploads())
        except OSError as exc:
            self._faults.log("edge", f"cannot delete rows of events: {exc}")

    def _write_status(self) -> None:
        connected = self.sender is not None and self.sender.connected
        state = "shipping" if connected else WAITING
        self._status.write(state, self.pending_records, self._aggregator(), self.error)
