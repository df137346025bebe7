"""Stages a rank of a recording: reads it to its end into a file of messages before any of it is delivered.

Stage: import, between reader and sink; the process of ``rankmem import``. In: a recording's parts. Out: one
file a rank with the messages that a shipper would send, and the facts on the rank. So a recording that
turns out to be broken sends nothing, and memory holds a part at a time. The messages are a function of the
recording and of this version of rankmem: after a kill, importing again continues where the aggregator is.

The file: for each message its length (u32, little-endian) and its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_imports.recording import Closing, Identity, RankFacts, RankRecording
from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.collector_pb2 import Batch, OpenSpool, TableRows
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.plain_errors import plain
from rankmem_ship.pairing.columns import rows_of
from rankmem_ship.pairing.fact_rows import Rows

MESSAGE_BYTES_MAX: Final = 2 << 20
"""Half of gRPC's default limit for a message, as a shipper's."""
HELD_BYTES_MAX: Final = 1 << 20
"""Rows that wait for the next event's position, decoded: more take a position of their own."""

_LENGTH: Final = struct.Struct("<I")
_POSITIONED: Final = "memory_event"
"""Its rows lie within their message's range."""
_UNKNOWN_HOST: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRank:
    """A rank with its messages on disk."""

    identity: Identity
    spool_id: str
    source: Path
    facts: RankFacts
    closing: Closing
    first_ns: int | None
    """Earliest time in its events, calls and markers; None if there is none. Likewise last_ns."""
    last_ns: int | None
    rows: dict[str, int]
    """Rows by table."""
    sequence_last: int
    """Of its last message; the closing one follows."""
    path: Path

    @property
    def started_ns(self) -> int | None:
        """The recording's stated start or its first time, whichever is earlier."""
        return min((ns for ns in (self.facts.started_ns, self.first_ns) if ns is not None), default=None)

    @property
    def ended_ns(self) -> int | None:
        """The recording's stated end or its last time, whichever is later."""
        return max((ns for ns in (self.facts.ended_ns, self.last_ns) if ns is not None), default=None)

    def opening(self) -> OpenSpool:
        """The message that opens its log at the aggregator."""
        session_id, attempt, rank = self.identity
        return OpenSpool(spool_id=self.spool_id, session_id=session_id, attempt=attempt, rank=rank)

    def messages(self, session_row: dict[str, Any]) -> Iterator[Batch]:
        """All messages in order; the last has the rows of session, host and rank."""
        with self.path.open("rb") as file:
            while head := file.read(_LENGTH.size):
                yield Batch.FromString(file.read(_LENGTH.unpack(head)[0]))
        position = self.sequence_last + 1
        yield Batch(
            spool_id=self.spool_id,
            sequence_first=position,
            sequence_last=position,
            tables=[
                TableRows(table=name, arrow_ipc=encode_rows(rows_of(name, [row])))
                for name, row in (
                    ("session", session_row),
                    ("host_info", _host_row(self.facts)),
                    ("rank_info", self.rank_row()),
                )
            ],
            final=True,
        )

    def rank_row(self) -> dict[str, Any]:
        """The row of rank_info."""
        facts, closing = self.facts, self.closing
        return self.identity._asdict() | {
            "local_rank": facts.local_rank,
            "host_uid": _host_uid(facts),
            "pid": facts.pid,
            "spool_id": self.spool_id,
            "started_at_ns": self.started_ns,
            "ended_at_ns": self.ended_ns,
            "end_reason": "imported",
            "events": closing.events,
            "events_lost": closing.events_lost,
            "unexplained_bytes": closing.unexplained_bytes,
            "complete": closing.complete,
            **facts.coordinates,
        }


def stage(
    recording: RankRecording,
    identity: Identity,
    spool_id: str,
    path: Path,
    progress: Callable[[int], None] | None = None,
) -> StagedRank:
    """Reads a rank's part to its end into the file ``path``.

    Args:
        progress: called with the number of rows so far, after each part.

    Raises:
        RankmemError: what the recording raises; EXHAUSTED where the disk is full.
    """
    try:
        with path.open("wb") as file:
            messages = _Messages(file, spool_id)
            for part in recording.parts(identity):
                messages.add(part.rows, part.sequence_last)
                if progress is not None:
                    progress(sum(messages.num_rows.values()))
            messages.flush()
        staged = StagedRank(
            identity=identity,
            spool_id=spool_id,
            source=recording.source,
            facts=recording.facts,
            closing=recording.closing(),
            first_ns=messages.first_ns,
            last_ns=messages.last_ns,
            rows=messages.num_rows,
            sequence_last=messages.sequence_last,
            path=path,
        )
        rows_of("rank_info", [staged.rank_row()])  # the facts on the rank fit, too
        return staged
    except OSError as exc:
        if exc.filename is not None and Path(exc.filename) != path:
            raise RankmemError(Code.NOT_FOUND, f"cannot read {exc.filename}: {exc.strerror}") from exc
        raise RankmemError(
            Code.EXHAUSTED,
            f"cannot write to {path.parent}: {exc.strerror}",
            "set TMPDIR to a folder with room for about half of the recording's size",
        ) from exc
    except (OverflowError, UnicodeError, pa.ArrowException) as exc:
        raise RankmemError(
            Code.INVALID,
            f"{recording.source} holds a value that no column can: {plain(exc)}",
            "export or copy the recording again",
        ) from exc


class _Messages:
    """Writes rows as messages without a gap between their positions."""

    def __init__(self, file: BinaryIO, spool_id: str) -> None:
        self._file = file
        self._spool_id = spool_id
        self._held: list[Rows] = []
        self._held_last = -1
        self.sequence_last = -1
        self.num_rows: dict[str, int] = {}
        self.first_ns: int | None = None
        self.last_ns: int | None = None

    def add(self, rows: Sequence[Rows], sequence_last: int) -> None:
        """Adds rows up to a position; those without a new one wait for the next that has."""
        self._held += [pair for pair in rows if pair[1].num_rows]
        self._held_last = max(self._held_last, sequence_last)
        held_bytes = sum(batch.get_total_buffer_size() for _, batch in self._held)
        if self._held_last > self.sequence_last or held_bytes > HELD_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Writes the held rows as messages."""
        if not self._held:
            return
        first = self.sequence_last + 1
        last = max(first, self._held_last)
        self._count()
        tables = _joined(self._held)
        events = tables.get(_POSITIONED)
        if events is None:  # rows without a place in the log take as many positions as they need
            last = max(
                last, first + sum(rows.get_total_buffer_size() for rows in tables.values()) // HELD_BYTES_MAX
            )
        elif events.num_rows and pc.min(events.column("seq")).as_py() < first:
            raise RankmemError(
                Code.INTERNAL,
                f"{self._spool_id}: an event is before position {first}",
                "report it: a reader must leave room in seq for its other rows",
            )
        self._write(tables, first, last)
        self.sequence_last = last
        self._held = []

    def _write(self, tables: dict[str, pa.Table], first: int, last: int) -> None:
        message = Batch(
            spool_id=self._spool_id,
            sequence_first=first,
            sequence_last=last,
            tables=[TableRows(table=name, arrow_ipc=encode_rows(rows)) for name, rows in tables.items()],
        )
        if message.ByteSize() > MESSAGE_BYTES_MAX and last > first:
            middle = _middle(tables, first, last)
            first_half, second_half = _halves(tables, middle)
            self._write(first_half, first, middle)
            self._write(second_half, middle + 1, last)
            return
        data = message.SerializeToString()
        self._file.write(_LENGTH.pack(len(data)))
        self._file.write(data)

    def _count(self) -> None:
        for name, batch in self._held:
            self.num_rows[name] = self.num_rows.get(name, 0) + batch.num_rows
            for column in ("time_ns", "started_ns", "ended_ns"):
                if column in batch.schema.names:
                    bounds = pc.min_max(batch.column(column)).as_py()
                    if bounds["min"] is not None:
                        self.first_ns = min(self.first_ns or bounds["min"], bounds["min"])
                        self.last_ns = max(self.last_ns or bounds["max"], bounds["max"])


def _joined(held: list[Rows]) -> dict[str, pa.Table]:
    parts: dict[str, list[pa.RecordBatch]] = {}
    for name, batch in held:
        parts.setdefault(name, []).append(batch)
    return {
        name: pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
        for name, batches in parts.items()
    }


def _middle(tables: dict[str, pa.Table], first: int, last: int) -> int:
    """A position that divides the rows in about two halves, at least one position on each side."""
    events = tables.get(_POSITIONED)
    if events is None or events.num_rows < 2:
        return (first + last) // 2
    middle = events.column("seq")[events.num_rows // 2].as_py()
    return int(min(max(middle, first), last - 1))


def _halves(tables: dict[str, pa.Table], middle: int) -> tuple[dict[str, pa.Table], dict[str, pa.Table]]:
    """Events by their position, other rows one half and the other."""
    first: dict[str, pa.Table] = {}
    second: dict[str, pa.Table] = {}
    for name, rows in tables.items():
        at = rows.num_rows // 2
        if name == _POSITIONED:
            at = int(pc.sum(pc.less_equal(rows.column("seq"), middle)).as_py() or 0)
        for half, part in ((first, rows.slice(0, at)), (second, rows.slice(at))):
            if part.num_rows:
                half[name] = part
    return first, second


def _host_uid(facts: RankFacts) -> str:
    return facts.host_uid or facts.host_name or _UNKNOWN_HOST


def _host_row(facts: RankFacts) -> dict[str, Any]:
    name = facts.host_name or facts.host_uid or _UNKNOWN_HOST
    return {"host_uid": _host_uid(facts), "host_name": name, "gpu_driver": facts.gpu_driver}
