"""Minutes of steady ingest at the highest rate that holds: delay, memory, pauses, the database's size.

Four ranks of one host write into real spools, the host's shipper and an aggregator run as always. First the
ranks write as fast as they are acknowledged for a while; most of that rate is then held for the time of the
run (``--seconds``, ten minutes unless said). A reader asks over gRPC how far each rank is; an event's delay
is from its time stamp to the answer that counts it. Whether the rate held is seen in what the spools still
hold at the end, and in the delays of the last quarter beside those of the first.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import numpy as np
import numpy.typing as npt
import psutil
from harness import Figure, Options, main, say
from live_ranks import LiveRank, make_template
from processes import Aggregator, aggregator, environment

from rankmem_aggregator import connect
from rankmem_protos.query_pb2 import StatusRequest
from rankmem_protos.query_pb2_grpc import QueryStub
from spool_synthetic import CALL_EVENTS, CALL_RECORDS

RANKS: Final = 4
SECONDS: Final = 600.0
SECONDS_QUICK: Final = 20.0
SEARCH_S: Final = 15.0
HELD_SHARE: Final = 0.8  # of the rate at which they were acknowledged: room for checkpoints and for others
BACKLOG_RECORDS: Final = 400_000  # of a rank, while the rate is searched
SETTLED_RECORDS: Final = 5_000  # of a rank: those that are always under way
TICK_S: Final = 0.02
POLL_S: Final = 0.1
LOOK_S: Final = 1.0
DRAIN_S: Final = 120.0
SETTLE_S: Final = 3.0
SESSION: Final = "0BENCHSTEADY"
SPOOL_BYTES: Final = 1 << 30
SEEN: Final = "SELECT rank, max(seq) AS seq FROM memory_event WHERE seq > $floor GROUP BY rank"


@dataclass(slots=True, kw_only=True)
class Watched:
    """What was seen while the ranks wrote."""

    written: list[list[tuple[int, int]]] = field(default_factory=lambda: [[] for _ in range(RANKS)])
    """Of each rank after each tick: its last position and the time, CLOCK_MONOTONIC ns."""
    answers: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    """When an answer came, and each rank's last position in it."""
    looks: list[dict[str, float]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


def sustained(options: Options) -> Sequence[Figure]:
    """The rate that holds, and what it takes."""
    seconds = options.seconds or (SECONDS_QUICK if options.quick else SECONDS)
    root = Path(tempfile.mkdtemp(dir=options.memory_folder))
    with aggregator(options.folder / "sustained.duckdb") as server:
        ranks = _ranks(root, server.address)
        shipper = psutil.Popen(
            [sys.executable, "-m", "rankmem_ship", str(root / SESSION)],
            env=environment(),
            stdout=sys.stderr,
            stderr=sys.stderr,
        )
        rate = HELD_SHARE * _acknowledged_rate(ranks)
        say(f"holding {rate:,.0f} events/s for {seconds:.0f} s")
        watched = Watched()
        threads = [
            threading.Thread(target=_ask, args=(server.address, watched)),
            threading.Thread(target=_look, args=(server, shipper, watched)),
        ]
        for thread in threads:
            thread.start()
        events_before = sum(rank.events for rank in ranks)
        _hold(ranks, rate, seconds, watched)
        backlog = sum(_backlog(rank) for rank in ranks)
        _drain(ranks, watched)
        watched.over.set()
        for thread in threads:
            thread.join()
        dropped = sum(rank.writer.dropped for rank in ranks)
        written = sum(rank.events for rank in ranks)
        for rank in ranks:
            rank.writer.close()
        shipper.wait(DRAIN_S)
        with connect(server.address) as queries:
            stored = queries.sql("SELECT count(*) AS n FROM memory_event").to_pylist()[0]["n"]
    shutil.rmtree(root)
    held = (written - events_before) / seconds
    if options.picture is not None:
        from sustained_picture import draw

        draw(options.picture, watched.looks, *_delays(watched))
    return _figures(watched, held, backlog, written - stored + dropped, stored, options.folder)


def _figures(
    watched: Watched, held: float, backlog: int, lost: int, stored: int, folder: Path
) -> list[Figure]:
    when_s, delays_s = _delays(watched)
    quarter = (when_s[-1] - when_s[0]) / 4
    first = delays_s[when_s < when_s[0] + quarter]
    last = delays_s[when_s > when_s[-1] - quarter]
    p50, p99, worst = np.quantile(delays_s, [0.5, 0.99, 1.0])
    rss = [look["rss_bytes"] / 2**20 for look in watched.looks]
    size_bytes = (folder / "sustained.duckdb").stat().st_size
    before, after = watched.looks[0], watched.looks[-1]
    million = (after["events"] - before["events"]) / 1e6
    cpu_s = after["cpu_s"] - before["cpu_s"]
    return [
        Figure(what="rate held", value=held, unit="events/s"),
        Figure(what="not acknowledged at its end", value=backlog, unit="records"),
        Figure(what="events lost", value=lost, at_most=0),
        Figure(what="event to visible: p50", value=float(p50), unit="s"),
        Figure(what="event to visible: p99", value=float(p99), unit="s", note=f"worst {worst:.2f} s"),
        Figure(what="p99 of the last quarter / of the first", value=_p99(last) / _p99(first)),
        Figure(what="aggregator's memory at its highest", value=max(rss), unit="MiB"),
        Figure(what="the same, last quarter / second quarter", value=_growth(rss)),
        Figure(what="shipper's memory at its highest", value=_most(watched, "shipper_bytes"), unit="MiB"),
        Figure(what="longest time between two commits", value=_pause(watched), unit="s"),
        Figure(what="aggregator's CPU for a million events", value=cpu_s / million, unit="s"),
        Figure(what="database, its log packed", value=size_bytes / 2**20, unit="MiB"),
        Figure(what="bytes an event on disk", value=size_bytes / stored),
    ]  # fmt: skip


def _ranks(root: Path, address: str) -> list[LiveRank]:
    template = make_template(root / "template", SESSION, address)
    (root / SESSION).mkdir(mode=0o700)
    return [
        LiveRank(
            template=template,
            folder=root / SESSION / f"0-{number}-1",
            rank=number,
            spool_bytes=SPOOL_BYTES,
            host_uid="host-0",
        )
        for number in range(RANKS)
    ]


def _backlog(rank: LiveRank) -> int:
    """Records that are not acknowledged."""
    return rank.writer.next_seq - rank.acknowledged


def _acknowledged_rate(ranks: list[LiveRank]) -> float:
    """Events a second that all ranks together get acknowledged while they write as fast as that."""
    began_s = time.monotonic()
    marks: list[tuple[float, int]] = []
    while (now_s := time.monotonic()) < began_s + SEARCH_S:
        for rank in ranks:
            if _backlog(rank) < BACKLOG_RECORDS:
                rank.write(8 * CALL_RECORDS * 100)
        marks.append((now_s, sum(rank.acknowledged for rank in ranks)))
        time.sleep(TICK_S)
    while sum(_backlog(rank) for rank in ranks) > RANKS * SETTLED_RECORDS:
        if time.monotonic() > began_s + SEARCH_S + DRAIN_S:
            raise RuntimeError("what was written while the rate was searched is not acknowledged")
        time.sleep(POLL_S)
    late = [mark for mark in marks if mark[0] > began_s + SEARCH_S / 3]
    records = (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])
    return records / CALL_RECORDS * CALL_EVENTS


def _hold(ranks: list[LiveRank], rate: float, seconds: float, watched: Watched) -> None:
    began_s = clock_s = time.monotonic()
    due = written = 0
    while (passed_s := time.monotonic() - began_s) < seconds:
        due = int(passed_s * rate / RANKS / CALL_EVENTS) * CALL_RECORDS
        for number, rank in enumerate(ranks):
            left = due - written
            while left > 0:  # a round of the log ends a write early
                before = rank.writer.next_seq
                rank.write(left)
                left -= rank.writer.next_seq - before
            watched.written[number].append((rank.writer.next_seq - 1, time.monotonic_ns()))
        written = due
        if time.monotonic() - clock_s > 1.0:
            clock_s = time.monotonic()
            for rank in ranks:
                rank.writer.clock()
        time.sleep(TICK_S)


def _drain(ranks: list[LiveRank], watched: Watched) -> None:
    """Until every rank's last whole call was seen."""
    until_s = time.monotonic() + DRAIN_S
    while time.monotonic() < until_s:
        seen = watched.answers[-1][1] if watched.answers else {}
        if all(
            seen.get(number, -1) >= rank.writer.next_seq - 3 * CALL_RECORDS
            for number, rank in enumerate(ranks)
        ):
            return
        time.sleep(POLL_S)


def _ask(address: str, watched: Watched) -> None:
    floor = -1
    with connect(address) as queries:
        while not watched.over.wait(POLL_S):
            rows = queries.sql(SEEN, {"floor": floor}).to_pylist()
            watched.answers.append((time.monotonic_ns(), {row["rank"]: row["seq"] for row in rows}))
            if len(rows) == RANKS:
                floor = min(row["seq"] for row in rows) - 1


def _look(server: Aggregator, shipper: psutil.Process, watched: Watched) -> None:
    began_s = time.monotonic()
    with grpc.insecure_channel(server.address) as channel:
        status = QueryStub(channel)
        while not watched.over.wait(LOOK_S):
            reply = status.Status(StatusRequest(), timeout=30.0)
            watched.looks.append(
                {
                    "s": time.monotonic() - began_s,
                    "rss_bytes": server.process.memory_info().rss,
                    "shipper_bytes": shipper.memory_info().rss,
                    "events": reply.events_committed,
                    "database_bytes": reply.database_bytes,
                    "log_bytes": reply.log_bytes,
                    "cpu_s": server.cpu_s(),
                }
            )


def _delays(watched: Watched) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """When a tick was written, seconds, and how long until an answer held all of its events."""
    whens, delays = [], []
    for number, ticks in enumerate(watched.written):
        answered_ns = np.array([at_ns for at_ns, seen in watched.answers if number in seen])
        seen = np.maximum.accumulate([seen[number] for _, seen in watched.answers if number in seen])
        last, written_ns = np.array(ticks, dtype=np.int64).T
        place = np.searchsorted(seen, last - CALL_RECORDS)
        known = (place < len(answered_ns)) & (written_ns - written_ns[0] > SETTLE_S * 1e9)
        whens.append(written_ns[known] / 1e9)
        delays.append((answered_ns[place[known]] - written_ns[known]) / 1e9)
    when_s, delays_s = np.concatenate(whens), np.concatenate(delays)
    order = np.argsort(when_s)
    return when_s[order] - when_s.min(), delays_s[order]


def _p99(delays_s: npt.NDArray[np.float64]) -> float:
    return float(np.quantile(delays_s, 0.99))


def _growth(rss: Sequence[float]) -> float:
    quarter = max(1, len(rss) // 4)
    return float(np.mean(rss[-quarter:]) / np.mean(rss[quarter : 2 * quarter] or rss))


def _most(watched: Watched, what: str) -> float:
    return max(look[what] for look in watched.looks) / 2**20


def _pause(watched: Watched) -> float:
    """Between two answers of which the later had more, the longest: a commit, or a checkpoint before it."""
    moved = [answer for answer, before in zip(watched.answers[1:], watched.answers, strict=False)
             if answer[1] != before[1]]  # fmt: skip
    gaps = [(later[0] - earlier[0]) / 1e9 for earlier, later in itertools.pairwise(moved)]
    return max(gaps, default=0.0)


if __name__ == "__main__":
    main("sustained", "steady ingest at the highest rate that holds", sustained)
