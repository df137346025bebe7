"""One ``Ingest`` call of a shipper: its requests become submissions, their outcomes go back as replies.

Stage: the aggregator's gRPC boundary. Two threads a call: gRPC's handler thread yields replies, a reading
thread (``rankmem-ingest-N``) takes requests, has batches decoded and waits where the queue is full. So
acknowledgements flow while reading waits. A few threads decode for all calls: when each did it for itself,
600 of them spent a third of the time on switching, and every one kept a heap of its own (1.4 GB). A call's
spools are known to it alone; the writer checks their sequences.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Final

from rankmem_aggregator.ingest.batch import IncomingBatch, Spool, declared_bytes, decode_batch
from rankmem_aggregator.ingest.batch_queue import Outcome, Submission
from rankmem_aggregator.ingest.batch_writer import BatchWriter
from rankmem_aggregator.ingest.sequence import Opening
from rankmem_aggregator.server.orders import Orders
from rankmem_protos import collector_pb2 as pb
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.protocol import PROTOCOL_VERSION
from rankmem_protos.sealing import DamagedError, seal, unseal

logger = logging.getLogger(__name__)

SPOOLS_MAX: Final = 4096
"""Spools opened by one call: ranks of a host times restarts."""
SPOOL_ID_SHOWN: Final = 200
"""Characters of a spool's id in a reply: a client's text is not sent back in full."""
REFUSAL_CHARS_MAX: Final = 2_000
"""Of a refusal's message: it may quote a received name, which may have megabytes."""
BUSY_EVERY_S: Final = 5.0
"""Between two replies to a call whose batches wait; shippers give up after 30 s of silence."""
UNREAD_BUSY_MAX: Final = 1000
"""Unread replies above which waiting is not reported: nobody reads it."""
GREETING_TIMEOUT_S: Final = 20.0
"""For a call's Hello, which a shipper sends at once."""
UNREAD_END_S: Final = 10.0
"""For the end of a call to reach a client; one that reads nothing is cancelled."""
REPLIES_MAX: Final = 100_000
"""Replies that the shipper has not read: a client that never reads must not fill the memory."""


class IngestCall:
    """The state of one ``Ingest`` call."""

    def __init__(
        self,
        requests: Iterator[pb.IngestRequest],
        writer: BatchWriter,
        decoders: Executor,
        database_id: str,
        name: str,
        orders: Orders | None = None,
    ) -> None:
        self._requests = requests
        self._writer = writer
        self._decoders = decoders
        self._database_id = database_id
        self._orders = Orders() if orders is None else orders
        self._spools: dict[str, Opening] = {}
        self._ended_spools: set[str] = set()  # their last batch has come
        self._greeted = False
        self._wants_receipts = False
        self._keeps_details = False
        self.takes_orders = False
        """Whether the shipper passes orders on to its ranks."""
        self._received: set[int] = set()  # numbers of batches that are received and not answered
        self._is_checked = False  # every message of this call has its checksum, both ways
        self._pending = 0  # batches submitted and not yet answered
        self._waits_since_s: float | None = None  # a batch without any reply; one to another resets this
        self._busy_s = 0.0  # when waiting was last reported
        self._ended = False  # the reading thread is done
        self._last_message_s = time.monotonic()  # the last request, or its answer
        self._lock = threading.Lock()
        # Bounded by what the shipper has in flight: every reply but a clock's answers a batch or a spool.
        self._replies: queue.SimpleQueue[pb.IngestReply | _ClockProbe | None] = queue.SimpleQueue()
        self.error: RankmemError | None = None
        """Why the aggregator ended the call; None if the shipper ended it."""
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)

    def replies(self) -> Iterator[pb.IngestReply]:
        """Starts reading and yields replies until the shipper is done and every batch of it is answered."""
        self._reader.start()
        while (reply := self._replies.get()) is not None:
            message = reply.reply() if isinstance(reply, _ClockProbe) else reply
            yield seal(message) if self._is_checked else message

    def stop(self, error: RankmemError) -> None:
        """Takes no more requests; submitted batches are still answered. Any thread."""
        self._end(error)

    def abandon(self) -> None:
        """The call is gone (cancelled, connection lost): the replies are not read any more."""
        self._replies.put(None)

    def want(self, wanted: pb.Wanted) -> bool:
        """Asks for rows that stay on the shipper's host; False where it has no such spool. Any thread."""
        if not self._keeps_details or self._ended or wanted.spool_id not in self._spools:
            return False
        if not self.is_read:
            return False
        self._replies.put(pb.IngestReply(wanted=wanted))
        return True

    @property
    def is_read(self) -> bool:
        """Whether the shipper reads its replies. Any thread."""
        return self._replies.qsize() <= UNREAD_BUSY_MAX

    def running_spools(self) -> list[Spool]:
        """The open spools whose last batch has not come. Any thread."""
        if self._ended:
            return []
        opened = list(self._spools.items())
        return [opening.spool for spool_id, opening in opened if spool_id not in self._ended_spools]

    def tell(self, order: pb.Order) -> None:
        """Passes an order on to a rank. Any thread."""
        if self.takes_orders and self.is_read:
            self._replies.put(pb.IngestReply(order=order))

    def kept_spools(self) -> dict[str, str]:
        """The session of each open spool of which the shipper may keep rows of events. Any thread."""
        if not self._keeps_details or self._ended:
            return {}
        return {spool_id: opening.spool.session_id for spool_id, opening in list(self._spools.items())}

    def end_if_idle(self, idle_s_max: float) -> bool:
        """Ends the call if it has been silent for too long, without a submitted batch. Any thread.

        Args:
            idle_s_max: longest silence, in seconds.

        Returns:
            False if it has ended and its client does not read that: it is to be cancelled.
        """
        with self._lock:
            silent_s = 0.0 if self._pending else time.monotonic() - self._last_message_s
        if self._ended:
            return silent_s < UNREAD_END_S
        limit_s = idle_s_max if self._greeted else min(idle_s_max, GREETING_TIMEOUT_S)
        if silent_s > limit_s:
            error = f"the call was silent for {limit_s:.0f} s, and others may need its place"
            self.stop(RankmemError(Code.UNAVAILABLE, error, "connect again; a shipper does so by itself"))
        return True

    def _read(self) -> None:
        error: RankmemError | None = None
        try:
            for request in self._requests:
                received_ns = time.time_ns()
                self._last_message_s = time.monotonic()
                if self._ended:
                    return
                if self._replies.qsize() > REPLIES_MAX:
                    raise RankmemError(Code.EXHAUSTED, f"{REPLIES_MAX} replies wait to be read", "read them")
                self._receive(request, received_ns)
        except DamagedError as exc:
            self._writer.errors.add_damaged()
            error = exc
        except RankmemError as exc:
            error = exc
        except Exception as exc:  # noqa: BLE001  the iterator raises a bare Exception when the call is cancelled
            logger.debug("ingest call ended: %r", exc)
        self._end(error)

    def _receive(self, request: pb.IngestRequest, received_ns: int) -> None:
        try:
            self._handle(unseal(request, must=self._is_checked), received_ns)
        except RankmemError:
            raise
        except Exception as exc:
            raise _unexpected("the request", exc) from exc

    def _handle(self, request: pb.IngestRequest, received_ns: int) -> None:
        kind = request.WhichOneof("body")
        if kind == "hello":
            self._greet(request.hello)
            return
        if not self._greeted:
            raise RankmemError(Code.INVALID, f"the call began with {kind}", "send Hello first")
        if kind == "batch":
            self._take_batch(request.batch)
        elif kind == "open_spool":
            self._open_spool(request.open_spool)
        elif kind == "clock_probe":
            self._replies.put(_ClockProbe(request.clock_probe.sent_ns, received_ns))
        else:
            raise RankmemError(
                Code.UNSUPPORTED,
                "a request of a kind this aggregator does not know",
                "upgrade the aggregator",
            )

    def _greet(self, hello: pb.Hello) -> None:
        if self._greeted:
            raise RankmemError(Code.INVALID, "the call sent Hello again", "send it once, at its beginning")
        if hello.protocol_version != PROTOCOL_VERSION:
            raise RankmemError(
                Code.UNSUPPORTED,
                f"the shipper speaks protocol {hello.protocol_version}, this aggregator {PROTOCOL_VERSION}",
                "use the same version of rankmem on both ends",
            )
        self._greeted = True
        self._is_checked = hello.checksums
        self._wants_receipts = hello.receipts
        self._keeps_details = hello.keeps_details
        self.takes_orders = hello.takes_orders
        unchecked = "" if hello.checksums else ", an older version: its messages have no checksums"
        logger.info("shipper %s of host %s connected%s", hello.shipper_id, hello.host_uid, unchecked)
        welcome = pb.Welcome(
            protocol_version=PROTOCOL_VERSION,
            database_id=self._database_id,
            checksums=True,
            takes_details=hello.keeps_details and self._writer.takes_details,
        )
        self._replies.put(pb.IngestReply(welcome=welcome))

    def _open_spool(self, message: pb.OpenSpool) -> None:
        try:
            if len(self._spools) >= SPOOLS_MAX and message.spool_id not in self._spools:
                raise RankmemError(
                    Code.EXHAUSTED, f"{SPOOLS_MAX} spools are open in this call", "start another call"
                )
            opened = Spool.of(message)
            self._writer.look_up(opened)
            spool = self._writer.starts.place(opened)
            last_sequence = self._last_sequence(spool)
        except RankmemError as exc:
            self._writer.errors.add("ingest", exc.code)
            self._replies.put(_refusal(message.spool_id[:SPOOL_ID_SHOWN], 0, exc))
            return
        self._spools[spool.spool_id] = Opening(spool)
        self._replies.put(
            pb.IngestReply(
                spool_state=pb.SpoolState(
                    spool_id=spool.spool_id, last_sequence=last_sequence, attempt=spool.attempt
                )
            )
        )
        self._orders.tell_opened(spool, self)

    def _last_sequence(self, spool: Spool) -> int:
        try:
            return self._writer.progress.stored(spool)
        except RankmemError:
            self._writer.starts.release([spool])
            raise

    def _take_batch(self, message: pb.Batch) -> None:
        opening = self._spools.get(message.spool_id)
        try:
            if opening is None:
                raise RankmemError(
                    Code.INVALID,
                    f"a batch of spool {message.spool_id[:SPOOL_ID_SHOWN]!r}, which is not open",
                    "send OpenSpool first",
                )
            opening.check_reading()
            size_bytes = declared_bytes(message)
        except RankmemError as exc:
            self._refuse(message, exc)
            return
        if message.final and not message.details:
            self._ended_spools.add(message.spool_id)
        with self._lock:
            self._pending += 1
            self._waits_since_s = self._waits_since_s or time.monotonic()
        if not self._submit(message, opening, size_bytes):
            with self._lock:
                self._pending -= 1
            raise RankmemError(Code.UNAVAILABLE, "the aggregator is closing", "connect again when it is back")

    def _submit(self, message: pb.Batch, opening: Opening, size_bytes: int) -> bool:
        """Waits for room, decodes, queues; False if the aggregator is closing."""
        queue_ = self._writer.queue
        if not queue_.admit(size_bytes):
            return False
        try:
            batch = self._decoded(message, opening.spool)
        except RankmemError as exc:
            queue_.release(size_bytes)
            if exc.code is Code.UNAVAILABLE:  # not the batch's fault: it may be sent again
                self._answered()
                raise
            self._refuse(message, exc)
            self._answered()
            return True
        submission = Submission(
            batch=batch,
            done=self._answer,
            opening=opening,
            received=self._acknowledge_receipt if self._wants_receipts else None,
        )
        return self._writer.queue.put(submission, size_bytes)

    def _decoded(self, message: pb.Batch, spool: Spool) -> IncomingBatch:
        try:
            decode = partial(decode_batch, takes_details=True) if self._writer.takes_details else decode_batch
            decoding = self._decoders.submit(decode, message, spool)
        except RuntimeError as exc:
            raise RankmemError(
                Code.UNAVAILABLE, f"the aggregator cannot decode the batch: {exc}", "send it again later"
            ) from exc
        try:
            return decoding.result()
        except RankmemError:
            raise
        except Exception as exc:  # it must be answered, or its shipper waits for ever
            raise _unexpected("the batch", exc) from exc

    def _refuse(self, message: pb.Batch, error: RankmemError) -> None:
        opening = self._spools.get(message.spool_id)
        if opening is not None:
            opening.close()
        self._writer.errors.add("ingest", error.code)
        self._replies.put(_refusal(message.spool_id[:SPOOL_ID_SHOWN], message.batch_number, error))

    def report_busy(self, reason: str, *, is_stalled: bool = False) -> None:
        """Reports to the shipper if a batch has waited for seconds, so that it stays. Any thread.

        Args:
            reason: what for.
            is_stalled: nothing can be stored, so that batches which are received wait too.
        """
        now_s = time.monotonic()
        with self._lock:
            since_s = self._waits_since_s
            if is_stalled and self._pending:
                since_s = self._busy_s
            unread = not self.is_read
            if since_s is None or now_s - since_s < BUSY_EVERY_S or unread:
                return
            self._busy_s = now_s
            if self._waits_since_s is not None:
                self._waits_since_s = now_s
        self._replies.put(pb.IngestReply(busy=pb.Busy(reason=reason)))

    def _acknowledge_receipt(self, outcome: Outcome) -> None:
        """Called by a writer that stores later: never blocks."""
        received = pb.Received(
            spool_id=outcome.spool_id,
            batch_number=outcome.batch_number,
            last_sequence=outcome.last_sequence,
        )
        self._replies.put(pb.IngestReply(received=received))
        with self._lock:
            self._received.add(outcome.batch_number)
            self._last_message_s = time.monotonic()
            self._waits_since_s = self._last_message_s if self._pending > len(self._received) else None

    def _answer(self, outcome: Outcome) -> None:
        """Called by the writer: never blocks."""
        if outcome.error is not None:
            self._replies.put(_refusal(outcome.spool_id, outcome.batch_number, outcome.error))
        else:
            ack = pb.Ack(
                spool_id=outcome.spool_id,
                batch_number=outcome.batch_number,
                last_sequence=outcome.last_sequence,
            )
            self._replies.put(pb.IngestReply(ack=ack))
        self._received.discard(outcome.batch_number)
        self._answered()

    def _answered(self) -> None:
        with self._lock:
            self._pending -= 1
            self._last_message_s = time.monotonic()
            self._waits_since_s = self._last_message_s if self._pending > len(self._received) else None
            done = self._ended and self._pending == 0
        if done:
            self._replies.put(None)

    def _end(self, error: RankmemError | None) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._last_message_s = time.monotonic()
            self.error = error
            idle = self._pending == 0
        if error is not None:
            self._replies.put(_refusal("", 0, error, fatal=True))
        openings = list(self._spools.values())  # a copy: this may be another thread than the reading one
        self._writer.starts.release(opening.spool for opening in openings)
        if idle:
            self._replies.put(None)


class _ClockProbe:
    """A probe to be answered: the reply's time is taken when it is yielded."""

    __slots__ = ("received_ns", "sent_ns")

    def __init__(self, sent_ns: int, received_ns: int) -> None:
        self.sent_ns = sent_ns
        self.received_ns = received_ns

    def reply(self) -> pb.IngestReply:
        return pb.IngestReply(
            clock_reply=pb.ClockReply(
                sent_ns=self.sent_ns, received_ns=self.received_ns, replied_ns=time.time_ns()
            )
        )


def _unexpected(what: str, exc: Exception) -> RankmemError:
    """The error that the sender gets for an unexpected exception, which is logged."""
    if isinstance(exc, MemoryError):
        return RankmemError(
            Code.UNAVAILABLE, f"the aggregator has no memory for {what}", "send it again later"
        )
    logger.error("%s could not be handled", what, exc_info=exc)
    return RankmemError(Code.INTERNAL, f"{what} could not be handled: {exc!r}", "please report it")


def _refusal(spool_id: str, batch_number: int, error: RankmemError, *, fatal: bool = False) -> pb.IngestReply:
    return pb.IngestReply(
        refusal=pb.Refusal(
            spool_id=spool_id,
            batch_number=batch_number,
            code=error.code.value,
            message=error.message[:REFUSAL_CHARS_MAX],
            hint=error.hint,
            fatal=fatal,
        )
    )
