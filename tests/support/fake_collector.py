"""A Collector that keeps rows in lists, behind a real gRPC server: the other end for the shipper's tests.

It follows collector.proto's rule for duplicates and nothing else: a batch is stored if it follows the
last one, acknowledged but not stored if it is known, refused CONFLICT otherwise. Faults are injected by
hooks: ``before_store`` and ``before_ack`` may raise :class:`Cut` to break the call there.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow as pa

from rankmem_protos.arrow_wire import decode_rows
from rankmem_protos.collector_pb2 import (
    Ack,
    Batch,
    ClockReply,
    IngestReply,
    IngestRequest,
    Refusal,
    SpoolState,
    Welcome,
)
from rankmem_protos.collector_pb2_grpc import CollectorServicer, add_CollectorServicer_to_server
from rankmem_protos.tables import TABLES

Hook = Callable[[Batch], None]


class Cut(Exception):
    """Break the call here."""


class FakeCollector(CollectorServicer):
    """Use as a context manager; ``address`` is where it listens."""

    def __init__(self, database_id: str = "db-1", port: int = 0) -> None:
        self.database_id = database_id
        self.port = port
        self.last: dict[str, int] = {}
        self.batches: list[Batch] = []
        self.final: set[str] = set()
        self.num_duplicates = 0
        self.num_calls = 0
        self.before_store: Hook = lambda batch: None
        self.before_ack: Hook = lambda batch: None
        self.changed = threading.Condition()
        self._server: grpc.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> FakeCollector:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        add_CollectorServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait(5)
            self._server = None

    def rows(self, table: str) -> list[dict[str, object]]:
        """All stored rows of a table, in order of arrival."""
        found: list[dict[str, object]] = []
        for batch in list(self.batches):
            for entry in batch.tables:
                if entry.table == table:
                    found += decode_rows(table, entry.arrow_ipc).to_pylist()
        return found

    def table(self, table: str) -> pa.Table:
        """The same as one Arrow table."""
        parts = [
            decode_rows(table, entry.arrow_ipc)
            for batch in self.batches
            for entry in batch.tables
            if entry.table == table
        ]
        return pa.concat_tables(parts) if parts else TABLES[table].arrow_schema().empty_table()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, timeout_s)

    def Ingest(
        self, request_iterator: Iterator[IngestRequest], context: grpc.ServicerContext
    ) -> Iterator[IngestReply]:
        self.num_calls += 1
        for request in request_iterator:
            body = request.WhichOneof("body")
            if body == "hello":
                yield IngestReply(welcome=Welcome(protocol_version=1, database_id=self.database_id))
            elif body == "open_spool":
                spool_id = request.open_spool.spool_id
                last = self.last.get(spool_id, -1)
                yield IngestReply(spool_state=SpoolState(spool_id=spool_id, last_sequence=last))
            elif body == "clock_probe":
                now_ns = time.time_ns()
                yield IngestReply(
                    clock_reply=ClockReply(
                        sent_ns=request.clock_probe.sent_ns, received_ns=now_ns, replied_ns=time.time_ns()
                    )
                )
            elif body == "batch":
                try:
                    yield self._store(request.batch)
                except Cut:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")

    def _store(self, batch: Batch) -> IngestReply:
        self.before_store(batch)
        last = self.last.get(batch.spool_id, -1)
        if batch.sequence_last <= last:
            self.num_duplicates += 1
        elif batch.sequence_first != last + 1:
            message = f"[{batch.sequence_first}, {batch.sequence_last}] does not follow {last}"
            return IngestReply(
                refusal=Refusal(
                    spool_id=batch.spool_id, batch_number=batch.batch_number, code="conflict", message=message
                )
            )
        else:
            with self.changed:
                self.batches.append(batch)
                self.last[batch.spool_id] = batch.sequence_last
                if batch.final:
                    self.final.add(batch.spool_id)
                self.changed.notify_all()
        self.before_ack(batch)
        return IngestReply(
            ack=Ack(
                spool_id=batch.spool_id,
                batch_number=batch.batch_number,
                last_sequence=self.last[batch.spool_id],
            )
        )


def counts(rows: list[dict[str, object]], *columns: str) -> dict[tuple[object, ...], int]:
    """How often each combination of values occurs."""
    seen: dict[tuple[object, ...], int] = defaultdict(int)
    for row in rows:
        seen[tuple(row[column] for column in columns)] += 1
    return dict(seen)
