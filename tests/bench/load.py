"""A thousand ranks on one aggregator: is each served, how much memory does it take, is every event there.

Every rank is a host of its own: a spool, a shipper and a stream (``load_hosts.py`` plays hundreds in a
process, with the agent's own code). That is the hardest shape: a host of eight ranks has one stream. All
shippers cut their batches at the same instant, since they share a clock here. Then fewer ranks, and a memory
budget that the aggregator passes: half of them come after that and have to wait. Nothing may be missing.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from harness import Figure, Options, main, say
from processes import Aggregator, aggregator, environment

from rankmem_aggregator import connect
from rankmem_protos.query_pb2 import StatusRequest
from rankmem_protos.query_pb2_grpc import QueryStub

RANKS: Final = 1000
RANKS_QUICK: Final = 200
PROCESSES: Final = 4
EVENTS_PER_RANK: Final = 50.0  # a second; by all ranks together as much as two cores can do for both ends
SECONDS: Final = 60.0
SECONDS_QUICK: Final = 10.0
LOOK_S: Final = 0.5
RANKS_TIGHT: Final = 40
SECONDS_TIGHT: Final = 10.0
BUDGET_BYTES: Final = 175 << 20  # of the second run: passed soon after its start
OVER_S: Final = 420.0
CHECK: Final = """
SELECT rank, count(*) AS events, count(DISTINCT seq) AS positions,
       (SELECT coalesce(sum(records), 0) FROM gap) AS missing
FROM memory_event GROUP BY rank ORDER BY rank
"""


@dataclass(slots=True, kw_only=True)
class Run:
    """What was seen of one run."""

    told: list[dict[str, Any]]
    """What each rank's host says, see ``load_hosts.Told``."""
    stored: dict[int, tuple[int, int]]
    """By rank the events in the database, and their different positions."""
    missing: int
    """Records of gaps."""
    looks: list[dict[str, float]] = field(default_factory=list)
    """Now and then: seconds since the start, resident bytes, events stored, batches waiting."""
    began_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def delays_s(self) -> list[float]:
        """Mean delay of each rank, from sending to acknowledgement."""
        return [statistics.fmean(rank["delays_s"]) for rank in self.told if rank["delays_s"]]


def load(options: Options) -> Sequence[Figure]:
    """Fairness, memory and completeness, with room and without."""
    ranks = RANKS_QUICK if options.quick else RANKS
    seconds = options.seconds or (SECONDS_QUICK if options.quick else SECONDS)
    free = _run(options, ranks, seconds)
    if options.picture is not None:
        from load_picture import draw

        draw(options.picture, free.looks, free.told)
    for figure in _figures(f"{ranks} ranks", free):
        say(f"{figure.what}: {figure.value:.6g} {figure.unit}")
    tight = _run(options, RANKS_TIGHT, SECONDS_TIGHT, BUDGET_BYTES)
    return [*_figures(f"{ranks} ranks", free), *_figures(f"{RANKS_TIGHT} ranks, over the budget", tight)]


def _figures(name: str, run: Run) -> list[Figure]:
    delays = sorted(run.delays_s)
    batches = sorted(len(rank["delays_s"]) for rank in run.told)
    cpu_s = run.cpu_s / sum(batches) * 1000
    expected = {rank["rank"]: rank["events"] for rank in run.told}
    written = sum(expected.values())
    lost = sum(count - run.stored.get(rank, (0, 0))[0] for rank, count in expected.items())
    twice = sum(events - positions for events, positions in run.stored.values())
    rss = [look["rss_bytes"] / 2**20 for look in run.looks]
    half = rss[len(rss) // 2 :]
    median = statistics.median(delays)
    served = sum(rank["is_delivered"] for rank in run.told)
    lost += run.missing + _sum(run, "dropped")
    return [
        Figure(what=f"{name}: delivered to the end", value=served, at_least=len(run.told)),
        Figure(what=f"{name}: events written", value=written),
        Figure(what=f"{name}: events lost, or in gaps", value=lost, at_most=0),
        Figure(what=f"{name}: events stored twice", value=twice, at_most=0),
        Figure(what=f"{name}: sent to acknowledged, median of the ranks' means", value=median, unit="s"),
        Figure(what=f"{name}: slowest rank / median", value=delays[-1] / median),
        Figure(
            what=f"{name}: fewest batches of a rank / median", value=batches[0] / batches[len(batches) // 2]
        ),
        Figure(what=f"{name}: aggregator's memory at its highest", value=max(rss), unit="MiB"),
        Figure(what=f"{name}: the same, second half / at half time", value=max(half) / half[0]),
        Figure(what=f"{name}: shippers told to wait, times", value=_sum(run, "num_busy")),
        Figure(what=f"{name}: streams refused or lost", value=_sum(run, "num_streams_lost")),
        Figure(what=f"{name}: aggregator's CPU for a thousand batches", value=cpu_s, unit="s"),
    ]


def _sum(run: Run, what: str) -> int:
    return sum(rank[what] for rank in run.told)


def _run(options: Options, ranks: int, seconds: float, budget_bytes: int = 0) -> Run:
    """All ranks at once; with a budget the second half of the processes comes when it is passed."""
    folder = options.folder / f"load-{ranks}-{budget_bytes}"
    folder.mkdir()
    settings = {"RANKMEM_MAX_STREAMS_PER_PEER": "1024"}  # all its hosts are on loopback
    settings |= {"RANKMEM_MEMORY_BUDGET_BYTES": str(budget_bytes)} if budget_bytes else {}
    num_first = PROCESSES // 2 if budget_bytes else PROCESSES
    with aggregator(folder / "load.duckdb", settings) as server, contextlib.ExitStack() as started:
        arguments = (folder, server, ranks // PROCESSES, seconds)
        children = [_start(*arguments, number, "connected") for number in range(num_first)]
        started.callback(lambda: [child.kill() for child in children if child.poll() is None])
        run = Run(told=[], stored={}, missing=0)
        _go(children)
        before_s, run.began_s = server.cpu_s(), time.monotonic()
        if budget_bytes:
            _watch(server, children, run, until_bytes=budget_bytes)
            late = [_start(*arguments, number, "alone") for number in range(num_first, PROCESSES)]
            _go(late)
            children += late
        _watch(server, children, run)
        run.cpu_s = server.cpu_s() - before_s
        for number in range(PROCESSES):
            run.told += [json.loads(line) for line in (folder / f"told-{number}").read_text().splitlines()]
        with connect(server.address) as queries:
            rows = queries.sql(CHECK).to_pylist()
    run.stored = {row["rank"]: (row["events"], row["positions"]) for row in rows}
    run.missing = int(rows[0]["missing"]) if rows else 0
    return run


def _start(
    folder: Path, server: Aggregator, count: int, seconds: float, number: int, beginning: str
) -> subprocess.Popen[str]:
    out = folder / f"told-{number}"
    arguments = [folder, server.address, number * count, count, EVENTS_PER_RANK, seconds, out, beginning]
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("load_hosts.py")), *map(str, arguments)],
        env=environment({"PYTHONWARNINGS": "ignore"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _go(children: Sequence[subprocess.Popen[str]]) -> None:
    """Lets them write, once all of them are ready."""
    for child in children:
        assert child.stdout is not None
        if child.stdout.readline().strip() != "ready":
            raise RuntimeError(f"a process of hosts ended with {child.wait()}")
    say(f"{len(children)} processes of hosts are ready")
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()


def _watch(
    server: Aggregator, children: Sequence[subprocess.Popen[str]], run: Run, until_bytes: int = 0
) -> None:
    """Looks at the aggregator until the children have ended, or it has so many bytes."""
    until_s = time.monotonic() + OVER_S
    with grpc.insecure_channel(server.address) as channel:
        status = QueryStub(channel)
        while any(child.poll() is None for child in children) and time.monotonic() < until_s:
            reply = status.Status(StatusRequest(), timeout=30.0)
            look = {
                "s": time.monotonic() - run.began_s,
                "rss_bytes": server.process.memory_info().rss,
                "events": reply.events_committed,
                "queued": reply.batches_queued,
                "streams": reply.streams_open,
            }
            run.looks.append(look)
            if 0 < until_bytes <= look["rss_bytes"]:
                return
            time.sleep(LOOK_S)
    if any(child.wait(30.0) for child in children):
        raise RuntimeError("a process of hosts failed")


if __name__ == "__main__":
    main("load", "a thousand ranks on one aggregator", load)
