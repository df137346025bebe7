"""What holds for every view, whatever it shows: the views are those that the page itself reports.

One tab goes through all of them: nothing serious for who cannot see or use no mouse, nothing wider than the
window, names of a recording that stay text, and no memory that is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import fromstring

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from page_browser import OpenPage, opened_page
from page_job import HOSTILE, hostile, store_job
from page_server import PageClient, served_page
from repetitions import long_but

SQL: Final = "SELECT operator, rank, size_bytes FROM allocation_record ORDER BY ALL LIMIT 500"
STATE: Final[dict[str, dict[str, str]]] = {"sql": {"sql": SQL}}
"""What a view needs besides its name to show something."""
THEMES: Final = ("light", "dark")
SIZES: Final = {"small": (1024, 640), "zoomed": (720, 450), "4K": (3840, 2160)}
"""What 200 % leave of 1440 by 900 is 720 by 450."""
FORBIDDEN: Final = (
    "#view img, #view svg, #view script, #view iframe, #view style, #tip *:not(b):not(div), "
    "[onerror], [onload], [srcdoc], [onmouseover]"
)
CLOSE_ENOUGH_PX: Final = 1
NODES_MORE_MAX: Final = 200
"""A view more or less in the middle of being built; one that is kept each time has thousands."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("views") / "job.duckdb"
    store_job(path)
    return path


@pytest.fixture(scope="module")
def hostile_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "job.duckdb"
    store_job(path, hostile())
    return path


@pytest.fixture(scope="module")
def client(database: Path) -> Iterator[PageClient]:
    with served_page(database) as served:
        yield served


@pytest.fixture(scope="module")
def page(browser: Browser, client: PageClient) -> Iterator[OpenPage]:
    with opened_page(browser, client) as opened:
        opened.open()
        yield opened


@pytest.fixture(scope="module")
def hostile_page(browser: Browser, hostile_database: Path) -> Iterator[OpenPage]:
    with served_page(hostile_database) as served, opened_page(browser, served) as opened:
        opened.open()
        yield opened


def views(page: OpenPage) -> list[str]:
    """The names of the views, as the page reports them."""
    found: list[dict[str, Any]] = page.tab.evaluate("() => window.rankmem.views")
    assert len(found) >= 3
    return [view["name"] for view in found]


def show(page: OpenPage, view: str) -> None:
    """Shows a view, with what it needs."""
    page.change(**{"sql": "", **STATE.get(view, {}), "view": view})


def each_view(page: OpenPage) -> Iterator[str]:
    """Shows one view after the other."""
    for view in views(page):
        show(page, view)
        yield view


def set_theme(page: OpenPage, theme: str) -> None:
    """As the button of the head does, which turns to the next."""
    for _ in (*THEMES, "system"):
        if page.tab.evaluate("() => localStorage.getItem('rankmem-theme')") == theme:
            break
        page.tab.click("#head button:has-text('theme')")
    page.settle()


@pytest.mark.parametrize("theme", THEMES)
def test_nothing_serious_is_in_the_way_of_anyone(page: OpenPage, theme: str) -> None:
    set_theme(page, theme)
    axe, found = Axe(), {}
    # Of its rules, that of contrast alone can differ between themes.
    rules = {} if theme == THEMES[0] else {"runOnly": ["color-contrast"]}
    for view in each_view(page):
        result = axe.run(page.tab, options={"resultTypes": ["violations"], **rules}).response
        serious = [
            (rule["id"], node["html"][:160], node["failureSummary"][:300])
            for rule in result["violations"]
            if rule["impact"] in ("serious", "critical")
            for node in rule["nodes"][:3]
        ]
        if serious:
            found[view] = serious
    assert not found, json.dumps(found, indent=1)


@pytest.mark.parametrize("size", long_but(SIZES, "small", "zoomed"))
def test_nothing_is_wider_than_the_window(page: OpenPage, size: str) -> None:
    width, height = SIZES[size]
    page.tab.set_viewport_size({"width": width, "height": height})
    try:
        for view in each_view(page):
            wide = page.tab.evaluate(
                """() => [document.documentElement.scrollWidth, document.documentElement.clientWidth,
                    [...document.querySelectorAll('body *')]
                        .filter(each => each.getBoundingClientRect().right > innerWidth + 1)
                        .filter(each => !each.closest('.scroll'))
                        .slice(0, 5).map(each => each.outerHTML.slice(0, 120))]"""
            )
            assert wide[0] <= wide[1] + CLOSE_ENOUGH_PX, (view, size, wide)
    finally:
        page.tab.set_viewport_size({"width": 1440, "height": 900})


def test_every_canvas_has_a_name_and_its_panel_a_table_of_what_it_shows(page: OpenPage) -> None:
    for view in each_view(page):
        lacking = page.tab.evaluate(
            """() => [...document.querySelectorAll('#view canvas')]
                .filter(each => !each.getAttribute('aria-label')
                    || !(window.rankmem.panels().find(panel => panel.element.contains(each))?.table))
                .map(each => each.closest('section')?.id + ': ' + each.getAttribute('aria-label'))"""
        )
        assert not lacking, f"{view}: no name or no table: {lacking}"
        empty = page.tab.evaluate(
            """() => window.rankmem.panels().filter(panel => panel.table && panel.drawn).filter(panel => {
                    const { columns, rows } = panel.table();
                    return !columns.length || rows.some(row => row.length !== columns.length);
                }).map(panel => panel.id)"""
        )
        assert not empty, f"{view}: tables without columns, or rows of another length: {empty}"


def test_the_keyboard_reaches_everything_and_is_never_caught(page: OpenPage) -> None:
    for view in each_view(page):
        wanted = page.tab.evaluate(
            """() => {
                document.activeElement?.blur(); window.scrollTo(0, 0);
                const kinds = 'a[href], button, input, select, textarea, canvas, summary, [tabindex="0"]';
                const all = [...document.querySelectorAll(kinds)]
                    .filter(each => each.tabIndex >= 0 && !each.disabled && !each.closest('dialog'))
                    .filter(each => each.checkVisibility({ visibilityProperty: true }));
                window.walked = new Set(); window.wanted = all;
                document.addEventListener('focusin', event => window.walked.add(event.target));
                return all.length;
            }"""
        )
        assert wanted > 5, view
        for _ in range(min(wanted, 120) + 1):
            page.tab.keyboard.press("Tab")
        reached = page.tab.evaluate("() => window.walked.size")
        assert reached >= min(wanted, 120) * 0.95, f"{view}: Tab reaches {reached} of {wanted}"
        hidden = page.tab.evaluate(
            """() => [...window.walked]
                .filter(each => each !== document.body && each.matches(':focus-visible'))
                .filter(each => getComputedStyle(each).outlineStyle === 'none')
                .map(each => each.outerHTML.slice(0, 100))"""
        )
        assert not hidden, f"{view}: focus is not visible: {hidden}"


def test_a_question_mark_lists_the_keys_and_escape_closes_them(page: OpenPage) -> None:
    for view in each_view(page):
        page.tab.evaluate("() => document.activeElement?.blur()")
        page.tab.keyboard.press("?")
        assert page.tab.locator("dialog[open] kbd").count() >= 1, view
        page.tab.keyboard.press("Escape")
        page.until("!document.querySelector('dialog[open]')")


def test_names_of_a_recording_stay_text_in_every_view_and_file(hostile_page: OpenPage) -> None:
    page, read = hostile_page, ""
    for view in each_view(page):
        read += page.tab.content()
        page.tab.evaluate(
            """() => {
                for (const panel of window.rankmem.panels()) {
                    if (panel.table && panel.drawn && !panel.tableElement) panel.toggleTable();
                }
            }"""
        )
        made = page.tab.evaluate(
            "selector => [...document.querySelectorAll(selector)].map(each => each.outerHTML.slice(0, 200))",
            FORBIDDEN,
        )
        assert not made, (view, made)
        assert page.tab.evaluate("() => window.hacked === undefined"), view
        wide = page.tab.evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= CLOSE_ENOUGH_PX, f"{view}: a name is wider than the window"
        for title in page.tab.query_selector_all("canvas.surface"):
            box = title.bounding_box()
            if box:
                for share in (0.2, 0.5, 0.8):
                    title.hover(position={"x": box["width"] * share, "y": box["height"] * share}, force=True)
        assert page.tab.evaluate("() => window.hacked === undefined"), view
        check_saved(page, view)
    assert any(name in read for name in ("gnp.exe", "onerror")), "the names are there to be read"


def check_saved(page: OpenPage, view: str) -> None:
    """Every text that the page saves of this view: pictures that hold no markup, tables that run nothing."""
    saved: list[list[str]] = page.tab.evaluate(
        """async () => {
            const found = [];
            for (const panel of window.rankmem.panels()) {
                for (const [name, , make] of await window.rankmem.kindsOf(panel)) {
                    if (!/^(SVG|CSV|Speedscope)/.test(name)) continue;
                    const { body } = await make();
                    found.push([panel.id, name, typeof body === 'string' ? body : await body.text()]);
                }
            }
            return found;
        }"""
    )
    for panel, name, text in saved:
        if name.startswith("SVG"):
            parts = {
                each.tag.removeprefix("{http://www.w3.org/2000/svg}") for each in fromstring(text).iter()
            }
            allowed = {"svg", "rect", "path", "text", "g", "clipPath", "image"}
            assert parts <= allowed, f"{view} {panel}: {parts - allowed}"
        elif name == "CSV":
            for evil in HOSTILE:
                if evil[0] in "=+-@":
                    assert f",{evil[:8]}" not in text, f"{view} {panel}: a spreadsheet would run it"
                    assert f"\n{evil[:8]}" not in text, f"{view} {panel}: a spreadsheet would run it"


@pytest.mark.parametrize("interactions", long_but([1, 500], 1))
def test_interactions_keep_no_memory(browser: Browser, client: PageClient, interactions: int) -> None:
    """At least so many, in whole rounds of all views."""
    with opened_page(browser, client) as page:
        page.open()
        session = page.tab.context.new_cdp_session(page.tab)
        session.send("HeapProfiler.enable")
        names = views(page)

        def kept() -> tuple[int, int, int]:
            """Bytes, nodes and listeners, with what cannot be reached taken away."""
            page.change(rank="0", to="", **{"from": ""})
            show(page, names[0])
            for _ in range(3):
                session.send("HeapProfiler.collectGarbage")
            counted = session.send("Memory.getDOMCounters")
            heap_bytes = int(session.send("Runtime.getHeapUsage")["usedSize"])
            return heap_bytes, counted["nodes"], counted["jsEventListeners"]

        def interact(times: int) -> None:
            for i in range(times):
                view = names[(i // 10) % len(names)]
                page.tab.evaluate(
                    """changes => new Promise(done => {
                        window.rankmem.state.change(changes, { within: true });
                        setTimeout(done, 5);
                    })""",
                    {
                        "view": view,
                        "rank": str(i % 3),
                        "from": str(i * 1000),
                        "to": str(9_000_000_000 - i * 1000),
                        **STATE.get(view, {}),
                    },
                )
            page.settle()

        round_of_views = 10 * len(names)  # so that both counts are of the same view
        interact(round_of_views)
        before = kept()
        interact(-(-interactions // round_of_views) * round_of_views)
        after = kept()
        assert after[0] - before[0] <= 5 * 1_000_000, f"{before} became {after}"
        assert after[1] <= before[1] + NODES_MORE_MAX, f"{before} became {after}: elements are kept"
        assert after[2] <= before[2] + NODES_MORE_MAX, f"{before} became {after}: listeners are kept"
