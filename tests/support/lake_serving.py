"""Aggregators that write a lake, and recorded batches to send them.

Stage: tests. Batches are what a shipper made once of synthetic spools of several hosts; sent again they are
the same to the byte, so that answers of two aggregators can be compared whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock, patch

import pyarrow as pa

from fake_collector import FakeCollector
from ingest_client import IngestClient
from lake_checks import with_hashes
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest import stored_state
from rankmem_aggregator.ingest.group import last_by_key
from rankmem_aggregator.server.aggregator import Aggregator
from rankmem_aggregator.server.aggregator import open as open_aggregator
from rankmem_aggregator.summaries.schedule import Summaries
from rankmem_protos import collector_pb2 as pb
from rankmem_protos.arrow_wire import decode_rows
from rankmem_protos.tables import TABLES
from rankmem_ship import pace
from rankmem_ship.config import ShipConfig
from rankmem_ship.shipper import Shipper
from spool_synthetic import SyntheticSpool, training_records
from waiting import until

SESSION = "0TESTSESSION"
STORED_NS = 1_900_000_000_000_000_000
BATCH_RECORDS = 100
"""Of a full batch, so that a short log has several."""


@dataclass(frozen=True)
class Log:
    """A spool and its batches."""

    opening: pb.OpenSpool
    batches: list[pb.Batch]


@contextmanager
def one_time() -> Iterator[None]:
    """All is stored at one time, and the summaries, on which no answer depends, are written another time."""
    with (
        patch.object(stored_state, "time", Mock(time_ns=lambda: STORED_NS)),
        patch.object(Summaries, "advance", lambda self: False),
    ):
        yield


def database_of(folder: Path, logs: Sequence[Log]) -> Path:
    """A database of these batches, with hashes for stacks."""
    path = folder / "job.duckdb"
    with open_aggregator(AggregatorConfig(database_path=path, listen="127.0.0.1:0")) as aggregator:
        for log in logs:
            send(aggregator.address, [log])
    return with_hashes(path, path.with_suffix(".hashed"))


def recorded_logs(folder: Path, *, ranks: int = 4, attempts: int = 2, calls: int = 40) -> list[Log]:
    """The batches of each spool of a job with two hosts."""
    openings: dict[str, pb.OpenSpool] = {}
    with FakeCollector() as collector:
        for attempt in range(attempts):
            for rank in range(ranks):
                make_spool(
                    folder / SESSION / f"{attempt}-{rank}-1",
                    attempt=attempt,
                    rank=rank,
                    calls=calls,
                    aggregator=collector.address,
                )
        shipper = Shipper(folder / SESSION, ShipConfig(grace_s=0.0))
        shipper.scan()
        openings = {upload.meta.spool_id: upload.opening() for upload in shipper.uploads.values()}
        for opening in openings.values():
            opening.ClearField("age_ns")  # it holds only for the moment in which it is said
        for upload in shipper.uploads.values():
            upload.disconnected()
        with patch.object(pace, "BATCH_RECORDS", BATCH_RECORDS):
            deliver(shipper)
        batches = collector.batches
    return [Log(opening, [b for b in batches if b.spool_id == name]) for name, opening in openings.items()]


def make_spool(path: Path, *, attempt: int, rank: int, calls: int, aggregator: str = "") -> SyntheticSpool:
    """A spool that has ended: some seconds of a training."""
    spool = SyntheticSpool(
        path=path,
        session_id=SESSION,
        attempt=attempt,
        rank=rank,
        host_uid=f"host-{rank // 2}",
        aggregator=aggregator,
    )
    records = training_records(spool, calls, interval_ns=5_000_000, live_calls=20, seed=10 * attempt + rank)
    spool.append(records)
    spool.end()
    return spool


def deliver(shipper: Shipper) -> None:
    """Runs a shipper until all is acknowledged as stored."""

    def is_done() -> bool:
        shipper.step()
        shipper.wait()
        return shipper.is_done

    try:
        until("all is delivered", is_done)
    finally:
        shipper.close("done")


@contextmanager
def serving(lake: Path | str, **options: object) -> Iterator[Aggregator]:
    """An aggregator of a lake, in this process; its commits wait only as long as is said, and nothing is
    brought from hosts unasked."""
    given = {"lake_interval_s": 0.05, "lake_peak_bytes": 0, "listen": "127.0.0.1:0", **options}
    config = AggregatorConfig(lake=str(lake), **given)  # type: ignore[arg-type]
    with open_aggregator(config) as aggregator:
        yield aggregator


def send(address: str, logs: Sequence[Log]) -> None:
    """Sends whole logs, each over a call of its own; waits until they are stored."""
    with ExitStack() as stack:
        clients = [stack.enter_context(IngestClient(address)) for _ in logs]
        for client, log in zip(clients, logs, strict=True):
            client.send(open_spool=log.opening)
            client.reply()
            for batch in log.batches:
                client.send(batch=batch)
        for client, log in zip(clients, logs, strict=True):
            client.acks(len(log.batches))


def send_rest(address: str, log: Log, most: int | None = None) -> None:
    """Sends a log from what is stored on, as a shipper does, until all is stored.

    Args:
        address: of an aggregator.
        log: whose batches these are.
        most: only so many of them, from the beginning.
    """
    wanted = log.batches[:most]
    with IngestClient(address) as client:
        while True:
            client.send(open_spool=log.opening)
            reply = client.reply()
            while reply.WhichOneof("body") != "spool_state":
                reply = client.reply()
            rest = [batch for batch in wanted if batch.sequence_first > reply.spool_state.last_sequence]
            if not rest:
                assert reply.spool_state.last_sequence >= wanted[-1].sequence_last
                return
            for batch in rest:
                client.send(batch=batch)
            done = 0
            while done < len(rest):
                reply = client.reply()
                done += reply.WhichOneof("body") in ("ack", "refusal")
                if reply.WhichOneof("body") == "refusal":
                    assert reply.refusal.code == "conflict", reply


def _rows_of(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def check_rows(lake: str, logs: list[Log]) -> None:
    """Each row that was sent is in the lake once: nothing is lost, nothing is twice."""
    sent: dict[str, list[pa.Table]] = {}
    for log in logs:
        for batch in log.batches:
            for entry in batch.tables:
                sent.setdefault(entry.table, []).append(decode_rows(entry.table, entry.arrow_ipc))
    with connect(lake) as queries:
        for name, parts in sent.items():
            expected, table = pa.concat_tables(parts), TABLES[name]
            if name == "session":  # of its ranks' rows the last that came
                continue
            if table.key:
                expected = last_by_key(expected, table)
            found = _rows_of(queries.sql(f"SELECT * FROM {name} ORDER BY ALL"))
            wanted = _rows_of(expected)
            if "session_id" not in table.column_names():
                wanted = sorted(set(wanted))
            assert found == wanted, name
        final = queries.sql("SELECT last_sequence FROM ingest_progress WHERE final ORDER BY spool_id")
        ends = {log.opening.spool_id: log.batches[-1].sequence_last for log in logs}
        assert final["last_sequence"].to_pylist() == [ends[spool] for spool in sorted(ends)]
