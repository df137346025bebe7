"""Logs written call by call, for tests of the categories: calls, blocks and tags, and where batches are cut.

Stage: tests. In: ``story.call(...)``, ``alloc``, ``free``, ``tag``. Out: what the database would say of each
block, by its name in the story, with the log cut into batches as asked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankmem_agent.spool.layout import (
    BY_USER,
    NO_SEQUENCE,
    Action,
    Category,
    DeviceType,
    Kind,
    MarkerKind,
    Phase,
)
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.spool_reader.reader import Chunk
from spool_synthetic import SyntheticSpool, clock_record, make_records, reader_of


@dataclass(slots=True)
class Told:
    """What the database says of a block."""

    initial: str
    """Category in its allocation_record."""
    seq: int
    changes: list[tuple[int, int, str]] = field(default_factory=list)
    """(seq, time_ns, category) of its rows of category_change."""

    def at(self, seq: int) -> str:
        """The block's category at a position of the log."""
        return [self.initial, *[c for since, _, c in sorted(self.changes) if since <= seq]][-1]

    @property
    def last(self) -> str:
        """What allocation.category says in the end."""
        return [self.initial, *[c for _, _, c in sorted(self.changes)]][-1]


class Story:
    """A log, record by record, on one thread of a rank with one device."""

    def __init__(self, folder: Path, device: DeviceType = DeviceType.CPU) -> None:
        self.spool = SyntheticSpool(path=folder)
        self.spool.append(clock_record(self.spool))
        self.device = {"device_type": int(device)}
        self.names: dict[str, int] = {}
        self.lines: dict[str, int] = {}
        self.blocks: dict[str, tuple[int, int]] = {}
        """By name: seq of the alloc, address."""
        self.open: list[int] = []
        self.calls = 0
        self.sequence = 0

    def add(self, kind: Kind, **fields: int) -> int:
        """A record; returns its seq."""
        time_ns = self.spool.monotonic_ns + 10 * self.spool.next_seq
        return self.spool.append(make_records(1, kind=kind, time_ns=time_ns, thread=1, **fields))

    def name(self, text: str) -> int:
        """The id of a string."""
        if text not in self.names:
            self.names[text] = self.spool.string(text)
        return self.names[text]

    def line(self, text: str) -> int:
        """The id of the stack of a line of the script."""
        if text not in self.lines:
            self.lines[text] = self.spool.stack([("train.py", text, 1)])
        return self.lines[text]

    def step_ends(self) -> int:
        """A training step is over."""
        return self.add(Kind.STEP, a=0)

    def range_begins(self, name: str) -> int:
        """A range that torch opens."""
        return self.add(Kind.MARKER_BEGIN, a=1, e=self.name(name), action=MarkerKind.USER_SCOPE)

    def module(self, path: str, *, frozen: bool) -> int:
        """A module runs for the first time."""
        return self.add(Kind.MODULE, a=self.name(path), b=int(frozen), e=self.name("Module"))

    @contextmanager
    def call(
        self,
        phase: Phase,
        operator: str = "aten::mm",
        *,
        node: int = 0,
        nodes: int = 0,
        grad: bool | None = None,
        module: str = "",
        has_stack: bool = True,
    ) -> Iterator[None]:
        """A call: ``node`` is the autograd node it runs in, ``nodes`` those that it makes.

        Args:
            grad: autograd was recording; by default it was, unless in backward.
            has_stack: outside of modules a call has one, the same for each call of its operator.
        """
        self.calls += 1
        call_id = self.calls
        path = self.name(module) if module else 0
        self.add(
            Kind.CALL_BEGIN, call_id=call_id, action=phase, b=path, d=node, e=self.name(operator)
        )  # fmt: skip
        self.open.append(call_id)
        yield
        self.open.pop()
        first, last = (self.sequence, self.sequence + nodes - 1) if nodes else (NO_SEQUENCE, NO_SEQUENCE)
        self.sequence += nodes
        stack = self.line(operator) if phase == Phase.OTHER and has_stack else 0
        self.add(
            Kind.CALL_END,
            call_id=call_id,
            b=first,
            c=last,
            d=int(phase != Phase.BACKWARD if grad is None else grad),
            e=stack,
        )

    def alloc(self, name: str, address: int = 0, size: int = 64) -> int:
        """A block, at an address of its own unless one is given."""
        address = address or 4096 * (len(self.blocks) + 1)
        call_id = self.open[-1] if self.open else 0
        seq = self.add(Kind.EVENT, action=Action.ALLOC, a=address, b=size, call_id=call_id, **self.device)
        self.blocks[name] = (seq, address)
        return seq

    def free(self, name: str, action: Action = Action.FREE_COMPLETED) -> int:
        """Frees a block."""
        call_id = self.open[-1] if self.open else 0
        return self.add(
            Kind.EVENT, action=action, a=self.blocks[name][1], b=0, call_id=call_id, **self.device
        )

    def tag(
        self,
        category: Category,
        name: str,
        *,
        offset: int = 0,
        since_alloc: bool = True,
        frozen: bool = False,
        by_user: bool = False,
    ) -> int:
        """A hook tags the block."""
        address = self.blocks[name][1] + offset
        return self.add(
            Kind.TAG,
            action=category,
            a=address,
            b=64,
            c=int(since_alloc),
            d=BY_USER if by_user else int(frozen),
            **self.device,
        )

    def told(self, cuts: Iterable[int] = (), *, final: bool = True) -> dict[str, Told]:
        """The blocks by name, with batches that end before the records of these numbers."""
        reader = reader_of(self.spool.path)
        chunk = reader.read(1 << 20)
        assert isinstance(chunk, Chunk)
        pairing = Pairing(reader.meta, reader.strings)
        told: dict[int, Told] = {}
        borders = [0, *sorted(set(cuts)), len(chunk.records)]
        for begin, end in itertools.pairwise(borders):
            if begin < end:
                pairing.feed(Chunk(sequence_first=begin, records=chunk.records[begin:end]))
                is_last = end == len(chunk.records)
                take(told, {t: b.to_pylist() for t, b in pairing.cut(final=final and is_last)})
        return {name: told[seq] for name, (seq, _) in self.blocks.items() if seq in told}


def take(told: dict[int, Told], rows: dict[str, list[dict[str, Any]]]) -> None:
    """Adds a batch's rows."""
    for row in rows.get("allocation_record", []):
        told[row["allocation_id"]] = Told(row["category"], row["allocation_id"])
    for row in rows.get("category_change", []):
        changes = told[row["allocation_id"]].changes
        assert row["seq"] not in [seq for seq, _, _ in changes], "two changes at one place have no order"
        changes.append((row["seq"], row["time_ns"], row["category"]))
