"""What a page asks for again while it follows a running session: only what can have changed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route

from constructed import RankLog
from page_browser import OpenPage, opened_page
from page_growing import Growing
from page_server import served_page
from repetitions import PROFILE

SECOND = 1_000_000_000


RANGES = """async () => {
    const { lasts } = await import("./lasting.js");
    const same = { peak: 7, missing: "[]" };
    const asked = (route, to) => [[`s/x/${route}`, { rank: 0, from: 0, to }]];
    const again = (now, newNs, after = same) => lasts(asked("curve", 50), same, now, after, newNs);
    return [
        again(asked("curve", 50), 51),
        again(asked("curve", 50), 50),
        again(asked("curve", 50), -Infinity),
        again(asked("curve", 49), 51),
        again(asked("curve", 50), 51, { peak: 7, missing: "[1]" }),
        lasts(asked("blocks", 50), same, asked("blocks", 50), same, 51),
    ];
}"""
"""A range that ends before all that is new; one that does not; where that is not known; another range; where
more is missing than before; and blocks, whose frees may be told later."""


def log_until(seconds: int, times: int = 1) -> RankLog:
    """A rank that stood highest in its third second, and goes on: so many times a second."""
    log = RankLog(ended=None)
    log.alloc("most", 1 << 30, at=2 * SECOND)
    log.free("most", at=3 * SECOND)
    for number in range(4 * times, seconds * times - times + 1):
        log.alloc(f"b{number}", 1 << 20, at=number * SECOND // times)
    return log


def asked(page: OpenPage) -> list[str]:
    """The routes of the session that were asked for, without those of the stream."""
    paths = [address.partition("?")[0].rpartition("/")[2] for address in page.requests if "/s/" in address]
    return [path for path in paths if path != "live"]


@pytest.mark.long
def test_what_was_alive_after_an_event_is_not_asked_for_again(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(tmp_path, monkeypatch)
    growing.store(log_until(20))
    with served_page(growing.path) as client:
        context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
        page = OpenPage(context.new_page(), client)
        page.open(view="job")
        assert {"flame", "curve", "heat", "blocks"} <= set(asked(page))
        page.until("rankmem.live().told && rankmem.live().following")
        _grow(page, growing, 25)
        assert {"job", "curve", "heat", "blocks"} <= set(asked(page)), "it follows"
        assert "flame" not in asked(page), "the rank's peak is the same event"
        page.change(seq=5)
        _grow(page, growing, 30)
        assert "flame" not in asked(page), "nor does an event that was chosen change"
        page.change(seq=None)
        higher = log_until(35)
        higher.alloc("more", 2 << 30, at=36 * SECOND)
        _grow(page, growing, 37, higher)
        assert "flame" in asked(page), "there is a higher peak"
        assert page.drawn("flame")["facts"]["bytes"] > 2 << 30
        assert page.tab.evaluate(RANGES) == [True, False, False, False, False, False]
        page.check()
        context.close()


STRIP = "() => document.querySelector('#curve canvas[aria-label^=\"the whole session\"]').toDataURL()"
PICTURES = """() => ["heat", "curve"].map(id => {
    const canvas = document.querySelectorAll(`#${id} canvas.surface`)[id === "heat" ? 0 : 1];
    return canvas.toDataURL();
})"""


def test_what_is_over_is_not_sent_again_and_the_picture_is_that_of_a_page_opened_anew(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(tmp_path, monkeypatch)
    growing.store(log_until(40, 100))
    state = {"view": "job", "by": "overall", "line": "2"}
    with served_page(growing.path) as client:
        context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
        page, other = (OpenPage(context.new_page(), client) for _ in range(2))
        page.open(**state)
        page.until("rankmem.live().told && rankmem.live().following")
        parts = []
        # The cells of the last are twice as long.
        for seconds in (42, 44, 50, 75) if PROFILE == "long" else (42, 44):
            _grow(page, growing, seconds, log_until(seconds, 100))
            routes = [address for address in asked(page) if address in ("heat", "curve")]
            assert set(routes) == {"heat", "curve"}
            newer = [address.partition("?")[0] for address in page.requests if "since=" in address]
            parts.append({path.rpartition("/")[2] for path in newer})
            other.open(**state)
            for panel in ("heat", "curve"):
                drawn = page.drawn(panel)
                assert drawn == other.drawn(panel), (panel, seconds)
            assert "highest and lowest of each pixel" in page.tab.inner_text("#curve .title")
            heat = page.drawn("heat")
            assert 512 <= heat["bins"] <= 1024
            cell_ns, rest = divmod(heat["to"] - heat["from"] + 1, heat["bins"])
            assert (rest, cell_ns & (cell_ns - 1)) == (0, 0), "cells are as long as a power of two"
            assert page.tab.evaluate(PICTURES) == other.tab.evaluate(PICTURES)
            other.tab.goto("about:blank")  # it follows no more
        assert ["heat" in each for each in parts] == [False, True, True, False][: len(parts)], (
            "a page that was just opened knows nothing yet, nor of longer cells"
        )
        if len(parts) > 2:
            assert sum("curve" in each for each in parts[1:]) >= 1, "its columns are longer at another time"
        assert any(byte for byte in heat["rows"][0]["above"])
        page.check()
        context.close()


@pytest.mark.long
def test_the_strip_of_the_session_is_drawn_though_a_newer_state_was_asked_for_meanwhile(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(tmp_path, monkeypatch)
    growing.store(log_until(20))
    with served_page(growing.path) as client, opened_page(browser, client) as page:
        held: list[Route] = []
        page.tab.route(lambda address: "figures=requested" in address, lambda route: held.append(route))
        page.tab.goto(f"{client.server.link()}&view=rank")
        page.until("window.rankmem?.live().told && rankmem.live().following")
        growing.store(log_until(25))
        for _ in range(600):
            if len(held) > 1:
                break
            page.tab.wait_for_timeout(100)
        empty = page.tab.evaluate(STRIP)
        held[0].continue_()
        page.until(f"({STRIP})() !== {empty!r}")
        for route in held[1:]:
            route.continue_()
        page.settle()


def _grow(page: OpenPage, growing: Growing, seconds: int, log: RankLog | None = None) -> None:
    """Stores more, and waits until the page shows it."""
    page.settle()
    page.requests.clear()
    growing.store(log or log_until(seconds))
    ends_s = time.monotonic() + 60
    while page.tab.evaluate("() => rankmem.job().last") < (seconds - 1) * SECOND:
        assert time.monotonic() < ends_s, f"never shown: {page.faults}"
        page.tab.wait_for_timeout(50)
    page.until("!rankmem.live().refreshing")
    page.settle()
