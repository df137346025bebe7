"""The keyboard keeps its place in a real browser: what is rebuilt with the focus in it has it afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from constructed import RankLog, empty_database, store_logs
from page_browser import OpenPage, opened_page
from page_server import PageClient, served_page

SECOND = 1_000_000_000
BLOCKS = 24
FOCUSED = """() => {
    const { activeElement: at } = document;
    return [at.tagName, at.dataset.key ?? at.getAttribute('aria-label') ?? at.textContent];
}"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    path = tmp_path_factory.mktemp("keyboard") / "job.duckdb"
    logs = []
    for rank in range(2):
        log = RankLog(rank=rank, ended=100 * SECOND)
        for i in range(BLOCKS):
            category = ("activation", "gradient")[i % 2]
            size_bytes = (rank + i + 1) << 20
            log.alloc(f"b{i}", size_bytes, at=i * SECOND, category=category, operator=f"aten::op{i}")
        logs.append(log)
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
    with served_page(path) as served:
        yield served


@pytest.fixture(scope="module")
def page(browser: Browser, client: PageClient) -> Iterator[OpenPage]:
    with opened_page(browser, client) as opened:
        opened.open(view="sessions")
        yield opened


def focused(page: OpenPage) -> tuple[str, str]:
    """The tag and the name of what has the focus."""
    page.settle()
    tag, name = page.tab.evaluate(FOCUSED)
    return tag, name


def press(page: OpenPage, selector: str, key: str) -> tuple[str, str]:
    """Presses a key on an element, and returns what has the focus when all is shown."""
    page.tab.locator(selector).first.focus()
    page.tab.keyboard.press(key)
    return focused(page)


def test_turning_pages_stays_on_the_button_and_at_the_end_goes_to_the_one_beside_it(page: OpenPage) -> None:
    page.change(view="blocks", rank=1, rows=10)
    assert press(page, "#blocks .pager button:has-text('next')", "Enter") == ("BUTTON", "next page")
    page.tab.keyboard.press("Enter")
    assert focused(page) == ("BUTTON", "page before")
    assert page.tab.inner_text("#blocks .pager .note") == "21 to 24 of 24"
    assert press(page, "#blocks th button:has-text('operator')", "Enter") == ("BUTTON", "operator")


def test_a_block_that_is_closed_gives_the_focus_back_to_its_row(page: OpenPage) -> None:
    page.change(view="blocks", rank=1, rows=10)
    key = str(BLOCKS - 2)
    assert press(page, f"#blocks tr[data-key='{key}']", "Enter") == ("TR", key)
    page.until("document.querySelector('#blocks .detail .chip')")
    assert press(page, "#blocks .detail button:has-text('close')", "Enter") == ("TR", key)
    assert page.state("pick") is None


def test_a_chip_that_is_taken_away_leaves_the_focus_in_its_card(page: OpenPage) -> None:
    page.change(view="blocks", rank=1, pick="category:activation")
    press(page, "#blocks .chips .chip", "Enter")
    assert page.state("pick") is None
    assert page.tab.evaluate("() => document.activeElement.closest('section')?.id") == "blocks"


def test_choosers_of_a_side_keep_the_focus(page: OpenPage) -> None:
    page.change(view="diff")
    name = "A: moment"
    assert press(page, f"#diff select[aria-label='{name}']", "ArrowDown") == ("SELECT", name)
    assert (page.state("a") or "").endswith("/job")
    page.tab.keyboard.press("ArrowDown")
    assert focused(page) == ("SELECT", name)
    assert "/time=" in (page.state("a") or "")


def test_the_legend_of_a_curve_keeps_the_focus(page: OpenPage) -> None:
    page.change(view="rank", rank=1)
    assert press(page, "#curve .legend button:has-text('activation')", "Enter") == ("BUTTON", "activation")
    assert page.tab.evaluate("() => document.activeElement.getAttribute('aria-pressed')") == "false"


def test_the_focus_goes_with_the_event_that_is_stepped_to(page: OpenPage) -> None:
    page.change(view="rank", rank=1, seq=5)
    assert press(page, "#events tr[data-key='5']", "ArrowDown") == ("TR", "6")
    assert page.state("seq") == "6"


def test_a_dialog_gives_the_focus_back_to_the_button_of_the_head(page: OpenPage) -> None:
    page.change(view="job", rank=1)
    assert press(page, "#head button:has-text('marks')", "Enter")[0] != "BODY"
    page.change(**{"from": SECOND, "to": 9 * SECOND})  # the head is set anew behind it
    page.tab.keyboard.press("Escape")
    assert focused(page) == ("BUTTON", "marks")


def test_what_is_typed_stays_while_its_place_is_rebuilt(page: OpenPage) -> None:
    page.change(view="diff", a="/1/seq=5")
    page.tab.focus("#diff input[aria-label='A: number of the moment']")
    page.tab.keyboard.press("End")
    page.tab.keyboard.type("7")
    page.tab.evaluate("() => window.rankmem.panel('diff').refresh()")
    page.settle()
    page.tab.keyboard.type("1")
    found = page.tab.evaluate("() => [document.activeElement.value, document.activeElement.selectionStart]")
    assert found == ["571", 3]
