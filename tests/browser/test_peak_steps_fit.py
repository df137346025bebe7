"""The views Peak, Steps and Fit in a real browser, over a story in which one rank leaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from constructed import SESSION, RankLog, empty_database, store_logs
from page_browser import OpenPage, opened_page
from page_server import PageClient, served_page
from page_steps_story import LEAK_BYTES, LEAKING_RANK, STEPS, make_story


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    path = tmp_path_factory.mktemp("page") / "story.duckdb"
    make_story(path)
    with served_page(path) as served:
        yield served


@pytest.fixture
def page(browser: Browser, client: PageClient) -> Iterator[OpenPage]:
    with opened_page(browser, client) as opened:
        yield opened


def held(client: PageClient, **parameters: Any) -> list[dict[str, Any]]:
    return list(client.ask(f"s/{SESSION}/peak_held", **parameters).to_pylist())


def test_bars_of_the_peak_are_the_answers_and_can_be_picked(page: OpenPage, client: PageClient) -> None:
    page.open(view="peak")
    drawn = page.drawn("peak-ranks")
    found = {row["name"]: sum(part["value"] for part in row["parts"]) for row in drawn["rows"]}
    expected: dict[str, int] = {}
    for row in held(client, of="rank"):
        name = f"rank {row['of_name']}"
        expected[name] = expected.get(name, 0) + row["live_bytes"]
    assert found == expected
    assert drawn["rows"][0]["name"] == f"rank {LEAKING_RANK}"

    page.change(of="pp", by="line")
    assert [row["name"] for row in page.drawn("peak-ranks")["rows"]] == ["pp 0", "pp 1", "pp 2", "pp 3"]
    assert [row["live_bytes"] for row in page.drawn("peak-held")["rows"]] == [
        row["live_bytes"] for row in held(client, by="line")
    ]
    canvas = page.tab.locator("#peak-held canvas")
    canvas.click(position={"x": 400, "y": 11})
    assert page.state("pick") == "line:" + held(client, by="line")[0]["group_name"].replace(":", "%3A")


def test_a_bar_leads_to_its_rank_at_that_instant_also_by_keyboard(page: OpenPage, client: PageClient) -> None:
    page.open(view="peak")
    first = client.ask(f"s/{SESSION}/peak").to_pylist()[0]
    page.tab.locator("#peak-ranks canvas").focus()
    page.tab.keyboard.press("ArrowDown")
    page.until_announced(f"rank {LEAKING_RANK}")
    page.tab.keyboard.press("Enter")
    page.settle()
    assert (page.state("view"), page.state("rank")) == ("job", str(LEAKING_RANK))
    assert page.state("seq") == str(first["seq"])


@pytest.mark.long
def test_of_many_bars_all_can_be_turned_to(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("page") / "many.duckdb"
    logs = [RankLog(rank=rank) for rank in range(45)]
    for rank, log in enumerate(logs):
        log.alloc("x", (1000 - rank) << 10, at=10)
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
    with served_page(path) as client, opened_page(browser, client) as page:
        page.open(view="peak", of="rank")
        assert "45 ranks" in page.tab.inner_text("#peak-ranks .title")
        assert page.tab.inner_text("#peak-ranks .pager .note") == "1 to 40 of 45 ranks"
        page.tab.locator("#peak-ranks button[aria-label='next page']").focus()
        page.tab.keyboard.press("Enter")
        assert page.tab.inner_text("#peak-ranks .pager .note") == "41 to 45 of 45 ranks"
        page.tab.locator("#peak-ranks canvas").focus()
        page.tab.keyboard.press("ArrowUp")  # from the first of this page to the last of the one before
        assert page.tab.inner_text("#peak-ranks .pager .note") == "1 to 40 of 45 ranks"
        page.until_announced("rank 39:")
        page.tab.keyboard.press("ArrowDown")
        assert page.tab.inner_text("#peak-ranks .pager .note") == "41 to 45 of 45 ranks"
        page.tab.locator("#peak-ranks canvas").click(position={"x": 4, "y": 3 * 22 + 11})
        page.settle()
        assert (page.state("view"), page.state("rank")) == ("job", "43")


def test_the_leaking_line_is_on_the_screen_first(page: OpenPage) -> None:
    page.open(view="steps")
    drawn = page.drawn("steps-heat")
    row = drawn["ranks"].index(LEAKING_RANK)
    assert set(drawn["cells"][row * STEPS + 3 : (row + 1) * STEPS]) == {255}
    leaks = page.drawn("leaks")["rows"]
    assert [(row["rank"], row["bytes_per_step"]) for row in leaks] == [(LEAKING_RANK, LEAK_BYTES)]
    assert "metrics.py:44 aten::clone grows by 96.00 MiB a step" in page.tab.inner_text("#leaks .said")
    kept = page.drawn("steps-kept")
    assert kept["rank"] == LEAKING_RANK
    assert (kept["rows"][0]["group_name"], kept["rows"][0]["function"]) == (
        "metrics.py:44",
        "log_activations",
    )
    page.tab.click("#steps-kept button:has-text('table')")
    assert "log_activations" in page.tab.inner_text("#steps-kept tbody")
    page.change(rank=0, keep=1)
    assert [row["group_name"] for row in page.drawn("steps-kept")["rows"]] == ["data.py:12"]
    assert page.drawn("steps-table")["rank"] == 0


@pytest.mark.long
def test_the_steps_are_those_of_the_attempt_that_is_chosen(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("page") / "two.duckdb"
    logs = []
    for attempt, size in ((0, 7), (1, 3)):
        log = RankLog(attempt=attempt, started=attempt * 10_000, ended=attempt * 10_000 + 5000)
        for step in range(12 + attempt):
            log.alloc(f"x{step}", size, at=log.started + 100 * step, operator="aten::clone")
            log.step_ends(step, at=log.started + 100 * step + 50)
        logs.append(log)
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
    with served_page(path) as client, opened_page(browser, client) as page:
        page.open(view="steps", rank=0, attempt=0)
        assert page.drawn("steps-heat")["bins"] == 12
        assert {row["attempt"] for row in page.drawn("steps-table")["rows"]} == {0}
        assert "attempt 0" in page.tab.inner_text("#steps-table-title")
        page.change(attempt=1)
        assert page.drawn("steps-heat")["bins"] == 13
        assert "attempt 1" in page.tab.inner_text("#steps-heat .title")
        page.change(attempt="")
        assert {row["attempt"] for row in page.drawn("steps-table")["rows"]} == {0, 1}
        assert page.tab.locator("#steps-table th:has-text('attempt')").count() == 1


def test_a_size_to_try_is_in_the_link_and_the_fullest_rank_is_first(page: OpenPage) -> None:
    page.open(view="fit")
    page.tab.fill("#fit input", "4")
    page.tab.press("#fit input", "Enter")
    page.settle()
    assert page.state("size") == "4"
    first = page.drawn("fit")["rows"][0]
    assert (first["rank"], first["verdict"]) == (LEAKING_RANK, "short")
    assert "1 of 16" in page.tab.inner_text("#fit .tiles")
    page.tab.click("#fit-table tbody tr >> nth=0")
    page.settle()
    assert (page.state("view"), page.state("rank")) == ("steps", str(LEAKING_RANK))


def test_without_steps_each_view_says_what_to_do(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("page") / "one.duckdb"
    log = RankLog()
    log.alloc("x", 100, at=10)
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
    with served_page(path) as client, opened_page(browser, client, width=1024, height=640) as page:
        page.open(view="steps")
        page.tab.evaluate("window.rankmem.panel('steps-kept').toggleTable()")
        page.change(keep=2)  # the open table has nothing to show, which is no fault
        for panel in ("leaks", "steps-heat", "steps-kept", "steps-table"):
            assert "rankmem_agent.step()" in page.tab.inner_text(f"#{panel} .message:not([hidden])")
        page.change(view="fit")
        page.until("window.rankmem.drawn('fit')")
        assert "share its memory" in page.tab.inner_text("#fit")
