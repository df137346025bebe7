"""MindStudio's page on the Ascend recordings: curves, title and tables as the files themselves have them."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from page_server import PageClient, served_page
from rankmem_aggregator import connect
from rankmem_protos.errors import Code, RankmemError
from repetitions import long_but

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "recordings" / "ascend"
pytestmark = [
    pytest.mark.recordings,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/recordings/ascend"),
]
MB = 1 << 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("ascend") / "two.duckdb"
    command = [sys.executable, "-m", "rankmem_cli", "import", str(FOLDER / "text"), "--db", str(found)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return found


@pytest.fixture(scope="module")
def session(path: Path) -> str:
    with connect(path) as queries:
        return queries.session_id()


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[PageClient]:
    with served_page(path) as served:
        yield served


def rows_of_file(rank: int, name: str) -> list[dict[str, str]]:
    file = FOLDER / "text" / f"rank{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / name
    with file.open(newline="") as opened:
        return [{key: cell.strip() for key, cell in row.items()} for row in csv.DictReader(opened)]


@pytest.mark.parametrize("rank", long_but([0, 1], 1))
def test_the_title_has_the_peaks_of_the_files(client: PageClient, session: str, rank: int) -> None:
    peaks = client.facts(f"s/{session}/mindstudio_curve", rank=rank, from_=0, to=10**12)["peaks"]
    records = rows_of_file(rank, "memory_record.csv")
    for legend, column in (("Operators Allocated", "Allocated"), ("Operators Reserved", "Reserved")):
        highest = max(Decimal(row[f"Total {column}(MB)"]) for row in records if row["Component"] == "PTA+GE")
        assert peaks[legend] == pytest.approx(float(highest), abs=0.01)


def operators(client: PageClient, session: str, **asked: Any) -> list[dict[str, Any]]:
    return client.ask(f"s/{session}/mindstudio/operators", rank=0, limit=1000, **asked).to_pylist()


def test_the_table_has_every_row_of_the_file(client: PageClient, session: str) -> None:
    def key(row: dict[str, Any]) -> tuple[str, str]:
        return row["Name"], f"{float(row['Size(KB)']):.3f}"

    found = operators(client, session)
    assert sorted(map(key, found)) == sorted(map(key, rows_of_file(0, "operator_memory.csv")))


def test_paging_neither_repeats_nor_misses_a_row(client: PageClient, session: str) -> None:
    for sort in ("Size(KB)", "Name", "Stream"):
        for descending in ("yes", "no"):
            asked = {"sort": sort, "descending": descending}
            pages = []
            for skipped in range(0, 200, 40):
                route = f"s/{session}/mindstudio/operators"
                pages += client.ask(route, rank=0, limit=40, skipped=skipped, **asked).to_pylist()
            assert pages == operators(client, session, **asked)
            shown = [row[sort] for row in pages if row[sort] is not None]
            if sort != "Stream":
                assert shown == sorted(shown, reverse=descending == "yes")


def test_name_size_and_interval_choose_rows(client: PageClient, session: str) -> None:
    everything = operators(client, session)
    one = everything[len(everything) // 2]
    part = one["Name"][2:-1].upper()
    found = operators(client, session, name=part, least_kb=one["Size(KB)"], most_kb=one["Size(KB)"])
    assert one in found
    assert all(part.lower() in row["Name"].lower() for row in found)
    first, last = int(one["Allocation Time(ms)"] * 1e6), int(one["Allocation Time(ms)"] * 1e6 + 2e6)
    inside = operators(client, session, from_=first, to=last, only_within="yes")
    expected = [
        row
        for row in everything
        if any(
            row[f"{name} Time(ms)"] is not None and first <= row[f"{name} Time(ms)"] * 1e6 <= last
            for name in ("Allocation", "Release")
        )
    ]
    assert inside == expected
    assert len(operators(client, session, from_=first, to=last)) >= len(inside)


def test_components_are_told_from_100_mb_on(client: PageClient, session: str) -> None:
    rows = client.ask(f"s/{session}/mindstudio/components", rank=0).to_pylist()
    files: dict[str, float] = {}
    for row in rows_of_file(0, "npu_module_mem.csv"):
        value = float(row["Total Reserved(MB)"])
        files[row["Component"]] = max(value, files.get(row["Component"], 0.0))
    expected = {name: value for name, value in files.items() if value >= 100}
    assert {row["Component"]: row["Peak Memory Reserved(MB)"] for row in rows} == pytest.approx(expected)


def test_two_ranks_compare_as_their_files_do(client: PageClient, session: str) -> None:
    """MindStudio's comparison of two ranks: what their operators allocated."""
    sides = {name: f"/{rank}/made=0:{10**15}" for name, rank in (("a", 0), ("b", 1))}
    found = client.ask(f"s/{session}/diff", **sides, by="operator", device_type="npu").to_pylist()
    for side, rank in (("a", 0), ("b", 1)):
        expected: dict[str, list[Decimal]] = {}
        for row in rows_of_file(rank, "operator_memory.csv"):
            if row["Allocation Time(us)"] not in ("", "N/A"):
                expected.setdefault(row["Name"], []).append(Decimal(row["Size(KB)"]) * 1024)
        told = {row["group_name"]: (row[f"{side}_bytes"], row[f"{side}_blocks"]) for row in found}
        for name, sizes in expected.items():
            assert told[name] == (int(sum(sizes)), len(sizes)), name


def test_a_rank_that_does_not_exist_is_not_found(client: PageClient, session: str) -> None:
    with pytest.raises(RankmemError) as refused:
        client.ask(f"s/{session}/mindstudio_curve", rank=99, from_=0, to=1)
    assert refused.value.code is Code.NOT_FOUND
