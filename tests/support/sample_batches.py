"""Batches shaped like those of a real training, for tests and benchmarks of the aggregator.

A rank runs steps of a few hundred operator calls; most calls allocate a block and free one. The figures are
consistent (running totals, ids), so that views over them mean something; they are not a recording.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rankmem_protos import collector_pb2 as pb
from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.tables import BUCKET_RECORDS, TABLES

SESSION_ID = "01JABCDEFGHK"
STARTED_NS = 1_760_000_000_000_000_000
OPERATORS = [f"aten::op_{n}" for n in range(60)]
MODULES = [f"model.blocks.{n}.{part}" for n in range(12) for part in ("attn", "mlp", "norm")]
PHASES = ["forward", "backward", "optimizer"]


@dataclass(kw_only=True)
class RankSource:
    """Makes the batches of one rank, one after another, always the same for the same arguments."""

    rank: int = 0
    session_id: str = SESSION_ID
    attempt: int = 0
    num_stacks: int = 600
    address_base: int = 0x7F20_0000_0000

    def __post_init__(self) -> None:
        self.spool_id = f"{self.session_id}-{self.attempt}-{self.rank}-{1000 + self.rank}-55"
        self.random = np.random.default_rng(self.rank)
        self.next_sequence = 0
        self.next_number = 1
        self.time_ns = STARTED_NS
        self.next_call = 1
        self.live: list[tuple[int, int, int]] = []  # allocation_id, address, size
        self.requested = 0
        self.free_addresses: dict[int, list[int]] = {}
        self.next_address = self.address_base
        self.stack_hashes = np.random.default_rng(7).integers(-(2**62), 2**62, self.num_stacks)
        self.sizes = self.random.choice(2 ** np.arange(9, 25), 60) + 8 * self.random.integers(0, 40, 60)

    def open_spool(self) -> pb.IngestRequest:
        """The request that opens this rank's spool."""
        return pb.IngestRequest(
            open_spool=pb.OpenSpool(
                spool_id=self.spool_id, session_id=self.session_id, attempt=self.attempt, rank=self.rank
            )
        )

    def batch(self, num_events: int = 1000, *, final: bool = False) -> pb.Batch:
        """The next batch."""
        first = self.next_sequence
        rows = self.rows(num_events)
        message = pb.Batch(
            spool_id=self.spool_id,
            batch_number=self.next_number,
            sequence_first=first,
            sequence_last=self.next_sequence - 1,
            final=final,
            tables=[pb.TableRows(table=name, arrow_ipc=encode_rows(table)) for name, table in rows.items()],
        )
        self.next_number += 1
        return message

    def rows(self, num_events: int) -> dict[str, pa.Table]:
        """The rows of the next events, by table."""
        events: list[tuple[object, ...]] = []
        blocks: dict[int, list[object]] = {}
        ends: list[tuple[object, ...]] = []
        calls: list[tuple[object, ...]] = []
        used_stacks: set[int] = set()
        while len(events) < num_events:
            self._call(events, blocks, ends, calls, used_stacks, num_events)
        tables = {
            "memory_event": _table("memory_event", self._of_device(len(events)), events),
            "allocation_record": _table(
                "allocation_record", self._of_device(len(blocks)), list(blocks.values())
            ),
            "allocation_end": _table("allocation_end", self._of_device(len(ends)), ends),
            "operator_call": _table("operator_call", self._of_rank(len(calls)), calls),
            "stack_frame": self._frames(sorted(used_stacks)) if self.next_number <= 3 else None,
            "rank_info": self._rank_info(),
            "memory_bucket": self._buckets(events),
        }
        return {name: table for name, table in tables.items() if table is not None and table.num_rows}

    def _call(self, events, blocks, ends, calls, used_stacks, num_events) -> None:  # type: ignore[no-untyped-def]
        random = self.random
        call_id = self.next_call
        self.next_call += 1
        which = call_id % 300
        operator, module = OPERATORS[which % 60], MODULES[(which // 8) % 36]
        phase, step = PHASES[which * 3 // 300], call_id // 300
        stack = int(self.stack_hashes[which * 2 % self.num_stacks])
        started_ns = self.time_ns
        self.next_sequence += 1  # CALL_BEGIN
        allocated = freed = count = 0
        for place in range(int(random.integers(1, 4))):
            size = int(self.sizes[(which + place) % 60])
            free = self.free_addresses.setdefault(size, [])
            address = free.pop() if free else self.next_address
            if address == self.next_address:
                self.next_address += (size + 511) // 512 * 512
            seq = self._tick()
            self.requested += size
            allocated += size
            count += 1
            self.live.append((seq, address, size))
            events.append((seq, self.time_ns, "alloc", address, size, self.requested, seq, call_id))
            blocks[seq] = [
                seq,
                address,
                size,
                operator,
                module,
                phase,
                step,
                call_id,
                stack,
                self.time_ns,
                None,
                None,
            ]
            if len(self.live) > 200:
                old_id, old_address, old_size = self.live.pop(int(random.integers(0, len(self.live))))
                seq = self._tick()
                self.requested -= old_size
                freed += old_size
                self.free_addresses.setdefault(old_size, []).append(old_address)
                events.append(
                    (
                        seq,
                        self.time_ns,
                        "free_completed",
                        old_address,
                        old_size,
                        self.requested,
                        old_id,
                        call_id,
                    )
                )
                if old_id in blocks:
                    blocks[old_id][10:12] = [self.time_ns, seq]
                else:
                    ends.append((old_id, self.time_ns, seq))
        used_stacks.add(stack)
        self.next_sequence += 1  # CALL_END
        sequence = call_id * 3 if phase == "forward" else None
        calls.append(
            (call_id, operator, module, phase, step, 1 if phase != "backward" else 2, sequence, sequence,
             1 if phase == "backward" else None, call_id * 3 - 300 if phase == "backward" else None,
             call_id - 100 if phase == "backward" else None, stack, started_ns, self.time_ns + 400,
             allocated, freed, count)
        )  # fmt: skip

    def _tick(self) -> int:
        seq = self.next_sequence
        self.next_sequence += 1
        self.time_ns += int(self.random.integers(800, 20_000))
        return seq

    def _of_rank(self, count: int) -> dict[str, object]:
        return {
            "session_id": [self.session_id] * count,
            "attempt": [self.attempt] * count,
            "rank": [self.rank] * count,
        }

    def _of_device(self, count: int) -> dict[str, object]:
        return self._of_rank(count) | {"device": ["cpu"] * count}

    def _frames(self, hashes: list[int]) -> pa.Table:
        rows = [
            {
                "stack_id": value,
                "ordering": n,
                "file_path": f"src/model_{n}.py",
                "line_number": 10 + n,
                "function": f"f{n}",
            }
            for value in hashes
            for n in range(12)
        ]
        return pa.Table.from_pylist(rows, schema=TABLES["stack_frame"].arrow_schema())

    def _rank_info(self) -> pa.Table:
        row = {
            "session_id": self.session_id, "attempt": self.attempt, "rank": self.rank, "host_uid": "host-a",
            "spool_id": self.spool_id, "events": self.next_sequence, "events_lost": 0,
        }  # fmt: skip
        return pa.Table.from_pylist([row], schema=TABLES["rank_info"].arrow_schema())

    def _buckets(self, events: list[tuple[object, ...]]) -> pa.Table:
        parts = itertools.groupby(events, key=lambda event: event[0] // BUCKET_RECORDS)  # type: ignore[operator]
        rows = [self._bucket(list(part)) for _, part in parts]
        return pa.Table.from_pylist(rows, schema=TABLES["memory_bucket"].arrow_schema())

    def _bucket(self, events: list[tuple[object, ...]]) -> dict[str, object]:
        peak = max(events, key=lambda event: event[5])  # type: ignore[arg-type,return-value]
        return {
            "session_id": self.session_id, "attempt": self.attempt, "rank": self.rank, "device": "cpu",
            "bucket_ns": events[0][1] // 10**9 * 10**9, "seq_first": events[0][0], "seq_last": events[-1][0],  # type: ignore[operator]
            "first_ns": events[0][1], "last_ns": events[-1][1], "events": len(events),
            "requested_peak_bytes": peak[5], "requested_peak_ns": peak[1], "requested_peak_seq": peak[0],
            "requested_last_bytes": events[-1][5],
        }  # fmt: skip


_ORDER = {
    "memory_event": ("seq", "time_ns", "action", "address", "size_bytes", "requested_bytes", "allocation_id",
                     "call_id"),
    "allocation_record": (
        "allocation_id", "address", "size_bytes", "operator", "module", "phase", "step", "call_id",
        "stack_id", "allocated_ns", "freed_ns", "freed_seq",
    ),
    "allocation_end": ("allocation_id", "freed_ns", "freed_seq"),
    "operator_call": (
        "call_id", "operator", "module", "phase", "step", "thread", "sequence_first", "sequence_last",
        "forward_thread", "forward_sequence", "forward_call_id", "stack_id", "started_ns", "ended_ns",
        "allocated_bytes", "freed_bytes", "allocations",
    ),
}  # fmt: skip
_CONSTANT = {"component": "pytorch", "preexisting": False, "thread": 1}


def _table(name: str, constants: dict[str, object], rows: list) -> pa.Table | None:  # type: ignore[type-arg]
    if not rows:
        return None
    values = dict(zip(_ORDER[name], zip(*rows, strict=True), strict=True))
    columns = []
    for column in TABLES[name].columns:
        data = values.get(column.name, constants.get(column.name))
        if data is None:
            data = [_CONSTANT.get(column.name)] * len(rows)
        plain = pa.array(
            list(data), column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        )
        columns.append(plain.dictionary_encode() if pa.types.is_dictionary(column.type) else plain)
    return pa.table(columns, schema=TABLES[name].arrow_schema())
