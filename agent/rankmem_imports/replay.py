"""The log of a rank, made in memory from a foreign recording's events and paired without a spool.

Stage: readers; the process of ``rankmem import``. In: events, calls, markers and steps in the order of the
recording, as the records of ``rankmem_agent.spool.layout``; texts and stacks. Out: parts, paired as a
spool's are: blocks, totals, buckets, calls, stacks. It infers nothing: the category of a block is
from TAG records, or unknown; a phase is from CALL_BEGIN (``layout.NO_PHASE``: none), a step likewise.
Memory: a part's records, the blocks alive, and the texts.

Times of records are nanoseconds since 1970 UTC, not CLOCK_MONOTONIC as in a spool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from rankmem_agent.spool.layout import RECORD_BYTES, UNKNOWN, Action, Kind
from rankmem_agent.spool.meta import SpoolMeta
from rankmem_agent.spool.records import RECORD_STRUCT, packed
from rankmem_imports.recording import Identity, Part
from rankmem_ship.pairing.columns import constant_name, null_column
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.pairing.state import Array, PairingState
from rankmem_ship.pairing.upserts import unexplained_bytes
from rankmem_ship.spool_reader.reader import Chunk
from rankmem_ship.spool_reader.segments import RECORD_DTYPE
from rankmem_ship.spool_reader.string_table import StringTable

PART_RECORDS: Final = 32_768
"""Records of a part: half a MiB of rows, as the shipper cuts them."""
TEXT_BYTES_MAX: Final = 4096
"""Longer names are cut: the aggregator refuses longer modules."""
FRAMES_MAX: Final = 512
"""Frames kept of a stack, nearest to the operator first: PyTorch's with C++ frames have about 100."""

_OF_IMPORT: Final = frozenset({"session", "host_info", "rank_info"})
"""Tables that import writes itself."""
RESERVED: Final = frozenset({"reserved_bytes", "reserved_peak_bytes", "reserved_last_bytes"})
"""Columns of the bytes that the allocator holds from the device; often missing in a recording."""
_Key = TypeVar("_Key", str, tuple[int, int, int], tuple[int, ...])


class MemoryStrings(StringTable):
    """Texts, frames and stacks of a log that is in no file."""

    def __init__(self) -> None:
        super().__init__(Path())
        self._id_of_text: dict[str, int] = {}
        self._id_of_frame: dict[tuple[int, int, int], int] = {}
        self._id_of_stack: dict[tuple[int, ...], int] = {}

    def intern(self, text: str) -> int:
        """The id of a text, cut at TEXT_BYTES_MAX."""
        known = self._id_of_text.get(text)
        if known is None:
            cut = (
                text.encode("utf-8", "replace")[:TEXT_BYTES_MAX].decode("utf-8", "ignore").replace("\0", " ")
            )
            known = _new_id(self._id_of_text, text)
            self._strings[known] = cut
        return known

    def frame(self, file_path: str, function: str, line_number: int) -> int:
        """The id of a frame."""
        key = (self.intern(file_path), self.intern(function), max(line_number, 0))
        known = self._id_of_frame.get(key)
        if known is None:
            known = _new_id(self._id_of_frame, key)
            self._frames[known] = key
        return known

    def make_stack(self, frames: Sequence[int]) -> int:
        """The id of a stack of frame ids, nearest to the operator first; 0 for an empty one."""
        key = tuple(frames[:FRAMES_MAX])
        if not key:
            return 0
        known = self._id_of_stack.get(key)
        if known is None:
            known = _new_id(self._id_of_stack, key)
            self._stacks[known] = key
        return known

    def poll(self) -> None:
        """Nothing: there is no file."""


class Replay:
    """The log of one rank.

    Args:
        identity: the rank.
        missing_columns: columns that the recording does not know; see the attribute.
        constants: columns with one value in every row of every table, such as a device that torch has no
            number for; the records hold any.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        missing_columns: Set[str] = frozenset(),
        constants: Mapping[str, str] = {},
    ) -> None:
        self.strings = MemoryStrings()
        """Intern texts, frames and stacks here."""
        self.next_seq = 0
        """Position that the next record gets: an event's is its ``seq``, an alloc's its ``allocation_id``."""
        self._pairing = Pairing(_meta_of(identity), self.strings)
        self.missing_columns = missing_columns
        """NULL in every table that has them, whatever the records hold."""
        self._constants = constants
        self._pending = bytearray()
        self._first_seq = 0

    @property
    def state(self) -> PairingState:
        """The state of pairing after the last part: totals of devices, blocks alive, events so far."""
        return self._pairing.state

    @property
    def unexplained_bytes(self) -> int:
        """Replay minus the source's figures (COUNTERS records), plus blocks whose end was only implied."""
        return unexplained_bytes(self.state)

    @property
    def is_full(self) -> bool:
        """Whether it is time for :meth:`part`."""
        return self.next_seq - self._first_seq >= PART_RECORDS

    def record(self, kind: Kind, /, *, time_ns: int, **fields: int) -> int:
        """Append a record; its position. ``fields``: as in ``spool.records.RecordWriter``."""
        self._pending += packed(kind, time_ns=time_ns, **fields)
        self.next_seq += 1
        return self.next_seq - 1

    def event(
        self,
        action: Action,
        *,
        time_ns: int,
        device_type: int,
        device_index: int,
        address: int,
        size_bytes: int,
        stream: int = 0,
        pool: int = 0,
        call_id: int = 0,
        thread: int = 0,
        stack: int = 0,
    ) -> int:
        """Append an event of an allocator; ``stack``: its own, where it is in no call."""
        # As record() would: for each of a million events it is made without a dictionary.
        self._pending += RECORD_STRUCT.pack(
            time_ns, address, size_bytes, stream, pool, call_id, thread, stack,
            Kind.EVENT, action, device_type, device_index, 0,
        )  # fmt: skip
        self.next_seq += 1
        return self.next_seq - 1

    def figures(
        self,
        *,
        time_ns: int,
        device_type: int,
        device_index: int,
        allocated: int = UNKNOWN,
        active: int = UNKNOWN,
        requested: int = UNKNOWN,
    ) -> int:
        """Append the source's own totals of a device after the last event, in bytes.

        allocated and active are in the rows from here on; the replay is compared with requested.
        """
        return self.record(
            Kind.COUNTERS,
            time_ns=time_ns,
            device_type=device_type,
            device_index=device_index,
            allocated_bytes=allocated,
            active_bytes=active,
            reserved_bytes=UNKNOWN,
            requested_bytes=requested,
        )

    def reserve(self, change_bytes: int, *, time_ns: int, device_type: int, device_index: int) -> int:
        """Append a change of the bytes that the allocator holds from the device, if it is in no event."""
        return self.record(
            Kind.PREEXISTING,
            time_ns=time_ns,
            action=Action.SEGMENT_ALLOC if change_bytes >= 0 else Action.SEGMENT_FREE,
            device_type=device_type,
            device_index=device_index,
            size_bytes=abs(change_bytes),
        )

    def records(self, records: Array) -> None:
        """Append ready-made records (RECORD_DTYPE), as many as make a part or fewer."""
        self._pending += np.ascontiguousarray(records).tobytes()
        self.next_seq += len(records)

    def part(self, *, final: bool = False) -> Part:
        """The rows of what was appended since the last part.

        Args:
            final: nothing follows; calls, markers and blocks that wait go out.
        """
        taken = np.frombuffer(bytes(self._pending), RECORD_DTYPE)
        assert len(self._pending) == len(taken) * RECORD_BYTES
        if len(taken):
            self._pairing.feed(Chunk(sequence_first=self._first_seq, records=taken))
        self._pending = bytearray()
        self._first_seq = self.next_seq
        rows = [
            (table, self._stored(batch))
            for table, batch in self._pairing.cut(final=final)
            if table not in _OF_IMPORT
        ]
        return Part(rows=rows, sequence_last=max(self.next_seq - 1, 0))

    def _stored(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the missing columns and the constants set."""
        for field in rows.schema:
            if field.name in self.missing_columns:
                rows = with_column(rows, field.name, null_column(field.type, rows.num_rows))
            elif field.name in self._constants:
                rows = with_column(
                    rows, field.name, constant_name(self._constants[field.name], rows.num_rows)
                )
        return rows


def with_column(rows: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    """The rows with other values in a column."""
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), values)


def _meta_of(identity: Identity) -> SpoolMeta:
    """The facts of a log whose times are the host's own."""
    facts: dict[str, Any] = {}
    return SpoolMeta(
        spool_id="",
        session_id=identity.session_id,
        attempt=identity.attempt,
        rank=identity.rank,
        pid=0,
        process_start_ticks=0,
        start=0,
        aggregator="",
        project_root="",
        monotonic_ns=0,
        realtime_ns=0,
        session=facts,
        rank_row=facts,
        host=facts,
        infers=False,
    )


def _new_id(ids: dict[_Key, int], key: _Key) -> int:
    new = len(ids) + 1
    ids[key] = new
    return new
