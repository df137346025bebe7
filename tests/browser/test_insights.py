"""The insights in a real browser: asked when wanted, with the verb's sentence, or why there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from compared_jobs import BASE, HEAD
from constructed import SESSION, empty_database
from insights_page import JOBS
from page_browser import OpenPage, opened_page
from page_server import served_page
from rankmem_aggregator import connect
from rankmem_aggregator.query.next_commands import GivenOptions


@pytest.fixture
def opened(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """A page at 1,024 by 640 over the job of a verb."""
    with empty_database(str(tmp_path / "job.duckdb")) as connection:
        JOBS[request.param](connection)
    with (
        served_page(tmp_path / "job.duckdb") as client,
        opened_page(browser, client, width=1024, height=640) as page,
    ):
        yield page


def asked(page: OpenPage, name: str) -> int:
    return sum(f"/insight/{name}" in url for url in page.requests)


@pytest.mark.parametrize("opened", ["diagnose"], indirect=True)
def test_findings_are_asked_for_and_lead_to_the_view_that_shows_them(
    opened: OpenPage, tmp_path: Path
) -> None:
    opened.open()
    assert asked(opened, "diagnose") == 0, "the first picture does not wait for it"
    opened.tab.click("#findings button:has-text('diagnose')")
    opened.settle()
    with connect(tmp_path / "job.duckdb") as queries:
        found = queries.diagnose().asked_with(GivenOptions(session=SESSION))
    assert opened.tab.inner_text("#findings .said") == "3 findings."
    for note in found.notes[3:]:
        assert note in opened.tab.inner_text("#findings .notes")
    lines = opened.tab.locator("#findings ol li").all_inner_texts()
    assert len(lines) == found.rows.num_rows == 3
    for line, row in zip(lines, found.rows.to_pylist(), strict=True):
        assert row["certainty"] in line
        assert row["sentence"] in line
        assert row["remedy"] in line
    opened.tab.evaluate("() => window.rankmem.panel('findings').follow(0)")  # as of a running session
    assert asked(opened, "diagnose") == 1, "it is not asked again by itself"
    assert "the session has gone on" in opened.tab.inner_text("#findings .title")
    opened.tab.click("#findings button:has-text('diagnose')")
    opened.settle()
    assert asked(opened, "diagnose") == 2
    opened.tab.click("#findings ol a:has-text('fragmentation')")
    opened.settle()
    assert (opened.state("view"), opened.state("rank")) == ("segments", "0")
    assert asked(opened, "fragmentation") == 0, "it replays, so it is asked for"
    opened.tab.click("#allocator button:has-text('replay')")
    opened.settle()
    assert "check: of " in opened.tab.inner_text("#allocator .notes")
    assert "stuck" in opened.tab.inner_text("#allocator .tiles")
    opened.change(view="job")
    assert opened.tab.locator("#findings ol li").count() == 3, "asked once, it stays"


@pytest.mark.long
@pytest.mark.parametrize("opened", ["fit"], indirect=True)
def test_another_batch_is_predicted_and_a_refusal_stands_in_its_panel(opened: OpenPage) -> None:
    opened.open(view="fit")
    opened.tab.fill("#fit-sizes input", "3x")
    opened.tab.click("#fit-sizes button:has-text('predict')")
    opened.settle()
    assert opened.state("batch") == "3x"
    assert 3 in [row["times"] for row in opened.drawn("fit-sizes")["rows"]]
    assert opened.tab.inner_text("#fit-sizes .said + .note").startswith("predicted: ")
    assert opened.drawn("whatif")["insight"]["question"] == "whatif"
    opened.expected = ("status of 400",)
    opened.change(batch="many")
    assert "many" in opened.tab.inner_text("#fit-sizes .message.failed")
    assert "Try:" in opened.tab.inner_text("#fit-sizes .message.failed")


@pytest.mark.parametrize("opened", ["diff"], indirect=True)
def test_two_sessions_are_judged_beside_the_bars(opened: OpenPage) -> None:
    opened.open(view="diff", s=HEAD, a=f"{BASE}/all/peak", b="/all/peak")
    assert "peak of a step is worse at equal input" in opened.tab.inner_text("#diff-verdict .said")
    opened.change(a="/all/peak")
    assert "Both sides are of one session" in opened.tab.inner_text("#diff-verdict .message")
