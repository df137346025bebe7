"""Clocks that are wrong and processes that stand still: what the database says stays within what it promises.

Two pretended hosts with a shipper each. Their wall clocks are off by a known number of seconds, one of them
jumps by an hour in the middle; all run on this machine, so the truth is known to the nanosecond.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import duckdb
import numpy as np
import pytest

from faults.ledger import check
from faults.reference import totals_of
from faults.scene import SESSION, Scene
from repetitions import long_but
from waiting import DEADLINE_S, until

SKEW_S = {0: 7.5, 1: -3.0}
HOUR_S = 3600.0
STILL_S = 45.0 if int(os.environ.get("RANKMEM_FAULT_ROUNDS", "1")) > 1 else 1.0
"""In the long mode longer than the shipper's patience."""


def record(scene: Scene, *, events: int, seconds: float) -> None:
    """One rank on each host, alive until both have written all, then killed; delivered."""
    scene.start_aggregator()
    for rank, skew_s in SKEW_S.items():
        pace = ("--events", str(events), "--seconds", str(seconds), "--end", "hold", "--world-size", "2")
        clock = ("--skew-s", str(skew_s), "--step-s", str(HOUR_S if rank == 1 else 0.0))
        scene.start_rank(rank, *pace, *clock, host=f"host-{rank}")
    for rank in scene.ranks:
        until("all is written", lambda: rank.count == events)  # noqa: B023
    time.sleep(0.5)  # both hold what they have
    for rank in scene.ranks:
        rank.process.kill()
        rank.process.wait(DEADLINE_S)
    for rank in scene.ranks:
        scene.deliver(f"host-{rank.rank}")
    scene.close_aggregator()


def asked(scene: Scene, query: str) -> list[dict[str, Any]]:
    with duckdb.connect(scene.database, read_only=True) as connection:
        found: list[dict[str, Any]] = connection.sql(query).to_arrow_table().to_pylist()
    return found


def test_hosts_are_put_on_one_clock_within_the_stated_error_and_an_hour_s_step_moves_nothing(
    scene: Scene,
) -> None:
    """Allocations alone, spread over a second: the highest sum is both ranks' last, whatever the order."""
    record(scene, events=48, seconds=1.0)
    check(scene.database, scene.written())
    for span in asked(scene, "SELECT rank, offset_ns, error_ns FROM rank_span ORDER BY rank"):
        off_ns = span["offset_ns"] + int(SKEW_S[span["rank"]] * 1e9)
        assert abs(off_ns) <= span["error_ns"] < 1e9, span
    times = asked(
        scene, "SELECT rank, min(time_ns) AS first, max(time_ns) AS last FROM memory_event GROUP BY ALL"
    )
    assert all(0.5e9 < row["last"] - row["first"] < 20e9 for row in times), "the step is in no rank's times"
    (bound,) = asked(scene, f"FROM job_peak_bound('{SESSION}')")
    naive = sum(int(totals_of(48, rank).max()) for rank in SKEW_S)
    assert bound["job_peak_bytes"] == naive
    assert bound["num_ranks"] == 2
    assert bound["lowest_bytes"] <= naive <= bound["highest_bytes"]
    assert 0 < bound["clock_error_ns"] < 1e9


def test_where_the_order_between_hosts_is_not_certain_the_answer_says_so_and_by_how_much(
    scene: Scene,
) -> None:
    """Both hosts work without a pause: the sum at the instant, on true clocks, lies within the bounds."""
    record(scene, events=20_000, seconds=1.0)
    check(scene.database, scene.written())
    (bound,) = asked(scene, f"FROM job_peak_bound('{SESSION}')")
    spans = {span["rank"]: span for span in asked(scene, "SELECT rank, offset_ns, error_ns FROM rank_span")}
    shares = asked(
        scene, f"SELECT rank, requested_bytes, job_peak_ns FROM job_peak('{SESSION}') ORDER BY rank"
    )
    sums = []
    for share in shares:
        # The true instant if this rank's event made the peak; one of them did.
        rank, offset_ns = share["rank"], spans[share["rank"]]["offset_ns"]
        true_ns = share["job_peak_ns"] - offset_ns - int(SKEW_S[rank] * 1e9)
        sums.append(share["requested_bytes"] + total_at(scene, 1 - rank, true_ns))
    assert any(bound["lowest_bytes"] <= total <= bound["highest_bytes"] for total in sums), (bound, sums)
    assert bound["lowest_bytes"] <= bound["job_peak_bytes"] <= bound["highest_bytes"]
    if bound["order_is_certain"]:
        assert bound["lowest_bytes"] == bound["highest_bytes"]


def total_at(scene: Scene, rank: int, true_ns: int) -> int:
    """What a rank held at a true instant: its events' times with the known skew taken off."""
    rows = asked(scene, f"SELECT time_ns, requested_bytes FROM memory_event WHERE rank = {rank} ORDER BY seq")
    times = np.array([row["time_ns"] for row in rows]) - int(SKEW_S[rank] * 1e9)
    index = int(np.searchsorted(times, true_ns, side="right")) - 1
    return int(rows[index]["requested_bytes"]) if index >= 0 else 0


@pytest.mark.parametrize("who", long_but(["trainer", "shipper", "aggregator"], "shipper"))
def test_who_is_suspended_and_goes_on_loses_nothing(scene: Scene, who: str) -> None:
    scene.start_aggregator()
    rank = scene.start_rank(0, "--events", "100000", "--seconds", "2")
    until("it is under way", lambda: rank.count > 10_000 and bool(scene.shippers()))
    assert scene.aggregator is not None
    pid = {"trainer": rank.process.pid, "shipper": scene.shippers()[0], "aggregator": scene.aggregator.pid}[
        who
    ]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(STILL_S)
    os.kill(pid, signal.SIGCONT)
    assert rank.process.wait(DEADLINE_S) == 0
    scene.deliver()
    scene.close_aggregator()
    found = check(scene.database, scene.written())
    assert (found.found, found.explained) == (found.expected, 0)
