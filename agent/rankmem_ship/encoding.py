"""Log slices paired and encoded as Batch messages that fit the wire.

Stage: shipper process, between log slices and send buffer. In: a log slice and its spool's pairing. Out: one
message, or several where one would pass MESSAGE_BYTES_MAX: the slice is then halved until each half fits.
Pairing's state is a value, so trying again costs the work and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.collector_pb2 import Batch, TableRows
from rankmem_ship.log_slices import LogSlice, halve
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.pairing.rows import Rows
from rankmem_ship.pairing.state import PairingState

MESSAGE_BYTES_MAX: Final = 2 << 20
"""Half of gRPC's default limit for a message."""


Look = Callable[[Sequence[Rows]], None]
"""Is shown the rows of each batch."""
Leave = Callable[[Batch, Sequence[Rows]], Batch]
"""(a batch, its rows) -> the batch that is sent: without the rows that stay on this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """One batch, ready to be sent as often as it takes."""

    message: Batch
    size_bytes: int
    state_after: PairingState
    """The pairing at the batch's end: the checkpoint once it is acknowledged."""
    full: bool = False
    """Cut because it was long enough, not for a flush or the log's end."""

    @property
    def sequence_first(self) -> int:
        """Position of its first record."""
        return self.message.sequence_first

    @property
    def sequence_last(self) -> int:
        """Position of its last record."""
        return self.message.sequence_last


def encode(
    pairing: Pairing,
    spool_id: str,
    log_slice: LogSlice,
    extra: Callable[[], Sequence[Rows]],
    leave: Leave | None = None,
    look: Look | None = None,
) -> list[EncodedBatch]:
    """The slice as messages, each under MESSAGE_BYTES_MAX.

    Args:
        extra: rows attached to the last message (clock, own cost).
        leave: leaves rows of events on this host; None: all are sent.
        look: is shown the rows of each message.
    """
    before = pairing.state
    for part in log_slice.parts:
        pairing.feed(part)
    rows = pairing.cut(
        final=log_slice.final,
        ended_ns=log_slice.ended_ns,
        clock=log_slice.clock,
        exited=log_slice.exited,
        wrote_end=log_slice.wrote_end,
    )
    message = Batch(
        spool_id=spool_id,
        sequence_first=log_slice.sequence_first,
        sequence_last=log_slice.sequence_last,
        tables=[TableRows(table=name, arrow_ipc=encode_rows(data)) for name, data in (*rows, *extra())],
        final=log_slice.final,
    )
    size_bytes = message.ByteSize()
    halves = halve(log_slice) if size_bytes > MESSAGE_BYTES_MAX else None
    if halves is None:
        state = pairing.state
        if look is not None:
            look(rows)
        if leave is not None:
            message = leave(message, rows)
            size_bytes = message.ByteSize()
        return [EncodedBatch(message=message, size_bytes=size_bytes, state_after=state, full=log_slice.full)]
    pairing.state = before
    first, second = halves
    return encode(pairing, spool_id, first, tuple, leave, look) + encode(
        pairing, spool_id, second, extra, leave, look
    )
