"""A real browser on a served page: Debian's Chromium, driven by playwright.

Stage: tests. Every page that is opened here fails its test on an error in the console, an uncaught error,
a violation of the page's policy or a request to anywhere else. What is drawn is asked of ``window.rankmem``.
The page's policy forbids playwright's ``wait_for_function``, so conditions are polled.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from page_server import PageClient

CHROMIUM: Final = os.environ.get("RANKMEM_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
WAIT_S: Final = 60.0
_ANNOUNCED: Final = """
window.announced = [];
addEventListener("DOMContentLoaded", () => {
    const place = document.getElementById("announcer");
    const add = () => window.announced.push(place.textContent);
    const all = {childList: true, characterData: true, subtree: true};
    if (place) new MutationObserver(add).observe(place, all);
});
"""
"""Keeps what the page announces: the next announcement replaces the text, whatever it is about."""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, headless."""
    if not Path(CHROMIUM).exists():
        if os.environ.get("RANKMEM_BROWSER_REQUIRED"):
            pytest.fail(f"no Chromium at {CHROMIUM}, which .ci/run should have installed")
        pytest.skip("no Chromium here: apt-get install chromium, or name it in RANKMEM_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class OpenPage:
    """A tab of the browser with the page in it."""

    def __init__(self, tab: Page, client: PageClient) -> None:
        self.tab = tab
        self.client = client
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Parts of messages in the console that the test provokes."""
        tab.on("console", self._console)
        tab.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))
        tab.on("request", self._request)
        tab.add_init_script(_ANNOUNCED)

    def open(self, **state: Any) -> None:
        """Opens the page by a fresh code, at this state."""
        given = "".join(f"&{name.rstrip('_')}={value}" for name, value in state.items())
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.client.server.link()}{given}")
        self.settle()

    def settle(self) -> None:
        """Waits until no panel waits for an answer."""
        self.until("document.body.dataset.ready === 'true' && !document.querySelector('[aria-busy=true]')")
        self.tab.evaluate(  # after 5 s anyway: nothing bounds an evaluation, or ends one that pytest gives up
            """() => new Promise(done => {
                requestAnimationFrame(() => requestAnimationFrame(done));
                setTimeout(done, 5000);
            })"""
        )
        self.until("!document.querySelector('[aria-busy=true]')")

    def until(self, condition: str) -> Any:
        """Polls an expression until it is truthy; returns its value."""
        ends_s = time.monotonic() + WAIT_S
        while time.monotonic() < ends_s:
            value = self.tab.evaluate(f"() => ({condition})")
            if value:
                return value
            self.tab.wait_for_timeout(30)
        raise AssertionError(f"never: {condition}; faults {self.faults}")

    def until_announced(self, text: str) -> None:
        """Waits until the page has announced this, or more."""
        self.until(f"window.announced.some(said => said.includes({json.dumps(text)}))")

    def drawn(self, panel: str) -> Any:
        """What a panel has painted; typed arrays as lists."""
        return self.tab.evaluate(
            """id => JSON.parse(JSON.stringify(window.rankmem.drawn(id), (key, value) =>
                ArrayBuffer.isView(value) ? [...value] : value))""",
            panel,
        )

    def state(self, key: str) -> str | None:
        """A text of the page's state."""
        found: str | None = self.tab.evaluate("key => window.rankmem.state.get(key)", key)
        return found

    def change(self, **state: Any) -> None:
        """Changes the state as a link does, and waits for the panels."""
        self.tab.evaluate("changes => window.rankmem.state.change(changes)", state)
        self.settle()

    def check(self) -> None:
        """Fails on anything that a page must not do."""
        elsewhere = [
            url for url in self.requests if not url.startswith((self.client.server.address, "data:"))
        ]
        assert not elsewhere, f"asked elsewhere: {elsewhere}"
        assert not self.faults, self.faults

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(part in message.text for part in self.expected):
            self.faults.append(f"console: {message.text} at {message.location}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith("about:"):
            self.requests.append(request.url)


@contextlib.contextmanager
def opened_page(
    browser: Browser, client: PageClient, *, width: int = 1440, height: int = 900
) -> Iterator[OpenPage]:
    """A tab for a test, checked when the test is over."""
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
    try:
        page = OpenPage(context.new_page(), client)
        yield page
        page.check()
    finally:
        context.close()
