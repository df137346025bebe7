"""A clock offset that becomes a better one after a session was cut by time: its slices begin elsewhere."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, empty_database, store_logs, store_rows
from lake_pieces import catalog_of, in_pieces
from rankmem_aggregator import connect
from rankmem_aggregator.lake import compact as compacting
from rankmem_aggregator.lake.catalog import exchange_progress
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.compact import compact_lake
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.scattered import ScatteredQueries
from rankmem_aggregator.sql import query_text

EDGE_S, SECONDS = 5, 10
"""Where the second of two segments begins; how long the session is."""
BETTER_OFFSET = {
    "host_uid": "host-0", "time_ns": BASE_NS + 3600 * SECOND_NS, "offset_ns": 700, "error_ns": 1,
}  # fmt: skip


def killed_beside_another() -> list[RankLog]:
    """Two hosts with one clock, as it seems; the rank on the first has no end.

    It is highest just before the edge, the other just behind it.
    """
    killed = RankLog(rank=0, host_uid="host-0")
    other = RankLog(rank=1, host_uid="host-1", ended=SECONDS * SECOND_NS)
    edge = EDGE_S * SECOND_NS
    quiet = [(n * SECOND_NS // 2, 10) for n in range(1, 2 * SECONDS)]
    killed.totals("cpu", sorted([*quiet, (edge - 400, 1_000), (edge - 100, 10)]))
    other.totals("cpu", sorted([*quiet, (edge + 350, 1_000), (edge + 500, 10)]))
    return [killed, other]


def later_recording(path: Path) -> Path:
    """Another job on the first host, which measured that its clock is 700 ns slow."""
    log = RankLog(session_id="0LATERJOB001", host_uid="host-0", started=3600 * SECOND_NS)
    log.totals("cpu", [(3601 * SECOND_NS, 5)])
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
        store_rows(connection, "clock_offset", [BETTER_OFFSET])
    return path


def cut_lake(folder: Path) -> str:
    """A lake of the session, in files of some seconds."""
    with empty_database(str(folder / "killed.duckdb")) as connection:
        store_logs(connection, killed_beside_another())
    import_database(folder / "killed.duckdb", str(folder / "lake"), part_rows=12)
    begins = {file.from_ns for file in catalog_of(folder / "lake").of_table("memory_event")}
    assert begins == {BASE_NS, BASE_NS + EDGE_S * SECOND_NS}
    return str(folder / "lake")


def by_slices(lake: str) -> list[dict[str, Any]] | None:
    """The job's peak by slices of time; None: one process has to answer."""
    with ScatteredQueries(lake, "processes:1", worth_bytes=0) as queries:
        found = queries.by_time(query_text("job_peak"), {"session": SESSION}, SESSION, "job")
        assert queries.job_peak(SESSION) == _whole(lake)
        return None if found is None else found.to_pylist()


def _whole(lake: str) -> Any:
    with connect(f"lake:{lake}") as queries:
        return queries.job_peak(SESSION)


def test_a_peak_at_an_edge_is_found_after_a_clock_offset_behind_the_cut_has_changed(tmp_path: Path) -> None:
    lake = cut_lake(tmp_path)
    before = by_slices(lake)
    assert before is not None
    assert before[0]["job_peak_bytes"] == 1_010
    import_database(later_recording(tmp_path / "later.duckdb"), lake)
    by_slices(lake)
    assert _whole(lake)["job_peak_bytes"][0].as_py() == 2_000


def test_compact_cuts_such_a_session_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "sessions_over", lambda *about: frozenset({SESSION}))
    whole, lake = Path(cut_lake(tmp_path)), str(tmp_path / "served")
    in_pieces(whole, lake, random.Random(1), 2)
    compact_lake(lake, part_rows=12)
    assert compact_lake(lake, part_rows=12).num_old == 0
    import_database(later_recording(tmp_path / "later.duckdb"), lake)
    assert by_slices(lake) is None
    assert compact_lake(lake, part_rows=12).num_old > 0
    found = by_slices(lake)
    assert found is not None
    assert found[0]["job_peak_bytes"] == 2_000
    assert compact_lake(lake, part_rows=12).num_old == 0


@pytest.mark.long
def test_another_import_cuts_such_a_session_again(tmp_path: Path) -> None:
    lake, database = cut_lake(tmp_path), tmp_path / "killed.duckdb"
    with duckdb.connect(database) as connection:
        store_rows(connection, "clock_offset", [BETTER_OFFSET])
    assert import_database(database, lake, part_rows=12).sessions[SESSION] == "replaced"
    found = by_slices(lake)
    assert found is not None
    assert found[0]["job_peak_bytes"] == 2_000
    assert import_database(database, lake, part_rows=12).sessions[SESSION] == "already there"


@pytest.mark.long
def test_openings_of_the_layout_before_are_not_used_and_nothing_else_is_refused(tmp_path: Path) -> None:
    lake = cut_lake(tmp_path)
    before = _whole(lake)
    as_layout_2(lake)
    assert not catalog_of(lake).has_openings(SESSION)
    assert by_slices(lake) is None
    assert _whole(lake) == before
    assert not check_lake(lake).faults
    assert import_database(tmp_path / "killed.duckdb", lake, part_rows=12).sessions[SESSION] == "replaced"
    assert by_slices(lake) is not None


def as_layout_2(lake: str) -> None:
    """The lake as the layout before wrote it: openings without an offset, and states of their own."""
    (opening,) = [f for f in catalog_of(lake).of_table("opening") if f.session_id == SESSION]
    place = Path(lake) / opening.path
    rows = pq.read_table(place, partitioning=None).drop_columns(["offset_ns"])
    pq.write_table(rows, place)
    old = catalog_of(lake).of_session(SESSION)
    new = [
        dataclasses.replace(
            file,
            layout_version=2,
            state=f"2-{file.state}",
            size_bytes=place.stat().st_size if file == opening else file.size_bytes,
        )
        for file in old
    ]
    files = LakeFiles(lake)
    assert exchange_progress(files, old, ())
    assert exchange_progress(files, (), new)
