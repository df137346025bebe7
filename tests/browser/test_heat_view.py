"""The job view in a real browser: the heat map's modes and exact cells, odd ranks, choosers, finding."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from constructed import SECOND_NS, SESSION
from page_browser import OpenPage, opened_page
from page_server import PageClient, served_page
from page_story import GAP_RANK, STEPS, write_many, write_story

LEAKS, LOSES = 26, 18
KEYS = ("mode", "order", "limit", "from", "to", "rank", "attempt", "device", "seq", "group", "sum")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    path = tmp_path_factory.mktemp("heat") / "story.duckdb"
    assert write_story(path) == (LEAKS, LOSES)
    with served_page(path) as served:
        yield served


@pytest.fixture(scope="module")
def shared(browser: Browser, client: PageClient) -> Iterator[OpenPage]:
    with opened_page(browser, client) as opened:
        opened.open()
        yield opened


@pytest.fixture
def page(shared: OpenPage) -> OpenPage:
    """The page at the job's whole, nothing chosen."""
    shared.change(**dict.fromkeys(KEYS, None))
    return shared


def cell_at(page: OpenPage, row: int, bin_: int) -> tuple[float, float]:
    """The middle of a cell in the window."""
    place = page.tab.evaluate(
        """([row, bin]) => {
            const canvas = document.querySelector('#heat canvas.surface').getBoundingClientRect();
            const { rows, bins } = window.rankmem.drawn('heat');
            const box = { x: 64, y: 16, width: canvas.width - 72, height: canvas.height - 36 };
            return [canvas.left + box.x + (bin + 0.5) / bins * box.width,
                    canvas.top + box.y + (row + 0.5) / rows.length * box.height];
        }""",
        [row, bin_],
    )
    return place[0], place[1]


def test_hovering_says_the_exact_bytes_and_a_click_chooses_the_event(page: OpenPage) -> None:
    drawn = page.drawn("heat")
    assert drawn["ranks"] == list(range(64))
    bin_ = drawn["bins"] // 3
    page.tab.mouse.move(*cell_at(page, 40, bin_))
    text = page.until(
        "window.rankmem.panel('heat').hover.found?.row && document.getElementById('tip').innerText"
    )
    length = STEPS * SECOND_NS + 1
    first, final = (-(-(bin_ + more) * length // drawn["bins"]) - more for more in (0, 1))
    expected = page.client.ask(
        f"s/{SESSION}/cell", ranks=40, from_=first, to=final, device_type="cuda"
    ).to_pylist()
    assert f"({expected[0]['bytes']:,} B)" in text
    assert "rank 40 · name-of-gpu-node-005 · cuda:0" in text
    page.tab.mouse.click(*cell_at(page, 40, bin_))
    page.until("window.rankmem.state.get('rank') === '40'")
    page.settle()
    assert page.state("seq") == str(expected[0]["seq"])


@pytest.mark.long
def test_modes_orders_and_the_limit_are_in_the_link(page: OpenPage) -> None:
    page.tab.click("#heat button[data-value=median]")
    page.settle()
    assert page.state("mode") == "median"
    drawn = page.drawn("heat")
    assert drawn["mode"] == "median"
    assert drawn["rows"][LOSES]["topBytes"] < -(11 << 30)
    page.change(mode=None, order="host", line="20")
    drawn = page.drawn("heat")
    assert drawn["rows"][0]["group"] == "name-of-gpu-node-000"
    assert any(byte for byte in drawn["rows"][0]["above"])
    assert drawn["rows"][GAP_RANK]["gaps"]
    assert page.tab.eval_on_selector("#heat input", "input => input.value") == "20"
    page.change(mode="headroom")
    assert "not sampled" in page.tab.inner_text("#heat .message")


def test_a_drag_marks_a_range_and_the_arrows_choose_ranks(page: OpenPage) -> None:
    bins = page.drawn("heat")["bins"]
    page.tab.mouse.move(*cell_at(page, 3, bins // 4))
    page.tab.mouse.down()
    page.tab.mouse.move(*cell_at(page, 9, bins // 2))
    page.tab.mouse.up()
    page.settle()
    begin, end = int(page.state("from") or 0), int(page.state("to") or 0)
    assert begin / SECOND_NS == pytest.approx(STEPS / 4, abs=0.1)
    assert end / SECOND_NS == pytest.approx(STEPS / 2, abs=0.1)
    assert page.drawn("heat")["from"] == begin
    page.change(rank=10, attempt=None, device=None)
    page.tab.focus("#heat canvas.surface")
    page.tab.keyboard.press("ArrowDown")
    page.settle()
    assert page.state("rank") == "11"


def test_the_odd_ranks_are_listed_and_lead_to_the_rank(page: OpenPage) -> None:
    assert [(row["rank"], row["reason"]) for row in page.drawn("odd")] == [
        (LOSES, "fell"),
        (LEAKS, "growing"),
    ]
    page.tab.click(f"#odd tr[data-key='{LOSES}']")
    page.settle()
    assert page.state("rank") == str(LOSES)
    assert page.tab.input_value("header select[aria-label=rank]") == str(LOSES)
    assert page.tab.input_value("header select[aria-label=host]") == "name-of-gpu-node-002"


def test_ranks_together_follow_their_chooser(page: OpenPage) -> None:
    page.tab.select_option("#ranks_curve select", "pp")
    page.settle()
    assert sorted(line["name"] for line in page.drawn("ranks_curve")) == ["pp 0", "pp 1", "pp 2", "pp 3"]
    assert "64 ranks on 8 hosts" in page.tab.inner_text("#ranks_curve .note")


@pytest.mark.long
def test_any_of_ten_thousand_ranks_is_found(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("heat") / "many.duckdb"
    write_many(path, 10_000, high_rank=4_170, high_second=1, seconds=2)
    with served_page(path) as client, opened_page(browser, client) as page:
        page.open(view="model")  # the choosers are the same in every view, and this one asks least
        for text, first in {"417": 417, "node-0052": 416, "pp=3": 3, "pp=3 tp=1 node-0521": 4171}.items():
            page.tab.fill("input.find", text)
            assert page.tab.get_attribute(".found [aria-selected=true]", "id") == f"found-{first}"
        page.tab.keyboard.press("Enter")
        page.settle()
        assert page.state("rank") == "4171"
        assert page.tab.input_value("header select[aria-label=rank]") == "4171"
        page.change(rank=9_999)
        assert page.tab.input_value("header select[aria-label=host]") == "gpu-node-1249"
