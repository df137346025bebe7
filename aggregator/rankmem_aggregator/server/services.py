"""The gRPC services: Collector (the way in) and Query (the way out), thin over ingest calls and queries.

Stage: the aggregator's gRPC boundary. Handlers run in gRPC's thread pool; a :class:`RankmemError` becomes a
status with its code and hint in the trailing metadata (``rankmem-code``, ``rankmem-hint``), anything else
INTERNAL. No logic of ingest or SQL lives here.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Final

import grpc
import pyarrow as pa

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.batch_writer import BatchWriter
from rankmem_aggregator.sandbox.client_queries import ClientQueries, Parameter
from rankmem_aggregator.server.grpc_errors import TEXT_BYTES_MAX, abort
from rankmem_aggregator.server.ingest_call import IngestCall
from rankmem_aggregator.server.orders import ASKED_BY_CHARS_MAX, Asked, Given, Orders
from rankmem_aggregator.server.peers import CallSlots, cut_after, host_of
from rankmem_aggregator.server.watch import Condition
from rankmem_aggregator.store.copy import export_duckdb
from rankmem_aggregator.store.served import ServedStore
from rankmem_protos import collector_pb2, collector_pb2_grpc, query_pb2, query_pb2_grpc
from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.errors import STALE_KEY, Code, RankmemError

logger = logging.getLogger(__name__)

CHUNK_BYTES_MAX: Final = 2 << 20
"""Half of gRPC's default limit of 4 MiB a message."""
DECODERS: Final = max(2, len(os.sched_getaffinity(0)))
"""Threads that decode batches, of all calls: more would only wait for a processor."""
FILE_CHUNK_BYTES: Final = 1 << 20
READ_GRACE_S: Final = 5.0
"""Beyond a statement's time limit, for the client to read the error; then the call is cancelled."""
EXPORT_TIMEOUT_S: Final = 3600.0
"""A copy of a database of 100 GiB at 30 MiB/s."""
EXPORT_READ_S: Final = 3600.0
"""The same for its client to read it; then the call is cancelled and the copy removed."""
STRETCHES_MAX: Final = 10_000
"""Asked for at once: a message of 200 KB."""
EXPORTS_MAX: Final = 4
"""Copies of the database at once, being made or read: each takes its room on the disk."""
_TEMPORARY_NAME: Final = "[a-z0-9_]{8}"
"""The part of a name that ``tempfile`` adds to a prefix."""


class CollectorService(collector_pb2_grpc.CollectorServicer):
    """``Collector``: one :class:`IngestCall` for each call."""

    def __init__(
        self,
        writer: BatchWriter,
        database_id: str,
        config: AggregatorConfig,
        began: Callable[[], None] = lambda: None,
    ) -> None:
        """``began`` is called as a call begins, in its thread."""
        self._writer = writer
        self._began = began
        self._database_id = database_id
        self._config = config
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._orders = Orders()
        self._calls: dict[IngestCall, tuple[str, grpc.ServicerContext]] = {}
        """With the host that each counts for, and its call."""
        self._draining = False
        self._overload = ""
        self._admits_left = 0  # calls that are let in although it is overloaded
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="rankmem-decode")

    @property
    def num_calls(self) -> int:
        """Shippers connected now."""
        return len(self._calls)

    def Ingest(
        self, request_iterator: Iterator[collector_pb2.IngestRequest], context: grpc.ServicerContext
    ) -> Iterator[collector_pb2.IngestReply]:
        """Serves a shipper until its call ends."""
        self._began()
        name = f"rankmem-ingest-{next(self._numbers)}"
        call = IngestCall(
            request_iterator, self._writer, self._decoders, self._database_id, name, self._orders
        )
        try:
            self._admit(call, context)
        except RankmemError as exc:
            self._writer.errors.add("ingest", exc.code)
            abort(context, exc)
        context.add_callback(call.abandon)
        try:
            yield from call.replies()
        finally:
            with self._lock:
                self._calls.pop(call, None)
        if call.error is not None:
            self._writer.errors.add("ingest", call.error.code)
            abort(context, call.error)

    def drain(self) -> None:
        """Refuses new calls and ends the open ones once their batches are answered. Any thread."""
        with self._lock:
            self._draining = True
            calls = list(self._calls)
        for call in calls:
            call.stop(_draining())

    def report_busy(self, reason: str, *, is_stalled: bool) -> None:
        """Reports to shippers whose batches have waited for seconds why they do. Any thread.

        Args:
            reason: the reason.
            is_stalled: nothing can be stored.
        """
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.report_busy(reason, is_stalled=is_stalled)

    def want(self, wanted: collector_pb2.Wanted) -> bool:
        """Asks for rows that stay on a host; False where no shipper of it is connected. Any thread."""
        with self._lock:
            calls = list(self._calls)
        asked = [call.want(wanted) for call in calls]  # each: one may be gone and not noticed
        return any(asked)

    def order(self, asked: Asked) -> Given:
        """Tells ranks how much to record; see :meth:`Orders.give`. Any thread."""
        return self._orders.give(asked, self._connected())

    def _connected(self) -> Iterator[IngestCall]:
        """The calls at the time of the first look."""
        with self._lock:
            calls = list(self._calls)
        yield from calls

    def kept_spools(self) -> dict[str, str]:
        """The session of each spool of which a connected shipper may keep rows of events. Any thread."""
        with self._lock:
            calls = list(self._calls)
        return {spool_id: session_id for call in calls for spool_id, session_id in call.kept_spools().items()}

    def end_idle(self) -> None:
        """Ends calls that were silent for too long, and cancels those that do not read it. Any thread."""
        with self._lock:
            calls = list(self._calls.items())
        for call, (_, context) in calls:
            if not call.end_if_idle(self._config.stream_idle_s):
                context.cancel()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Ends the decoding threads once they are idle. Idempotent."""
        self._decoders.shutdown(wait=False)

    def set_overloaded(self, reason: str) -> None:
        """Refuses new calls for this reason from now on, but for the next one; empty: they are taken.

        Called once a second, so one is let in each second: a process may look large for as long as it lives,
        and no shipper may wait for ever. Any thread.
        """
        with self._lock:
            self._overload = reason
            self._admits_left = 1

    def _admit(self, call: IngestCall, context: grpc.ServicerContext) -> None:
        host = host_of(context.peer())
        with self._lock:
            if self._draining:
                raise _draining()
            if self._overload and not self._admits_left:
                raise RankmemError(
                    Code.EXHAUSTED,
                    self._overload,
                    "nothing is lost: the spools keep it, and the shipper tries again",
                )
            if len(self._calls) >= self._config.max_streams:
                raise RankmemError(
                    Code.EXHAUSTED,
                    f"{self._config.max_streams} shippers are connected already",
                    "raise --max-streams, or run another aggregator",
                )
            num_own = sum(other == host for other, _ in self._calls.values())
            if num_own >= self._config.max_streams_per_peer:
                raise RankmemError(
                    Code.EXHAUSTED,
                    f"{num_own} shippers are connected from {host}, as many as one address may have",
                    "raise --max-streams-per-peer: behind a NAT or a proxy all hosts have one address",
                )
            self._admits_left = 0
            self._calls[call] = host, context


class QueryService(query_pb2_grpc.QueryServicer):
    """``Query``: confined SQL, a copy of the database, the aggregator's state."""

    def __init__(
        self,
        store: ServedStore,
        queries: ClientQueries,
        writer: BatchWriter,
        collector: CollectorService,
        condition: Callable[[], Condition],
    ) -> None:
        self._store = store
        self._queries = queries
        self._writer = writer
        self._collector = collector
        self._condition = condition
        self._started_ns = time.time_ns()
        self._exports = CallSlots("copies of the database", EXPORTS_MAX)
        self._export_prefix = f".{store.path.name}.export-"
        self._remove_stale_copies()

    def Sql(
        self, request: query_pb2.SqlRequest, context: grpc.ServicerContext
    ) -> Iterator[query_pb2.SqlChunk]:
        """Streams the result of one statement."""
        try:
            parameters = {name: _parameter(value) for name, value in request.parameters.items()}
            batches = self._queries.run(
                request.sql,
                parameters,
                timeout_s=request.timeout_s,
                row_limit=request.row_limit,
                watch=context.add_callback,
                told=lambda stale: _tell(context, stale),
            )
            with cut_after(self._queries.time_limit_s(request.timeout_s) + READ_GRACE_S, context):
                for batch in _without_empty(batches):
                    for data in _chunks(batch):
                        yield query_pb2.SqlChunk(arrow_ipc=data)
        except RankmemError as exc:
            self._writer.errors.add("query", exc.code)
            abort(context, exc)

    def ExportDatabase(
        self, request: query_pb2.ExportRequest, context: grpc.ServicerContext
    ) -> Iterator[query_pb2.FileChunk]:
        """Writes a consistent copy beside the database, streams it and removes it."""
        try:
            with (
                self._exports.taken(context),
                tempfile.TemporaryDirectory(
                    prefix=self._export_prefix, dir=self._store.path.parent
                ) as folder,
            ):
                path = Path(folder) / "copy.duckdb"
                with self._queries.reading(
                    EXPORT_TIMEOUT_S, context.add_callback, lambda stale: _tell(context, stale)
                ) as cursor:
                    export_duckdb(cursor, path)
                with path.open("rb") as file, cut_after(EXPORT_READ_S, context):
                    while data := file.read(FILE_CHUNK_BYTES):
                        yield query_pb2.FileChunk(data=data)
        except RankmemError as exc:
            abort(context, exc)
        except OSError as exc:
            abort(
                context,
                RankmemError(Code.EXHAUSTED, f"the copy could not be written: {exc}", "free disk space"),
            )

    def Status(
        self, request: query_pb2.StatusRequest, context: grpc.ServicerContext
    ) -> query_pb2.StatusReply:
        """This aggregator's version, progress and condition."""
        counters, condition, queue = self._writer.counters, self._condition(), self._writer.queue
        alive = self._writer.liveness.alive()
        return query_pb2.StatusReply(
            database_id=self._store.facts.database_id,
            database_path=self._store.place,
            rankmem_version=metadata.version("rankmem"),
            schema_version=self._store.facts.schema_version,
            batches_committed=counters.batches,
            rows_committed=counters.rows,
            streams_open=self._collector.num_calls,
            batches_queued=len(queue),
            not_serving_reason=condition.reason,
            started_ns=self._started_ns,
            now_ns=time.time_ns(),
            events_committed=counters.events,
            queue_bytes=queue.size_bytes,
            database_bytes=condition.database_bytes,
            log_bytes=condition.log_bytes,
            disk_free_bytes=condition.disk_free_bytes,
            rss_bytes=condition.rss_bytes,
            batches_refused=counters.refused,
            commit_retries=counters.retries,
            ranks_alive=alive.ranks,
            lag_ns=alive.lag_ns,
            sessions_pruned=self._writer.num_pruned,
            messages_damaged=self._writer.errors.num_damaged,
            unstored_since_ns=self._writer.unstored_since_ns,
        )

    def Fetch(self, request: query_pb2.FetchRequest, context: grpc.ServicerContext) -> query_pb2.FetchReply:
        """Asks the shipper of a spool for rows that stay on its host."""
        if not 0 < len(request.sequence_first) == len(request.sequence_last) <= STRETCHES_MAX:
            count = len(request.sequence_first)
            error = RankmemError(Code.INVALID, f"{count} stretches are asked for, not 1 to {STRETCHES_MAX}")
            abort(context, error)
        ranges = zip(request.sequence_first, request.sequence_last, strict=True)
        wanted = collector_pb2.Wanted(
            spool_id=request.spool_id,
            stretches=[collector_pb2.Stretch(sequence_first=f, sequence_last=n) for f, n in ranges],
        )
        return query_pb2.FetchReply(connected=self._collector.want(wanted))

    def Control(
        self, request: query_pb2.ControlRequest, context: grpc.ServicerContext
    ) -> query_pb2.ControlReply:
        """Tells ranks how much to record from a step on."""
        try:
            asked = Asked(
                session_id=request.session_id,
                ranks=frozenset(request.ranks),
                what=request.what,
                step_first=request.step_first,
                step_last=request.step_last if request.HasField("step_last") else None,
                asked_by=f"{request.asked_by[:ASKED_BY_CHARS_MAX]} from {host_of(context.peer())}",
                order_after=request.order_after,
            )
            given = self._collector.order(asked)
        except RankmemError as exc:
            abort(context, exc)
        logger.info("order %d by %s: %s", given.order_id, asked.asked_by, asked.what)
        return query_pb2.ControlReply(order_id=given.order_id, attempt=given.attempt, told=given.told)

    def _remove_stale_copies(self) -> None:
        """Removes copies left by a process that was killed: no other process has this database open."""
        with contextlib.suppress(OSError):
            for entry in self._store.path.parent.iterdir():
                if re.fullmatch(re.escape(self._export_prefix) + _TEMPORARY_NAME, entry.name):
                    shutil.rmtree(entry, ignore_errors=True)


def _tell(context: grpc.ServicerContext, stale: str) -> None:
    """Sends what an answer may lack, before its rows."""
    if stale:
        context.send_initial_metadata(((STALE_KEY, stale.encode()[:TEXT_BYTES_MAX]),))


def _draining() -> RankmemError:
    return RankmemError(Code.UNAVAILABLE, "the aggregator is closing", "connect again when it is back")


def _parameter(value: query_pb2.Value) -> Parameter:
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null":
        return None
    result: Parameter = getattr(value, kind)
    return result


def _without_empty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first batch (the schema) and those with rows."""
    yield next(batches)
    yield from (batch for batch in batches if batch.num_rows)


def _chunks(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The batch as Arrow streams under the size limit: halved until each fits."""
    waiting = [batch]
    while waiting:
        part = waiting.pop()
        data = encode_rows(part)
        if len(data) <= CHUNK_BYTES_MAX:
            yield data
        elif part.num_rows <= 1:
            raise RankmemError(
                Code.EXHAUSTED,
                f"one row of the result has {len(data)} bytes, at most {CHUNK_BYTES_MAX}",
                "select less",
            )
        else:
            half = part.num_rows // 2
            waiting += [part.slice(half), part.slice(0, half)]
