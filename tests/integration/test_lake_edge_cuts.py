"""A log that was cut twice, as a connection broke between received and stored: each event comes once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_shipping import WHOLE, at_aggregator, fetched, shipped, step_until
from lake_serving import SESSION, serving
from rankmem_aggregator import connect
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship import deliver
from rankmem_ship.shipper import Shipper
from repetitions import long_but
from spool_synthetic import SyntheticSpool, training_records

RECEIVED_ONLY_S = 2.0
"""Between two commits of the lake: long enough for what the tests do meanwhile, which is checked."""


def send_half(shipper: Shipper) -> None:
    """Sends what is there, until it is received; it is not stored then."""
    (upload,) = shipper.uploads.values()
    step_until(shipper, "it is received", lambda: upload.queue.sequence_sent > 0 and not upload.num_unsent)
    step_until(shipper, "it is received", lambda: upload.queue.num_in_flight == 0)
    assert upload.stored == -1


def make_log(session_dir: Path) -> tuple[SyntheticSpool, np.ndarray]:
    """A spool, and the records of its log."""
    spool = SyntheticSpool(path=session_dir / "0-0-1", session_id=SESSION, host_uid="host-0", alive=True)
    return spool, training_records(spool, 80, interval_ns=5_000_000, live_calls=20, seed=1)


@pytest.fixture(scope="module")
def num_events(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Memory events of the log, as a lake has them that got it whole."""
    folder = tmp_path_factory.mktemp("whole")
    spool, records = make_log(folder / SESSION)
    spool.append(records)
    spool.end()
    with serving(folder / "lake") as aggregator, shipped(folder / SESSION, aggregator.address, WHOLE):
        pass
    with connect(f"lake:{folder / 'lake'}") as queries:
        return int(queries.sql("SELECT count(*) AS n FROM memory_event")["n"][0].as_py())


def assert_whole(lake: Path, num_events: int) -> None:
    with connect(f"lake:{lake}") as queries:
        (row,) = queries.sql("SELECT count(*) AS n, count(DISTINCT seq) AS m FROM memory_event").to_pylist()
        assert row == {"n": num_events, "m": num_events}
        (row,) = queries.sql(
            "SELECT count(*) AS n, count(DISTINCT allocation_id) AS ids FROM allocation_record"
        ).to_pylist()
        assert row["n"] == row["ids"] > 0
        places = queries.sql("SELECT place, sequence_first, sequence_last FROM availability").to_pylist()
        ranges = {
            place: sorted(
                (row["sequence_first"], row["sequence_last"]) for row in places if row["place"] == place
            )
            for place in ("host", "here", "gone")
        }
        assert ranges["here"] == ranges["host"]
        assert ranges["gone"] == []
        for row in queries.sql("SELECT * FROM rank_availability").to_pylist():
            assert row["here"] == row["stretches"] == len(ranges["host"])
        assert not queries.incompleteness(SESSION).num_rows


@pytest.mark.parametrize("by", long_but(["fetch", "ship"], "fetch"))
@pytest.mark.parametrize("ends", long_but(["connection", "process"], "process"))
def test_what_was_received_and_not_stored_is_cut_again_and_comes_once(
    tmp_path: Path, num_events: int, ends: str, by: str
) -> None:
    lake, folder = tmp_path / "lake", tmp_path / SESSION
    spool, records = make_log(folder)
    spool.append(records[: len(records) // 2])
    with serving(lake, lake_interval_s=RECEIVED_ONLY_S) as aggregator:
        shipper = at_aggregator(folder, aggregator.address)
        send_half(shipper)
        spool.append(records[len(records) // 2 :])
        spool.end()
        if ends == "process":
            shipper.close("given_up")
            shipper = at_aggregator(folder, aggregator.address)
        else:
            assert shipper.sender is not None
            shipper.sender.drop(RankmemError(Code.UNAVAILABLE, "the network broke"))
        step_until(shipper, "all is stored", lambda: shipper.is_done)
        if by == "fetch":
            assert fetched(aggregator.address, [shipper]).is_whole
            step_until(shipper, "all is acknowledged", lambda: not shipper.keeps_details)
            shipper.close("done")
        else:
            shipper.close("done")
            assert deliver.deliver(folder, aggregator.address, timeout_s=60.0).details_left == []
        assert not (folder / "edge").exists()
    assert_whole(lake, num_events)


def test_what_another_aggregator_stored_whole_is_not_stored_again(tmp_path: Path, num_events: int) -> None:
    lake, folder = tmp_path / "lake", tmp_path / SESSION
    spool, records = make_log(folder)
    spool.append(records)
    # The first stands for one that is killed before it stores.
    with serving(lake, lake_interval_s=60.0) as first, serving(lake) as second:
        shipper = at_aggregator(folder, first.address)
        send_half(shipper)
        shipper.close("given_up")
        spool.end()
        report = deliver.deliver(folder, second.address, timeout_s=60.0)
        assert report.spools_delivered == 1
        # It cannot tell that what it kept is of no use: the aggregator alone knows what it has instead.
        assert report.details_left == [folder / "edge"]
    assert_whole(lake, num_events)
