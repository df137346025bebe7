"""A spool written record by record, and the rows that pairing makes from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankmem_agent.spool.layout import Kind
from rankmem_ship.pairing.pairing import Pairing
from spool_synthetic import SyntheticSpool, clock_record, make_records, reader_of


class Log:
    """A spool written record by record."""

    def __init__(self, folder: Path) -> None:
        self.spool = SyntheticSpool(path=folder / "s")
        self.spool.append(clock_record(self.spool))

    def add(self, kind: Kind, **fields: int) -> None:
        time_ns = fields.pop("time_ns", self.spool.monotonic_ns + self.spool.next_seq)
        self.spool.append(make_records(1, kind=kind, time_ns=time_ns, **fields))

    def rows(self, *, final: bool = True) -> dict[str, list[dict[str, Any]]]:
        reader = reader_of(self.spool.path)
        pairing = Pairing(reader.meta, reader.strings)
        while (part := reader.read(1000)) is not None:
            pairing.feed(part)
        return {table: batch.to_pylist() for table, batch in pairing.cut(final=final)}
