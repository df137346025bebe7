"""The shipper's one connection to the aggregator: opened, kept, and opened again.

Stage: shipper process, last station before the wire. In: requests; out: replies, in order. Threads: the
loop's thread calls everything here; one thread per call ("rankmem-replies") moves replies into a queue and
sets the loop's event; gRPC's own threads write. It must never block the loop: sending only queues.

A call that is silent for SILENCE_S while a reply is due is given up. Between two attempts the sender waits,
twice as long each time, with jitter, so that a thousand shippers do not come back at once.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any, Final

import rankmem_agent
from rankmem_protos.channel import dial, hint_of
from rankmem_protos.collector_pb2 import Hello, IngestReply, IngestRequest, Refusal
from rankmem_protos.collector_pb2_grpc import CollectorStub
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import CODE_OF_GRPC_STATUS_NAME, Code, RankmemError
from rankmem_protos.protocol import PROTOCOL_VERSION
from rankmem_protos.quiet_grpc import grpc
from rankmem_protos.sealing import DamagedError, seal, unseal

logger = logging.getLogger(__name__)

BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 10.0
"""A restarted aggregator is found within this; a thousand shippers try 100 times a second at most."""
SILENCE_S: Final = 30.0
"""Longest wait for the Welcome, an acknowledgement or a clock reply. A commit takes far less."""
CLOSE_TIMEOUT_S: Final = 2.0
"""For the thread of a call that is ended; it needs a moment."""
HINT: Final = "rankmem-hint"
"""Key of the aggregator's advice, in the metadata that ends a call."""
CHANNEL_OPTIONS: Final = (
    ("grpc.enable_retries", 0),  # the loop does it, and knows what was acknowledged
    ("grpc.max_receive_message_length", 1 << 20),  # replies are small
    ("grpc.keepalive_time_ms", 30_000),  # a path through a NAT stays known, a vanished host is noticed
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),  # an idle rank sends nothing for hours
    ("grpc.use_local_subchannel_pool", 1),  # a new attempt is a new connection, not the old one's back-off
)


class IngestCall:
    """One Ingest call, from Hello to its end."""

    def __init__(
        self, aggregator: str, credentials: Credentials, hello: Hello, wake: threading.Event
    ) -> None:
        """Raises RankmemError if a file of the credentials cannot be used."""
        self.error: RankmemError | None = None
        self.is_checked = False
        """Whether every message has a checksum, both ways: the aggregator sealed its first."""
        self.replies: queue.SimpleQueue[IngestReply] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[IngestRequest | None] = queue.SimpleQueue()
        self._wake = wake
        self._aggregator = aggregator
        self._credentials = credentials
        connection = dial(aggregator, credentials, CHANNEL_OPTIONS)
        self._channel = connection.channel
        self.send(IngestRequest(hello=hello))
        self._grpc_call = CollectorStub(self._channel).Ingest(self._sent(), metadata=connection.metadata)
        self._reader = threading.Thread(target=self._read, name="rankmem-replies", daemon=True)
        self._reader.start()

    def send(self, request: IngestRequest) -> None:
        """Queue a request; gRPC takes it when its own window has room."""
        self._requests.put(request)

    def close(self) -> None:
        """End the call; what is not acknowledged may not be stored. Idempotent."""
        self._requests.put(None)
        self._grpc_call.cancel()  # type: ignore[no-untyped-call]
        self._channel.close()
        self._reader.join(CLOSE_TIMEOUT_S)

    def _sent(self) -> Iterator[IngestRequest]:
        while (request := self._requests.get()) is not None:
            yield seal(request) if self.is_checked else request

    def _read(self) -> None:
        got_reply = False
        try:
            for reply in self._grpc_call:
                got_reply = True
                self.replies.put(self._unsealed(reply))
                self._wake.set()
            self.error = RankmemError(Code.UNAVAILABLE, f"{self._aggregator} closed the connection")
        except grpc.RpcError as exc:
            self.error = _translated(self._aggregator, exc, None if got_reply else self._credentials)
        except RankmemError as exc:
            self.error = exc
        self._wake.set()

    def _unsealed(self, reply: IngestReply) -> IngestReply:
        """Raises RankmemError if the reply is damaged; the call is over then."""
        plain = unseal(reply, must=self.is_checked)
        if plain is not reply:
            self.is_checked = True
        elif plain.WhichOneof("body") == "welcome" and plain.welcome.checksums:
            raise DamagedError("the aggregator did not see that this shipper sends checksums")
        return plain


class Sender:
    """Keeps a connection open to one aggregator.

    Args:
        aggregator: HOST:PORT.
        credentials: for the aggregator; the files are read again for each connection.
        host_uid: the host's id in Hello.
        wake: set at each reply, and when the connection ends.
        keeps_details: whether rows of events may stay on this host.
    """

    def __init__(
        self,
        aggregator: str,
        credentials: Credentials,
        host_uid: str,
        wake: threading.Event,
        *,
        keeps_details: bool = False,
    ) -> None:
        self.aggregator = aggregator
        self._credentials = credentials
        self.generation = 0
        """Counts the connections that were welcomed: with each new one every spool must be opened again."""
        self.database_id = ""
        self.takes_details = False
        """Whether the aggregator takes batches without their rows of events, and those later."""
        self.num_failures = 0
        """Connections that could not be opened, or broke, so far."""
        self.error: RankmemError | None = None
        """Why there is no connection now; None while welcomed."""
        self._wake = wake
        self._hello = Hello(
            protocol_version=PROTOCOL_VERSION,
            shipper_id=uuid.uuid4().hex,
            host_uid=host_uid,
            rankmem_version=getattr(rankmem_agent, "__version__", ""),
            checksums=True,
            receipts=True,
            keeps_details=keeps_details,
            takes_orders=True,
        )
        self._call: IngestCall | None = None
        self._welcomed = False
        self._waiting_since_s: float | None = None
        self._failures = 0
        self._next_try_s = 0.0

    @property
    def connected(self) -> bool:
        """Whether requests can be sent now."""
        return self._welcomed

    def send(self, request: IngestRequest) -> None:
        """Queue a request; only while connected."""
        if self._call is None:
            raise RankmemError(Code.UNAVAILABLE, f"not connected to {self.aggregator}")
        if self._waiting_since_s is None:
            self._waiting_since_s = time.monotonic()
        self._call.send(request)

    def poll(self) -> list[IngestReply]:
        """The replies that came; also connects when it is time to, and drops a dead connection."""
        now_s = time.monotonic()
        if self._call is None:
            if now_s >= self._next_try_s:
                self._open(now_s)
            return []
        ended = self._call.error  # before the replies: what came before the end is taken first
        replies = self._take(now_s)
        if ended is None and self._waiting_since_s is not None and now_s - self._waiting_since_s > SILENCE_S:
            ended = RankmemError(Code.UNAVAILABLE, f"no answer from {self.aggregator} for {SILENCE_S:.0f} s")
        if ended is not None:
            self.drop(ended)
        return replies

    def _open(self, now_s: float) -> None:
        try:
            self._call = IngestCall(self.aggregator, self._credentials, self._hello, self._wake)
            self._waiting_since_s = now_s
        except RankmemError as exc:  # a token file that is not there yet may come
            self.drop(exc)

    def expect_no_reply(self) -> None:
        """No reply is due: silence is no fault, except before the Welcome."""
        if self._welcomed:
            self._waiting_since_s = None

    def drop(self, reason: RankmemError) -> None:
        """End the connection; the next attempt comes after a pause."""
        self.error = reason
        self.close()
        pause_s = min(BACKOFF_FIRST_S * 2.0 ** min(self._failures, 16), BACKOFF_MAX_S)
        self._failures += 1
        self.num_failures += 1
        self._next_try_s = time.monotonic() + pause_s * random.uniform(0.5, 1.0)

    def close(self) -> None:
        """End the connection. Idempotent."""
        if self._call is not None:
            self._call.close()
        self._call, self._welcomed, self._waiting_since_s = None, False, None

    def _take(self, now_s: float) -> list[IngestReply]:
        replies: list[IngestReply] = []
        with contextlib.suppress(queue.Empty):
            while self._call is not None:
                reply = self._call.replies.get_nowait()
                self._waiting_since_s = now_s  # the time of silence starts again with each reply
                if reply.WhichOneof("body") == "welcome":
                    self._take_welcome(reply)
                else:
                    replies.append(reply)
        return replies

    def _take_welcome(self, reply: IngestReply) -> None:
        self.database_id = reply.welcome.database_id
        self.takes_details = reply.welcome.takes_details
        self._welcomed, self.error, self._failures = True, None, 0
        self.generation += 1
        unchecked = "" if reply.welcome.checksums else ", an older version: no checksums"
        logger.info("connected to %s, database %s%s", self.aggregator, self.database_id, unchecked)


def refusal_error(refusal: Refusal) -> RankmemError:
    """The refusal as an error; an unknown code becomes INTERNAL."""
    known = refusal.code in {code.value for code in Code}
    code = Code(refusal.code) if known else Code.INTERNAL
    return RankmemError(code, refusal.message, refusal.hint)


def _translated(aggregator: str, exc: grpc.RpcError, credentials: Credentials | None) -> RankmemError:
    """The error of a call; ``credentials`` None: there was a reply, so they are not at fault."""
    status = exc.code() if isinstance(exc, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = exc.details() if isinstance(exc, grpc.Call) else str(exc)
    code = CODE_OF_GRPC_STATUS_NAME.get(status.name, Code.INTERNAL)
    hint = hint_of(details or "", credentials) if credentials is not None else ""
    metadata: Any = exc.trailing_metadata() if isinstance(exc, grpc.Call) else None
    hint = dict(metadata or ()).get(HINT) or hint
    if code is Code.DENIED:
        hint = "--token-file FILE (RANKMEM_TOKEN_FILE) with one of its ingest tokens"
    return RankmemError(
        code, f"{aggregator}: {details or status.name}", hint or "rankmem serve, or check the address"
    )
