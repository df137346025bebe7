"""The rank view in a real browser: from the whole to one event, groups, legend, keys, events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from playwright.sync_api import Browser

from busy_rank import DEVICE, busy_log
from constructed import BASE_NS, SESSION, RankLog, empty_database, store_logs, store_rows
from page_browser import OpenPage, opened_page
from page_server import PageClient, served_page

SECOND = 1_000_000_000
WHOSE = f"rank = 1 AND device = '{DEVICE}'"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rank") / "busy.duckdb"
    log = busy_log(1, 6000, 5)
    at = log.events[-1]["time_ns"] - log.events[0]["time_ns"] + 1_300_000_000
    log.oom(10**9, at=at)
    frame = {"stack_id": 1, "ordering": 0, "file_path": "train.py", "line_number": 7, "function": "forward"}
    with empty_database(str(path)) as connection:
        store_logs(connection, [busy_log(0, 300, 6), log])
        store_rows(connection, "stack_frame", [frame])
    return path


@pytest.fixture(scope="module")
def client(database: Path) -> Iterator[PageClient]:
    with served_page(database) as served:
        yield served


@pytest.fixture
def page(browser: Browser, client: PageClient) -> Iterator[OpenPage]:
    with opened_page(browser, client) as opened:
        yield opened


@pytest.fixture(scope="module")
def events(database: Path) -> list[tuple[int, int, int]]:
    """seq, time since the start, requested bytes."""
    with duckdb.connect(database, read_only=True) as connection:
        return connection.execute(
            "SELECT seq, time_ns - 1700000000000000000, requested_bytes FROM memory_event "
            f"WHERE {WHOSE} ORDER BY seq"
        ).fetchall()


def canvas(page: OpenPage) -> dict[str, Any]:
    """Where the curve is; it is the second canvas of its panel."""
    return page.tab.locator("#curve canvas").nth(1).bounding_box() or {}


def press(page: OpenPage, key: str) -> None:
    """Presses a key of the view, and waits until its answer is shown."""
    page.tab.evaluate("document.getElementById('announcer').textContent = ''")
    page.tab.keyboard.press(key)
    page.until("document.getElementById('announcer').textContent !== ''")
    page.settle()


def test_groups_add_up_to_the_line_that_is_drawn_over_them(page: OpenPage) -> None:
    page.open(view="rank", rank=1)
    drawn = page.drawn("curve")
    requested = next(line for line in drawn["lines"] if line["name"] == "requested")
    layers = [layer["values"] for layer in drawn["areas"]["layers"]]
    assert [sum(values) for values in zip(*layers, strict=True)] == requested["values"]
    assert "each pixel as it stood highest" in page.tab.inner_text("#curve .title")


def test_the_legend_hides_and_shows_and_the_link_keeps_it(page: OpenPage) -> None:
    page.open(view="rank", rank=1)
    page.tab.click("#curve .legend button:has-text('activation')")
    page.settle()
    page.tab.reload()
    page.settle()
    names = [layer["name"] for layer in page.drawn("curve")["areas"]["layers"]]
    assert "activation" not in names
    assert len(names) >= 3
    page.tab.click("#curve .legend button:has-text('activation')")
    page.settle()
    assert "activation" in [layer["name"] for layer in page.drawn("curve")["areas"]["layers"]]


def test_the_wheel_goes_from_the_whole_to_single_events_with_operator_and_stack_on_hover(
    page: OpenPage, events: list[tuple[int, int, int]]
) -> None:
    page.open(view="rank", rank=1, by="overall")
    assert "highest and lowest of each pixel are drawn" in page.tab.inner_text("#curve .title")
    box = canvas(page)
    page.tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    for _ in range(80):
        page.tab.mouse.wheel(0, -200)
    page.settle()
    assert "every event is drawn" in page.tab.inner_text("#curve .title")
    begin, end = int(page.state("from") or 0), int(page.state("to") or 0)
    shown = page.drawn("curve")["events"]
    inside = [seq for seq, at, _ in events if begin <= at <= end]
    actions = zip(shown["seqs"], shown["actions"], strict=True)
    assert [seq for seq, action in actions if action] == inside
    seq, at, _ = next(event for event in events if event[0] in (inside or [events[3000][0]]))
    page.change(**{"from": at - 5_000, "to": at + 5_000})
    box = canvas(page)
    page.tab.mouse.move(box["x"] + 64 + (box["width"] - 72) / 2 + 2, box["y"] + 80)
    page.until("document.getElementById('tip').textContent.includes('event ')")
    page.until("/operator|aten/.test(document.getElementById('tip').textContent)")
    text = page.tab.inner_text("#tip")
    assert f"at 0x{4096 + seq:x}" in text or "free_completed" in text
    assert "stack" in text or "train.py:7 forward" in text


@pytest.mark.long
def test_shift_and_dragging_moves_the_range_and_a_double_click_doubles_it(page: OpenPage) -> None:
    page.open(view="rank", rank=1)
    first, last = page.tab.evaluate("[window.rankmem.job().first, window.rankmem.job().last]")
    begin, end = first + (last - first) // 2, first + (last - first) * 3 // 4
    page.change(**{"from": begin, "to": end})
    box = canvas(page)
    middle, width = box["x"] + 64 + (box["width"] - 72) / 2, box["width"] - 72
    page.tab.keyboard.down("Shift")
    page.tab.mouse.move(middle, box["y"] + 60)
    page.tab.mouse.down()
    page.tab.mouse.move(middle + width / 4, box["y"] + 60, steps=4)
    page.tab.mouse.up()
    page.tab.keyboard.up("Shift")
    page.settle()
    moved, moved_end = int(page.state("from") or 0), int(page.state("to") or 0)
    assert moved_end - moved == end - begin
    assert abs(begin - moved - (end - begin) / 4) < (end - begin) / 200
    page.tab.mouse.dblclick(middle, box["y"] + 60)
    page.settle()
    doubled, doubled_end = int(page.state("from") or 0), int(page.state("to") or 0)
    assert abs(doubled_end - doubled - 2 * (end - begin)) <= 2
    assert abs(doubled_end + doubled - moved - moved_end) <= 2, "around its middle"


@pytest.mark.long
def test_keys_go_to_the_peak_the_next_higher_one_an_error_and_a_step(
    page: OpenPage, events: list[tuple[int, int, int]]
) -> None:
    peak = max(events, key=lambda event: (event[2], -event[0]))[0]
    page.open(view="rank", rank=1, seq=events[10][0])
    press(page, "n")
    seq = int(page.state("seq") or 0)
    assert seq > events[10][0]
    assert {s: v for s, _, v in events}[seq] > events[10][2]
    press(page, "b")
    press(page, "P")
    assert page.state("seq") == str(peak)
    press(page, "o")
    assert page.state("seq") == str(events[-1][0])
    press(page, "p")
    press(page, "]")
    after = int(page.state("from") or 0)
    press(page, "[")
    assert page.state("to") == str(after) or int(page.state("to") or 0) < after
    press(page, "P")


def test_g_goes_to_a_time_a_step_or_an_event(page: OpenPage, events: list[tuple[int, int, int]]) -> None:
    page.open(view="rank", rank=1)
    for text, expected in (
        ("+3.5s", max(seq for seq, at, _ in events if at <= 3_500_000_000)),
        (str(events[77][0]), events[77][0]),
    ):
        page.tab.keyboard.press("g")
        page.tab.keyboard.type(text)
        page.tab.keyboard.press("Enter")
        page.until(f"window.rankmem.state.get('seq') === '{expected}'")
    page.tab.keyboard.press("g")
    page.tab.keyboard.type("yesterday")
    page.tab.keyboard.press("Enter")
    assert "yesterday is no time" in page.tab.inner_text("dialog")
    page.tab.keyboard.press("Escape")
    page.settle()


@pytest.mark.long
def test_arrows_in_the_events_step_from_one_to_the_next(
    page: OpenPage, events: list[tuple[int, int, int]]
) -> None:
    page.open(view="rank", rank=1, seq=events[500][0])
    page.tab.focus("#events .scroll")
    page.tab.keyboard.press("ArrowDown")
    page.until(f"window.rankmem.state.get('seq') === '{events[501][0]}'")
    page.settle()
    page.tab.keyboard.press("ArrowUp")
    page.settle()
    page.tab.keyboard.press("ArrowUp")
    page.until(f"window.rankmem.state.get('seq') === '{events[499][0]}'")
    page.settle()
    assert page.tab.locator("#events tr.on td").first.inner_text() == f"{events[499][0]:,}"


def test_a_drag_in_the_strip_below_chooses_the_range(page: OpenPage) -> None:
    page.open(view="rank", rank=1)
    strip = page.tab.locator("#curve canvas").last.bounding_box()
    assert strip is not None
    y = strip["y"] + strip["height"] / 2
    page.tab.mouse.move(strip["x"] + 300, y)
    page.tab.mouse.down()
    page.tab.mouse.move(strip["x"] + 600, y, steps=4)
    page.tab.mouse.up()
    page.settle()
    # By the page's own address of its modules: by another it would be another module.
    of_page = "document.querySelector('script[src$=\"main.js\"]').src.replace('main.js', 'session.js')"
    limits = page.tab.evaluate(f"import({of_page}).then(m => m.limits())")
    whole = limits[1] - limits[0]
    width = strip["width"] - 72
    begin, end = int(page.state("from") or 0), int(page.state("to") or 0)
    assert abs((begin - limits[0]) / whole - (300 - 64) / width) < 0.01
    assert abs((end - limits[0]) / whole - (600 - 64) / width) < 0.01


def test_the_allocator_and_what_is_beyond_it_are_stacked_under_the_device(
    browser: Browser, tmp_path: Path
) -> None:
    log = RankLog(ended=10 * SECOND)
    log.alloc("x", 1 << 30, at=SECOND, device="cuda:0")
    for at, process_gib in ((2, 3), (3, None), (4, 5)):
        log.sample(
            None if process_gib is None else process_gib << 30,
            at=at * SECOND,
            device="cuda:0",
            device_used_bytes=6 << 30,
            device_total_bytes=8 << 30,
        )
    for event in log.events:
        event["reserved_bytes"] = 2 << 30
    with empty_database(str(tmp_path / "job.duckdb")) as connection:
        store_logs(connection, [log])
    with served_page(tmp_path / "job.duckdb") as served, opened_page(browser, served) as opened:
        opened.open(view="rank")
        drawn = opened.drawn("beyond")
        rows = {line["name"]: line for line in drawn["lines"]}
        assert rows["allocator"]["values"] == [2 << 30] * 3
        assert rows["app"]["values"] == [1 << 30, 3 << 30]
        assert [name for name, line in rows.items() if line["isPart"]] == ["app", "allocator"]
        edges = [(area["name"], area["edge"]) for area in drawn["areas"]]
        gib = [3 << 30, 3 << 30, 5 << 30]  # of the second sample, which does not tell, what it was before
        assert edges == [("allocator", [2 << 30] * 3), ("app", gib)]


def test_of_many_components_the_smallest_are_one_line_and_the_table_has_all(
    browser: Browser, tmp_path: Path
) -> None:
    log = RankLog(ended=10 * SECOND)
    log.alloc("x", 1000, at=SECOND, device="npu:0")
    place = {"session_id": SESSION, "attempt": 0, "rank": 0, "device": "npu:0"}
    samples = [
        place
        | {"component": f"C{i}", "seq": 1, "time_ns": BASE_NS + at * SECOND, "reserved_bytes": (i + at) << 20}
        for i in range(20)
        for at in (2, 3)
    ]
    with empty_database(str(tmp_path / "job.duckdb")) as connection:
        store_logs(connection, [log])
        store_rows(connection, "component_sample", samples)
    with served_page(tmp_path / "job.duckdb") as served, opened_page(browser, served) as opened:
        opened.open(view="rank")
        drawn = [line for line in opened.drawn("beyond")["lines"] if line["name"].startswith(("C", "13"))]
        assert [line["name"] for line in drawn] == [
            *(f"C{i}" for i in range(19, 12, -1)),
            "13 smaller components",
        ]
        assert drawn[-1]["values"] == [sum(i + at for i in range(13)) << 20 for at in (2, 3)]
        opened.tab.click("#beyond button:has-text('table')")
        assert opened.tab.locator("#beyond tbody tr").count() >= 20
