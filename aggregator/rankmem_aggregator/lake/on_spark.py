"""The engine ``sc://HOST:PORT``: a Spark Connect server runs the tasks.

Stage: query, in the reader's process; a thread waits for each task. To Spark a task is a row of bytes, and
its answer is what a Python function makes of it (``mapInArrow``): no table, no SQL of Spark's. Spark runs a
task again whose worker died, as often as its ``spark.task.maxFailures`` says.
"""

from __future__ import annotations

import queue
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.lake.engine import (
    Cluster,
    first_line,
    interrupted,
    portable_answer,
    rows_of,
)
from rankmem_aggregator.lake.kernel import Task
from rankmem_aggregator.lake.worker import packed
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.without_pandas import admit_pandas

START: Final = "start one: start-connect-server.sh of Spark, or sail spark server"
WORKERS_MAX: Final = 256
"""Tasks at once: a thread of this process waits for each."""
WORKERS_UNKNOWN: Final = 8
"""For a server that does not show how many it runs, as Sail, or that runs one."""
CHUNK_BYTES: Final = 16 << 20
"""Of a row of an answer: Spark's messages are no larger than 128 MiB, and have rows whole."""
_sessions: Final[list[Any]] = []
"""All that this process has had. One that Python collects shuts down pyspark's threads, wherever it is: amid
handing them work it waited for itself for ever (pyspark 4.1, ``SparkSession.__del__``)."""
_COLUMNS: Final = "place int, kind string, code string, message string, hint string, rows binary"


class OnSpark(Cluster):
    """A Spark Connect server.

    Args:
        address: ``sc://HOST:PORT``, with Spark's own parameters.
        host: of the address.
        port: of the address.

    Raises:
        RankmemError: UNAVAILABLE, UNSUPPORTED, see ``open_engine``.
    """

    def __init__(self, address: str, host: str, port: int) -> None:
        what = "Spark Connect", "Spark Connect server"
        super().__init__(what, ("pyspark", "spark"), (host, port), START)
        self._address = address
        self._name = f"sc://{host}:{port}"  # without parameters, of which one may be a token
        self._done: queue.SimpleQueue[tuple[Task, tuple[Any, ...] | Exception] | None] = queue.SimpleQueue()

    def _connect(self) -> None:
        """The client is a session; Spark cuts into as many parts as workers what nobody says how to cut."""
        admit_pandas()
        from pyspark.sql.connect.functions import spark_partition_id
        from pyspark.sql.connect.session import SparkSession

        try:
            spark = SparkSession.builder.remote(self._address).create()
            _sessions.append(spark)
            spark.client.set_retry_policies([])  # it would try for minutes
            parts = spark.range(1 << 16).select(spark_partition_id()).distinct().count()
        except Exception as exc:
            raise RankmemError(
                Code.UNAVAILABLE, f"no Spark Connect server at {self._name}: {first_line(exc)}", START
            ) from exc
        self._client = spark
        self._workers = WORKERS_UNKNOWN if parts == 1 else min(int(parts), WORKERS_MAX)
        self._function = _mapping(portable_answer())
        self._threads = ThreadPoolExecutor(self._workers, "rankmem-spark")

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, pa.Table]]:
        """See :class:`Engine`."""
        done = self._done = queue.SimpleQueue()
        waiting, running, workers = iter(tasks), 0, self.workers
        try:
            while True:
                while running < workers and (task := next(waiting, None)) is not None:
                    self._threads.submit(self._ask, task, done)
                    running += 1
                if not running:
                    return
                found = done.get()
                if found is None:
                    raise interrupted()
                running -= 1
                task, sent = found
                if isinstance(sent, Exception):
                    self.close()  # it may not know this session any more
                    self._check_reachable()
                    raise RankmemError(
                        Code.UNAVAILABLE,
                        f"{task.part}: Spark at {self._name} gave it up: {first_line(sent)}",
                        "see the server's log; more memory for its workers, or another engine",
                    ) from sent
                yield task, rows_of(task, sent)
        finally:
            if running and self._client is not None:
                self._interrupt()

    def _ask(self, task: Task, done: queue.SimpleQueue[Any]) -> None:
        """In a thread of its own: what a worker sent, or why there is nothing."""
        try:
            frame = self._client.createDataFrame([(packed(task),)], "packed binary")
            rows = frame.mapInArrow(self._function, _COLUMNS).collect()
            rows.sort(key=lambda row: row.place)
            first = rows[0]
            sent: Any = first.kind, first.code, first.message, first.hint
            if first.kind == "answer":
                sent = first.kind, b"".join(bytes(row.rows) for row in rows)
        except Exception as exc:  # noqa: BLE001 raised where the answer is waited for
            sent = exc
        done.put((task, sent))

    def _interrupt(self) -> None:
        try:
            self._client.interruptAll()
        except Exception as exc:  # noqa: BLE001 a server may not know how; what runs then ends by itself
            warnings.warn(f"{self._name} goes on with what it runs: {first_line(exc)}", stacklevel=2)

    def stop(self) -> None:
        """See :class:`Engine`."""
        self._done.put(None)

    def close(self) -> None:
        """See :class:`Engine`."""
        if self._client is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a server that is gone
                self._client.stop()
            self._client = None


def _mapping(answer: Callable[[bytes], tuple[Any, ...]]) -> Callable[[Any], Any]:
    """The function that Spark runs: rows of bytes to :data:`_COLUMNS`. Sent by value, with all it uses."""
    chunk_bytes = CHUNK_BYTES

    def mapping(batches: Any) -> Any:
        import pyarrow as pa

        columns = {"place": pa.int32(), "kind": pa.string(), "code": pa.string()}
        columns |= {"message": pa.string(), "hint": pa.string(), "rows": pa.binary()}
        for batch in batches:
            for order in batch.column(0).to_pylist():
                kind, *told = answer(order)
                row = dict.fromkeys(columns) | {"place": 0, "kind": kind}
                if kind == "failed":
                    found = [row | dict(zip(("code", "message", "hint"), told, strict=True))]
                else:
                    sent = told[0]
                    found = [
                        row | {"place": place, "rows": sent[place : place + chunk_bytes]}
                        for place in range(0, len(sent), chunk_bytes)
                    ]
                for one in found:
                    yield pa.RecordBatch.from_pylist([one], schema=pa.schema(list(columns.items())))

    return mapping
