"""Rows into Batch messages that fit the wire.

Stage: shipper process, between pairing and stream. In: what was read of one spool, and its pairing. Out:
one message, or several where one would pass MESSAGE_BYTES_MAX: the stretch of log is then halved until each
half fits. Pairing's state is a value, so trying again costs the work and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rankmem_agent.spool.exits import Exit
from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.collector_pb2 import Batch, TableRows
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.pairing.rows import Rows
from rankmem_ship.pairing.state import PairingState
from rankmem_ship.pairing.upserts import ClockEstimate
from rankmem_ship.spool_reader.reader import Chunk, Gap

MESSAGE_BYTES_MAX: Final = 2 << 20
"""Half of gRPC's default limit for a message."""

Part = Chunk | Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One batch, ready to be sent as often as it takes."""

    message: Batch
    size_bytes: int
    state_after: PairingState
    """The pairing at the batch's end: the checkpoint once it is acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of one spool's log, read and not yet sent."""

    sequence_first: int
    sequence_last: int
    parts: Sequence[Part]
    final: bool = False
    ended_ns: int | None = None
    exited: Exit | None = None
    wrote_end: bool = False
    clock: ClockEstimate | None = None
    full: bool = False
    """Cut because it was long enough, not for a beat or the log's end."""


def pack(
    pairing: Pairing, spool_id: str, stretch: Stretch, extra: Callable[[], Sequence[Rows]]
) -> list[Envelope]:
    """The stretch as messages, each under MESSAGE_BYTES_MAX.

    Args:
        extra: rows that ride along with the last message (clock, own cost).
    """
    before = pairing.state
    for part in stretch.parts:
        pairing.feed(part)
    rows = pairing.cut(
        final=stretch.final,
        ended_ns=stretch.ended_ns,
        clock=stretch.clock,
        exited=stretch.exited,
        wrote_end=stretch.wrote_end,
    )
    message = Batch(
        spool_id=spool_id,
        sequence_first=stretch.sequence_first,
        sequence_last=stretch.sequence_last,
        tables=[TableRows(table=name, arrow_ipc=encode_rows(data)) for name, data in (*rows, *extra())],
        final=stretch.final,
    )
    size_bytes = message.ByteSize()
    halves = halve(stretch) if size_bytes > MESSAGE_BYTES_MAX else None
    if halves is None:
        return [Envelope(message=message, size_bytes=size_bytes, state_after=pairing.state)]
    pairing.state = before
    first, second = halves
    return pack(pairing, spool_id, first, tuple) + pack(pairing, spool_id, second, extra)


def halve(stretch: Stretch) -> tuple[Stretch, Stretch] | None:
    """Two stretches that together are this one; None if it holds a single record or gap."""
    weight = sum(_weight(part) for part in stretch.parts)
    if weight < (1 if stretch.final else 2):
        return None
    first, second = _split(stretch.parts, (weight + 1) // 2)
    border = first[-1].sequence_last
    return (
        Stretch(sequence_first=stretch.sequence_first, sequence_last=border, parts=first),
        dataclasses.replace(stretch, sequence_first=border + 1, parts=second),
    )


def _weight(part: Part) -> int:
    return len(part.records) if isinstance(part, Chunk) else 1


def _split(parts: Sequence[Part], weight: int) -> tuple[list[Part], list[Part]]:
    """The first ``weight`` records (a gap counts as one), and the rest."""
    first: list[Part] = []
    for index, part in enumerate(parts):
        if weight == 0:
            return first, list(parts[index:])
        if isinstance(part, Chunk) and len(part.records) > weight:
            begin, records = part.sequence_first, part.records
            first.append(Chunk(sequence_first=begin, records=records[:weight]))
            rest = Chunk(sequence_first=begin + weight, records=records[weight:])
            return first, [rest, *parts[index + 1 :]]
        first.append(part)
        weight -= _weight(part)
    return first, []
