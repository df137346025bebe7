"""The peak of a job by slices of time, where rows have come after what the lake knows of their edges."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from lake_pieces import catalog_of, in_pieces, write_piece
from lake_story import STORY, lake_story
from rankmem_aggregator import connect
from rankmem_aggregator.lake import compact as compacting
from rankmem_aggregator.lake.compact import compact_lake
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.scattered import ScatteredQueries

PART_ROWS = 200


def test_rows_that_come_after_the_openings_are_in_a_peak_by_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a device that the openings do not know, in a session that was thought to be over."""
    monkeypatch.setattr(compacting, "sessions_over", lambda *about: frozenset({STORY}))
    whole, lake = tmp_path / "whole", str(tmp_path / "lake")
    import_database(lake_story(tmp_path / "story.duckdb"), str(whole), part_rows=PART_ROWS)
    in_pieces(whole, lake, random.Random(3), 2)
    compact_lake(lake, part_rows=PART_ROWS)
    assert catalog_of(lake).has_openings(STORY)
    like = [f for f in catalog_of(lake).of_table("memory_event") if f.session_id == STORY][-1]
    with connect(f"lake:{lake}") as queries:
        statement = "SELECT * FROM memory_event WHERE session_id = $s AND rank = 1 ORDER BY attempt, seq"
        row = queries.sql(statement, {"s": STORY}).to_pylist()[0]
    row |= {"device": "cuda:1", "requested_bytes": 1 << 40}
    bucket = {
        "session_id": STORY, "attempt": row["attempt"], "rank": 1, "device": row["device"], "events": 1,
        "bucket_ns": row["time_ns"] // 10**9 * 10**9, "seq_first": row["seq"], "seq_last": row["seq"],
        "first_ns": row["time_ns"], "last_ns": row["time_ns"],
        "requested_peak_bytes": 1 << 40, "requested_last_bytes": 1 << 40,
        "requested_peak_ns": row["time_ns"], "requested_peak_seq": row["seq"],
    }  # fmt: skip
    buckets = dataclasses.replace(like, table_name="memory_bucket")
    write_piece(lake, [(like, [row]), (buckets, [bucket])], 3)
    for _ in range(2):
        with (
            ScatteredQueries(lake, "processes:2", worth_bytes=0) as scattered,
            connect(f"lake:{lake}") as one,
        ):
            peak = one.job_peak(STORY)
            assert scattered.job_peak(STORY) == peak
            assert max(peak["job_peak_bytes"].to_pylist()) > 1 << 40
        compact_lake(lake, part_rows=PART_ROWS)
    assert catalog_of(lake).has_openings(STORY)
