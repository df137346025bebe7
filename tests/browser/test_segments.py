"""The views of memory in a real browser: block map, segments, fragmentation and failures, and their links."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from constructed import RankLog, empty_database, store_logs, store_rows
from page_browser import OpenPage, opened_page
from page_server import PageClient, served_page

MS = 1_000_000
MIB = 1 << 20
BASE = (1 << 61) + (1 << 30)
"""An address that no number of a browser holds."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    path = tmp_path_factory.mktemp("page") / "job.duckdb"
    log = RankLog(ended=1000 * MS)
    log.segment("segment_alloc", BASE, 64 * MIB, at=0)
    for i in range(8):
        place = {"address": BASE + 8 * i * MIB, "stream": 0, "operator": f"aten::op{i}", "stack_id": 7}
        log.alloc(f"b{i}", 8 * MIB - 1000 * i, at=10 * (i + 1) * MS, device="cuda:0", **place)
    log.means("b1", "activation", at=80 * MS)
    log.free("b0", at=100 * MS)
    log.request_free("b3", at=110 * MS)
    log.oom(32 * MIB, at=120 * MS, device_free_bytes=MIB, operator="aten::huge", stream=0)
    calm = RankLog(rank=1, ended=1000 * MS, host_uid="host-1")
    calm.alloc("x", 1000, at=5 * MS)
    with empty_database(str(path)) as connection:
        store_logs(connection, [log, calm])
        frame = {"stack_id": 7, "ordering": 0, "file_path": "model.py", "line_number": 12, "function": "<b>f"}
        store_rows(connection, "stack_frame", [frame])
    with served_page(path) as served:
        yield served


@pytest.fixture
def page(browser: Browser, client: PageClient) -> Iterator[OpenPage]:
    with opened_page(browser, client) as opened:
        yield opened


def middle_of(page: OpenPage, panel: str, block: int) -> tuple[float, float]:
    """The middle of a block's first rectangle in the window, from what was painted."""
    found = page.tab.evaluate(
        """([panel, block]) => {
            const drawn = window.rankmem.drawn(panel);
            const canvas = document.querySelector(`#${panel} canvas`);
            canvas.scrollIntoView({block: 'center'});
            const place = canvas.getBoundingClientRect();
            const { facts } = drawn;
            const i = drawn.owner.indexOf([...drawn.blocks].indexOf(block));
            const [left, right, top, bottom] = [facts.kind === 'address' ? 132 : 76, 8, 6, 20];
            const wide = place.width - left - right, high = place.height - top - bottom;
            return [
                place.left + left + (drawn.x0[i] + drawn.x1[i]) / 2 / facts.length * wide,
                place.top + top + high - (drawn.y0[i] + drawn.size[i] / 2) / facts.height_bytes * high,
            ];
        }""",
        [panel, block],
    )
    return float(found[0]), float(found[1])


@pytest.mark.parametrize(("kind", "axis"), [("stacked", "event"), ("address", "time")])
def test_hovering_a_block_names_it_and_a_click_picks_it(page: OpenPage, kind: str, axis: str) -> None:
    page.open(view="segments", rank=0, map=kind, mapx=axis)
    drawn = page.drawn("block_map")
    assert len(drawn["blocks"]) == 8
    x, y = middle_of(page, "block_map", 5)
    page.tab.mouse.move(x, y)
    page.until("!document.getElementById('tip').hidden")
    tip = page.tab.inner_text("#tip")
    assert "aten::op4" in tip
    assert hex(BASE + 32 * MIB) in tip
    page.until("document.getElementById('tip').textContent.includes('model.py:12 <b>f')")
    page.tab.mouse.click(x, y)
    page.settle()
    assert page.state("pick") == "block:5"
    assert len(page.drawn("block_map")["blocks"]) == 8
    page.change(pick="")
    page.tab.mouse.move(x, y)
    page.tab.mouse.down()
    page.tab.mouse.move(x - 300, y, steps=3)
    page.tab.mouse.up()
    page.settle()
    begin, end = page.state("from"), page.state("to")
    assert begin is not None
    assert end is not None
    assert 0 <= int(begin) < int(end) < 130 * MS
    assert page.drawn("block_map")["facts"]["events"] < drawn["facts"]["events"]
    page.change(pick="operator:aten%3A%3Aop2")
    assert len(page.drawn("block_map")["blocks"]) == 1


def test_the_axis_of_addresses_zooms_by_wheel_drag_and_keys_and_is_in_the_link(page: OpenPage) -> None:
    page.open(view="segments", rank=0, map="address")
    canvas = page.tab.locator("#block_map canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    top, high = box["y"] + 6, box["height"] - 26
    whole = page.drawn("block_map")
    total = whole["facts"]["height_bytes"]
    assert whole["y0"] == [8 * i * MIB for i in range(8)]

    # From the middle of block 2 to the middle of block 4 (of the first at the bottom).
    middles = [top + high - (8 * i * MIB + 4 * MIB) / total * high for i in (2, 4)]
    page.tab.mouse.move(box["x"] + 60, middles[0])
    page.tab.mouse.down()
    page.tab.mouse.move(box["x"] + 60, middles[1], steps=3)
    page.tab.mouse.up()
    page.settle()
    first, _, after = (page.state("mapa") or "").partition("-")
    pixel = total / high
    assert abs(int(first, 16) - (BASE + 20 * MIB)) <= pixel
    assert abs(int(after, 16) - (BASE + 36 * MIB)) <= pixel
    drawn = page.drawn("block_map")
    assert drawn["facts"]["height_bytes"] == int(after, 16) - int(first, 16)
    assert drawn["y0"] == [BASE + 8 * i * MIB - int(first, 16) for i in (2, 3, 4)]
    assert drawn["size"] == whole["size"][2:5]
    assert page.state("from") is None, "the range of time is as it was"
    x, y = middle_of(page, "block_map", 4)
    page.tab.mouse.move(x, y)
    page.until("document.getElementById('tip').textContent.includes('aten::op3')")

    page.tab.reload()
    page.settle()
    assert page.drawn("block_map")["y0"] == drawn["y0"]
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.tab.mouse.move(box["x"] + 60, box["y"] + 6 + high / 2)
    page.tab.mouse.wheel(0, 200)
    page.settle()
    assert page.drawn("block_map")["facts"]["height_bytes"] == round(drawn["facts"]["height_bytes"] * 1.25)
    low = page.drawn("block_map")["facts"]["low_bytes"]
    canvas.focus()
    page.tab.keyboard.press("ArrowUp")
    page.settle()
    assert page.drawn("block_map")["facts"]["low_bytes"] > low
    page.tab.keyboard.press("PageUp")
    page.settle()
    page.tab.locator("#block_map button:has-text('all addresses')").focus()
    page.tab.keyboard.press("Enter")
    page.settle()
    assert page.state("mapa") is None
    assert page.drawn("block_map")["y0"] == whole["y0"]
    assert page.tab.evaluate("() => document.activeElement.closest('section')?.id") == "block_map"


def test_a_click_on_the_fragmentation_curve_chooses_the_instant_of_the_segments(page: OpenPage) -> None:
    page.open(view="segments", rank=0)
    facts = page.drawn("segments")["facts"]
    assert (facts["is_peak"], facts["largest_free_bytes"]) == (True, 6656)
    canvas = page.tab.locator("#fragmentation canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.tab.mouse.click(box["x"] + box["width"] - 10, box["y"] + 40)
    page.settle()
    curve = page.drawn("fragmentation")
    assert page.state("seq") == str(curve["seq"][-1])
    facts = page.drawn("segments")["facts"]
    assert (facts["largest_free_bytes"], facts["pending_bytes"]) == (8 * MIB, 8 * MIB - 2560)
    page.tab.keyboard.press("p")
    page.until("window.rankmem.drawn('segments')?.facts.is_peak")
    page.tab.keyboard.press("o")
    page.until(f"window.rankmem.drawn('segments')?.facts.seq === {curve['seq'][-1]}")


def test_the_oom_view_says_what_was_asked_for_and_leads_to_the_segments(page: OpenPage) -> None:
    page.open(view="oom")
    text = page.tab.inner_text("#oom")
    assert "aten::huge asked for 32.00 MiB" in text
    why = page.tab.inner_text("#oom_why")
    assert "Cannot tell: rank 0, cuda:0: 32.00 MiB (aten::huge) failed" in why
    assert page.drawn("oom_held")[0]["live_bytes"] > 0
    assert {row["rank"] for row in page.drawn("oom_ranks")} == {0, 1}
    assert page.drawn("oom_events")[0]["action"] == "oom"
    page.tab.click("text=The device's segments at that instant")
    page.until("window.rankmem.drawn('segments') && window.rankmem.drawn('fragmentation')")
    assert page.drawn("segments")["facts"]["seq"] == page.drawn("fragmentation")["seq"][-1]


def test_where_nothing_failed_and_segments_are_not_known_the_page_says_so(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("calm") / "job.duckdb"
    log = RankLog(ended=1000 * MS)
    log.alloc("x", 1000, at=5 * MS)
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
    with served_page(path) as client, opened_page(browser, client) as page:
        page.open(view="oom")
        assert "No allocation failed" in page.tab.inner_text("#oom")
        page.change(view="segments")
        assert "not recorded" in page.tab.inner_text("#fragmentation")
        assert "A CPU has no segments" in page.tab.inner_text("#segments")
        page.change(view="job")
        assert "A group needs three ranks for that" in page.tab.inner_text("#odd")
