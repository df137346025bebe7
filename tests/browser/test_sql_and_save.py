"""The SQL view and what panels save, in a real browser."""

from __future__ import annotations

import csv
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import parse

import pyarrow.parquet as parquet
import pytest
from playwright.sync_api import Browser

from page_browser import WAIT_S, OpenPage, opened_page
from page_job import store_job
from page_server import PageClient, served_page

PEAKS = "SELECT rank, peak_requested_bytes FROM peak_by_rank WHERE device = 'cuda:0' ORDER BY rank"
OVER_TIME = "SELECT time_ns, requested_bytes, 'rank ' || rank AS r FROM memory_event WHERE device = 'cuda:0'"
BY_STEP = "SELECT rank, step, max(size_bytes) AS most FROM allocation WHERE step IS NOT NULL GROUP BY ALL"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    path = tmp_path_factory.mktemp("sql") / "job.duckdb"
    store_job(path)
    with served_page(path) as served:
        yield served


@pytest.fixture(scope="module")
def page(browser: Browser, client: PageClient) -> Iterator[OpenPage]:
    with opened_page(browser, client) as opened:
        opened.open(view="sql")
        yield opened


def write(page: OpenPage, statement: str) -> None:
    page.tab.fill("#sql-text", statement)
    page.tab.press("#sql-text", "Control+Enter")
    page.settle()


def saved(page: OpenPage, panel: str, kind: str, folder: Path) -> Path:
    page.tab.click(f"#{panel} .tools button:text-is('save')")
    with page.tab.expect_download(timeout=WAIT_S * 1000) as download:
        page.tab.click(f"dialog button:text-is('{kind}')")
    out = folder / download.value.suggested_filename
    download.value.save_as(out)
    return out


def test_a_statement_runs_and_stands_in_the_link(page: OpenPage) -> None:
    write(page, PEAKS)
    cells = page.tab.locator("#sql tbody td").all_inner_texts()
    rows = page.client.ask("sessions").num_rows
    assert rows == 1
    assert cells[::2] == ["0", "1", "2"]
    assert page.state("sql") == PEAKS
    assert page.tab.inner_text("#sql .note") == "3 rows"


def test_the_rows_become_lines_and_a_heat_map(page: OpenPage) -> None:
    write(page, OVER_TIME)
    page.change(show="curve")
    drawn = page.drawn("sql")["shown"]
    assert sorted(line["name"] for line in drawn["lines"]) == ["rank 0", "rank 1", "rank 2"]
    assert all(point[0] >= 0 for line in drawn["lines"] for point in line["points"]), "times from the first"
    write(page, BY_STEP)
    page.change(show="heat")
    drawn = page.drawn("sql")["shown"]
    assert (drawn["rows"], drawn["across"]) == ([0, 1, 2], [0, 1, 2, 3])
    assert all(cell is not None for cell in drawn["cells"])
    write(page, PEAKS)
    assert "A heat map needs three columns" in page.tab.inner_text("#sql")
    page.change(show="")


def test_names_are_completed_by_keyboard(page: OpenPage) -> None:
    page.tab.fill("#sql-text", "SELECT ")
    page.tab.type("#sql-text", "x FROM peak_by_r")
    assert "peak_by_rank" in page.tab.inner_text("#sql-offers")
    page.tab.press("#sql-text", "Control+Space")
    assert page.tab.input_value("#sql-text") == "SELECT x FROM peak_by_rank"
    page.tab.type("#sql-text", " WHERE peak_reserved_b")
    assert "peak_reserved_bytes" in page.tab.inner_text("#sql-offers"), "a column of a named view"
    page.tab.press("#sql-text", "Escape")
    assert page.tab.inner_text("#sql-offers") == ""
    page.tab.press("#sql-text", "Tab")
    assert page.tab.evaluate("() => document.activeElement.id") != "sql-text", "Tab is not caught"


def test_the_schema_is_found_and_inserted(page: OpenPage) -> None:
    page.tab.fill("#sql-text", "FROM ")
    page.tab.fill(".schema input", "session_overview")
    page.tab.click(".objects summary")
    page.until("document.querySelector('.objects details[open]')?.innerText.includes('peak_requested_bytes')")
    page.tab.click(".objects details[open] button.code >> nth=0")
    assert page.tab.input_value("#sql-text") == "FROM session_overview"


def test_statements_that_ran_are_kept_over_a_reload(page: OpenPage) -> None:
    write(page, "SELECT 41 + 1 AS answer")
    write(page, PEAKS)
    page.tab.reload()
    page.settle()
    assert page.tab.input_value("#sql-text") == PEAKS
    options = page.tab.locator("select[aria-label='statements that ran before'] option").all_inner_texts()
    assert "SELECT 41 + 1 AS answer" in options
    page.tab.select_option("select[aria-label='statements that ran before']", "SELECT 41 + 1 AS answer")
    assert page.tab.input_value("#sql-text") == "SELECT 41 + 1 AS answer"


def test_a_statement_that_is_too_long_for_the_link_runs_and_that_is_said(page: OpenPage) -> None:
    long = f"SELECT 7 AS seven -- {'x' * 3000}"
    write(page, long)
    assert page.tab.inner_text("#sql tbody td") == "7"
    assert page.state("sql") is None
    page.until_announced("too long for the link")


def test_a_wrong_statement_is_answered_with_what_to_do(page: OpenPage) -> None:
    page.expected = ("status of 400",)
    write(page, "SELECT nothing FROM nowhere")
    assert "nowhere" in page.tab.inner_text("#sql .failed")
    assert "docs/schema.md" in page.tab.inner_text("#sql .hint")


def test_a_panels_statement_opens_and_gives_its_rows(page: OpenPage) -> None:
    page.change(view="job", sql="")
    statement = page.tab.evaluate("() => window.rankmem.panel('curve').sql()")
    page.tab.click("#curve button:text-is('open in SQL')")
    page.settle()
    assert page.state("view") == "sql"
    assert page.tab.input_value("#sql-text") == statement
    assert page.drawn("sql")["rows"] > 0


@pytest.mark.parametrize(("panel", "picture"), [("heat", ""), ("curve", " 2")])
def test_a_panel_saves_its_picture_and_rows(page: OpenPage, tmp_path: Path, panel: str, picture: str) -> None:
    page.change(view="job")
    png = saved(page, panel, f"PNG{picture}", tmp_path).read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    assert width > 1000
    assert height >= 100
    svg = parse(saved(page, panel, f"SVG{picture}", tmp_path))
    kinds = {each.tag.rpartition("}")[2] for each in svg.iter()}
    assert {"path", "text"} <= kinds, "lines and texts, not one picture"
    rows = parquet.read_table(saved(page, panel, "Parquet", tmp_path))
    lines = list(csv.reader(saved(page, panel, "CSV", tmp_path).read_text("utf-8").splitlines()))
    assert lines[0] == rows.column_names
    assert len(lines) == rows.num_rows + 1
    told: list[Any] = page.tab.evaluate("id => window.rankmem.panel(id).answers[0].length", panel)
    assert told == rows.num_rows


def test_the_page_saves_itself_and_opens_offline(page: OpenPage, browser: Browser, tmp_path: Path) -> None:
    page.change(view="job", marks="warm-up@0~1000")
    out = saved(page, "curve", "HTML", tmp_path)
    page.change(marks="")
    context = browser.new_context(offline=True)
    tab = context.new_page()
    faults: list[str] = []
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.goto(out.as_uri())
    tab.wait_for_selector("#curve canvas")
    assert not faults
    assert "Rank 2" in tab.inner_text("#curve-title")
    tab.keyboard.press("m")
    assert "warm-up" in tab.inner_text("dialog tr")
    context.close()
