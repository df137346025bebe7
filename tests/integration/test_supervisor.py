"""An aggregator that is kept alive: killed, out of memory, by a client's statement, with its parent."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import duckdb
import pytest

from ingest_client import IngestClient
from main_job import RANKMEM, environment
from own_memory import highest_bytes
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.sandbox import running_statements
from rankmem_aggregator.store.address import read_address
from rankmem_aggregator.supervision.crashed_statements import CrashedStatements
from rankmem_aggregator.supervision.memory_bound import LOOKS_MAX
from rankmem_aggregator.supervision.parent_pipe import FAILED, NO_MEMORY
from rankmem_aggregator.supervision.supervisor import Supervisor
from rankmem_aggregator.supervision.worker_process import WorkerProcess
from rankmem_protos.errors import Code, RankmemError
from repetitions import long_but
from sample_batches import RankSource
from waiting import until

BOUND_BYTES = 1800 << 20
BESIDE_BYTES = 400 << 20
"""Code and files of the process, which the bound does not count."""
LONG = "SELECT count(*) FROM range(1000000000000) WHERE range % 7 = 5"
ALSO_LONG = "SELECT sum(range % 3) FROM range(1000000000000)"
GREEDY = {
    "texts in one vector": "SELECT max(length(replace(repeat('x', 10000), 'x', repeat('y', 10000) || range)))"
    " FROM range(100000)",
    "lists in one vector": "SELECT max(length(list_transform(range(0, 100000), lambda x: repeat('y', 10000)"
    " || x || range)::VARCHAR)) FROM range(100000)",
    "one long text": "WITH RECURSIVE t(s, n) AS (SELECT 'x' || range, 0 FROM range(64) UNION ALL "
    "SELECT s || s, n + 1 FROM t WHERE n < 40) SELECT max(length(s)) FROM t",
    "an aggregate": "SELECT list(repeat('x', 9999) || range) FROM range(1000000000)",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.duckdb"


@pytest.fixture
def kept(path: Path) -> Iterator[Supervisor]:
    config = AggregatorConfig.from_environment(
        {},
        database_path=path,
        listen="127.0.0.1:0",
        memory_limit_bytes=256 << 20,
        memory_max_bytes=BOUND_BYTES,
        threads=2,
        query_timeout_s=20.0,
    )
    with Supervisor(config) as supervisor:
        yield supervisor


def killed(kept: Supervisor) -> None:
    """SIGKILL, as the kernel does it where memory runs out; up again when this returns."""
    before = kept.num_restarts
    os.kill(kept.pid, signal.SIGKILL)
    until("it is up again", lambda: kept.num_restarts > before)


def asked(kept: Supervisor, sql: str) -> RankmemError | None:
    """Asks; how it failed."""
    with connect(kept.address) as queries:
        try:
            queries.sql(sql)
        except RankmemError as exc:
            return exc
    return None


@contextlib.contextmanager
def asking(kept: Supervisor, *statements: str) -> Iterator[Callable[[], list[RankmemError | None]]]:
    """Within it the statements run, each in a thread; gives how they failed, once they have."""
    found: list[RankmemError | None] = []
    threads = [
        threading.Thread(target=lambda sql=sql: found.append(asked(kept, sql)))  # type: ignore[misc]
        for sql in statements
    ]
    for thread in threads:
        thread.start()
    with connect(kept.address) as queries:
        until("they run", lambda: running(kept) >= len(statements))
        del queries

    def ended() -> list[RankmemError | None]:
        for thread in threads:
            thread.join(60)
        return found

    yield ended
    ended()


def heeds(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def has_ended(pid: int) -> bool:
    """Whether the process is a zombie, which its parent has not asked for yet."""
    return re.search(r"State:\s*Z", Path(f"/proc/{pid}/status").read_text()) is not None


def running(kept: Supervisor) -> int:
    """Statements under way, read as the parent would after a death, and left there."""
    data = os.pread(kept._running_fd, 1 << 16, 0)
    return sum(any(data[at : at + 32]) for at in range(0, len(data), 32))


def test_one_that_is_killed_is_back_at_its_address_with_all_it_acknowledged(
    kept: Supervisor, path: Path
) -> None:
    source, address = RankSource(), kept.address
    for _ in range(3):
        with IngestClient(address) as client:
            last = client.open(source)
            assert last == source.next_sequence - 1
            client.send(batch=source.batch(200))
            client.acks(1)
            killed(kept)
    assert kept.address == address
    entry = read_address(path)
    assert entry is not None
    assert (entry.pid, entry.address) == (os.getpid(), address)
    assert kept.close()
    with duckdb.connect(path) as connection:
        ((last, rows, seqs),) = connection.execute(
            "SELECT (SELECT last_sequence FROM ingest_progress), count(*), count(DISTINCT seq) "
            "FROM memory_event"
        ).fetchall()
    assert last == source.next_sequence - 1
    assert rows == seqs > 0
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("what", long_but(GREEDY, "texts in one vector", "an aggregate"))
def test_a_greedy_statement_fails_and_the_memory_is_bounded(kept: Supervisor, what: str) -> None:
    source = RankSource()
    with IngestClient(kept.address) as client:
        client.open(source)
        client.send(batch=source.batch(200))
        client.acks(1)
    highest, over = [0], threading.Event()
    watcher = threading.Thread(target=watch, args=(kept, highest, over))
    watcher.start()
    try:
        found = asked(kept, GREEDY[what])
    finally:
        over.set()
        watcher.join()
    assert found is not None
    assert found.code in (Code.EXHAUSTED, Code.UNAVAILABLE), found
    assert highest[0] < BOUND_BYTES + BESIDE_BYTES
    kept.wait(LOOKS_MAX + 2.0)  # where no memory is left, it ends by then
    until("it answers", lambda: asked(kept, "SELECT count(*) FROM session") is None)
    if kept.num_restarts:
        again = asked(kept, GREEDY[what])
        assert again is not None
        assert again.code is Code.DENIED
    with IngestClient(kept.address) as client:
        assert client.open(source) == source.next_sequence - 1


def watch(kept: Supervisor, highest: list[int], over: threading.Event) -> None:
    """The highest resident memory of the process, as the kernel keeps it."""
    while not over.wait(0.02):
        with contextlib.suppress(OSError):
            highest[0] = max(highest[0], highest_bytes(kept.pid))


def test_the_statement_that_was_alone_at_a_death_is_refused_and_told_why(kept: Supervisor) -> None:
    with asking(kept, LONG) as ended:
        killed(kept)
        (cut,) = ended()
    assert cut is not None
    assert cut.code is Code.UNAVAILABLE
    refused = asked(kept, LONG.lower().replace(" ", "  "))
    assert refused is not None
    assert refused.code is Code.DENIED
    assert "crashed while it ran (SIGKILL" in refused.message
    assert "restarted by hand" in refused.hint
    killed(kept)
    again = asked(kept, LONG)
    assert again is not None
    assert again.code is Code.DENIED
    assert asked(kept, "SELECT 1") is None


def test_of_two_statements_at_a_death_the_one_that_is_there_again_is_refused(kept: Supervisor) -> None:
    harmless = "SELECT count(*) FROM range(3000000000)"
    with asking(kept, LONG, harmless) as ended:
        killed(kept)
        ended()
    assert asked(kept, harmless) is None
    with asking(kept, LONG, ALSO_LONG) as ended:
        killed(kept)
        ended()
    guilty = asked(kept, LONG)
    assert guilty is not None
    assert guilty.code is Code.DENIED
    assert asked(kept, harmless) is None


def test_one_that_cannot_open_says_why_as_if_it_were_here(kept: Supervisor, path: Path) -> None:
    other = AggregatorConfig(database_path=path, listen="127.0.0.1:0")
    with pytest.raises(RankmemError, match=kept.address) as caught:
        Supervisor(other).start()
    assert caught.value.code is Code.CONFLICT
    assert kept.address in caught.value.hint
    away = AggregatorConfig(database_path=path.parent / "no" / "x.duckdb", listen="127.0.0.1:0")
    with pytest.raises(RankmemError, match="no folder"):
        Supervisor(away).start()


def test_what_cannot_be_opened_again_yet_is_tried_until_it_can(kept: Supervisor, path: Path) -> None:
    source, hidden = RankSource(), path.parent.with_name("hidden")
    with IngestClient(kept.address) as client:
        client.open(source)
        client.send(batch=source.batch(200))
        client.acks(1)
    path.parent.rename(hidden)
    os.kill(kept.pid, signal.SIGKILL)
    until("it was tried in vain", lambda: kept._pause_s > 0.5)
    assert kept.num_restarts == 0
    hidden.rename(path.parent)
    until("it is up again", lambda: kept.num_restarts == 1)
    with IngestClient(kept.address) as client:
        assert client.open(source) == source.next_sequence - 1


@pytest.mark.parametrize("is_embedded", [False, True])
def test_a_disk_that_takes_no_more_is_waited_out_by_the_process_itself(path: Path, is_embedded: bool) -> None:
    source = RankSource()
    config = AggregatorConfig.embedded(path, {})
    with Supervisor(config, is_embedded=is_embedded) as kept, IngestClient(kept.address) as client:
        client.open(source)
        client.send(batch=source.batch(200))
        client.acks(1)
        for beyond_bytes in (1, path.stat().st_size + 5000):
            resource.prlimit(kept.pid, resource.RLIMIT_FSIZE, (beyond_bytes, resource.RLIM_INFINITY))
            client.send(batch=source.batch(5000))
            with connect(kept.address) as queries:
                until("it says so", lambda: bool(queries.aggregator_state().not_serving_reason))
                assert "ulimit -f" in queries.aggregator_state().not_serving_reason
                unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                resource.prlimit(kept.pid, resource.RLIMIT_FSIZE, unlimited)
            until("it is stored", lambda: client.reply().WhichOneof("body") == "ack")
        assert kept.num_restarts == 0


PARENT = """
import sys, time
from pathlib import Path
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.supervision.supervisor import Supervisor
with Supervisor(AggregatorConfig(database_path=Path(sys.argv[1]), listen=sys.argv[2])) as kept:
    print(kept.pid, kept.address, flush=True)
    time.sleep(120)
"""


def test_it_ends_with_its_parent_and_the_next_one_finds_file_and_port_free(path: Path) -> None:
    address = "127.0.0.1:0"
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", PARENT, str(path), address], stdout=subprocess.PIPE, text=True
        ) as parent:
            assert parent.stdout is not None
            pid, address = parent.stdout.readline().split()
            parent.kill()
    until("it has ended", lambda: not Path(f"/proc/{pid}").exists())
    assert read_address(path) is None


def test_a_signal_to_the_process_itself_drains_it_for_good(kept: Supervisor, path: Path) -> None:
    os.kill(kept.pid, signal.SIGTERM)
    until("it has ended", lambda: kept.wait(0.0))
    assert kept.close()
    assert kept.num_restarts == 0
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("reads", [0, 1])
def test_serve_drains_at_a_signal_although_nobody_reads_what_it_says(path: Path, reads: int) -> None:
    """``rankmem serve 2>&1 | tee log``: Ctrl-C ends tee first; ``| head -1`` ends by itself."""
    command = (*RANKMEM, "serve", "--db", str(path), "--listen", "127.0.0.1:0")
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(path.parent)) as serving:
        assert serving.stderr is not None
        while reads and b"listening" not in serving.stderr.readline():
            pass
        serving.stderr.close()
        until("it heeds signals", lambda: heeds(serving.pid, signal.SIGTERM))
        serving.terminate()
        assert serving.wait(60) == 0
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "closed", long_but(["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"], "2>&-", "<&- >&- 2>&-")
)
def test_serve_runs_without_standard_streams(path: Path, closed: str) -> None:
    """As a daemon is started. What is opened next would have their numbers: the pipes of the two processes,
    the memory that they share, and whatever writes an error to 2 would write it there."""
    command = shlex.join((*RANKMEM, "serve", "--db", str(path), "--listen", "127.0.0.1:0"))
    with subprocess.Popen(["sh", "-c", f"exec {command} {closed}"], env=environment(path.parent)) as serving:
        until("it heeds signals", lambda: heeds(serving.pid, signal.SIGTERM))
        found = read_address(path)
        assert found is not None
        with connect(found.address) as queries:
            assert queries.sql("SELECT 1 AS n")["n"].to_pylist() == [1]
        (worker,) = Path(f"/proc/{serving.pid}/task/{serving.pid}/children").read_text().split()
        both = [f"/proc/{pid}/fd/{number}" for pid in (serving.pid, worker) for number in range(3)]
        held = [os.readlink(link) for link in both]
        assert not [name for name in held if "socket" in name or "memfd" in name or path.name in name]
        serving.terminate()
        assert serving.wait(60) == 0
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_one_whose_parent_cannot_say_so_is_started_again(path: Path) -> None:
    def say(text: str) -> None:
        raise BrokenPipeError(text)

    config = AggregatorConfig.embedded(path, {})
    with Supervisor(config, is_embedded=True, report=say) as kept:
        killed(kept)
        killed(kept)


DIES = """#!{python}
import runpy, threading
from rankmem_aggregator.server.aggregator import Aggregator
def serve(self):
    while not self._collector.num_calls:
        threading.Event().wait(0.02)
    raise {error}
Aggregator.serve = serve
runpy.run_module("rankmem_aggregator.supervision.worker", run_name="__main__")
"""


@pytest.mark.parametrize(("error", "code"), [("MemoryError", NO_MEMORY), ("ValueError('x')", FAILED)])
def test_its_process_ends_with_its_main_thread_although_a_shipper_is_connected(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: str, code: int
) -> None:
    script = path.with_name("worker")
    script.write_text(DIES.format(python=sys.executable, error=error))
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    config = AggregatorConfig.embedded(path, {})
    descriptor = running_statements.shared_memory(1)
    process = WorkerProcess(config, CrashedStatements(), running_fd=descriptor, is_embedded=False, niceness=0)
    try:
        address, _ = process.await_ready()
        with IngestClient(address, greet=False):  # the worker ends as soon as the call is there
            until("it has ended", lambda: has_ended(process.pid))
        assert process.wait() == code
    finally:
        process.close()
        os.close(descriptor)


def test_one_that_hangs_as_it_closes_is_killed(kept: Supervisor) -> None:
    os.kill(kept.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    assert not kept.close(0.0)
    assert time.monotonic() - began_s < 60


def test_it_is_started_again_where_the_ends_of_children_are_ignored(path: Path) -> None:
    """As ``trap '' CHLD`` leaves it: the kernel keeps no exit code then, and any end looks clean."""
    ignoring = (
        "from signal import *; signal(SIGCHLD, SIG_IGN); import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = (
        sys.executable,
        "-c",
        ignoring,
        *RANKMEM,
        "serve",
        "--db",
        str(path),
        "--listen",
        "127.0.0.1:0",
    )
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as serving:
        assert serving.stderr is not None
        until_said(serving.stderr, "listening on")
        (worker,) = Path(f"/proc/{serving.pid}/task/{serving.pid}/children").read_text().split()
        os.kill(int(worker), signal.SIGKILL)
        until_said(serving.stderr, "the aggregator is back")
        serving.terminate()
        serving.stderr.read()
    assert serving.returncode == 0


def until_said(lines: IO[str], words: str) -> None:
    """Reads until a line has these words."""
    for line in lines:
        if words in line:
            return
    raise AssertionError(f"it ended without {words!r}")
