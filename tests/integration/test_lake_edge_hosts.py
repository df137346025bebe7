"""Rows of events on many hosts, some of which vanish or have no room: stored once, or said to be missing."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow.compute as pc
import pytest

from edge_shipping import (
    EDGE,
    at_aggregator,
    copied,
    fetched,
    make_hosts,
    make_job,
    running,
    shipped,
    step_until,
)
from lake_serving import BATCH_RECORDS, SESSION, make_spool, serving
from rankmem_agent.spool.layout import Action, Kind
from rankmem_aggregator import connect
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship import deliver, kept_details, pace
from rankmem_ship.edge import Edge
from spool_synthetic import make_records
from waiting import until

MEMORY_EVENTS = "SELECT count(*) AS n, count(DISTINCT seq) AS seqs FROM memory_event WHERE rank = {}"


def events_of(queries: Queries, rank: int) -> int | None:
    """The events of a rank, each once; None where the answer is that they are not here."""
    try:
        row = queries.sql(MEMORY_EVENTS.format(rank)).to_pylist()[0]
    except RankmemError as exc:
        if f"events of rank {rank} of session" not in exc.message:
            raise
        return None
    assert row["n"] == row["seqs"]
    return int(row["n"])


@contextmanager
def small_batches() -> Iterator[None]:
    with patch.object(pace, "BATCH_RECORDS", BATCH_RECORDS):
        yield


@pytest.mark.parametrize(
    ("hosts", "vanish_before", "vanish_amid"),
    [
        (16, 3, 2),
        pytest.param(40, 6, 4, marks=pytest.mark.long),
        pytest.param(200, 30, 20, marks=pytest.mark.long),
    ],
)
def test_of_many_hosts_some_vanish_before_and_while_their_rows_are_brought(
    tmp_path: Path, hosts: int, vanish_before: int, vanish_amid: int
) -> None:
    folders = make_hosts(tmp_path, hosts)
    lake, dice = tmp_path / "lake", random.Random(16)
    with ExitStack() as stack:
        stack.enter_context(small_batches())
        aggregator = stack.enter_context(serving(lake, lake_interval_s=0.5))
        shippers = [at_aggregator(folder, aggregator.address) for folder in folders]
        with running(shippers):
            until("all summaries are stored", lambda: all(s.is_done for s in shippers), 400.0)
        order = dice.sample(range(hosts), vanish_before + vanish_amid)
        vanished, vanishing = order[:vanish_before], order[vanish_before:]
        for rank in vanished:
            shippers[rank].close("done")
        closing = [shippers[rank] for rank in vanishing]
        stays = [s for rank, s in enumerate(shippers) if rank not in order]

        def vanish() -> None:
            for shipper in closing:
                for _ in range(dice.randrange(4)):
                    shipper.step()
                shipper.close("done")

        thread = threading.Thread(target=vanish)
        thread.start()
        found = fetched(aggregator.address, stays, timeout_s=400.0)
        thread.join()
        unreached = {rank for ranks in found.unconnected.values() for rank in ranks}
        assert set(vanished) <= unreached <= set(order)
        assert found.gone == found.waiting == 0
        with connect(f"lake:{lake}") as queries:
            expected = queries.ranks(SESSION).to_pylist()[0]["events"]
            assert queries.peak(SESSION).num_rows == hosts
            counts = {rank: events_of(queries, rank) for rank in range(hosts)}
            with pytest.raises(RankmemError, match="are not here"):
                queries.job_peak(SESSION)
            (interval,) = queries.job_peak_interval(SESSION).to_pylist()
            assert interval["num_ranks"] == hosts
        assert {rank for rank, count in counts.items() if count is None} == unreached
        assert {count for count in counts.values() if count is not None} == {expected}

        # They come back with what they kept: one by the command on its host, the others by their shippers.
        for rank in order:
            folders[rank] = copied(folders[rank], tmp_path / f"again-{rank}")
        first, *others = [folders[rank] for rank in order if (folders[rank] / "edge").exists()]
        assert deliver.deliver(first, aggregator.address).details_left == []
        back = [at_aggregator(folder, aggregator.address) for folder in others]
        for shipper in back:
            shipper.send_details()
        with running(back):
            until("they have sent it", lambda: not any(s.keeps_details for s in back), 200.0)
        for shipper in (*back, *stays):
            shipper.close("done")
    with connect(f"lake:{lake}") as queries:
        assert {events_of(queries, rank) for rank in range(hosts)} == {expected}
        peaks = queries.peak(SESSION)["peak_requested_bytes"]
        assert queries.job_peak(SESSION)["job_peak_bytes"][0].as_py() <= pc.sum(peaks).as_py()


@pytest.mark.long
def test_two_aggregators_get_the_same_stretches_and_one_stores_each(tmp_path: Path) -> None:
    job, lake = make_job(tmp_path, calls=60), tmp_path / "lake"
    with ExitStack() as stack:
        stack.enter_context(small_batches())
        first, second = (stack.enter_context(serving(lake)) for _ in range(2))
        with shipped(job, first.address) as shipper:
            twin = at_aggregator(copied(job, tmp_path / "twin"), second.address)
            both = [shipper, twin]
            for each in both:
                each.send_details()
            with running(both):
                until("all is stored", lambda: not any(s.keeps_details for s in both))
            twin.close("done")
    with connect(f"lake:{lake}") as queries:
        for row in queries.ranks(SESSION).to_pylist():
            assert events_of(queries, row["rank"]) == row["events"]
        here = queries.sql("SELECT sum(here) AS n, sum(stretches) AS m FROM rank_availability").to_pylist()[0]
        rows = queries.sql("SELECT count(*) AS n FROM availability WHERE place = 'here'").to_pylist()[0]
        assert here["n"] == here["m"] == rows["n"] > 8


def test_a_shipper_that_was_killed_is_followed_by_one_that_sends_what_it_kept(tmp_path: Path) -> None:
    job, lake = make_job(tmp_path, ranks=[0, 1]), tmp_path / "lake"
    with serving(lake) as aggregator:
        with shipped(job, aggregator.address):
            pass
        files = sorted((job / "edge").glob("0-0-1/*.details"))
        with files[-1].open("r+b") as file:  # its last write was torn
            file.truncate(files[-1].stat().st_size - 10)
        with shipped(job, aggregator.address) as shipper:
            found = fetched(aggregator.address, [shipper])
            assert found.gone == 1
    with connect(f"lake:{lake}") as queries:
        events = {row["rank"]: row["events"] for row in queries.ranks(SESSION).to_pylist()}
        assert events_of(queries, 1) == events[1]
        with pytest.raises(RankmemError, match="1 of them gone for ever"):
            queries.sql(MEMORY_EVENTS.format(0))


def test_the_oldest_goes_for_its_room_and_is_said_to_be_gone(tmp_path: Path) -> None:
    job, lake = make_job(tmp_path, ranks=[0], calls=80), tmp_path / "lake"
    with (
        patch.object(kept_details, "FILE_BYTES", 10_000),
        serving(lake) as aggregator,
        shipped(job, aggregator.address, dataclasses.replace(EDGE, edge_bytes=30_000)) as shipper,
    ):
        kept = sum(path.stat().st_size for path in (job / "edge").rglob("*.details"))
        assert kept <= 30_000
        found = fetched(aggregator.address, [shipper])
        assert found.gone > 0
    with connect(f"lake:{lake}") as queries:
        (row,) = queries.sql("SELECT * FROM rank_availability").to_pylist()
        assert row["gone"] == found.gone
        assert row["here"] == row["stretches"] - found.gone
        assert queries.peak(SESSION).num_rows == 1


def test_all_of_a_rank_that_ran_out_of_memory_comes_unasked(tmp_path: Path) -> None:
    lake, folder = tmp_path / "lake", tmp_path / SESSION
    spool = make_spool(folder / "0-0-1", attempt=0, rank=0, calls=40)
    make_spool(folder / "0-1-1", attempt=0, rank=1, calls=40)
    failed = make_records(
        1, kind=Kind.EVENT, action=Action.OOM, time_ns=spool.monotonic_ns + 10**9, b=1 << 40, thread=1
    )
    spool.append(failed)
    spool.end()
    with serving(lake) as aggregator, shipped(folder, aggregator.address) as shipper:
        step_until(shipper, "it is sent", lambda: len(list((folder / "edge").iterdir())) == 1)
    with connect(f"lake:{lake}") as queries:
        (row,) = queries.oom(SESSION).to_pylist()
        assert row["rank"] == 0
        assert events_of(queries, 0) == queries.ranks(SESSION).to_pylist()[0]["events"]
        assert events_of(queries, 1) is None
        given = {"attempt": 0, "rank": 0, "device": row["device"], "seq": row["seq"]}
        assert queries.oom_held(SESSION, by="operator", **given).num_rows


def test_what_was_to_come_unasked_comes_from_the_next_shipper(tmp_path: Path) -> None:
    lake, folder = tmp_path / "lake", tmp_path / SESSION
    spool = make_spool(folder / "0-0-1", attempt=0, rank=0, calls=40)
    time_ns = spool.monotonic_ns + 10**9
    spool.append(make_records(1, kind=Kind.EVENT, action=Action.OOM, time_ns=time_ns, b=1 << 40, thread=1))
    spool.end()
    with serving(lake) as aggregator:
        with (
            patch.object(Edge, "next", lambda self, stored, number: None),  # it ends before they are sent
            shipped(folder, aggregator.address) as first,
        ):
            assert first.is_sending_details
        with shipped(folder, aggregator.address) as second:
            step_until(second, "they are sent", lambda: not (folder / "edge").exists())
    with connect(f"lake:{lake}") as queries:
        assert events_of(queries, 0) == queries.ranks(SESSION).to_pylist()[0]["events"]


def test_a_host_that_is_wholly_late_is_missing_until_it_is_there(tmp_path: Path) -> None:
    lake, late = tmp_path / "lake", tmp_path / "late" / SESSION
    job = make_job(tmp_path)
    for meta in job.glob("*/meta.json"):
        told = json.loads(meta.read_text())
        told["rank"]["world_size"] = 4
        meta.write_text(json.dumps(told))
    late.mkdir(parents=True)
    for spool in ("0-2-1", "0-3-1"):
        (job / spool).rename(late / spool)
    found = []
    with serving(lake) as aggregator:
        for folder in (job, late):
            with shipped(folder, aggregator.address), connect(f"lake:{lake}") as queries:
                (overview,) = queries.sessions().to_pylist()
                status = sorted(row["rank"] for row in queries.status(SESSION).to_pylist())
                absent = sorted({row["rank"] for row in queries.incompleteness(SESSION).to_pylist()})
                found.append((overview["complete"], status, absent))
    assert found == [(False, [0, 1], [2, 3]), (True, [0, 1, 2, 3], [])]


def test_a_sessions_shipper_that_lost_its_connection_is_asked_again(tmp_path: Path) -> None:
    job, lake = make_job(tmp_path, ranks=[0]), tmp_path / "lake"
    with serving(lake) as aggregator, shipped(job, aggregator.address) as shipper:
        assert shipper.sender is not None
        shipper.sender.drop(RankmemError(Code.UNAVAILABLE, "the network broke"))
        found = fetched(aggregator.address, [shipper])
        assert found.is_whole
        assert found.came > 0
