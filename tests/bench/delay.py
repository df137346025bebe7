"""How late an event is seen: from its time stamp to the answer of a query that counts it.

Four ranks of one host write at a steady rate into their spools; the host's shipper and the aggregator run
as always; a reader asks every :data:`POLL_S` over gRPC how far each rank is. An event's delay ends when the
answer has arrived, so it includes the query and on average half the pause between two of them. What shipper
and aggregator cost is taken from a run without that reader: at 20,000 events/s it had half of the CPU time.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psutil
from harness import Figure, Options, say
from processes import Aggregator, aggregator, cpu_s, environment

from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_aggregator import connect
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import Code, RankmemError
from spool_synthetic import CALL_EVENTS, CALL_RECORDS, SyntheticSpool, training_records

RANKS: Final = 4
RATES: Final = (20_000, 50_000, 100_000, 200_000)  # events a second over all ranks
TICK_S: Final = 0.01  # a rank's events of so long are written at once
POLL_S: Final = 0.05
SETTLE_S: Final = 2.0  # left out at the start: the shipper's and the readers' first imports
SESSION: Final = "0BENCHLATENC"
SPOOL_BYTES: Final = 2**30


@dataclass(slots=True, kw_only=True)
class Rank:
    """A rank that writes a training's records, and what it wrote when."""

    writer: PythonSpoolWriter
    records: npt.NDArray[Any]
    at: int = 0
    written: list[tuple[int, int]] = field(default_factory=list)
    """Last sequence number of each tick and its time, CLOCK_MONOTONIC in ns."""

    def write(self, count: int) -> None:
        """The next so many records, as of now."""
        run = self.records[self.at : self.at + count]
        self.at += len(run)
        now_ns = time.monotonic_ns()
        run["time_ns"] = now_ns
        self.writer.record_many(run.tobytes())
        self.written.append((self.writer.next_seq - 1, now_ns))


Asked = Callable[[Queries], dict[int, int]]
"""Asks how far each rank is seen: its last position."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A reader."""

    target: str
    """What it connects to."""
    ask: Asked
    poll_s: float = POLL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one run saw after its start."""

    delays_s: npt.NDArray[np.float64]
    """Of each tick of each rank."""
    shipper_s: float
    """CPU seconds for a million events; likewise of the aggregator, with the queries of a reader if any."""
    aggregator_s: float


def delays(options: Options) -> list[Figure]:
    """Median and 99th percentile of the delay at each rate, and the CPU time that it takes."""
    seconds = 6.0 if options.quick else 30.0
    figures: list[Figure] = []
    for rate in RATES:
        with aggregator(Path(tempfile.mkdtemp(dir=options.folder)) / "delay.duckdb") as server:
            seen = run(options, server, rate, seconds, Watch(server.address, events_seen()))
        with aggregator(Path(tempfile.mkdtemp(dir=options.folder)) / "cost.duckdb") as server:
            cost = run(options, server, rate, seconds)
        p50, p99, worst = np.quantile(seen.delays_s, [0.5, 0.99, 1.0])
        say(f"{rate:,} events/s: p50 {p50:.3f} s, p99 {p99:.3f} s, worst {worst:.3f} s")
        name = f"event to visible at {rate:,} events/s"
        figures += [
            Figure(what=f"{name}: p50", value=float(p50), unit="s"),
            Figure(what=f"{name}: p99", value=float(p99), unit="s", at_most=1.0, note=f"worst {worst:.2f} s"),
            Figure(what=f"{name}: shipper's CPU for a million events", value=cost.shipper_s, unit="s"),
            Figure(what=f"{name}: aggregator's CPU for a million events", value=cost.aggregator_s, unit="s"),
        ]
    return figures


def run(options: Options, server: Aggregator, rate: int, seconds: float, watch: Watch | None = None) -> Seen:
    """One run; without a reader there are no delays."""
    root = Path(tempfile.mkdtemp(dir=options.memory_folder))
    session_dir = root / SESSION
    ranks = [_rank(root, session_dir, number, server, rate, seconds) for number in range(RANKS)]
    log = (root / "shipper.out").open("wb")
    shipper = psutil.Popen(
        [sys.executable, "-m", "rankmem_ship", str(session_dir)],
        env=environment(),
        stdout=log,
        stderr=log,
    )
    over = threading.Event()
    answers: list[tuple[int, dict[int, int]]] = []
    reader = threading.Thread(target=_read, args=(watch, answers, over), name="reader")
    if watch is not None:
        reader.start()
    settled: list[tuple[float, float, int]] = []

    def look() -> None:
        settled.append((cpu_s(shipper), server.cpu_s(), sum(rank.at for rank in ranks)))

    _write(ranks, rate, seconds, look)
    look()
    time.sleep(5 * POLL_S)
    until = time.monotonic() + 60.0
    while watch is not None and time.monotonic() < until and not _all_seen(ranks, answers):
        time.sleep(POLL_S)
    over.set()
    if watch is not None:
        reader.join()
    for rank in ranks:
        rank.writer.close()
    shipper.wait(120.0)
    log.close()
    shutil.rmtree(root)
    before, after = settled
    million_events = (after[2] - before[2]) / CALL_RECORDS * CALL_EVENTS / 1e6
    return Seen(
        delays_s=_delays_s(ranks, answers) if watch is not None else np.zeros(0),
        shipper_s=(after[0] - before[0]) / million_events,
        aggregator_s=(after[1] - before[1]) / million_events,
    )


def _rank(root: Path, session_dir: Path, number: int, server: Aggregator, rate: int, seconds: float) -> Rank:
    """A spool with the strings of a synthetic one and a writer that lives: this process."""
    made = root / f"made-{number}"
    spool = SyntheticSpool(
        path=made, session_id=SESSION, rank=number, alive=True, aggregator=server.address, host_uid="host-0"
    )
    calls = int(rate / RANKS * seconds / CALL_EVENTS) + 1
    records = training_records(spool, calls, seed=number)[1:]  # the writer makes the first record, CLOCK
    folder = (
        session_dir / f"0-{number}-{json.loads((made / 'meta.json').read_text())['spool_id'].split('-')[3]}"
    )
    writer = PythonSpoolWriter(folder, SPOOL_BYTES)
    (folder / "strings").write_bytes((made / "strings").read_bytes())  # nothing else is interned later
    (made / "meta.json").rename(folder / "meta.json")
    return Rank(writer=writer, records=records)


def _write(ranks: list[Rank], rate: int, seconds: float, settled: Callable[[], None]) -> None:
    """All ranks at the rate, tick by tick; a tick that comes late is as large as the time it took.

    Args:
        settled: called once, when the start is over.
    """
    began = time.monotonic()
    is_settled = False
    clock_at = began
    written = 0
    while (passed := time.monotonic() - began) < seconds:
        due = int(passed * rate / RANKS * CALL_RECORDS / CALL_EVENTS) // CALL_RECORDS * CALL_RECORDS
        for rank in ranks:
            if due > written:
                rank.write(due - written)
        written = due
        if passed > SETTLE_S and not is_settled:
            is_settled = True
            settled()
        if time.monotonic() - clock_at > 1.0:
            clock_at = time.monotonic()
            for rank in ranks:
                rank.writer.clock()
        time.sleep(TICK_S)


def events_seen() -> Asked:
    """Asks for the last event of each rank; of events that were seen before nothing."""
    floor = -1

    def ask(queries: Queries) -> dict[int, int]:
        nonlocal floor
        rows = queries.sql(
            "SELECT rank, max(seq) AS seq FROM memory_event WHERE seq > $floor GROUP BY rank",
            {"floor": floor},
        ).to_pylist()
        if len(rows) == RANKS:
            floor = min(row["seq"] for row in rows) - 1
        return {row["rank"]: row["seq"] for row in rows}

    return ask


def status_seen(queries: Queries) -> dict[int, int]:
    """Asks as ``rankmem status`` does."""
    rows = queries.status(SESSION).to_pylist()
    return {row["rank"]: row["last_sequence"] for row in rows if row["last_sequence"] is not None}


def _read(watch: Watch, answers: list[tuple[int, dict[int, int]]], over: threading.Event) -> None:
    """Asks how far each rank is, and notes when the answer came."""
    with contextlib.ExitStack() as opened:
        queries: Queries | None = None
        while not over.wait(watch.poll_s):
            try:
                queries = queries or opened.enter_context(connect(watch.target))
                seen = watch.ask(queries)
            except RankmemError as exc:
                if exc.code is Code.NOT_FOUND:  # no lake yet, no session
                    continue
                raise
            answers.append((time.monotonic_ns(), seen))


def _all_seen(ranks: list[Rank], answers: list[tuple[int, dict[int, int]]]) -> bool:
    seen = answers[-1][1] if answers else {}
    return all(
        seen.get(number, -1) >= rank.written[-1][0] - CALL_RECORDS for number, rank in enumerate(ranks)
    )


def _delays_s(ranks: list[Rank], answers: list[tuple[int, dict[int, int]]]) -> npt.NDArray[np.float64]:
    """For each tick: from its time to the first answer that held its last call's events."""
    all_delays: list[npt.NDArray[np.float64]] = []
    for number, rank in enumerate(ranks):
        when_ns = np.array([at_ns for at_ns, seen in answers if number in seen])
        seq = np.maximum.accumulate([seen[number] for _, seen in answers if number in seen])
        last, written_ns = np.array(rank.written, dtype=np.int64).T
        late_enough = written_ns - written_ns[0] > SETTLE_S * 1e9
        index = np.searchsorted(seq, last - CALL_RECORDS + CALL_EVENTS)
        index = np.minimum(index, len(when_ns) - 1)
        all_delays.append((when_ns[index] - written_ns)[late_enough] / 1e9)
    return np.concatenate(all_delays)
