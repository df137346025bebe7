"""Memory that runs out while a batch is decoded or a statement answered: nobody is blamed, and it is said."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from ingest_client import TIMEOUT_S, IngestClient
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.sandbox.memory_watch import MemoryWatch
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.supervision.parent_pipe import NO_MEMORY
from rankmem_protos import arrow_wire
from rankmem_protos.errors import Code, RankmemError
from sample_batches import RankSource


def short(*_: object, **__: object) -> None:
    raise pa.ArrowMemoryError("malloc of size 64 failed")


def test_a_batch_for_which_there_is_no_memory_is_sent_again_and_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = AggregatorConfig(database_path=tmp_path / "m.duckdb", listen="127.0.0.1:0")
    source = RankSource()
    batch = source.batch(100)
    with server.open(config) as running:
        with monkeypatch.context() as less, IngestClient(running.address) as client:
            less.setattr(arrow_wire.pa.ipc, "open_stream", short)
            client.open(source)
            client.send(batch=batch)
            (refusal,) = (reply.refusal for reply in client.rest() if reply.WhichOneof("body") == "refusal")
            assert (refusal.code, refusal.fatal) == ("unavailable", True)
            assert "no memory" in refusal.message
        with IngestClient(running.address) as client:
            client.open(source)
            client.send(batch=batch)
            assert client.acks(1) == [batch.sequence_last]
        assert running.counters.refused == 0


def test_a_statement_for_which_there_is_no_memory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = AggregatorConfig(database_path=tmp_path / "m.duckdb", listen="127.0.0.1:0")
    with server.open(config) as running, connect(running.address) as queries:
        with monkeypatch.context() as less:
            less.setattr("rankmem_aggregator.sandbox.client_queries.check_statement", short)
            with pytest.raises(RankmemError, match="needs more memory") as caught:
                queries.sql("SELECT 1 AS n")
        assert caught.value.code is Code.EXHAUSTED
        assert queries.sql("SELECT 1 AS n").to_pylist() == [{"n": 1}]


def test_a_statement_for_which_there_is_no_thread_keeps_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    config = AggregatorConfig(database_path=tmp_path / "m.duckdb", listen="127.0.0.1:0", queries_max=1)
    with server.open(config) as running, connect(running.address) as queries:
        with monkeypatch.context() as less:
            less.setattr(threading.Timer, "start", no_thread)
            with pytest.raises(RankmemError):
                queries.sql("SELECT 1 AS n")
        assert queries.sql("SELECT 1 AS n").to_pylist() == [{"n": 1}]


def test_memory_is_watched_again_once_a_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    watch = MemoryWatch(-(4 << 40), lambda: True, looked.set)
    running = [True]

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as less:
        less.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError):
            watch.look_while(lambda: bool(running))
    watch.look_while(lambda: bool(running))
    assert looked.wait(TIMEOUT_S)
    running.clear()
    watch.idle()


THREAD = """
import threading, time
from rankmem_aggregator.supervision import worker
threading.excepthook = worker._thread_ended
def ends():
    raise {error}
thread = threading.Thread(target=ends)
thread.start()
thread.join()
print("lives", flush=True)
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [("MemoryError()", NO_MEMORY), ('RuntimeError("can\'t start new thread")', NO_MEMORY), ("OSError()", 0)],
)
def test_a_thread_that_ends_for_want_of_memory_ends_the_process(error: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREAD.format(error=error)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "" if code else "lives\n")
    assert error.partition("(")[0] in done.stderr
