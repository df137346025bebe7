"""What may be encoded and sent when: the batches of a host's spools, from encoding to acknowledgement.

Stage: shipper process, between encoding and connection, on the loop's thread. In: encoded batches, the time,
and how far the aggregator has each spool. Out: each spool's batches in the order of its log. It alone decides
on sizes, flushes, limits and resending; it reads no spool and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from rankmem_ship.encoding import EncodedBatch
from rankmem_ship.flush_timer import FlushTimer
from rankmem_ship.pace import Pace
from rankmem_ship.pairing.state import PairingState

IN_FLIGHT_BATCHES_MAX: Final = 64
"""Unacknowledged batches of all spools."""
IN_FLIGHT_BYTES_MAX: Final = 32 << 20
"""The same in bytes: what the shipper may hold in memory for the wire."""
SHORT_BATCHES_MAX: Final = 2
"""Unacknowledged batches above which none is cut short: behind a slow aggregator batches become larger, not
more, and a large one costs it little more. With 1,000 ranks each waited for 36 s, mostly for its own."""
HELD_BATCHES_MAX: Final = 2
"""Full batches that wait for the flush, so that one commit takes them with what follows: 1 MiB usually. With
more at hand the oldest goes: there is a backlog, or 240,000 records a second."""
RECEIVED_STATES_MAX: Final = 4
"""Of batches that are received and not stored, kept to become the checkpoint: each has the spool's living
blocks. The last one is among them; of the others every second is dropped where they are more."""

Encode = Callable[[int, bool], Sequence[EncodedBatch]]
"""(records of a full batch, whether a short one is wanted, too) -> the next of the log; empty: none yet."""


class SendBuffer:
    """The queues of all spools of a host: flushed together, and limited together in what is in flight."""

    def __init__(self) -> None:
        self._queues: list[SpoolQueue] = []
        self._timer = FlushTimer()

    def open_queue(self) -> SpoolQueue:
        """A queue for one spool; to be closed when nothing more of it is sent."""
        self._queues.append(SpoolQueue(self))
        return self._queues[-1]

    def close_queue(self, queue: SpoolQueue) -> None:
        """Its batches no longer count. Idempotent."""
        self._queues = [other for other in self._queues if other is not queue]

    @property
    def has_room(self) -> bool:
        """Whether another batch may be in flight."""
        batches = sum(queue.num_in_flight for queue in self._queues)
        size_bytes = sum(queue.bytes_in_flight for queue in self._queues)
        return batches < IN_FLIGHT_BATCHES_MAX and size_bytes < IN_FLIGHT_BYTES_MAX

    def flush_if_due(self, now_s: float, num_unsent: int) -> None:
        """Flush every queue if it is time, see :class:`FlushTimer`."""
        if self._timer.is_due(now_s, num_unsent):
            for queue in self._queues:
                queue.flush()

    def flush_due_in_s(self, now_s: float, num_unsent: int) -> float:
        """Seconds to the next flush, if no more records come."""
        return self._timer.due_in_s(now_s, num_unsent)


class SpoolQueue:
    """The batches of one spool, in the order of its log: in flight, then released, then held.

    =========== ====================================== =====================================================
    batch       event                                  becomes
    =========== ====================================== =====================================================
    (none)      added full, while collecting           HELD; with more than HELD_BATCHES_MAX, the oldest
                                                       RELEASED
    (none)      added full, while flushing             RELEASED
    (none)      added short or last                    RELEASED, and all that are HELD
    HELD        flush                                  RELEASED
    RELEASED    next, with room                        IN FLIGHT
    RELEASED    next, without room                     RELEASED
    IN FLIGHT   received                               RECEIVED: its state alone is kept
    IN FLIGHT   acknowledged                           gone: its state may become the checkpoint
    RECEIVED    acknowledged                           gone: its state may become the checkpoint
    RECEIVED    reopened before its end                to be encoded again: the caller restarts
    IN FLIGHT   connection broke                       IN FLIGHT: reopening shows what is stored
    any         reopened behind it                     gone
    IN FLIGHT   reopened at its start or an earlier's  IN FLIGHT, sent again
    HELD        reopened at its start or an earlier's  RELEASED
    any         reopened elsewhere                     to be encoded again: the caller restarts
    any         reopened, nothing stored since opened  to be encoded again, in smaller batches
    any         restarted                              gone
    =========== ====================================== =====================================================

    =========== ====================================== =====================================================
    queue       event                                  becomes
    =========== ====================================== =====================================================
    COLLECTING  flush, reopened or restarted           FLUSHING
    FLUSHING    added short or last                    COLLECTING
    FLUSHING    nothing is left to encode              COLLECTING
    FLUSHING    too many short ones in flight          FLUSHING: short ones wait for acknowledgements
    =========== ====================================== =====================================================

    While collecting, full batches alone are encoded, and only as long as none is released. While flushing a
    short one is encoded, too, unless SHORT_BATCHES_MAX batches that were sent before the flush are in flight.
    A queue begins FLUSHING.
    """

    def __init__(self, buffer: SendBuffer) -> None:
        self.acked_state: PairingState | None = None
        """The pairing at the end of what is stored; None before the first start."""
        self._buffer = buffer
        self._pace = Pace()
        self._in_flight: deque[EncodedBatch] = deque()
        self._received: deque[tuple[int, PairingState]] = deque()  # last position and state after it
        self._waiting: deque[EncodedBatch] = deque()
        self._num_released = 0  # of _waiting
        self._is_flushing = True
        self._num_sent_since_flush = 0
        self._sequence_next: int | None = None  # behind the last batch
        self._was_cut_off = False  # the last connection broke before anything in flight was stored

    @property
    def num_in_flight(self) -> int:
        """Batches that were sent and not acknowledged."""
        return len(self._in_flight)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of these."""
        return sum(batch.size_bytes for batch in self._in_flight)

    @property
    def sequence_sent(self) -> int:
        """Last position that was sent and is not acknowledged; -1 if nothing is."""
        if self._in_flight:
            return self._in_flight[-1].sequence_last
        return self._received[-1][0] if self._received else -1

    @property
    def is_empty(self) -> bool:
        """Whether all that was added is acknowledged."""
        return not self._in_flight and not self._waiting and not self._received

    @property
    def has_room(self) -> bool:
        """Whether a batch may be sent: by the limits of this spool and of all together."""
        return self.num_in_flight < self._pace.in_flight_max and self._buffer.has_room

    def close(self) -> None:
        """Nothing more of this spool is sent. Idempotent."""
        self._buffer.close_queue(self)

    def next(self, encode: Encode) -> EncodedBatch | None:
        """The next batch that may be sent now, from now on in flight; None: none may, or there is none.

        Args:
            encode: called for more of the log as long as nothing is released.
        """
        if not self.has_room:
            return None
        while not self._num_released:
            num_before_flush = self.num_in_flight - self._num_sent_since_flush
            allow_short = self._is_flushing and num_before_flush < SHORT_BATCHES_MAX
            batches = encode(self._pace.batch_records, allow_short)
            if batches:
                self.add(batches)
                continue
            if allow_short:
                self._is_flushing = False
            return None
        self._num_released -= 1
        self._num_sent_since_flush += 1
        self._in_flight.append(self._waiting.popleft())
        return self._in_flight[-1]

    def add(self, batches: Sequence[EncodedBatch]) -> None:
        """Add the next of the log: the batches of one slice."""
        self._waiting.extend(batches)
        self._sequence_next = batches[-1].sequence_last + 1
        num_held = HELD_BATCHES_MAX if batches[-1].full and not self._is_flushing else 0
        self._num_released = max(len(self._waiting) - num_held, 0)
        self._is_flushing &= batches[-1].full

    def flush(self) -> None:
        """Release what is held, and have what is read encoded."""
        if not self._is_flushing:
            self._is_flushing, self._num_sent_since_flush = True, 0
        self._num_released = len(self._waiting)

    def received(self, last_sequence: int) -> None:
        """The aggregator holds everything up to ``last_sequence``: it is no longer in flight."""
        before = self.num_in_flight
        while self._in_flight and self._in_flight[0].sequence_last <= last_sequence:
            batch = self._in_flight.popleft()
            self._received.append((batch.sequence_last, batch.state_after))
        while len(self._received) > RECEIVED_STATES_MAX:
            *others, last = self._received
            self._received = deque([*others[1::2], last])
        self._pace.stored(before - self.num_in_flight)

    def acknowledged(self, last_sequence: int) -> bool:
        """Everything up to ``last_sequence`` is stored; returns whether that is a batch that was not."""
        stored: list[PairingState] = []
        while self._received and self._received[0][0] <= last_sequence:
            stored.append(self._received.popleft()[1])
        before = self.num_in_flight
        while self._in_flight and self._in_flight[0].sequence_last <= last_sequence:
            stored.append(self._in_flight.popleft().state_after)
        self._pace.stored(before - self.num_in_flight)
        if stored:
            self.acked_state = stored[-1]
        return bool(stored)

    def connection_broke(self) -> None:
        """What is in flight may or may not be stored."""
        self._was_cut_off = self.num_in_flight > 0 and not self._pace.stored_any

    def reopened(self, last_sequence: int) -> Sequence[EncodedBatch] | None:
        """Go on behind ``last_sequence``, where the aggregator has the spool.

        Returns:
            The batches to be sent again; None if what is here was invalidated: see :meth:`restart`.
        """
        is_cut_off = self._was_cut_off and last_sequence < self._in_flight[0].sequence_first
        self._was_cut_off = False
        too_large = is_cut_off and self._pace.shrink()
        goes_on = not too_large and self._goes_on_behind(last_sequence)
        if goes_on:
            self.acknowledged(last_sequence)
            while self._waiting and self._waiting[0].sequence_last <= last_sequence:
                self._waiting.popleft()  # another shipper has brought it
            self.flush()
        self._pace.connected()
        return tuple(self._in_flight) if goes_on else None

    def restart(self, sequence_next: int, state: PairingState) -> None:
        """Drop all batches: what follows is encoded again, from ``sequence_next`` on, and at once.

        Args:
            state: the pairing just before ``sequence_next``.
        """
        self._in_flight.clear()
        self._received.clear()
        self._waiting.clear()
        self.flush()
        self._sequence_next, self.acked_state = sequence_next, state
        self._was_cut_off = False

    def _goes_on_behind(self, last_sequence: int) -> bool:
        """Whether a batch here begins right behind ``last_sequence``, or the next one will."""
        if self._received and last_sequence < self._received[-1][0]:
            return False  # what was received is not here any more
        batches = (*self._in_flight, *self._waiting)
        first = (batch.sequence_first for batch in batches if batch.sequence_last > last_sequence)
        return next(first, self._sequence_next) == last_sequence + 1
