"""The page's frame in a real browser: it opens, shows the job, keeps its state in its link."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
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


def test_a_page_that_was_opened_before_the_first_session_shows_it_by_itself(page: OpenPage) -> None:
    listed = page.client.ask("sessions", limit=1)
    none = pa.BufferOutputStream()
    with pa.ipc.new_stream(none, listed.schema) as stream:
        stream.write_table(listed.schema.empty_table())
    body = none.getvalue().to_pybytes()
    page.tab.route("**/api/v1/sessions?limit=1", lambda route: route.fulfill(body=body), times=1)
    page.open()
    assert "There is no session yet" in page.tab.inner_text("#view")
    page.until("window.rankmem.drawn('heat')")
    assert "no session" not in page.tab.inner_text("#view")


def test_a_page_that_was_loaded_while_its_database_was_away_comes_back_by_itself(page: OpenPage) -> None:
    refusal = {"code": "unavailable", "message": "no aggregator answers", "hint": "start one"}
    away = json.dumps(refusal)
    page.expected = ("503",)
    page.tab.route("**/api/v1/s/*/job", lambda route: route.fulfill(status=503, body=away), times=1)
    page.open()
    assert "no aggregator answers" in page.tab.inner_text("#view")
    page.until("window.rankmem.drawn('heat')")
    assert "no aggregator" not in page.tab.inner_text("#view")


@pytest.mark.parametrize("view", ["job", "steps"])
def test_a_session_without_events_has_empty_panels_and_no_failed_ones(
    browser: Browser, tmp_path: Path, view: str
) -> None:
    with empty_database(str(tmp_path / "none.duckdb")) as connection:
        store_logs(connection, [RankLog(rank=rank, ended=SECOND) for rank in range(2)])
    with served_page(tmp_path / "none.duckdb") as served, opened_page(browser, served) as page:
        page.open(view=view)
        assert "No rank" in page.tab.inner_text("#view")
        assert page.tab.query_selector(".message.failed") is None


def test_a_time_that_is_rounded_to_zero_has_no_minus(page: OpenPage) -> None:
    page.open()
    times = "import('/units.js').then(({time}) => [-1, -1500].map((ns) => time(ns)))"
    assert page.tab.evaluate(f"() => {times}") == ["+0.000000 s", "\u22120.000002 s"]


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
    page.until_announced(said)


@pytest.mark.long
def test_on_paper_it_is_light_undistorted_and_whole_and_afterwards_as_before(page: OpenPage) -> None:
    page.tab.add_init_script(
        "try { localStorage.setItem('rankmem-theme', 'dark') } catch {}"
    )  # about:blank has none
    page.open(view="job")
    shown = """() => {
        const all = selector =>
            [...document.querySelectorAll(selector)].filter(each => each.checkVisibility());
        const shape = (width, height) => width / height;
        return [
            document.documentElement.dataset.theme,
            document.body.clientWidth,
            all('#printed').length,
            all('#view canvas.surface').every(each =>
                Math.abs(shape(each.width, each.height) - shape(each.clientWidth, each.clientHeight)) < 0.02),
            all('#view .scroll, #view .flames').every(each =>
                each.scrollHeight <= each.clientHeight + 1 && each.scrollWidth <= each.clientWidth + 1),
            all('header, #view input, #view .tools button').length,
            window.rankmem.drawn('curve').lines[0].colour,
        ];
    }"""
    dark = page.tab.evaluate(shown)
    page.tab.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    paper = page.tab.evaluate(shown)  # at once: a browser waits for nothing more
    assert paper == ["light", 700, 1, True, True, 0, "#1b1f24"]
    assert "view=job" in page.tab.inner_text("#printed")
    page.tab.evaluate("() => dispatchEvent(new Event('afterprint'))")
    page.settle()
    assert page.tab.evaluate(shown) == dark
    assert (dark[0], dark[2], dark[6]) == ("dark", 0, "#e6e9ed")
    page.tab.emulate_media(media="print")
    page.until("document.body.classList.contains('printing')")
    assert page.tab.evaluate(shown) == ["light", 960, *paper[2:]], "the window is wider than high"
    page.tab.set_viewport_size({"width": 800, "height": 1000})
    assert page.tab.evaluate(shown)[1] == 700
    page.tab.set_viewport_size({"width": 1440, "height": 900})
    page.tab.emulate_media(media="screen")
    page.until("!document.body.classList.contains('printing')")


def misread(page: OpenPage, panel: str) -> str:
    """What a panel says that it did not understand of the link."""
    return page.tab.locator(f"#{panel} .misread").inner_text()


def test_what_is_not_understood_in_a_link_is_said_with_what_is_shown_instead(page: OpenPage) -> None:
    page.open(
        view="job", by="bar", mode="foo", rank="three", which="eaten", line="high", pick="x", map="globe"
    )
    said = misread(page, "curve")
    assert "by=bar is not understood: category is shown. Known here: category, " in said
    assert "rank=three is not understood: it is no whole number, and left out." in said
    assert "pick=x is not understood: nothing is picked." in said
    assert "mode=foo is not understood: abs is shown. Known here: abs, median, headroom." in misread(
        page, "heat"
    )
    assert "line=high is not understood: no line is drawn." in misread(page, "heat")
    assert "which=eaten is not understood: alive is shown." in misread(page, "blocks")
    assert "map=globe is not understood: stacked is shown." in misread(page, "block_map")
    assert "Rank 3" in page.tab.inner_text("#curve-title"), "all else is shown"
    page.change(by="operator", mode="", rank=1, which="", line="", pick="", map="")
    assert page.tab.locator(".misread:visible").count() == 0
    page.change(view="nowhere")
    assert "there is no view nowhere" in page.tab.inner_text("#view")


def test_units_and_a_version_that_are_not_known_are_said_above_the_view(page: OpenPage) -> None:
    page.open(view="job", style="imperial")
    said = page.tab.locator("#misread")
    assert said.inner_text() == (
        "style=imperial is not understood: rankmem is shown. Known here: rankmem, mindstudio."
    )
    page.change(v=2, style="mindstudio")
    assert said.inner_text() == "v=2 is not understood: the link is read as one of version 1."
    assert " MB" in page.tab.inner_text(".tiles"), "a known one is taken"
    page.change(v=1, style="", marks="warm-up@0~1000000000;later")
    assert said.inner_text() == (
        "marks=warm-up@0~1000000000;later is not understood: marks are shown that are NAME@FROM~TO or "
        "NAME@TIME, 20 at most."
    )
    page.change(marks="")
    assert not said.is_visible()


STATES = """async count => {
    // The generator of Park and Miller, so that a failure comes again.
    let seed = 20261123;
    const upTo = most => (seed = (seed * 16807) % 2147483647) % most;
    const one = list => list[upTo(list.length)];
    const keys = ["view", "from", "to", "rank", "by", "seq", "pick", "q", "sort", "marks", "later", "é%"];
    const letters = [..."aZ09 ;:=&%#+?~@/\\\\\\"'<>é漢🙂\\u202e\\n\\t"];
    const text = () => Array.from({ length: upTo(upTo(10) ? 12 : 900) }, () => one(letters)).join("");
    const value = () => (upTo(3) ? text() : one(["job", "0", "-5", "9007199254740991", "1e400", "NaN"]));
    // Neither is the page's own; the second knows nothing but the address, as after a reload.
    const [own, fresh] = await Promise.all([import("./state.js?own"), import("./state.js?fresh")]);
    const sorted = object => JSON.stringify(Object.entries(object).filter(([, text]) => text !== "").sort());
    const all = module => Object.fromEntries(module.keys().map(key => [key, module.get(key)]));
    const lost = [];
    let taken = 0;
    own.readLink();
    for (let i = 0; i < count; i += 1) {
        const before = all(own);
        const changes = Object.fromEntries(Array.from({ length: 1 + upTo(6) }, () => [one(keys), value()]));
        const fits = own.change(changes, { within: true });
        fresh.readLink();
        const wanted = sorted(fits ? { ...before, ...changes } : before);
        const isRead = sorted(all(own)) === wanted && sorted(all(fresh)) === wanted;
        const isLink = fresh.link() === own.link() && location.hash.length <= 2000;
        if (!isRead || !isLink) lost.push([location.hash, changes]);
        taken += fits ? 1 : 0;
        const nothing = Object.fromEntries(keys.map(key => [key, null]));
        if (!fits || !upTo(20)) own.change(nothing, { within: true });
    }
    return [lost, taken];
}"""
"""Random states, each read again from its link: those that were lost, and how many fitted into a link."""


def test_five_hundred_random_states_are_read_again_from_their_links(page: OpenPage) -> None:
    page.open(view="sessions")
    lost, taken = page.tab.evaluate(STATES, 500)
    assert lost == []
    assert 300 < taken < 500, "most fit into a link; of what does not, nothing is taken"


MARKED = """() => ["heat", "curve"].map(id => {
    const canvas = document.querySelectorAll(`#${id} canvas.surface`)[id === "heat" ? 0 : 1];
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const columns = new Set();
    for (let i = 0; i < data.length; i += 4)
        if (data[i] === 0 && data[i + 1] === 103 && data[i + 2] === 163) columns.add(i / 4 % canvas.width);
    return columns.size > 1;
})"""
"""Whether the heat map and the curve have the lines of a mark, in its colour of the light theme."""


def test_a_range_that_is_named_is_in_the_link_and_on_the_diagrams(page: OpenPage) -> None:
    page.open(view="job")
    assert page.tab.evaluate(MARKED) == [False, False]
    page.change(**{"from": SECOND, "to": 2 * SECOND})
    page.tab.keyboard.press("m")
    page.tab.fill("dialog input", "warm-up; <b>")
    page.tab.click("dialog button:has-text('mark')")
    assert "warm-up; <b>" in page.tab.inner_text("dialog tr")
    page.tab.click("dialog button:has-text('close')")
    page.change(**{"from": "", "to": ""})
    assert page.state("marks") == f"warm-up%3B%20%3Cb%3E@{SECOND}~{2 * SECOND}"
    page.tab.reload()
    page.settle()
    assert page.tab.evaluate(MARKED) == [True, True]
    page.tab.keyboard.press("m")
    page.tab.click("dialog button:has-text('show')")
    page.settle()
    assert (page.state("from"), page.state("to")) == (str(SECOND), str(2 * SECOND))
    page.tab.click("dialog button:has-text('remove')")
    assert page.state("marks") is None
    page.tab.click("dialog button:has-text('close')")


@pytest.mark.long
def test_an_older_link_has_one_name_for_the_line_and_the_size(page: OpenPage) -> None:
    page.open(view="job", limit=1)
    assert (page.state("line"), page.state("limit")) == ("1", None)
    page.open(view="fit", limit=2)
    assert (page.state("size"), page.state("line")) == ("2", None)
    assert page.drawn("fit")["rows"][0]["size_bytes"] == 2 << 30


def test_links_of_the_tiles_lead_on_from_what_is_shown(page: OpenPage) -> None:
    page.open(view="job")
    page.change(by="operator", rank=2)
    links = page.tab.evaluate(
        """() => [...document.querySelectorAll('a.tile, header a')]
            .map(each => new URLSearchParams(each.hash.slice(1)))
            .map(each => [each.get('by'), each.get('rank')])"""
    )
    assert len(links) > 15
    assert all(by == "operator" for by, _ in links)
    assert ["operator", "2"] in links


def test_tiles_say_which_ranks_are_not_in_the_sum(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "job.duckdb"
    logs = [RankLog(rank=rank, ended=SECOND, coordinates={"world_size": 4}) for rank in range(3)]
    for log in logs:
        log.alloc("b", 1 << 20, at=1)
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
        connection.execute("UPDATE session SET world_size = 4")
    with served_page(path) as served, opened_page(browser, served) as page:
        page.open(view="job")
        tiles = page.tab.locator("#view .tile").all_inner_texts()
    assert "sum of peaks\n≥ 3.00 MiB" in tiles
    assert "ranks on 1 host\n3 of 4" in tiles


def test_a_panel_fails_alone_and_asks_again(page: OpenPage) -> None:
    page.expected = ("503",)
    told = {"code": "unavailable", "message": "the aggregator is gone", "hint": "start it again"}
    page.tab.route("**/flame?*", lambda route: route.fulfill(status=503, json=told))
    page.open(view="job")
    said = page.tab.locator("#flame .message.failed").inner_text()
    assert "the aggregator is gone" in said
    assert "Try: start it again" in said
    page.until_announced("the aggregator is gone")
    drawn = page.tab.evaluate("() => window.rankmem.panels().filter(each => each.drawn).map(each => each.id)")
    assert {"heat", "curve", "block_map", "blocks", "ranks_curve"} <= set(drawn)
    page.tab.unroute("**/flame?*")
    page.tab.click("#flame .message.failed button:has-text('again')")
    page.settle()
    assert page.drawn("flame")["facts"]["bytes"] == 80 << 20


def times_asked(page: OpenPage, *paths: str) -> list[int]:
    """How often the page has asked for each of these."""
    return [sum(path in f"{url}|" for url in page.requests) for path in paths]


def test_code_session_and_heat_map_are_asked_for_once(page: OpenPage) -> None:
    page.open()
    session = page.state("s")
    assert times_asked(page, "/code|", "/sessions?limit=1|", "/job|", "/heat?") == [1, 1, 1, 1]
    for state in ({}, {"mode": "median"}, {"line": "1"}, {"from": SECOND, "to": 3 * SECOND}):
        page.requests.clear()
        page.open(s=session, **state)
        assert times_asked(page, "/code|", "/job|", "/heat?") == [1, 1, 1], state
    page.requests.clear()
    page.open(s=session, view="rank")
    assert times_asked(page, "/code|", "/job|", "/heat?") == [1, 1, 0]


def test_what_was_asked_early_and_does_not_fit_is_asked_again(page: OpenPage) -> None:
    page.open()
    session, whole = page.state("s"), page.drawn("heat")
    page.requests.clear()
    page.tab.add_init_script("Object.defineProperty(window, 'innerWidth', {value: 700})")
    page.open(s=session)
    assert times_asked(page, "/heat?") == [2], "another window was expected"
    assert page.drawn("heat") == whole
