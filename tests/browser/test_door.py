"""Who may see the page in a browser: with a link, with a link that was used, with a token, with neither."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from constructed import RankLog, empty_database, store_logs
from page_browser import OpenPage, opened_page
from page_server import PageClient, served_page
from rankmem_aggregator.page.serving import PageConfig


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    folder = tmp_path_factory.mktemp("door")
    log = RankLog(ended=10**10)
    for i in range(8):
        log.alloc(f"b{i}", 1 << 20, at=i * 10**9)
    with empty_database(str(folder / "job.duckdb")) as connection:
        store_logs(connection, [log])
    token = folder / "token"
    token.write_text("a-token-of-a-program-0001\n")
    token.chmod(0o600)
    with served_page(folder / "job.duckdb", PageConfig(query_token_file=token)) as served:
        yield served


@pytest.fixture
def page(browser: Browser, client: PageClient) -> Iterator[OpenPage]:
    with opened_page(browser, client) as opened:
        opened.expected = ("Failed to load resource",)
        yield opened


def test_a_used_link_is_refused_in_words_and_a_token_lets_in(page: OpenPage, client: PageClient) -> None:
    link = client.server.link()
    page.tab.goto(link)
    page.settle()
    assert page.state("s") is not None
    assert "code" not in page.tab.evaluate("() => location.hash")
    page.tab.goto("about:blank")
    page.tab.goto(link)  # the same browser: its cookie counts
    page.settle()
    assert page.drawn("heat")["ranks"] == [0]
    page.tab.context.clear_cookies()
    page.tab.goto("about:blank")
    page.tab.goto(link)
    page.until("document.querySelector('.message.failed')")
    assert "used before" in page.tab.inner_text("#view")
    page.tab.fill("input[name=token]", "a-token-of-a-program-0009")
    page.tab.keyboard.press("Enter")
    page.until("document.querySelector('#view').innerText.includes('not one of this page')")
    page.tab.fill("input[name=token]", "a-token-of-a-program-0001")
    page.tab.keyboard.press("Enter")
    page.until("window.rankmem.drawn('heat')")
    page.until("document.querySelector('.live').innerText === 'recorded'")
