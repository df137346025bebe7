"""The block map as the page's server answers it, against pixels summed over the base tables."""

from __future__ import annotations

import base64
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from constructed import SESSION, RankLog, empty_database, store_logs
from page_server import PageClient, served_page
from rankmem_aggregator import connect
from rankmem_aggregator.page.answers import block_map
from rankmem_aggregator.page.reading import facts_of
from rankmem_protos.errors import Code, RankmemError

Array = np.ndarray[Any, Any]
MS = 1_000_000
WIDTHS = {20_000: 70, 40: 71, 1: 72}
"""By the rectangles that may be drawn: the page keeps answers by their parameters."""
FAR = -(2**63) + 4096
"""0x8000…1000, as the tables have it."""


def busy_log(rank: int = 0) -> RankLog:
    """200 allocations of some sizes, most of them freed, and blocks older than the recording."""
    random_ = random.Random(5)
    log = RankLog(rank=rank, ended=10_000 * MS)
    for i in range(5):
        log.preexisting(f"old{i}", 1000 * (i + 1), device="cuda:0", address=(1 << 60) + 8192 * i)
    alive = [f"old{i}" for i in range(5)]
    for i in range(200):
        at = 10 * MS * (i + 1)
        log.alloc(
            f"b{i}",
            random_.randint(1, 5000),
            at=at,
            device="cuda:0",
            address=(FAR if i % 2 else 1 << 55) + 8192 * i,
            operator=f"aten::op{i % 20}",
            stream=i % 3,
        )
        alive.append(f"b{i}")
        if i == 60:
            log.means("b60", "activation", at=at)
        while len(alive) > 20 + i % 7:
            gone = alive.pop(random_.randrange(len(alive)))
            log.free(gone, at=at + 5 * MS, told_later=i % 4 == 0)
    return log


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("map") / "job.duckdb"
    other = RankLog(rank=1, ended=10_000 * MS)
    other.alloc("a", 10, at=0, device="cpu", address=None)
    with empty_database(str(path)) as connection:
        store_logs(connection, [busy_log(), other])
    return path


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[PageClient]:
    with served_page(path) as served:
        yield served


def blocks_in(path: Path) -> list[dict[str, Any]]:
    """Lives of rank 0, from the base tables alone."""
    with connect(path) as queries:
        rows = queries.sql(
            """SELECT r.allocation_id AS id, r.address, r.size_bytes AS size, r.stream, r.operator,
            r.allocated_ns AS made_ns, coalesce(r.freed_seq, e.freed_seq) AS freed,
            coalesce(r.freed_ns, e.freed_ns) AS freed_ns
            FROM allocation_record AS r LEFT JOIN allocation_end AS e USING (rank, allocation_id)
            WHERE rank = 0 ORDER BY id"""
        )
    return list(rows.to_pylist())


def span(path: Path, column: str) -> tuple[int, int]:
    text = f"SELECT min({column}) AS first, max({column}) AS last FROM memory_event WHERE rank = 0"
    with connect(path) as queries:
        row = queries.sql(text).to_pylist()[0]
    return int(row["first"]), int(row["last"])


def add(pixels: Array, x0: float, x1: float, y0: float, y1: float) -> None:
    """One rectangle, y from the bottom, in pixels: the slow way, along both axes."""
    height, width = pixels.shape
    across = [max(0.0, min(x1, i + 1) - max(x0, i)) for i in range(width)]
    up = [max(0.0, min(height - y0, j + 1) - max(height - y1, j)) for j in range(height)]
    pixels += np.outer(up, across)


def drawn(answer: pa.Table) -> Array:
    """How much of each pixel is covered by what the browser gets."""
    facts = facts_of(answer)
    width, height = facts["width"], facts["height"]
    raster = np.frombuffer(base64.b64decode(facts["raster"]), np.uint8)
    pixels: Array = raster.reshape(height, width) / 255 if len(raster) else np.zeros((height, width))
    for row in answer.to_pylist():
        ends = [*row["x"][1:], row["x_end"]]
        for x0, x1, y in zip(row["x"], ends, row["y"], strict=True):
            sx, sy = width / facts["length"], height / facts["height_bytes"]
            add(pixels, x0 * sx, x1 * sx, y * sy, (y + row["size_bytes"]) * sy)
    return pixels


def lives(path: Path, axis: str) -> tuple[list[tuple[int, int, dict[str, Any]]], int]:
    """(begin, end, block), from the begin of the whole range; and its length."""
    first, last = span(path, "seq" if axis == "event" else "time_ns")
    after = last + 1 if axis == "event" else last
    found = []
    for block in blocks_in(path):
        made, freed = (
            (block["id"], block["freed"]) if axis == "event" else (block["made_ns"], block["freed_ns"])
        )
        begin = max(first if made is None else made, first)
        end = min(after if freed is None else freed, after)
        if begin < end:
            found.append((begin - first, end - first, block))
    return found, after - first


@pytest.mark.parametrize("axis", ["event", "time"])
@pytest.mark.parametrize("most", [20_000, 40, 1])
def test_the_pixels_of_the_address_map_are_those_of_all_blocks(
    client: PageClient, path: Path, monkeypatch: pytest.MonkeyPatch, axis: str, most: int
) -> None:
    monkeypatch.setattr(block_map, "RECTANGLES_MAX", most)
    width = WIDTHS[most]
    answer = client.ask(f"s/{SESSION}/map", rank=0, kind="address", axis=axis, width=width, height=41)
    everything, length = lives(path, axis)
    assert answer.num_rows == min(most, len(everything))
    # The three regions, ascending as signed numbers, without the gaps between them.
    bases, at = {}, 0
    for region in (FAR, 1 << 55, 1 << 60):
        own = [b for _, _, b in everything if 0 <= b["address"] - region < 1 << 22]
        low = min(b["address"] for b in own)
        bases[region] = at - low
        at += max(b["address"] + b["size"] for b in own) - low
    expected = np.zeros((41, width))
    for begin, end, block in everything:
        region = next(r for r in bases if 0 <= block["address"] - r < 1 << 22)
        y = block["address"] + bases[region]
        sx, sy = expected.shape[1] / length, 41 / at
        add(expected, begin * sx, end * sx, y * sy, (y + block["size"]) * sy)
    assert facts_of(answer)["height_bytes"] == at
    np.testing.assert_allclose(drawn(answer), expected, atol=1 / 255)


@pytest.mark.parametrize("most", [20_000, 40])
def test_a_part_of_the_addresses_has_the_pixels_of_the_blocks_in_it(
    client: PageClient, path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """From within a block of the region below to within one of the next, over the gap between them."""
    monkeypatch.setattr(block_map, "RECTANGLES_MAX", most)
    everything, length = lives(path, "event")
    far = sorted((b["address"], b["size"]) for _, _, b in everything if b["address"] < 0)
    near = sorted(
        (b["address"], b["size"]) for _, _, b in everything if 0 <= b["address"] - (1 << 55) < 1 << 22
    )
    first, after = far[-20][0] + 7, near[30][0] + near[30][1] // 2
    answer = client.ask(
        f"s/{SESSION}/map", rank=0, kind="address", width=WIDTHS[most], height=43,
        address_from=hex(first % 2**64), address_to=hex(after),
    )  # fmt: skip
    below = max(address + size for address, size in far) - first
    high = below + after - near[0][0]
    expected = np.zeros((43, WIDTHS[most]))
    num_blocks = 0
    for begin, end, block in everything:
        if block["address"] >= 1 << 60:
            continue
        y = block["address"] - first if block["address"] < 0 else below + block["address"] - near[0][0]
        if y + block["size"] > 0 and y < high:
            num_blocks += 1
            sx, sy = WIDTHS[most] / length, 43 / high
            add(expected, begin * sx, end * sx, max(y, 0) * sy, min(y + block["size"], high) * sy)
    facts = facts_of(answer)
    assert (facts["height_bytes"], facts["num_blocks"]) == (high, num_blocks)
    assert facts["low_bytes"] == first - far[0][0]
    assert answer.num_rows == min(most, num_blocks) < len(everything)
    np.testing.assert_allclose(drawn(answer), expected, atol=1 / 255)


def test_addresses_in_a_gap_or_outside_of_all_mean_what_is_next(client: PageClient) -> None:
    def asked(**window: str) -> tuple[int, int, int]:
        facts = client.facts(f"s/{SESSION}/map", rank=0, kind="address", **window)
        return facts["low_bytes"], facts["height_bytes"], facts["space_bytes"]

    low, height, whole = asked()
    assert (low, height) == (0, whole)
    assert asked(address_from="0x8000000000000000", address_to="0x7fffffffffffffff") == (0, whole, whole)
    below = client.facts(f"s/{SESSION}/map", rank=0, kind="address")["ranges"][1]["offset"]
    assert asked(address_from="0xffffffffffffffff") == (below, whole - below, whole)
    assert asked(address_from="0x7fffffffffffffff") == (whole - 1, 1, whole)


@pytest.mark.parametrize("axis", ["event", "time"])
@pytest.mark.parametrize("most", [20_000, 40, 1])
def test_the_pixels_of_the_stacked_map_are_those_of_all_bytes_alive(
    client: PageClient, path: Path, monkeypatch: pytest.MonkeyPatch, axis: str, most: int
) -> None:
    monkeypatch.setattr(block_map, "RECTANGLES_MAX", most)
    answer = client.ask(f"s/{SESSION}/map", rank=0, kind="stacked", axis=axis, width=WIDTHS[most], height=47)
    everything, length = lives(path, axis)
    edges = sorted({x for begin, end, _ in everything for x in (begin, end)})
    heights = [
        (x0, x1, sum(block["size"] for begin, end, block in everything if begin <= x0 < end))
        for x0, x1 in itertools.pairwise(edges)
    ]
    highest = max(height for _, _, height in heights)
    expected = np.zeros((47, WIDTHS[most]))
    for x0, x1, height in heights:
        add(expected, x0 * WIDTHS[most] / length, x1 * WIDTHS[most] / length, 0, height * 47 / highest)
    assert facts_of(answer)["height_bytes"] == highest
    np.testing.assert_allclose(drawn(answer), expected, atol=1 / 255)
    if most == 20_000:  # each block lies on all older ones alive
        for row in answer.to_pylist():
            below = sum(
                block["size"]
                for begin, end, block in everything
                if block["id"] < row["block"] and begin <= row["x"][-1] < end
            )
            assert row["y"][-1] == below


def test_addresses_beyond_a_browsers_numbers_arrive_as_texts(client: PageClient, path: Path) -> None:
    rows = client.ask(f"s/{SESSION}/map", rank=0, kind="address").to_pylist()
    expected = {block["id"]: hex(block["address"] % 2**64) for block in blocks_in(path)}
    assert {row["block"]: row["address"] for row in rows} == expected
    assert max(max(row["y"]) for row in rows) < 2**53


def test_a_block_is_coloured_by_what_it_meant_at_the_end_of_the_range(client: PageClient) -> None:
    answer = client.ask(f"s/{SESSION}/map", rank=0)
    names = facts_of(answer)["groups"]
    assert set(names) == {"unknown", "activation", "before the recording"}
    by_name = {row["category"]: names[row["group"]] for row in answer.to_pylist()}
    assert by_name == {name: name for name in names}
    before = client.ask(f"s/{SESSION}/map", rank=0, seq_from=0, seq_to=20)
    assert "activation" not in facts_of(before)["groups"]


@pytest.mark.parametrize(("colour", "num_names"), [("stream", 4), ("age", 6), ("operator", 13), ("line", 2)])
def test_colours_stand_for_at_most_twelve_groups_and_others(
    client: PageClient, colour: str, num_names: int
) -> None:
    answer = client.ask(f"s/{SESSION}/map", rank=0, colour=colour)
    names = facts_of(answer)["groups"]
    assert len(names) == num_names
    assert ("others" in names) == (colour == "operator")
    if colour == "stream":
        for row in answer.to_pylist():
            nameless = "before the recording" if row["block"] < 0 else "unknown"
            assert names[row["group"]] == (row["stream"] or nameless)


def test_picked_groups_are_drawn_alone(client: PageClient) -> None:
    rows = client.ask(f"s/{SESSION}/map", rank=0, pick="operator:aten%3A%3Aop3;stream:0").to_pylist()
    assert rows
    assert {(row["operator"], row["stream"]) for row in rows} == {("aten::op3", "0")}


def test_a_range_with_too_many_events_is_cut_around_the_instant_and_says_so(
    client: PageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_map, "EVENTS_MAX", 50)
    facts = client.facts(f"s/{SESSION}/map", rank=0, seq=100)
    assert facts["is_cut"]
    assert facts["seq_first"] <= 75 + 2
    assert facts["seq_first"] <= 100 <= facts["seq_last"] < facts["seq_first"] + 50
    assert client.facts(f"s/{SESSION}/map", rank=0, seq=0)["seq_first"] == 0
    with pytest.raises(RankmemError, match="more than 50 events") as refused:
        client.ask(f"s/{SESSION}/map", rank=0, seq_from=0, seq_to=50)
    assert refused.value.code is Code.INVALID
    assert client.facts(f"s/{SESSION}/map", rank=0, seq_from=0, seq_to=49)["seq_first"] == 0


def test_between_two_events_the_blocks_that_were_alive_are_shown(client: PageClient, path: Path) -> None:
    time_ns = 10 * MS * 100 + MS  # between an alloc and what follows it
    answer = client.ask(f"s/{SESSION}/map", rank=0, axis="time", from_=time_ns, to=time_ns + MS)
    assert facts_of(answer)["events"] == 0
    everything, _ = lives(path, "time")
    start = time_ns - 10 * MS  # lives count from the first event
    alive = sum(block["size"] for begin, end, block in everything if begin <= start < end)
    assert facts_of(answer)["height_bytes"] == alive
    assert {(row["x"][0], row["x_end"]) for row in answer.to_pylist()} == {(0, MS)}


def test_blocks_without_an_address_are_counted_not_drawn(client: PageClient) -> None:
    answer = client.ask(f"s/{SESSION}/map", rank=1, kind="address")
    assert (answer.num_rows, facts_of(answer)["num_without_address"]) == (0, 1)
    assert client.ask(f"s/{SESSION}/map", rank=1).num_rows == 1


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"rank": 7}, "no events of rank 7"),
        ({"rank": 0, "seq_from": 5, "seq_to": 4}, "are none"),
        ({"rank": 0, "from_": 5, "to": 4}, "is empty"),
        ({"rank": 0, "from_": -(10**12), "to": -(10**11)}, "no event"),
        ({"rank": 0, "width": 10**6}, "width"),
        ({"rank": 0, "kind": "circle"}, "circle"),
        ({"rank": 0, "pick": "colour:blue"}, "colour:blue"),
        ({"rank": 0, "seq": "NaN"}, "NaN"),
        ({"rank": 0, "kind": "address", "address_from": "12"}, "hexadecimal|cannot be used"),
        ({"rank": 0, "kind": "address", "address_from": "0x2", "address_to": "0x1"}, "are none"),
    ],
)
def test_what_cannot_be_drawn_is_refused(client: PageClient, asked: dict[str, Any], word: str) -> None:
    with pytest.raises(RankmemError, match=word) as refused:
        client.ask(f"s/{SESSION}/map", **asked)
    assert refused.value.code in (Code.INVALID, Code.NOT_FOUND)
    assert refused.value.hint


def test_the_panels_sql_gives_its_blocks(client: PageClient, path: Path) -> None:
    answer = client.ask(f"s/{SESSION}/map", rank=0)
    with connect(path) as queries:
        rows = queries.sql(facts_of(answer)["sql"])
    assert rows["allocation_id"].to_pylist() == answer["block"].to_pylist()
    assert rows["size_bytes"].to_pylist() == answer["size_bytes"].to_pylist()
