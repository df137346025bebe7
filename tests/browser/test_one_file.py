"""``rankmem export html`` in a real browser, offline: it draws, asks nobody, and says what it lacks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from playwright.sync_api import Browser

from page_browser import OpenPage
from page_job import hostile, store_job
from page_server import PageClient
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export

ALL_PANELS_S = 5.0
"""A second on an idle machine; this one may not be."""


def written(folder: Path, *, names: Any = None, **asked: Any) -> Path:
    database, out = folder / "job.duckdb", folder / "page.html"
    store_job(database, names) if names else store_job(database)
    with connect(database) as queries:
        export(queries, "html", out, **asked)
    database.unlink()
    return out


@pytest.fixture
def opened(browser: Browser) -> Iterator[Any]:
    contexts = []

    def opened_file(path: Path, fragment: str = "") -> OpenPage:
        context = browser.new_context(
            viewport={"width": 1440, "height": 900}, offline=True, reduced_motion="reduce"
        )
        contexts.append(context)
        nobody = cast("PageClient", SimpleNamespace(server=SimpleNamespace(address="file://")))
        page = OpenPage(context.new_page(), nobody)
        page.tab.goto(f"{path.as_uri()}{fragment}")
        page.settle()
        return page

    yield opened_file
    for context in contexts:
        context.close()


def failures(page: OpenPage) -> dict[str, str]:
    found: dict[str, str] = page.tab.evaluate(
        """() => Object.fromEntries(window.rankmem.panels()
            .filter(panel => !panel.message.hidden && panel.message.classList.contains('failed'))
            .map(panel => [panel.id, panel.message.textContent]))"""
    )
    return found


def test_the_file_draws_every_panel_of_its_first_view_offline(opened: Any, tmp_path: Path) -> None:
    path = written(tmp_path)
    begun_s = time.monotonic()
    page = opened(path)
    assert time.monotonic() - begun_s < ALL_PANELS_S
    assert not failures(page)
    assert page.drawn("heat")["ranks"] == [0, 1, 2]
    page.check()
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []


def test_every_view_has_what_it_asks_and_what_is_not_kept_says_so(opened: Any, tmp_path: Path) -> None:
    page = opened(written(tmp_path))
    for view in [each["name"] for each in page.tab.evaluate("() => window.rankmem.views")]:
        page.change(view=view)
        lacking = {panel: text for panel, text in failures(page).items() if "does not hold" in text}
        assert not lacking, f"{view}: add to PLANS of page/kept_questions.py what it asks: {lacking}"
    page.change(view="job", **{"from": 2 * 10**9, "to": 4 * 10**9})
    assert "curve" not in failures(page), "a part of the curve is drawn from the whole"
    assert "This file does not hold this" in failures(page)["heat"], (
        "cells of the whole are not those of a part"
    )
    page.change(view="sql", sql="SELECT 1")
    assert "This file does not hold this: it holds the job" in failures(page)["sql"]
    assert "rankmem page --db FILE" in failures(page)["sql"]
    page.check()


@pytest.mark.long
def test_chosen_ranks_and_a_range_are_where_the_file_begins(opened: Any, tmp_path: Path) -> None:
    base = 1_700_000_000 * 10**9
    path = written(tmp_path, ranks=[1, 0], from_ns=base + 2 * 10**9, until_ns=base + 6 * 10**9)
    page = opened(path)
    assert (page.state("rank"), page.state("from"), page.state("to")) == ("0", str(2 * 10**9), str(6 * 10**9))
    assert not failures(page)
    page.change(rank="1")
    assert not failures(page)
    page.change(rank="2")
    assert any("This file does not hold this" in text for text in failures(page).values())
    page.check()


def test_names_of_a_recording_cannot_act_in_the_file(opened: Any, tmp_path: Path) -> None:
    path = written(tmp_path, names=hostile())
    text = path.read_text("utf-8")
    assert len(re.findall(r"</script", text, re.IGNORECASE)) == len(
        re.findall(r"<script", text, re.IGNORECASE)
    )
    page = opened(path)
    for view in [each["name"] for each in page.tab.evaluate("() => window.rankmem.views")]:
        page.change(view=view)
        assert page.tab.evaluate("() => window.hacked === undefined"), view
        assert (
            page.tab.evaluate("() => document.querySelectorAll('#view img, #view svg, iframe').length") == 0
        )
    page.check()


@pytest.mark.long
def test_the_policy_of_the_file_stops_a_script_of_another(opened: Any, tmp_path: Path) -> None:
    path = written(tmp_path)
    other = path.with_name("other.html")
    text = path.read_text("utf-8")
    other.write_text(text.replace("</body>", "<script>window.hacked = 1</script></body>"), "utf-8")
    page = opened(other)
    assert page.tab.evaluate("() => window.hacked === undefined")
    assert any("violates" in fault for fault in page.faults), page.faults
