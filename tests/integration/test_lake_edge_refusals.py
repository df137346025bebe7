"""Rows of events that are refused stay on their host: it may have the last copy."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from edge_shipping import fetched, make_job, shipped, step_until
from lake_serving import serving
from rankmem_aggregator import connect
from rankmem_aggregator.lake.lanes import Lanes
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.shipper import Shipper
from repetitions import long_but
from waiting import until

REFUSALS = [
    RankmemError(Code.UNSUPPORTED, "the lake has schema version 99"),
    RankmemError(Code.INVALID, "cannot read lake_progress: connection reset"),
]
BLIP = RankmemError(Code.UNAVAILABLE, "the network broke")


def drop(shipper: Shipper) -> None:
    assert shipper.sender is not None
    shipper.sender.drop(BLIP)


@pytest.mark.parametrize("refusal", long_but(REFUSALS, REFUSALS[0]), ids=lambda error: error.code)
@pytest.mark.parametrize("of", ["the opening", "a stretch"])
def test_what_is_refused_stays_and_is_taken_later(tmp_path: Path, refusal: RankmemError, of: str) -> None:
    job = make_job(tmp_path, ranks=[0])
    asked: list[int] = []

    def failing(self: Lanes) -> None:
        asked.append(1)
        raise refusal

    with serving(tmp_path / "lake") as aggregator, shipped(job, aggregator.address) as shipper:
        before = sorted((job / "edge").rglob("*.details"))
        assert before
        with patch.object(Lanes, "refresh", failing):
            if of == "the opening":
                drop(shipper)
            else:
                step_until(shipper, "the spool is open", lambda: bool(shipper._edge._open))
                shipper.send_details()
            step_until(shipper, "it was refused", lambda: len(asked) > 0)
            looks = 0

            def looked() -> bool:
                nonlocal looks
                shipper.step()
                shipper.wait()
                looks += 1
                return looks > 10

            until("the refusal came", looked)
        assert sorted((job / "edge").rglob("*.details")) == before
        drop(shipper)
        assert fetched(aggregator.address, [shipper]).is_whole
        step_until(shipper, "all is acknowledged", lambda: not shipper.keeps_details)
    with connect(f"lake:{tmp_path / 'lake'}") as queries:
        (row,) = queries.sql("SELECT * FROM rank_availability").to_pylist()
        assert row["here"] == row["stretches"] > 0
