"""A batch off the wire, decoded and checked row by row before the writer sees it.

Stage: between ingest call and writer. In: a ``Batch`` message and the spool it claims; out: an
:class:`IncomingBatch`, or a refusal of this batch alone. Runs in a few decoding threads, so that batches of
many hosts are decompressed in parallel (Arrow releases the GIL for it). Never touches the database.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass, field
from typing import Final, Self

import pyarrow as pa

from rankmem_aggregator.ingest.detail_checks import check_details
from rankmem_aggregator.ingest.row_checks import check_positions, check_range, check_texts, check_values
from rankmem_protos.arrow_wire import decode_rows, decoded_size
from rankmem_protos.bounds import RANKS_MAX, SEQUENCE_MAX
from rankmem_protos.collector_pb2 import Batch, OpenSpool
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import BUCKET_RECORDS, GAP, SUMMARY_BUCKET_RECORDS, TABLES

POSITIONS_MAX: Final = 1 << 22
"""Positions of one batch that no gap row explains. A shipper's batch has 32,768 records; those of an import
without a position in its log are fewer than the rows of a batch may be."""
SECRET_BYTES_MAX: Final = 64
"""Of a spool's secret. Ours have 16."""
TEXT_BYTES_MAX: Final = 200
"""Of a spool's or session's id. Ours have under 60."""
DECODED_BYTES_MAX: Final = 256 << 20
"""Of one batch, decoded: 30 times a full one of a training. Looked up in its headers before it is decoded."""
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
"""Of spools and sessions: ids become names of files and folders where a session is exported."""
BATCH_ROWS_MAX: Final = 4_000_000
"""Rows of one batch over all tables; a 4 MiB message of constant columns could claim billions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """A spool as its ``OpenSpool`` named it: the log of one rank process."""

    spool_id: str
    session_id: str
    attempt: int
    """Under which its rows are stored."""
    rank: int
    declared_attempt: int | None = field(default=None, compare=False)
    """That of its rows, where it is another one; see :mod:`rankmem_aggregator.ingest.attempts`."""
    start: str = field(default="", compare=False)
    """See ``OpenSpool`` in collector.proto; likewise launch."""
    launch: str = field(default="", compare=False)
    started_ns: int = field(default=0, compare=False)
    """When the rank's process was attached: by the aggregator's clock, where the shipper says how long ago;
    else by its host's, which may be ahead. 0: not known."""
    secret_hash: str = field(default="", compare=False)
    """SHA-256 of the secret that opens it, in hexadecimal; empty: an older spool, which has none."""

    @classmethod
    def of(cls, message: OpenSpool) -> Self:
        """The spool that a message opens.

        Raises:
            RankmemError: INVALID for what cannot name a spool.
        """
        if len(message.secret) > SECRET_BYTES_MAX:
            raise RankmemError(Code.INVALID, f"a secret of {len(message.secret)} bytes opens no spool")
        return cls(
            spool_id=message.spool_id,
            session_id=message.session_id,
            attempt=message.attempt,
            rank=message.rank,
            start=message.start,
            launch=message.launch,
            started_ns=time.time_ns() - message.age_ns if message.age_ns > 0 else message.started_ns,
            secret_hash=hashlib.sha256(message.secret).hexdigest() if message.secret else "",
        )

    def __post_init__(self) -> None:
        for name, text in (("spool_id", self.spool_id), ("session_id", self.session_id)):
            if not 0 < len(text.encode()) <= TEXT_BYTES_MAX:
                raise RankmemError(Code.INVALID, f"{name} {text[:TEXT_BYTES_MAX]!r} is empty or too long")
            if not _ID.fullmatch(text):
                raise RankmemError(
                    Code.INVALID,
                    f"{name} {text!r} has other characters than letters, digits, '.', '_', ':', '-'",
                )
        for name, text in (("start", self.start), ("launch", self.launch)):
            if text and (len(text) > TEXT_BYTES_MAX or not _ID.fullmatch(text)):
                raise RankmemError(Code.INVALID, f"{name} {text[:TEXT_BYTES_MAX]!r} names nothing")
        if self.attempt >= RANKS_MAX or self.rank >= RANKS_MAX:
            raise RankmemError(
                Code.INVALID, f"spool {self.spool_id} has attempt {self.attempt}, rank {self.rank}"
            )

    def columns(self) -> dict[str, str | int]:
        """The values of these columns in every row of its batches, as they arrive."""
        return {
            "session_id": self.session_id,
            "attempt": self.attempt if self.declared_attempt is None else self.declared_attempt,
            "rank": self.rank,
            "spool_id": self.spool_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingBatch:
    """Checked rows of a range of one spool."""

    spool: Spool
    batch_number: int
    sequence_first: int
    sequence_last: int
    final: bool
    rows: dict[str, pa.Table]
    """By table name; tables without rows are left out."""
    num_rows: int
    tallest_rows: int
    """Rows of its largest table, which decide how DuckDB stores a group."""
    size_bytes: int
    """Of the decoded columns: its size in the queue."""
    wire_bytes: int = 0
    """As it arrived, compressed."""
    is_details: bool = False
    """Rows that an earlier batch of its range left on its host."""

    @property
    def rank_key(self) -> tuple[str, int, int]:
        """session_id, attempt and rank of its rows as they are stored."""
        return self.spool.session_id, self.spool.attempt, self.spool.rank

    @property
    def num_positions(self) -> int:
        """Positions of the spool that it covers."""
        return self.sequence_last - self.sequence_first + 1

    @property
    def num_events(self) -> int:
        """Rows of memory_event."""
        events = self.rows.get("memory_event")
        return 0 if events is None else int(events.num_rows)


def declared_bytes(message: Batch) -> int:
    """Bytes that the batch will take decoded, by its headers; nothing is decoded for it.

    Raises:
        RankmemError: INVALID if it is not Arrow, takes more than DECODED_BYTES_MAX, or has too many tables.
    """
    if len(message.tables) > len(TABLES):
        raise RankmemError(
            Code.INVALID, f"the batch has {len(message.tables)} tables", "send each table once"
        )
    size_bytes = sum(decoded_size(entry.table, entry.arrow_ipc) for entry in message.tables)
    if size_bytes > DECODED_BYTES_MAX:
        raise RankmemError(
            Code.INVALID,
            f"the batch declares {size_bytes} decoded bytes, at most {DECODED_BYTES_MAX}",
            "send smaller batches",
        )
    return size_bytes


def decode_batch(message: Batch, spool: Spool, *, takes_details: bool = False) -> IncomingBatch:
    """The checked batch.

    Args:
        message: as it arrived.
        spool: as it was opened.
        takes_details: whether batches may come without their rows of events, and those later.

    Raises:
        RankmemError: INVALID, for this batch alone.
    """
    if not message.sequence_first <= message.sequence_last <= SEQUENCE_MAX:
        raise RankmemError(
            Code.INVALID,
            f"batch covers [{message.sequence_first}, {message.sequence_last}], which is not a range of "
            f"positions up to {SEQUENCE_MAX}",
        )
    rows: dict[str, pa.Table] = {}
    bucket_records = SUMMARY_BUCKET_RECORDS if takes_details else BUCKET_RECORDS
    for entry in message.tables:
        if entry.table in rows:
            raise RankmemError(Code.INVALID, f"batch has table {entry.table} twice", "send each table once")
        table_rows = decode_rows(entry.table, entry.arrow_ipc)
        check_texts(TABLES[entry.table], table_rows)
        check_values(TABLES[entry.table], table_rows, spool.columns(), bucket_records)
        rows[entry.table] = table_rows
    check_details(message, rows, takes_details=takes_details)
    if "memory_event" in rows:
        first, last = message.sequence_first, message.sequence_last
        check_range(TABLES["memory_event"], "seq", rows["memory_event"].column("seq"), first, last)
        check_positions(rows["memory_event"])
    _check_jump(message, rows.get(GAP.name))
    num_rows = sum(table.num_rows for table in rows.values())
    if num_rows > BATCH_ROWS_MAX:
        raise RankmemError(
            Code.INVALID, f"batch has {num_rows} rows, at most {BATCH_ROWS_MAX}", "send smaller batches"
        )
    return IncomingBatch(
        spool=spool,
        batch_number=message.batch_number,
        sequence_first=message.sequence_first,
        sequence_last=message.sequence_last,
        final=message.final,
        rows={name: _as_stored(table, spool) for name, table in rows.items() if table.num_rows},
        num_rows=num_rows,
        tallest_rows=max((table.num_rows for table in rows.values()), default=0),
        size_bytes=sum(table.get_total_buffer_size() for table in rows.values()),
        wire_bytes=sum(len(entry.arrow_ipc) for entry in message.tables),
        is_details=message.details,
    )


def _check_jump(message: Batch, gaps: pa.Table | None) -> None:
    """Checks that a batch covers its records and the positions that its gap rows explain, and no others.

    Raises:
        RankmemError: INVALID where more positions are covered than that.
    """
    first, last = message.sequence_first, message.sequence_last
    if last - first < POSITIONS_MAX:
        return
    unexplained = last - first + 1 - (_covered(gaps, first, last) if gaps is not None else 0)
    if unexplained > POSITIONS_MAX:
        raise RankmemError(
            Code.INVALID,
            f"batch covers [{first}, {last}], of which no gap row explains {unexplained} positions",
            f"send at most {POSITIONS_MAX} records in a batch, and a row of gap for what is missing",
        )


def _covered(gaps: pa.Table, first: int, last: int) -> int:
    """How many positions of the range are covered by gap rows."""
    covered, after = 0, first
    for begin, end in sorted(
        zip(*(gaps.column(name).to_pylist() for name in ("sequence_first", "sequence_last")), strict=True)
    ):
        begin, end = max(begin, after), min(end, last)
        if begin <= end:
            covered += end - begin + 1
            after = end + 1
    return covered


def _as_stored(rows: pa.Table, spool: Spool) -> pa.Table:
    """The rows with the attempt under which the spool is stored."""
    index = rows.schema.get_field_index("attempt")
    if index < 0 or spool.declared_attempt in (None, spool.attempt):
        return rows
    wanted = rows.schema.field(index)
    values = pa.repeat(pa.scalar(spool.attempt, pa.int32()), rows.num_rows).cast(wanted.type)
    return rows.set_column(index, wanted, values)
