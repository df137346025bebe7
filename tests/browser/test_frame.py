"""The page's frame in a real browser: it opens, shows the job, keeps its state in its link."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from constructed import RankLog, empty_database, store_logs
from page_browser import OpenPage, opened_page
from page_server import PageClient, served_page

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    path = tmp_path_factory.mktemp("page") / "job.duckdb"
    logs = []
    for rank in range(4):
        log = RankLog(rank=rank, ended=10 * SECOND, host_uid=f"host-{rank // 2}")
        for i in range(20):
            log.alloc(f"b{i}", (rank + 1) << 20, at=i * SECOND // 4)
        for i in range(10):
            log.free(f"b{i}", at=5 * SECOND + i * SECOND // 4)
        logs.append(log)
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
    with served_page(path) as served:
        yield served


@pytest.fixture
def page(browser: Browser, client: PageClient) -> Iterator[OpenPage]:
    with opened_page(browser, client) as opened:
        yield opened


def test_the_page_shows_the_highest_rank_first(page: OpenPage) -> None:
    page.open()
    assert page.drawn("heat")["ranks"] == [0, 1, 2, 3]
    assert "Rank 3" in page.tab.inner_text("#curve-title")
    assert max(page.drawn("curve")["lines"][0]["values"]) == 80 << 20


def test_a_link_keeps_its_state_over_a_reload_and_back(page: OpenPage) -> None:
    page.open(rank=1, later_key="kept")
    page.change(**{"from": SECOND, "to": 3 * SECOND})
    page.tab.reload()
    page.settle()
    assert page.state("from") == str(SECOND)
    assert page.state("later_key") == "kept"
    page.tab.go_back()
    page.settle()
    assert page.state("from") is None
    assert "Rank 1" in page.tab.inner_text("#curve-title")


@pytest.mark.parametrize(
    ("permissions", "said"),
    [
        (["clipboard-write"], "copied the link"),
        ([], "not copied: the browser does not let this page use the clipboard"),
    ],
)
def test_what_is_copied_is_said_and_what_is_not(page: OpenPage, permissions: list[str], said: str) -> None:
    page.open()
    page.tab.context.grant_permissions(permissions)
    page.tab.get_by_role("button", name="copy link").click()
    page.until("document.getElementById('announcer').textContent.includes('copied')")
    assert page.tab.inner_text("#announcer") == said
