"""Batches as no shipper makes them: damaged Arrow, and well-formed rows with any values, down to the views.

Run as ``python tests/fuzz/fuzz_wire.py SECONDS SEED``; prints totals as one line of JSON. In one process, so
that a crash of Arrow or DuckDB is a crash of this program. What is accepted is stored by the aggregator's own
writer, and then every view and question must answer.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "support")]

import pyarrow as pa

from fuzz.mutations import EXTREMES, TEXTS, mutated, number
from fuzz.questions import ask_everything
from own_memory import highest_bytes
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.batch import Spool, declared_bytes, decode_batch
from rankmem_aggregator.ingest.batch_queue import Outcome, Submission
from rankmem_aggregator.ingest.writer import Writer
from rankmem_aggregator.store.store import open_store
from rankmem_protos.collector_pb2 import Batch
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import Column, Table
from wire_rows import all_tables, batch_of, rows_of

NOW_NS = 1_760_000_000_000_000_000
RANKS_A_SESSION = 8
SESSIONS_MAX = 6  # of stored batches; more questions would find no more
SESSIONS_MAX_SHORT = 2  # in a run of seconds, which would otherwise ask for a minute
SHORT_S = 30.0
WAIT_S = 60.0
USUAL_TEXTS = {
    "device": ("cpu", "cuda:0", "cuda:1"),
    "action": ("alloc", "free_completed", "free_requested", "segment_alloc", "segment_free", "oom"),
    "component": ("pytorch", "cuda_graph", "app"),
    "phase": ("forward", "backward", "optimizer", "other"),
    "category": ("parameter", "activation", "gradient", "unknown"),
    "end_reason": ("exit", "killed"),
    "source": ("live",),
}
ODD = 1 / 16  # of all values: few enough that some rows are stored
LIMIT_BYTES = 512 << 20


class Fuzzer:
    """Makes batches and says what became of them."""

    def __init__(self, seed: int, writer: Writer, sessions_max: int) -> None:
        self.sessions_max = sessions_max
        self.rng = random.Random(seed)
        self.totals: Counter[str] = Counter()
        self._writer = writer
        self._spools = 0

    def step(self) -> None:
        """One batch: refused by name, or stored."""
        spool = self._spool()
        damaged = self.rng.random() < 0.5
        message = self._damaged(spool) if damaged else self._odd(spool)
        kind = "damaged" if damaged else "odd"
        self.totals[kind] += 1
        try:
            declared = declared_bytes(message)
            batch = decode_batch(message, spool)
        except RankmemError as error:
            # UNSUPPORTED: rows of availability, which only the aggregator of a lake takes.
            if error.code not in (Code.INVALID, Code.UNSUPPORTED):
                raise
            self.totals[f"{kind} refused"] += 1
            return
        assert batch.size_bytes <= max(2 * declared, 1 << 20), "it took more than it declared"
        outcome = self._store(Submission(batch=batch, done=lambda outcome: None))
        if outcome.error is None:
            self.totals[f"{kind} stored"] += 1
            self._spools += 1
        else:
            assert outcome.error.code in (Code.INVALID, Code.CONFLICT), outcome.error
            self.totals[f"{kind} refused by the database"] += 1

    def _store(self, submission: Submission) -> Outcome:
        told: list[Outcome] = []
        over = threading.Event()

        def done(outcome: Outcome) -> None:
            told.append(outcome)
            over.set()

        assert self._writer.queue.put(Submission(batch=submission.batch, done=done))
        assert over.wait(WAIT_S), "the writer does not answer"
        return told[0]

    def _spool(self) -> Spool:
        session, rank = divmod(self._spools, RANKS_A_SESSION)
        session_id = f"0FUZZED{session % self.sessions_max:05d}"
        return Spool(
            spool_id=f"{session_id}-0-{rank}-{self._spools}-1", session_id=session_id, attempt=0, rank=rank
        )

    def _damaged(self, spool: Spool) -> Batch:
        chosen = {table.name: self._good(table, spool) for table in self.rng.sample(list(all_tables()), 2)}
        message = batch_of(chosen, spool)
        hurt, other = message.tables
        if self.rng.random() < 0.5:
            hurt.arrow_ipc = plain_stream(chosen[hurt.table])
        hurt.arrow_ipc = mutated(hurt.arrow_ipc, self.rng, other.arrow_ipc)
        return message

    def _good(self, table: Table, spool: Spool) -> pa.Table:
        places = {"seq_first": 1, "seq_last": 50, "requested_peak_seq": 7}
        return rows_of(table, 3, spool, **(places if table.name == "memory_bucket" else {}))

    def _odd(self, spool: Spool) -> Batch:
        tables = self.rng.sample(list(all_tables()), self.rng.randint(2, 8))
        return batch_of({table.name: self._rows(table, spool) for table in tables}, spool)

    def _rows(self, table: Table, spool: Spool) -> pa.Table:
        count = self.rng.randint(1, 6)
        fixed = spool.columns() if self.rng.random() > ODD else {}
        values: dict[str, object] = {
            column.name: [self._value(column) for _ in range(count)]
            for column in table.columns
            if column.name not in fixed
        }
        if table.name == "memory_bucket" and self.rng.random() > ODD:  # as they must be
            values |= {"seq_first": 1, "seq_last": 50, "requested_peak_seq": self.rng.randint(1, 50)}
        return rows_of(table, count, spool, **values)

    def _value(self, column: Column) -> Any:
        rng, odd = self.rng, self.rng.random() < ODD
        plain = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if column.nullable and rng.random() < 0.2:
            return None
        if pa.types.is_boolean(plain):
            return rng.random() < 0.5
        if pa.types.is_integer(plain):
            if not odd:
                return (NOW_NS if column.unit.startswith("ns since") else 0) + rng.randrange(20)
            if plain == pa.int32():
                return max(-(2**31), min(rng.choice(EXTREMES), 2**31 - 1))
            return number(rng)
        usual = USUAL_TEXTS.get(column.name, (column.name, "a", "b"))
        return rng.choice(TEXTS) if odd else rng.choice(usual)


def plain_stream(rows: pa.Table) -> bytes:
    """Not compressed: what is changed in it is a value, not a damaged frame."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return bytes(sink.getvalue())


def main() -> None:
    """``fuzz_wire.py SECONDS SEED``."""
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        config = AggregatorConfig(
            database_path=Path(folder) / "fuzz.duckdb",
            memory_limit_bytes=LIMIT_BYTES,
            threads=1,
            group_wait_s=0.0,
            group_interval_s=0.0,
        )
        store = open_store(config)
        died: list[BaseException] = []
        writer = Writer(store, config, free_memory=lambda: None, died=died.append)
        writer.start()
        fuzzer = Fuzzer(seed, writer, SESSIONS_MAX if seconds > SHORT_S else SESSIONS_MAX_SHORT)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s and not died:
            fuzzer.step()
        assert not died, died
        writer.close(WAIT_S)
        store.close()
        with connect(config.database_path) as queries:
            fuzzer.totals["questions answered"] = ask_everything(queries)
    peak_mib = highest_bytes() >> 20
    print(json.dumps({**fuzzer.totals, "highest MiB": peak_mib}))


if __name__ == "__main__":
    main()
