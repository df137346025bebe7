"""How many events a second get over gRPC into durable DuckDB, and how late an event is seen.

Four senders, one for each of four hosts, and the aggregator share this machine. Three ways take turns on
the same events, each into a fresh file: DuckDB alone, in process, inserting the Arrow batches (the ceiling);
batches paired beforehand, over gRPC; and the real way: shippers that read spools, pair, encode and send.
Then four ranks write at a steady rate and a reader asks in SQL what it can see.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
from delay import delays
from harness import Figure, Options, alternate, main, of_ratio, of_samples, say
from processes import Aggregator, aggregator, cpu_s, environment
from raw_sender import batches_in, write_batches

from rankmem_agent.spool.meta import read_meta
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.group import concatenated
from rankmem_aggregator.store.store import open_store
from rankmem_protos.arrow_wire import decode_rows
from rankmem_protos.collector_pb2 import Batch
from rankmem_ship.encoding import encode
from rankmem_ship.log_slices import LogSlice
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.spool_reader.reader import SpoolReader
from spool_synthetic import SyntheticSpool, training_records

SENDERS: Final = 4
SESSION: Final = "0BENCHINGEST"
IDLE_RANK: Final = 100  # ranks from here on only keep their shipper alive until the work is there
CALLS: Final = 170_000  # about a million events a sender
QUICK_CALLS: Final = 30_000
BATCH_RECORDS: Final = 65_536  # what a shipper reads at once; it halves what passes a message's limit
GROUP_ROWS: Final = 1_000_000  # as the aggregator commits at most
POLL_S: Final = 0.02
TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The same events in two forms: spools to be shipped, and batches made from them."""

    options: Options
    spools: Sequence[Path]
    spool_ids: Sequence[str]
    batches: Sequence[Path]
    events: int
    rows: int


@dataclass(slots=True, kw_only=True)
class Cpu:
    """CPU seconds that a million events took, one entry a run."""

    shippers: list[float] = field(default_factory=list)
    aggregator: list[float] = field(default_factory=list)


def measure(options: Options) -> list[Figure]:
    """All figures of this benchmark."""
    work, cpu = prepared(options), Cpu()
    say(f"{work.events:,} events, {work.rows:,} rows")
    samples = alternate(
        {
            "duckdb": lambda: work.events / _insert_in_process(work),
            "paired": lambda: work.events / send_paired(work),
            "shipped": lambda: work.events / _ship(work, cpu),
        },
        2 if options.quick else 5,
        partial(_say, "events/s"),
    )
    rows = work.rows / work.events
    throughput = [
        of_samples(
            "DuckDB alone, in process", samples["duckdb"], "events/s", note=f"{rows:.2f} rows an event"
        ),
        of_samples(f"{SENDERS} senders, paired beforehand", samples["paired"], "events/s"),
        of_samples(f"{SENDERS} shippers, all of it", samples["shipped"], "events/s"),
        of_samples(f"{SENDERS} shippers, rows", [rows * value for value in samples["shipped"]], "rows/s"),
        of_ratio("paired beforehand / DuckDB alone", samples["paired"], samples["duckdb"], at_least=0.7),
        of_ratio("shipped / DuckDB alone", samples["shipped"], samples["duckdb"], at_least=0.45),
        of_samples("shippers' CPU for a million events", cpu.shippers, "s"),
        of_samples("aggregator's CPU for a million events", cpu.aggregator, "s"),
    ]
    return [*throughput, *delays(options)]


def prepared(options: Options) -> Work:
    """The events of all senders, made."""
    spools: list[Path] = []
    ids: list[str] = []
    batches: list[Path] = []
    events = rows = 0
    for rank in range(SENDERS):
        folder = options.memory_folder / "made" / f"0-{rank}-1"
        ids.append(_synthetic(folder, rank, QUICK_CALLS if options.quick else CALLS))
        made = list(_paired(folder))
        events += sum(_rows_of(batch, "memory_event") for batch in made)
        rows += sum(_rows_of(batch, None) for batch in made)
        path = options.folder / f"batches-{rank}"
        write_batches(path, iter(made))
        spools.append(folder)
        batches.append(path)
    return Work(options=options, spools=spools, spool_ids=ids, batches=batches, events=events, rows=rows)


def _synthetic(folder: Path, rank: int, calls: int) -> str:
    spool = SyntheticSpool(path=folder, session_id=SESSION, rank=rank, host_uid=f"host-{rank}")
    spool.append(training_records(spool, calls, seed=rank, interval_ns=8_000))  # 90,000 events a second
    spool.end()
    return spool.spool_id


def _paired(folder: Path) -> Iterator[Batch]:
    """The batches that a shipper makes of a spool."""
    reader = SpoolReader(folder)
    meta = read_meta(folder)
    pairing = Pairing(meta, reader.strings)
    while (part := reader.read(BATCH_RECORDS)) is not None:
        log_slice = LogSlice(
            sequence_first=part.sequence_first,
            sequence_last=part.sequence_last,
            parts=[part],
            final=reader.is_finished(),
        )
        for batch in encode(pairing, meta.spool_id, log_slice, tuple):
            yield batch.message
    reader.close()


def _rows_of(batch: Batch, table: str | None) -> int:
    return sum(
        decode_rows(rows.table, rows.arrow_ipc).num_rows
        for rows in batch.tables
        if table in (None, rows.table)
    )


def _insert_in_process(work: Work) -> float:
    """Seconds that DuckDB itself takes, in the aggregator's settings and groups; decoding is not in it."""
    path = _fresh_database(work.options)
    store = open_store(AggregatorConfig(database_path=path))
    taken = 0.0
    for group in _groups(work):
        began = time.perf_counter()
        store.write(concatenated(group))
        taken += time.perf_counter() - began
    store.close()
    _remove(path)
    return taken


def _groups(work: Work) -> Iterator[list[dict[str, pa.Table]]]:
    """The batches of all senders in turn, decoded, in groups as the aggregator makes them."""
    group: list[dict[str, pa.Table]] = []
    rows = 0
    streams = [list(batches_in(path)) for path in work.batches]
    for number in range(max(map(len, streams))):
        for stream in streams:
            if number >= len(stream):
                continue
            group.append(
                {rows.table: decode_rows(rows.table, rows.arrow_ipc) for rows in stream[number].tables}
            )
            rows += sum(table.num_rows for table in group[-1].values())
            if rows >= GROUP_ROWS:
                yield group
                group, rows = [], 0
    if group:
        yield group


def send_paired(work: Work, beside: Callable[[str], AbstractContextManager[object]] = nullcontext) -> float:
    """Seconds from the word to the last acknowledgement; the streams were open.

    Args:
        beside: what runs meanwhile, given the aggregator's address.
    """
    path = _fresh_database(work.options)
    with aggregator(path) as server, beside(server.address):
        taken = send_to(work, [server.address])
    _remove(path)
    return taken


def send_to(work: Work, addresses: Sequence[str]) -> float:
    """The same to aggregators that run: each of the senders to one of them, in turn."""
    with ExitStack() as stack:
        senders = [
            stack.enter_context(_raw_sender(work, rank, addresses[rank % len(addresses)]))
            for rank in range(SENDERS)
        ]
        for sender in senders:
            assert sender.stdout is not None
            sender.stdout.readline()  # "ready"
        began = time.perf_counter()
        for sender in senders:
            assert sender.stdin is not None
            sender.stdin.write("go\n")
            sender.stdin.flush()
        codes = [sender.wait(TIMEOUT_S) for sender in senders]
        if any(codes):
            raise RuntimeError("a sender failed")
        return time.perf_counter() - began


def _raw_sender(work: Work, rank: int, address: str) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("raw_sender.py")
    arguments = [str(work.batches[rank]), address, work.spool_ids[rank], SESSION, str(rank)]
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def _ship(work: Work, cpu: Cpu) -> float:
    """Seconds from the spools' appearance to the commit of the last; the shippers were connected by then."""
    path = _fresh_database(work.options)
    root = Path(tempfile.mkdtemp(dir=work.options.memory_folder))
    hosts = [root / f"host-{rank}" / SESSION for rank in range(SENDERS)]
    with aggregator(path) as server, ExitStack() as stack:
        shippers = [_waiting_shipper(host, rank, server, stack) for rank, host in enumerate(hosts)]
        waiting = [_copy(spool, root / "ready") for spool in work.spools]
        _wait_until(partial(_all_connected, server))
        before = (sum(map(cpu_s, shippers)), server.cpu_s())
        began = time.perf_counter()
        arrived = [spool.rename(host / spool.name) for host, spool in zip(hosts, waiting, strict=True)]
        # A shipper deletes a spool once all of it is acknowledged; asking the aggregator would add work.
        _wait_until(lambda: not any((host / "control").exists() for host in arrived))
        taken = time.perf_counter() - began
        cpu.shippers.append((sum(map(cpu_s, shippers)) - before[0]) / work.events * 1e6)
        cpu.aggregator.append((server.cpu_s() - before[1]) / work.events * 1e6)
    shutil.rmtree(root)
    _remove(path)
    return taken


def _waiting_shipper(session_dir: Path, rank: int, server: Aggregator, stack: ExitStack) -> psutil.Popen:
    """A shipper with a spool whose writer lives and writes nothing; it ends with the stack."""
    idle = SyntheticSpool(
        path=session_dir / f"0-{IDLE_RANK + rank}-1",
        session_id=SESSION,
        rank=IDLE_RANK + rank,
        host_uid=f"host-{rank}",
        alive=True,
        aggregator=server.address,
    )
    idle.append(training_records(idle, 1))
    process = psutil.Popen(
        [sys.executable, "-m", "rankmem_ship", str(session_dir)],
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait, TIMEOUT_S)
    stack.callback(idle.end)
    return process


def _copy(spool: Path, folder: Path) -> Path:
    return Path(shutil.copytree(spool, folder / spool.name))


def _all_connected(server: Aggregator) -> bool:
    """Whether something of every shipper's idle spool is stored."""
    with connect(server.address) as queries:
        rows = queries.sql("SELECT count(*) AS n FROM ingest_progress").to_pylist()
    return bool(rows[0]["n"] >= SENDERS)


def _wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not is_so():
        if time.monotonic() > until:
            raise RuntimeError(f"the shippers took longer than {TIMEOUT_S} s")
        time.sleep(POLL_S)


def _fresh_database(options: Options) -> Path:
    return Path(tempfile.mkdtemp(dir=options.folder)) / "ingest.duckdb"


def _remove(database: Path) -> None:
    shutil.rmtree(database.parent)


def _say(name: str, text: str) -> None:
    say(f"{name}, {text}")


if __name__ == "__main__":
    main("ingest", "events over gRPC into durable DuckDB", measure)
