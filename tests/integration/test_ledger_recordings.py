"""The ledger of a recording that others made on Ascend devices, against the figures of issue 17.

The recordings lie outside of the project, at ../shared/recordings; without them these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from import_read import imported
from rankmem_aggregator import connect

FOLDER = Path(__file__).resolve().parents[3] / "shared/recordings/ascend"
MIB = 1 << 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/recordings/ascend"),
]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("form", ["text", "db"])
def test_an_ascend_process_is_explained_to_a_tenth_of_a_megabyte(
    form: str, rank: int, tmp_path: Path
) -> None:
    database = tmp_path / "recorded.duckdb"
    imported(database, FOLDER / form)
    with connect(database) as queries:
        answer = queries.ledger(rank=rank)
        allocated = queries.peak(rank=rank)["peak_allocated_bytes"][0].as_py()
    of_rank = [row for row in answer.rows.to_pylist() if row["rank"] is not None]
    found = {row["name"] or row["part"]: (round(row["bytes"] / MIB, 1), row["source"]) for row in of_rank}
    assert found == {
        "pytorch": (1452.0, "measured"),
        "HCCL": (404.1, "measured"),
        "RUNTIME": (92.2, "measured"),
        "GE": (76.0, "measured"),
        "unexplained": (85.4, "derived"),
    }
    assert round(sum(row["bytes"] for row in of_rank) / MIB, 1) == 2109.6
    others = answer.rows.to_pylist()[-1]
    assert (others["bytes"] is None) == (form == "text"), "only the database has what the device holds"
    naive = 1 - allocated / sum(row["bytes"] for row in of_rank)
    assert round(naive, 2) == 0.44
