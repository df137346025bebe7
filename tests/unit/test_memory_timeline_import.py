"""Memory timelines imported: the totals by category at every instant are those of the file."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rankmem_imports.files.number_lists import NumberLists
from rankmem_imports.formats import FORMATS
from rankmem_imports.probing import probe
from rankmem_imports.recording import Closing, Identity
from rankmem_protos.errors import Code, RankmemError
from repetitions import seeds

NAMES = (
    "parameter", "optimizer_state", "input", "temporary", "activation", "gradient", "autograd_detail",
    "unknown",
)  # fmt: skip
START_US = 1_700_000_000_000_000


def read(path: Path) -> tuple[dict[str, list[dict[str, Any]]], Closing]:
    """All rows by table."""
    [recording] = FORMATS["memory-timeline"].open([path])
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for part in recording.parts(Identity("0" * 12, 0, 0)):
        for table, batch in part.rows:
            rows[table] += pa.Table.from_batches([batch]).to_pylist()
    return rows, recording.closing()


def totals_by_time(rows: dict[str, list[dict[str, Any]]]) -> dict[int, tuple[int, ...]]:
    """What the rows say: bytes by category after the last word of each instant. -1: what was there first."""
    moves: list[tuple[int, int, str, int]] = []
    ended = {row["allocation_id"]: row for row in rows["allocation_end"]}
    changes = defaultdict(list)
    for row in rows["category_change"]:
        changes[row["allocation_id"]].append(row)
    for block in rows["allocation_record"]:
        begin = (-1, -1) if block["preexisting"] else (block["allocated_ns"], block["allocation_id"])
        size, category = block["size_bytes"], block["category"]
        moves.append((*begin, category, size))
        for change in sorted(changes[block["allocation_id"]], key=lambda row: row["seq"]):
            moves.append((change["time_ns"], change["seq"], category, -size))
            category = change["category"]
            moves.append((change["time_ns"], change["seq"], category, size))
        end = block if block["freed_ns"] is not None else ended.get(block["allocation_id"])
        if end is not None:
            moves.append((end["freed_ns"], end["freed_seq"], category, -size))
    totals = dict.fromkeys(NAMES, 0)
    by_time = {}
    for time_ns, _, category, size in sorted(moves, key=lambda move: move[:2]):
        totals[category] += size
        by_time[time_ns] = tuple(totals.values())
    return by_time


def raw_changes(seed: int, count: int) -> list[list[int]]:
    """A made-up job: blocks that come, change their category and go."""
    chance = random.Random(seed)
    alive: list[tuple[int, int]] = []
    changes = []
    for _ in range(chance.randrange(20)):
        alive.append((chance.choice([64, 128, 1000]), chance.randrange(8)))
        changes.append([-1, 1, *alive[-1]])
    time_ns = START_US * 1000
    for _ in range(count):
        time_ns += chance.choice([0, 1, 700, 5000])
        what = chance.random()
        if what < 0.5 or not alive:
            alive.append((chance.choice([64, 128, 1000, 1 << 40]), chance.randrange(8)))
            changes.append([time_ns, 2, *alive[-1]])
        elif what < 0.7:
            place = chance.randrange(len(alive))
            size, category = alive[place]
            alive[place] = (size, chance.randrange(8))
            changes += [[time_ns, 3, -size, category], [time_ns, 3, *alive[place]]]
        else:
            size, category = alive.pop(chance.randrange(len(alive)))
            changes.append([time_ns, 4, -size, category])
    return changes


def sums_of(changes: list[list[int]]) -> dict[int, tuple[int, ...]]:
    """The same by adding up."""
    totals = [0] * 8
    by_time = {}
    for time_ns, _, change, category in changes:
        totals[category] += change
        by_time[time_ns] = tuple(totals)
    return by_time


@pytest.mark.parametrize("seed", seeds(6))
def test_the_totals_of_a_raw_timeline_are_those_of_its_changes(seed: int, tmp_path: Path) -> None:
    changes = raw_changes(seed, 400)
    path = tmp_path / "x.raw.json.gz"
    path.write_bytes(gzip.compress(json.dumps(changes).encode()))
    assert FORMATS["memory-timeline"].recognises(probe(path))
    rows, closing = read(path)
    expected = sums_of(changes)
    found = totals_by_time(rows)
    assert {time: found[time] for time in found if time in expected} == {
        time: totals for time, totals in expected.items() if time in found
    }
    assert found[max(found)] == expected[max(expected)]
    # An instant at which nothing but a version without a new category lies has no row.
    assert len(found) > len(expected) // 2
    assert closing.events == len(rows["memory_event"])
    last = rows["memory_event"][-1]
    assert last["requested_bytes"] == sum(expected[max(expected)])
    peak = max(sum(totals) for totals in expected.values())
    assert max(bucket["requested_peak_bytes"] for bucket in rows["memory_bucket"]) >= peak
    assert {last["address"], last["stream"], last["thread"], last["reserved_bytes"]} == {None}
    assert {row["device"] for table in rows.values() for row in table if "device" in row} == {"unknown"}


@pytest.mark.parametrize("seed", seeds(6))
def test_the_totals_of_a_timeline_of_totals_are_its_own_and_never_stand_too_high(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    times = sorted(START_US + chance.randrange(10**6) for _ in range(200))
    times = list(dict.fromkeys(times))
    sizes = [[0, *(chance.choice([0, 512, chance.randrange(10**12)]) for _ in range(8))] for _ in times]
    path = tmp_path / "x.json"
    path.write_text(json.dumps([times, sizes]))
    assert FORMATS["memory-timeline"].recognises(probe(path))
    rows, _ = read(path)
    found = totals_by_time(rows)
    expected = {time * 1000: tuple(row[1:]) for time, row in zip(times, sizes, strict=True)}
    assert {time: found[time] for time in found} == {time: expected[time] for time in found}
    peak = max(sum(row) for row in sizes)
    assert max(bucket["requested_peak_bytes"] for bucket in rows["memory_bucket"]) == peak


def test_torch_2_1_has_nanoseconds_and_fractions_of_nothing(tmp_path: Path) -> None:
    times = [START_US * 1000 + at for at in (0, 0, 7, 2500)]
    sizes = [[0, 512, 0], [0, 512, 64], [0, 0, 64], [0, 0, 1 << 40]]
    path = tmp_path / "x.json"
    path.write_text(json.dumps([times, [[float(n) for n in row] + [0.0] * 6 for row in sizes]]))
    assert FORMATS["memory-timeline"].recognises(probe(path))
    rows, _ = read(path)
    assert [(row["time_ns"] - times[0], row["requested_bytes"]) for row in rows["memory_event"]] == [
        (0, 512), (0, 576), (7, 64), (2500, 1 << 40)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[1, 2, 3, 0], [4, 2", "breaks off"),
        ("[[1, 2, 3, 0], [4, 2, 0.5, 0]]", "whole numbers"),
        ("[[1, 2, -3, 0]]", "action 2 with -3 bytes"),
        ("[[1, 2, 72057594037927936, 0]]", "more than any device"),
        ("[[9000000000000000000, 2, 1, 0]]", "clock"),
        ("[[1, 3, -5, 0], [1, 3, 6, 1]]", "a version of 6 bytes"),
        ("[[1, 2], [[0, 1, 0, 0, 0, 0, 0, 0, 0]]]", "1 rows of totals for 2 times"),
        ("[[1], [[0, 1, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0, 0]]]", "more rows of totals"),
        ("[[1, 2, 3, 0]] and more", "something follows"),
    ],
)
def test_a_broken_timeline_is_refused_with_its_name_and_place(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(RankmemError, match=says) as raised:
        read(path)
    assert raised.value.code is Code.INVALID
    assert "broken.json" in raised.value.message


def test_a_gzip_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.raw.json.gz"
    path.write_bytes(gzip.compress(json.dumps(raw_changes(1, 500)).encode())[:-200])
    with pytest.raises(RankmemError, match="gzip"):
        read(path)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'[["a"]]', b"[[1, 9, 1, 1], [2, 2, 2, 2]]", b"[[1.5]]"])
def test_other_json_is_no_timeline(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(text)
    assert not FORMATS["memory-timeline"].recognises(probe(path))


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1000])
def test_a_timeline_read_in_small_pieces_is_the_same(
    chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankmem_imports.files.number_lists.CHUNK_BYTES", chunk_bytes)
    rows = [[10**18 + n, 2, n * 7, n % 8] for n in range(40)]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(rows))
    with NumberLists(path) as text:
        text.take(b"[")
        assert [row for some in text.rows(4) for row in some.tolist()] == rows
        text.take(b"]")
        text.end()
    times, totals = list(range(10**15, 10**15 + 30)), [[0, *range(n, n + 8)] for n in range(30)]
    path.write_text(json.dumps([times, totals], indent=1))
    with NumberLists(path) as text:
        text.take(b"[")
        text.take(b"[")
        assert [time for some in text.numbers() for time in some.tolist()] == times
        text.take(b"]")
        text.take(b",")
        text.take(b"[")
        assert [row for some in text.rows(9) for row in some.tolist()] == totals
