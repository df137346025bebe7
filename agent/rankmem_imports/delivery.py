"""Delivers staged ranks to an aggregator exactly once, as a shipper does, with a file in place of a spool.

Stage: import, last station before the wire; the process of ``rankmem import``. In: ranks with their
messages on disk. Out: acknowledged messages. A log is sent on from what the aggregator has of it, so a
connection that breaks, or an import that was killed and is begun again, stores nothing twice and leaves
nothing out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from rankmem_imports.staging import StagedRank
from rankmem_protos.collector_pb2 import Batch, IngestReply, IngestRequest
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.sender import Sender, refusal_error

WINDOW_BATCHES_MAX: Final = 8
"""Unacknowledged messages: 16 MiB at most; one sender needs no more to keep an aggregator busy."""
PATIENCE_S: Final = 300.0
"""Without progress for this long the import gives up, as a shipper does after a job; importing again
continues from there."""
CONNECT_TIMEOUT_S: Final = 20.0
"""For the first connection: an address that does not answer is reported soon."""
WAIT_S: Final = 0.2
"""Between two looks at the connection; a reply ends the wait."""
_TEMPORARY: Final = frozenset({Code.UNAVAILABLE, Code.EXHAUSTED})


class Delivery:
    """A connection to one aggregator; a context manager that ends it.

    Args:
        aggregator: HOST:PORT.
        credentials: sent to it.
        patience_s: longest time without progress, in seconds.
    """

    def __init__(self, aggregator: str, credentials: Credentials, patience_s: float = PATIENCE_S) -> None:
        self._wake = threading.Event()
        self._sender = Sender(aggregator, credentials, "import", self._wake)
        self._patience_s = patience_s
        self._batch_number = 0

    def __enter__(self) -> Delivery:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.close()

    def deliver(
        self, rank: StagedRank, session_row: dict[str, Any], progress: Callable[[int], None] | None = None
    ) -> bool:
        """Sends what the aggregator lacks of a rank; False if it already had all of it.

        Args:
            rank: the rank.
            session_row: the row of its session.
            progress: called with the last stored position, now and then.

        Raises:
            RankmemError: as the aggregator refuses; UNAVAILABLE if it cannot be reached for too long.
        """
        log = _RankDelivery(rank, session_row)
        moved_s = time.monotonic()
        generation = -1
        while not log.is_done:
            self._wake.clear()
            replies = self._sender.poll()
            if self._sender.connected and self._sender.generation != generation:
                generation = self._sender.generation
                log.reopen()
                self._sender.send(IngestRequest(open_spool=rank.opening()))
            for reply in replies:
                if self._take(log, reply):
                    moved_s = time.monotonic()
                    if progress is not None:
                        progress(log.stored)
            while self._sender.connected and (message := log.next_message()) is not None:
                self._batch_number += 1
                message.batch_number = self._batch_number
                self._sender.send(IngestRequest(batch=message))
            patience_s = self._patience_s
            if self._sender.generation == 0:
                patience_s = min(patience_s, CONNECT_TIMEOUT_S)
            if time.monotonic() - moved_s > patience_s:
                raise self._too_long(patience_s)
            if not log.is_done:
                self._wake.wait(WAIT_S)
        self._sender.expect_no_reply()
        return log.had_to_send

    def _take(self, log: _RankDelivery, reply: IngestReply) -> bool:
        """Handles a reply; returns whether it is progress."""
        body = reply.WhichOneof("body")
        if body == "spool_state" and reply.spool_state.spool_id == log.spool_id:
            log.opened(reply.spool_state.last_sequence)
        elif body == "ack" and reply.ack.spool_id == log.spool_id:
            log.acknowledged(reply.ack.last_sequence)
        elif body == "refusal" and reply.refusal.spool_id in ("", log.spool_id):
            error = refusal_error(reply.refusal)
            if error.code not in _TEMPORARY:
                raise error
            self._sender.drop(error)  # opened anew, after a pause
            return False
        return body != "refusal"

    def _too_long(self, patience_s: float) -> RankmemError:
        why = f": {self._sender.error}" if self._sender.error is not None else ""
        return RankmemError(
            Code.UNAVAILABLE,
            f"{self._sender.aggregator} accepted nothing for {patience_s:.0f} s{why}",
            "import again when it answers: it continues where it stopped",
        )


class _RankDelivery:
    """The progress of one rank."""

    def __init__(self, rank: StagedRank, session_row: dict[str, Any]) -> None:
        self.spool_id = rank.spool_id
        self.stored = -1
        self.had_to_send = False
        self.is_done = False
        self._last = rank.sequence_last + 1
        self._rank, self._session_row = rank, session_row
        self._messages: Iterator[Batch] | None = None
        self._unacked: deque[int] = deque()

    def reopen(self) -> None:
        """Forgets what was sent: it may or may not be stored."""
        self._messages = None
        self._unacked.clear()

    def opened(self, last_sequence: int) -> None:
        """Continues from the aggregator's position."""
        self.stored = last_sequence
        self._messages = (
            each for each in self._rank.messages(self._session_row) if each.sequence_last > last_sequence
        )
        self.is_done = last_sequence >= self._last

    def acknowledged(self, last_sequence: int) -> None:
        """Everything up to this position is stored."""
        self.stored = max(self.stored, last_sequence)
        while self._unacked and self._unacked[0] <= last_sequence:
            self._unacked.popleft()
        self.is_done = self.stored >= self._last

    def next_message(self) -> Batch | None:
        """The next message that may be sent now, if any."""
        if self._messages is None or len(self._unacked) >= WINDOW_BATCHES_MAX:
            return None
        message = next(self._messages, None)
        if message is not None:
            self._unacked.append(message.sequence_last)
            self.had_to_send = True
        return message
