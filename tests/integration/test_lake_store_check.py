"""An aggregator tries, as it starts, whether its store can be trusted: many at once, and nothing stays."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pytest

from lake_serving import serving
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.layout import TABLES
from rankmem_aggregator.lake.moves import STORE_CHECK, check_store
from rankmem_aggregator.lake.vacuum import vacuum_lake
from seaweed import BUCKET, needs_weed, object_store, reached_at

AT_ONCE = 20


@pytest.mark.parametrize("is_local", [True, pytest.param(False, marks=needs_weed)], ids=["folder", "store"])
def test_aggregators_that_start_at_once_are_not_in_each_other_s_way(tmp_path: Path, is_local: bool) -> None:
    with contextlib.ExitStack() as opened:
        place = str(tmp_path / "lake")
        if not is_local:
            (tmp_path / "weed").mkdir()
            address, _ = opened.enter_context(object_store(tmp_path / "weed"))
            opened.enter_context(reached_at(f"http://{address}"))
            place = f"s3://{BUCKET}/lake"
        threads = opened.enter_context(ThreadPoolExecutor(AT_ONCE))
        starts = [threads.submit(check_store, LakeFiles(place), uuid.uuid4().hex) for _ in range(AT_ONCE)]
        assert [str(error) for start in starts if (error := start.exception())] == []
        left = [found.path for found in LakeFiles(place).listing(STORE_CHECK)]
        assert [path for path in left if not path.endswith("_delta_log")] == []  # this store lists folders


def test_a_check_that_was_killed_is_vacuumed(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with serving(lake):
        pass
    for folder in ("", "killed"):
        deltalake.DeltaTable.create(lake / STORE_CHECK / folder, next(iter(TABLES.values())).arrow_schema())
    left = sorted((lake / STORE_CHECK).rglob("*.json"))
    assert len(left) == 2
    assert vacuum_lake(str(lake)).files == ()
    for path in left:
        os.utime(path, (time.time() - 90_000,) * 2)
    assert [lake / file.path for file in vacuum_lake(str(lake)).files] == left
