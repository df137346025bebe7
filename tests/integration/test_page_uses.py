"""Accesses of a real msMemScope dump: it has none itself, so that they are put between its rows.

The recording lies outside of the project, at ../shared/recordings; without it this test is skipped.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pytest

from import_read import imported
from page_answers import Answers
from rankmem_aggregator.page.reading import facts_of

DUMP = Path(__file__).resolve().parents[2].parent / (
    "shared/recordings/ascend/memscope/memscope_dump_20250428113810.csv"
)
pytestmark = [
    pytest.mark.recordings,
    pytest.mark.skipif(not DUMP.is_file(), reason="needs ../shared/recordings/ascend/memscope"),
]
AFTER_US = 9
BLOCKS = 20


def _early(database: Path) -> pa.Table:
    """Of the device of which PyTorch's allocator gave the most blocks."""
    page = Answers(database)
    chosen = page.queries.sql(
        "SELECT rank, device FROM allocation_record WHERE component = 'pytorch' GROUP BY ALL "
        "ORDER BY count(*) DESC"
    ).to_pylist()[0]
    answer = page.ask("inefficient", **chosen, kind="early")
    page.close()
    return answer


def test_a_dump_without_accesses_says_what_to_record(tmp_path: Path) -> None:
    imported(tmp_path / "d.duckdb", DUMP)
    answer = _early(tmp_path / "d.duckdb")
    assert answer.num_rows == 0
    assert "msmemscope --events=alloc,free,launch,access" in facts_of(answer)["why"]


def test_a_dump_with_accesses_says_how_early_its_blocks_were_made(tmp_path: Path) -> None:
    with DUMP.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    made = [row for row in rows if row[1:3] == ["MALLOC", "PTA"]][:BLOCKS]
    uses = [
        [row[0], "ACCESS", "READ", "aten.add", str(int(row[4]) + AFTER_US), *row[5:9], "{type:PTA}", "", ""]
        for row in made
    ]
    path = tmp_path / DUMP.name
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *sorted(rows + uses, key=lambda row: int(row[4]))])
    imported(tmp_path / "d.duckdb", path)
    answer = _early(tmp_path / "d.duckdb")
    sizes = sorted(int(row[9].partition("size:")[2].partition(",")[0]) for row in made)
    assert sorted(answer["size_bytes"].to_pylist()) == sizes
    assert set(answer["held_ns"].to_pylist()) == {AFTER_US * 1000}
