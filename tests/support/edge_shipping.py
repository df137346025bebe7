"""Shippers that keep rows of events on their host, run in this process.

Stage: tests. In: folders of synthetic spools and an aggregator of a lake; out: a shipper that has delivered
all but what stays, and helpers that ask for it.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from lake_serving import BATCH_RECORDS, SESSION, make_spool
from rankmem_agent.spool.layout import Action, Kind
from rankmem_aggregator.query import fetching
from rankmem_aggregator.query.fetching import Fetched, fetch
from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_ship import pace
from rankmem_ship.clock import ClockOffset
from rankmem_ship.config import ShipConfig
from rankmem_ship.shipper import Shipper
from spool_synthetic import SyntheticSpool, clock_record, make_records
from waiting import until

EDGE = ShipConfig(grace_s=0.0, edge_bytes=1 << 30)
WHOLE = ShipConfig(grace_s=0.0)
PAUSE_S = 0.1
"""Between two steps of shippers in a thread: 200 of them leave time for the aggregator then."""


def make_job(folder: Path, *, ranks: Sequence[int] = range(4), calls: int = 40) -> Path:
    """The spools of some ranks that have ended."""
    for rank in ranks:
        make_spool(folder / SESSION / f"0-{rank}-1", attempt=0, rank=rank, calls=calls)
    return folder / SESSION


def at_aggregator(session_dir: Path, address: str, config: ShipConfig = EDGE) -> Shipper:
    """A shipper of a folder to an aggregator."""
    shipper = Shipper(session_dir, dataclasses.replace(config, aggregator=address))
    shipper.scan()
    return shipper


def step_until(shipper: Shipper, what: str, is_so: Callable[[], bool]) -> None:
    """Runs a shipper until something is so."""

    def step() -> bool:
        shipper.step()
        shipper.wait()
        return is_so()

    until(what, step)


@contextmanager
def shipped(session_dir: Path, address: str, config: ShipConfig = EDGE) -> Iterator[Shipper]:
    """A shipper that has delivered a folder, in small batches and without a clock to compare."""
    with (
        patch.object(pace, "BATCH_RECORDS", BATCH_RECORDS),
        patch.object(ClockOffset, "num_probes_due", lambda self, now_s: 0),
    ):
        shipper = at_aggregator(session_dir, address, config)
        try:
            step_until(shipper, "all is delivered", lambda: shipper.is_done)
            yield shipper
        finally:
            shipper.close("done")


@contextmanager
def running(shippers: Sequence[Shipper]) -> Iterator[None]:
    """Shippers that run in a thread, as in their processes."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set():
                for shipper in shippers:
                    shipper.step()
                stop.wait(PAUSE_S)
        except BaseException as exc:  # noqa: BLE001
            failures.append(exc)

    thread = threading.Thread(target=run, name="test-shippers")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, failures


def fetched(
    address: str,
    shippers: Sequence[Shipper],
    ranks: Sequence[int] | None = None,
    *,
    from_ns: int | None = None,
    until_ns: int | None = None,
    timeout_s: float = 60.0,
) -> Fetched:
    """Brings the events of ranks from hosts whose shippers run meanwhile."""
    quick = patch.multiple(fetching, POLL_S=0.3, UNCONNECTED_S=1.0)
    with quick, running(shippers), RemoteQueries(address) as queries:
        session_id = queries.session_id(SESSION)
        return fetch(queries, session_id, ranks, from_ns=from_ns, until_ns=until_ns, timeout_s=timeout_s)


def copied(session_dir: Path, to: Path) -> Path:
    """A copy of a folder of spools."""
    shutil.copytree(session_dir, to / session_dir.name)
    return to / session_dir.name


def make_hosts(folder: Path, count: int, *, blocks: int = 150) -> list[Path]:
    """The folders of so many hosts with a rank each; their logs are the same but for whose they are."""
    template = folder / "template" / "0-0-1"
    _fill(SyntheticSpool(path=template, session_id=SESSION), blocks)
    spool_id = json.loads((template / "meta.json").read_text())["spool_id"]
    found = []
    for rank in range(count):
        session_dir = folder / f"host-{rank}" / SESSION
        spool = session_dir / f"0-{rank}-1"
        shutil.copytree(template, spool)
        meta = json.loads((spool / "meta.json").read_text())
        meta["spool_id"] = spool_id.replace(f"{SESSION}-0-0-", f"{SESSION}-0-{rank}-")
        meta["rank"]["host_uid"] = meta["host"]["host_uid"] = meta["host"]["host_name"] = f"host-{rank}"
        (spool / "meta.json").write_text(json.dumps(meta))
        found.append(session_dir)
    return found


def _fill(spool: SyntheticSpool, blocks: int) -> None:
    """Blocks outside of calls, which each live as long as three others."""
    made = np.arange(blocks)
    events = make_records(2 * blocks, kind=Kind.EVENT, thread=1)
    events["time_ns"] = spool.monotonic_ns + 1000 + np.arange(2 * blocks) * 5_000_000
    events["action"] = np.where(np.arange(2 * blocks) % 2, Action.FREE_COMPLETED, Action.ALLOC)
    events["a"] = 0x1000 * (1 + np.stack([made, np.maximum(made - 3, 0)], axis=1).reshape(-1))
    events["b"] = 64 * (1 + np.stack([made, made], axis=1).reshape(-1) % 50)
    is_made = (np.arange(2 * blocks) % 2 == 0) | (np.arange(2 * blocks) >= 6)
    spool.append(np.concatenate([clock_record(spool), events[is_made]]))
    spool.end()
